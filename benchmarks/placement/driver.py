"""Who runs a workflow on the simulated Slurm: Snakemake's part, and two ways to place nothing.

A driver knows what a user does: the commands' answers. What has ended it knows from its own
polls, never before.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from snakemake_scheduler_plugin_tilewright.runtime.errors import SlurmQueryError

from .records import Account, Request, Scenario, Task
from .slurm_simulator import SimulatedSlurm

#: Tries of a job after its first: ``retries`` of the profile.
RETRIES = 3
#: Seconds between polls of Snakemake's executor: after a job ended, else with the profile's calls.
POLL_SOON_S, POLL_S = 5.0, 25.0
#: A run that takes so many times as long as its scenario's span, or so many seconds more, is over.
MOST_SPANS, MOST_MORE_S = 10.0, 7200.0
_FAILED = frozenset({"BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
                     "TIMEOUT", "ERROR"})  # fmt: skip
RUN_ID, WORKDIR = "5a1e-run", "/work/run"


@dataclass(frozen=True)
class Outcome:
    """How a run went; ``makespan_s`` is infinite where a job is left."""

    makespan_s: float
    jobs_run_twice: int
    jobs_lost: int
    questions: int
    submissions: int
    moves: int
    lost_s: float


class Driver(Protocol):
    """One way to run a workflow."""

    def play(self, scenario: Scenario, slurm: SimulatedSlurm) -> Outcome:
        """Run all jobs of a scenario, in the time of its Slurm."""


@dataclass(frozen=True)
class Place:
    """Where a job is sent, as options of sbatch."""

    account: str
    qos: str
    partition: str
    request: Request
    exclude: tuple[str, ...] = ()


def sbatch(name: str, place: Place) -> list[str]:
    """Return the command that Snakemake's executor submits a job with."""
    request = place.request
    argv = ["sbatch", "--parsable", "--job-name", RUN_ID, "--output", f"{WORKDIR}/{name}.log",
            "--export=ALL", "--comment", name]  # fmt: skip
    argv += ["-A", place.account] if place.account else []
    argv += ["-p", place.partition] if place.partition else []
    argv += ["-t", str(request.minutes)]
    argv += [f"--qos={place.qos}"] if place.qos else []
    argv += ["--mem", str(request.mem_mb), "--no-requeue"]
    argv += [f"--gpus={request.gpus}"] if request.gpus else ["--ntasks=1"]
    argv += [f"--cpus-per-task={request.cpus}"]
    argv += [f"--exclude={','.join(place.exclude)}"] if place.exclude else []
    return [*argv, "-D", WORKDIR, "--wrap=python -m snakemake"]


class Workflow:
    """The jobs of a scenario as Snakemake has them: ready, sent, done, or failed for good."""

    def __init__(self, scenario: Scenario) -> None:
        self.tasks = {task.name: task for task in scenario.tasks}
        self.attempts: Counter[str] = Counter()
        self.ready = {task.name: None for task in scenario.tasks if not task.needs}
        self.done: set[str] = set()
        self.failed: set[str] = set()
        self._left = {task.name: len(set(task.needs)) for task in scenario.tasks}
        self._after: dict[str, list[str]] = {}
        for task in scenario.tasks:
            for need in set(task.needs):
                self._after.setdefault(need, []).append(task.name)

    def finish(self, name: str) -> None:
        """Note that a job is known to be done; those that needed it only are ready."""
        self.done.add(name)
        for one in self._after.get(name, ()):
            self._left[one] -= 1
            if not self._left[one]:
                self.ready[one] = None

    def has_tries(self, name: str) -> bool:
        """Return whether a job that fails now would be tried again."""
        return self.attempts[name] < RETRIES

    def fail(self, name: str) -> None:
        """Note that a try failed; the job is ready again, or failed for good."""
        if self.has_tries(name):
            self.attempts[name] += 1
            self.ready[name] = None
        else:
            self.failed.add(name)

    def waiting(self) -> set[str]:
        """Return the jobs that are neither ready nor done, nor wait for one that failed."""
        return self.tasks.keys() - self.done - self.failed


