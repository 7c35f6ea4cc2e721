"""The production code as of the commit of this file: ``Dispatcher``, and what ``Run`` does with it.

Snakemake's part is played by `driver`: rounds, the monitor's thread every 5 s, the executor's
polls, and its submissions one after the other while the others go on.
"""

import tempfile
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.cluster.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.cluster.query import query_cluster
from snakemake_scheduler_plugin_tilewright.cluster.request import ResourceRequest
from snakemake_scheduler_plugin_tilewright.cluster.site import Site
from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.estimates import Durations, Estimates
from snakemake_scheduler_plugin_tilewright.placement.jobs import Assignment, Job, ResourceModel
from snakemake_scheduler_plugin_tilewright.placement.reach import check_feasible
from snakemake_scheduler_plugin_tilewright.runtime.ledger import Ledger
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient

from .answers import UIDS
from .driver import WORKDIR, Executor, Outcome, Place, Workflow, deadline_s, outcome_of
from .records import Kind, Request, Scenario, Task
from .slurm_simulator import SimulatedSlurm

#: ``_MONITOR_S`` of its `run`, and ``jobs`` of the profile.
_MONITOR_S, _MOST_JOBS = 5.0, 1000
#: Age of answers with ``calls_per_min: 12`` of the profile: five calls a look.
_TTL_S = 25.0


class Today:
    """Plays scenarios with the production code."""

    def play(self, scenario: Scenario, slurm: SimulatedSlurm) -> Outcome:
        """Run all jobs."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = _Run(scenario, slurm, Path(folder))
            except PlacementError:  # it refuses to begin
                return outcome_of(Workflow(scenario), slurm)
            return run.play()


class _Run:
    """One run, as `run.Run` is one."""

    def __init__(self, scenario: Scenario, slurm: SimulatedSlurm, folder: Path) -> None:
        self.scenario, self.slurm = scenario, slurm
        self.workflow, self.executor = Workflow(scenario), Executor(slurm)
        estimates = scenario.estimates_s
        site = Site(slowdowns={rule: max(0.1, estimates[rule, "cpu"] / seconds)
                               for (rule, kind), seconds in estimates.items()
                               if kind == "gpu" and (rule, "cpu") in estimates})  # fmt: skip
        uid = UIDS[scenario.user]
        client = SlurmClient(scenario.user, folder, _TTL_S, slurm.run, slurm.now_s)
        cluster = Cluster(site, client, uid, query_cluster(client, uid, site))
        durations = Durations(None, site.slowdown, site.slowdowns)
        self.dispatcher = Dispatcher(cluster, Estimates(durations), Ledger(folder / "ledger.jsonl"),
                                     WORKDIR, clock=slurm.now_s)  # fmt: skip
        self.dispatcher.load(self._job(task) for task in scenario.tasks)
        state = self.dispatcher.state()
        check_feasible(self.dispatcher.tasks.values(), state, self.dispatcher.estimates)
        self.dispatcher.begin(state)
        self.tries: dict[str, int] = {}
        self.to_send: dict[str, Assignment] = {}
        self.awake, self.monitor_s = True, slurm.clock_s + _MONITOR_S

    def _job(self, task: Task) -> Job:
        kinds: list[Kind] = [kind for kind in ("gpu", "cpu") if kind in task.requests]
        seconds = self.scenario.estimates_s[task.rule, kinds[-1]] * task.size

        def request(_: object, kind: Kind) -> ResourceRequest:
            asked = task.requests[kind]
            return ResourceRequest(asked.cpus, asked.mem_mb, asked.gpus, asked.minutes)

        model = ResourceModel(tuple(kinds), request, lambda _: seconds)
        return Job(task.name, task.rule, tuple(kinds), task.needs, seconds, model=model)

    def play(self) -> Outcome:
        """Run until nothing is left to run, or the time is up."""
        flow, slurm = self.workflow, self.slurm
        while len(flow.done) < len(flow.tasks) and slurm.clock_s < deadline_s(self.scenario):
            if slurm.clock_s >= self.executor.poll_s:
                for name, done in self.executor.poll():
                    self._ended(name, done=done)
            elif slurm.clock_s >= self.monitor_s:
                self._monitor()
            elif self.to_send:
                self._submit()
            elif self.awake and flow.ready:
                self.awake = False
                self._round()
            elif flow.failed and not flow.ready and not self.executor.active:
                break
            else:
                slurm.advance(min(self.executor.poll_s, self.monitor_s))
        return outcome_of(flow, slurm)

    def _ended(self, name: str, *, done: bool) -> None:
        if done:
            self.workflow.finish(name)
        else:
            self.workflow.fail(name)
        self.awake = True

    def _submit(self) -> None:
        name, one = next(iter(self.to_send.items()))
        del self.to_send[name]
        asked, to = one.request, one.target
        request = Request(asked.cpus, asked.mem_mb, asked.gpus, asked.runtime_min)
        place = Place(to.account, to.qos, to.partition or "", request, one.exclude)
        refusal = self.executor.submit(name, place)
        if refusal:
            refusal = f"SLURM sbatch failed. The error message was '{refusal}'."
        task = self.dispatcher.tasks[name]
        self.awake |= self.dispatcher.admission.note_submission(task, refusal)
        if refusal:
            self._ended(name, done=False)

    def _round(self) -> None:
        """Do what `Run.select` does."""
        flow = self.workflow
        self._settle()
        later = flow.waiting() - flow.ready.keys() - self.executor.active.keys()
        most = _MOST_JOBS - len(self.executor.active)
        for name, assignment in self.dispatcher.round(list(flow.ready), later, most).items():
            del flow.ready[name]
            self.tries[name] = flow.attempts[name]
            self.to_send[name] = assignment

    def _settle(self) -> None:
        self._note_ends()
        flow = self.workflow
        for task in [one for one in self.dispatcher.tasks.values() if one.assignment is not None]:
            if task.name in flow.ready or task.name in flow.failed:
                found = self.dispatcher.failed(task.name)
                if found.free and task.name in flow.ready:
                    flow.attempts[task.name] = self.tries[task.name]
                elif found.give_up and task.name in flow.ready:
                    del flow.ready[task.name]
                    flow.failed.add(task.name)

    def _note_ends(self) -> None:
        tasks = [one for one in self.dispatcher.tasks.values() if one.assignment is not None]
        known_s = self.dispatcher.clock()
        for task in tasks:
            if task.name in self.workflow.done:
                self.dispatcher.done(task.name, known_s)

    def _monitor(self) -> None:
        """Do what `Run._monitor_once` does; submissions go on meanwhile."""
        if self.to_send:
            with self.slurm.beside():
                self._look_after()
        else:
            self._look_after()
        self.awake, self.monitor_s = True, self.slurm.clock_s + _MONITOR_S

    def _look_after(self) -> None:
        self._note_ends()
        self.dispatcher.move_pending(self.workflow.has_tries)
        self.dispatcher.explain_pending(self.workflow.has_tries)
        ends = self.dispatcher.unseen_ends(self.executor.active)
        for name, (_, done) in ends.items():
            if self.executor.active.pop(name, None) is not None:
                self._ended(name, done=done)
