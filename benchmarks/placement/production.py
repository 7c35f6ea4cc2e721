"""The production code: ``Run``, as Snakemake's executor drives it."""

import tempfile
from collections.abc import Hashable
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.ends import Ends
from snakemake_scheduler_plugin_tilewright.placement.jobs import Task
from snakemake_scheduler_plugin_tilewright.placement.order import Node, Order
from snakemake_scheduler_plugin_tilewright.placement.request import SLOWDOWN, Place, ResourceRequest
from snakemake_scheduler_plugin_tilewright.placement.room import Settings
from snakemake_scheduler_plugin_tilewright.placement.run import Run
from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.runtime.ledger import Ledger
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient

from . import driver, records
from .answers import UIDS
from .driver import Outcome, Workflow, deadline_s, outcome_of
from .slurm_simulator import SimulatedSlurm

#: Of the profile for clusters, and of the executor.
_MOST_JOBS, _GATHER_S = 1000, 0.3


class Production:
    """Plays scenarios with the production code."""

    def play(self, scenario: records.Scenario, slurm: SimulatedSlurm) -> Outcome:
        """Run all jobs."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                return _Play(scenario, slurm, Path(folder)).play()
            except PlacementError:  # it refuses to begin
                return outcome_of(Workflow(scenario), slurm)


class _Play:
    """One run."""

    def __init__(self, scenario: records.Scenario, slurm: SimulatedSlurm, folder: Path) -> None:
        self.scenario, self.slurm, self.workflow = scenario, slurm, Workflow(scenario)
        client = SlurmClient(scenario.user, slurm.run, slurm.now_s, uid=UIDS[scenario.user])
        client.queue()  # whether an earlier run still writes
        cluster = Cluster(client)
        cluster.look()
        self.run = Run(
            cluster, Settings(most_jobs=_MOST_JOBS, poll_s=10.0), Ledger(folder / "ledger.jsonl"),
            Ends(client, folder), self._command, Order(self._nodes),
        )  # fmt: skip

    def play(self) -> Outcome:
        """Run until nothing is left to run, or the time is up."""
        flow, slurm, run = self.workflow, self.slurm, self.run
        while len(flow.done) < len(flow.tasks) and slurm.clock_s < deadline_s(self.scenario):
            if flow.ready:
                run.submit([self._task(flow.tasks[name]) for name in flow.ready])
                flow.ready.clear()
                slurm.advance(slurm.clock_s + _GATHER_S)
            for end in run.step():
                if not end.words:
                    flow.finish(end.task.name)
                elif end.final:
                    flow.failed.add(end.task.name)
                else:
                    flow.fail(end.task.name)
            if flow.failed and not flow.ready and not run.tasks:
                break
            if not flow.ready:
                slurm.advance(max(slurm.clock_s + 0.1, run.due_s - slurm.now_s() + slurm.clock_s))
        return outcome_of(flow, slurm)

    def _nominal_s(self, task: records.Task) -> float:
        kind: records.Kind = "cpu" if "cpu" in task.requests else "gpu"
        seconds = self.scenario.estimates_s[task.rule, kind] * task.size
        return seconds * (SLOWDOWN if kind == "gpu" else 1.0)

    def _task(self, task: records.Task) -> Task:
        asked = {
            kind: ResourceRequest(one.cpus, one.mem_mb, one.gpus, one.minutes)
            for kind, one in sorted(task.requests.items(), reverse=True)
        }
        seconds = self.scenario.estimates_s
        known = {(task.rule, kind) for kind in ("gpu", "cpu")} <= seconds.keys()
        slowdown = seconds[task.rule, "cpu"] / seconds[task.rule, "gpu"] if known else SLOWDOWN
        return Task(task.name, task.name, task.rule, asked, self._nominal_s(task), slowdown)

    def _nodes(self) -> dict[Hashable, Node]:
        left = (one for one in self.scenario.tasks if one.name not in self.workflow.done)
        return {
            one.name: Node(
                one.rule, tuple(sorted(one.requests, reverse=True)), self._nominal_s(one), 0.0,
                [*one.needs],
            )
            for one in left
        }  # fmt: skip

    def _command(
        self, task: Task, place: Place, request: ResourceRequest, name: str
    ) -> tuple[list[str], str]:
        asked = records.Request(request.cpus, request.mem_mb, request.gpus, request.runtime_min)
        there = driver.Place(place.account, place.qos, ",".join(place.partitions), asked)
        argv = driver.sbatch(task.name, there)
        argv[argv.index("--job-name") + 1] = name
        return argv, ""


__all__ = ["Production"]