class Executor:
    """Snakemake's executor: it submits, and polls with squeue what it has submitted."""

    def __init__(self, slurm: SimulatedSlurm) -> None:
        self.slurm = slurm
        self.active: dict[str, int] = {}
        self.poll_s = slurm.clock_s + POLL_SOON_S

    def submit(self, name: str, place: Place) -> str:
        """Submit a job; return why sbatch did not take it, empty where it did."""
        try:
            self.active[name] = int(self.slurm.run(sbatch(name, place)))
        except SlurmQueryError as error:
            return error.reason
        return ""

    def poll(self) -> list[tuple[str, bool]]:
        """Return which jobs have ended, and whether they are done; sets when it polls next."""
        if not self.active:
            self.poll_s = self.slurm.clock_s + POLL_SOON_S
            return []
        with self.slurm.beside():
            self.slurm.run(["scontrol", "show", "config"])  # for MinJobAge
            text = self.slurm.run(["squeue", "--format=%i|%T", "--states=all", "--noheader",
                                   "--name", RUN_ID])  # fmt: skip
        rows = dict(line.split("|") for line in text.splitlines())
        ended = []
        for name, number in list(self.active.items()):
            state = rows.get(str(number), "")
            if state == "COMPLETED" or state in _FAILED:
                del self.active[name]
                ended.append((name, state == "COMPLETED"))
        self.poll_s = self.slurm.clock_s + (POLL_SOON_S if ended else POLL_S)
        return ended


def outcome_of(workflow: Workflow, slurm: SimulatedSlurm) -> Outcome:
    """Return how a run went by now."""
    left = len(workflow.tasks) - len(workflow.done)
    sent = slurm.asked["sbatch"]
    asked = slurm.asked.total() - sent - slurm.asked["scancel"]
    return Outcome(float("inf") if left else slurm.clock_s, slurm.twice, left, asked, sent,
                   slurm.moves, slurm.lost_s)  # fmt: skip


def deadline_s(scenario: Scenario) -> float:
    """Return when a run is over that does not end."""
    return MOST_SPANS * scenario.span_s + MOST_MORE_S


@dataclass(frozen=True)
class Unplaced:
    """Submits every ready job at once: to one account after the other, or all to the first.

    It knows from the manual of its site what each account may ever run, which no command tells.
    """

    one_account: bool = False

    def play(self, scenario: Scenario, slurm: SimulatedSlurm) -> Outcome:
        """Run all jobs."""
        workflow, executor = Workflow(scenario), Executor(slurm)
        accounts = [one for one in scenario.accounts if one.qos]
        if self.one_account or scenario.seen == "no accounts":
            accounts = accounts[:1]
        turns: dict[tuple[str, bool], Iterator[Place]] = {}
        again_s = 0.0
        while len(workflow.done) < len(workflow.tasks) and slurm.clock_s < deadline_s(scenario):
            if workflow.failed and not executor.active and not workflow.ready:
                break
            if workflow.ready and slurm.clock_s >= again_s and slurm.clock_s < executor.poll_s:
                name = next(iter(workflow.ready))
                del workflow.ready[name]
                task, grown = workflow.tasks[name], workflow.attempts[name] > 0
                if (task.rule, grown) not in turns:
                    places = self._places(scenario, accounts, task, grown=grown)
                    turns[task.rule, grown] = itertools.cycle(places)
                place = next(turns[task.rule, grown])
                if executor.submit(name, place):  # a limit of submitted jobs: later
                    workflow.ready[name] = None
                    again_s = slurm.clock_s + POLL_S
                continue
            slurm.advance(max(slurm.clock_s, executor.poll_s))
            for name, done in executor.poll():
                if done:
                    workflow.finish(name)
                else:
                    workflow.fail(name)
        return outcome_of(workflow, slurm)

    def _places(
        self, scenario: Scenario, accounts: list[Account], task: Task, *, grown: bool
    ) -> list[Place]:
        """Return where an account runs the jobs of a rule: on GPUs if it may.

        One that failed before gets twice the memory and time, as users have it.
        """
        found = []
        for account in accounts:
            for kind in sorted(task.requests, reverse=True):
                one = task.requests[kind]
                if grown:
                    one = Request(one.cpus, 2 * one.mem_mb, one.gpus, 2 * one.minutes)
                if names := scenario.places(account, one):
                    found.append(Place(account.name, account.qos[0], ",".join(names), one))
                    break
        return found
