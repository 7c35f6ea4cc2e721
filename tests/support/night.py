"""A night on a shared cluster in small: the same events for whoever places the jobs.

A labmate fills one account after the other, a node drains, jobs on GPUs are preempted, slurmctld
restarts, and the coordinator is killed and started again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from snakemake_scheduler_plugin_tilewright.slurm.jobs import why_pending
from tests.support.cluster_runs import ClusterRun
from tests.support.slurm_cluster import Cluster, SlurmCommandError

#: Seconds of a job on a GPU and on CPUs, and what it asks for.
SIZES: dict[str, Any] = {
    "seconds": "30,90",
    "nominal_s": 30,
    "gpu_job": {"cpus": 8, "mem_mb": 180_000},
    "cpu_job": {"cpus": 8, "mem_mb": 48_000},
}
#: What fits at once on an idle cluster, GPU jobs first.
SLOTS = [["clive", "gpu", 3], ["maigan", "gpu", 2], ["clive", "cpu", 5], ["maigan", "cpu", 5]]
_FILLED_S = 120.0
_STEP_S = 2.0


class StaticRun(ClusterRun):
    """Every job's account and device are chosen before the run; Slurm requeues what it preempts."""

    def command(self, *args: str) -> list[str]:
        """Return Snakemake's command with its Slurm executor as it comes."""
        return [
            *(sys.executable, "-m", "snakemake", *args, "--configfile", "config.yaml"),
            *("--snakefile", str(self.snakefile.with_name("static.smk"))),
            *("--executor", "slurm", "--jobs", "1000", "--retries", "3", "--keep-going"),
            *("--slurm-requeue", "--slurm-init-seconds-before-status-checks", "5"),
            *("--latency-wait", "60", "--rerun-incomplete"),
        ]


@dataclass
class Night:
    """One run through the night, prepared and not started; what is not done by ``limit_s`` is not.

    The last output was there at ``made_s``. Own jobs pended ``on_limits_s`` job-seconds on limits
    of accounts and QOS, and ``pending_s`` for any reason.
    """

    run: ClusterRun
    jobs: int
    limit_s: float = 900.0
    made_s: float = 0.0
    on_limits_s: float = 0.0
    pending_s: float = 0.0
    _began_s: float = 0.0
    _process: subprocess.Popen[str] | None = None

    @property
    def slurm(self) -> Cluster:
        """The cluster."""
        return self.run.slurm

    def play(self) -> None:
        """Run until all is done, or until the limit."""
        self._process, self._began_s = self.run.start(), time.monotonic()
        events = self._events()
        stop = threading.Event()
        watch = threading.Thread(target=self._watch, args=(stop,), daemon=True)
        watch.start()
        try:
            while self._clock() < self.limit_s and not self._ended():
                while events and events[0][0] <= self._clock():
                    at_s, act = events.pop(0)
                    try:
                        act()
                    except SlurmCommandError:  # slurmctld is away: again in a moment
                        events.append((at_s + 2 * _STEP_S, act))
                        events.sort(key=lambda event: event[0])
                time.sleep(_STEP_S)
        finally:
            stop.set()
            watch.join()
            self.slurm.end_clients()
            self._calm()

    def _clock(self) -> float:
        return time.monotonic() - self._began_s

    def _ended(self) -> bool:
        assert self._process is not None
        made = len(list((self.run.folder / "out").glob("*.txt")))
        if made < self.jobs:
            self.made_s = self.limit_s
        elif self.made_s in (0.0, self.limit_s):
            self.made_s = self._clock()
        return self._process.poll() is not None

    def _events(self) -> list[tuple[float, Callable[[], object]]]:
        """Return what happens, by seconds from the start."""
        fills = [(20 + 2 * k * _FILLED_S, lambda k=k: self._fill(k)) for k in range(4)]
        slurm = self.slurm
        others: list[tuple[float, Callable[[], object]]] = [
            (60, lambda: slurm.update("NodeName=c2", "State=DRAIN", "Reason=night")),
            (95, self._preempt),
            (150, lambda: slurm.kill_part("slurmctld")),
            (160, lambda: slurm.start_part("slurmctld")),
            (195, self._begin_again),
            (240, lambda: slurm.update("NodeName=c2", "State=RESUME")),
        ]
        return sorted([*fills, *others], key=lambda event: event[0])

    def _fill(self, k: int) -> None:
        """Have a labmate hold the memory of one account for two minutes."""
        account, mem = (("clive", "800G"), ("maigan", "610G"))[k % 2]
        self.slurm.sbatch("labmate", "-A", account, "-p", "hpg-default", f"--mem={mem}",
                          "-c", "8", command=f"sleep {_FILLED_S:g}")  # fmt: skip

    def _preempt(self) -> None:
        """Have a QOS that may preempt ours hold all GPUs for half a minute."""
        slurm = self.slurm
        slurm.set_qos("brusko", "GrpTRES=cpu=112,mem=2000G,gres/gpu=8")
        slurm.modify("qos", "brusko", "preempt=clive,maigan")
        slurm.modify("qos", "clive,maigan", "preemptmode=REQUEUE")
        slurm.sbatch("labmate", "-A", "brusko", "--qos=brusko", "-p", "hpg-b200",
                     "--gres=gpu:8", "-c", "8", "--mem=100G", command="sleep 30")  # fmt: skip

    def _begin_again(self) -> None:
        """Kill the coordinator and start it again, as a user does who finds it dead."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        (self.run.folder / "run.log").rename(self.run.folder / "first.log")
        if not isinstance(self.run, StaticRun):
            self.run.end_stale("--wait")
        self.run.finish(self.run.start("--unlock"), 300)
        self._process = self.run.start()

    def _watch(self, stop: threading.Event) -> None:
        """Count own jobs that pend, and why."""
        last_s = self._clock()
        while not stop.wait(_STEP_S):
            with contextlib.suppress(SlurmCommandError, subprocess.TimeoutExpired):
                shown = self.slurm.run(["squeue", "-h", "-u", "root", "-t", "PD", "-o", "%r"])
                reasons = shown.stdout.split("\n")[:-1]
                passed_s, last_s = self._clock() - last_s, self._clock()
                self.pending_s += passed_s * len(reasons)
                self.on_limits_s += passed_s * sum(
                    why_pending(one).obstacle == "limit" for one in reasons
                )

    def _calm(self) -> None:
        slurm = self.slurm
        slurm.repair()
        slurm.modify("qos", "brusko", "preempt=")
        with contextlib.suppress(TimeoutError):
            slurm.cancel_all(30)

    @property
    def complete(self) -> int:
        """Outputs that are there and whole."""
        paths = (self.run.folder / "out").glob("*.txt")
        return sum(path.read_text() == f"{path.stem}\n" * 1000 for path in paths)

    @property
    def twice(self) -> int:
        """Outputs that were written more than once."""
        writes = self.run.folder / "writes.txt"
        return sum(n > 1 for n in Counter(writes.read_text().split()).values())
