"""One run on one machine: each job that could use a GPU goes to one, or to CPUs, as it starts."""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .cluster.request import KINDS, DeviceKind
from .fit import first_fit
from .placement.jobs import Job, ResourceModel, job_of, name_of
from .placement.policy import schedule
from .placement.workload import GpuSlots, Running, Slots
from .resources import Placement
from .runtime import snakemake_adapter as adapter
from .units import model_of, values_of
from .words import count

#: GPUs are counted this often.
_COUNT_S = 2.0


@dataclass(frozen=True)
class _Started:
    """A job of Snakemake in a slot."""

    kind: DeviceKind
    at_s: float
    job: Any


class LocalRun:
    """Answers the scheduler plugin on one machine with GPUs."""

    def __init__(self, dag: Any, placement: Placement, logger: logging.Logger) -> None:
        self.dag, self.placement, self.logger = dag, placement, logger
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, _Started] = {}
        self._counted_s, self._counted_mb = -math.inf, 0
        self.gpus = self.most_gpus = placement.gpus(0) if placement.gpus else 0
        self._known: set[Any] = set()
        self._gpu_slots = GpuSlots()
        self.load(dag.needrun_jobs())

    def load(self, jobs: Iterable[Any]) -> None:
        """Take the jobs that could use a GPU and are not known yet."""
        for job in jobs:
            given = self.placement.rule_resources(model_of(self.placement, job))
            if job not in self._known and "gpu_mem_mb" in given:
                one = job_of(job, self.dag.job_dependencies(job), self._model(job))
                self.jobs[one.name] = one
            self._known.add(job)

    def _model(self, job: Any) -> ResourceModel:
        return self.placement.model(model_of(self.placement, job))

    def select(
        self, selectable: Sequence[Any], remaining: Sequence[Any], available: Mapping[str, Any]
    ) -> list[Any]:
        """Return the jobs that start now, each on its device kind."""
        adapter.keep_ready(self.dag, selectable)
        self._settle()
        self.load(remaining)
        named = {name_of(job): job for job in selectable if not job.is_group()}
        ready = {name: job for name, job in named.items() if name in self.jobs}
        able = set(ready.values())
        placed = self._place(ready, available)
        others = [job for job in selectable if job not in able]
        chosen = first_fit([*(ready[name] for name in placed), *others], available)
        if not chosen and selectable and not adapter.anything_runs(self.dag):
            chosen = [selectable[0]]  # although it does not fit: nothing would ask again
            names = [name for name, job in ready.items() if job is chosen[0] and name not in placed]
            placed |= self._assign({name: self.jobs[name].kinds[-1] for name in names}, ready)
        for name, kind in placed.items():
            if ready[name] in chosen:
                self.running[name] = _Started(kind, time.monotonic(), ready[name])
                self.logger.info(f"{name} goes to {'a GPU' if kind == 'gpu' else 'CPUs'}")
        return chosen

    def _place(
        self, ready: Mapping[str, Any], available: Mapping[str, Any]
    ) -> dict[str, DeviceKind]:
        """Choose the device kinds of jobs that start, and set their resources."""
        if not ready:
            return {}
        slots = self._slots(ready, available)
        work = self.placement.estimates.workload(self.jobs.values())  # 0.1 s for 10,000 jobs
        made = schedule(work, ready, slots, time.monotonic(), self._gpu_slots)
        self._gpu_slots = made.gpu_slots
        placed: dict[str, DeviceKind] = {
            start.job: "gpu" if start.pool == "gpu" else "cpu" for start in made.starts
        }
        if not self.gpus:  # no GPU is left: those that want one end with that reason
            able = {name: self.jobs[name].kinds for name in ready}
            placed |= {name: "gpu" for name, kinds in able.items() if kinds == ("gpu",)}
        return self._assign(placed, ready)

    def _assign(
        self, kinds: dict[str, DeviceKind], ready: Mapping[str, Any]
    ) -> dict[str, DeviceKind]:
        """Set the resources of jobs that start on these device kinds."""
        for name, kind in kinds.items():
            job, again = ready[name], ready[name].attempt - 1
            request = self._model(job).request(job.wildcards, kind).double(again, again)
            adapter.forget_resources(job)
            adapter.assign(self.dag, job, values_of(self.placement, job, request))
        return kinds

    def _slots(self, ready: Mapping[str, Any], available: Mapping[str, Any]) -> list[Slots]:
        """Return the local pools, for the largest of the ready jobs."""
        self._count_gpus(ready)
        most = adapter.machine_resources(self.dag)
        taken = sum(one.kind == "gpu" for one in self.running.values())
        # more jobs than GPUs share them
        gpu_jobs = self.gpus * max(1, math.ceil(most.get("gpu", 0) / max(1, self.most_gpus)))
        requests = [self._model(job).request(job.wildcards, "cpu") for job in ready.values()]
        # Snakemake gives a job that asks for more than there is all that there is
        cpus = max(min(s.cpus, most.get("_cores", s.cpus)) for s in requests)
        mem_mb = max(min(s.mem_mb, most.get("mem_mb", s.mem_mb)) for s in requests)
        left = available.get("cpu", available.get("_cores", cpus))
        free = {
            "gpu": min(available.get("gpu", gpu_jobs), gpu_jobs - taken),
            "cpu": min(
                left // max(1, min(cpus, most.get("cpu", cpus))),
                available.get("_cores", cpus) // cpus,
                available.get("mem_mb", mem_mb) // mem_mb,
            ),
        }
        found = []
        for kind in KINDS:
            own = [self._run(name, one) for name, one in self.running.items() if one.kind == kind]
            now = max(0, int(free[kind]))
            found.append(Slots(kind, "here", kind, now + len(own), now, tuple(own)))
        return found

    def _count_gpus(self, ready: Mapping[str, Any]) -> None:
        """Look, every few seconds, which GPUs are healthy and not filled by others."""
        now_s = time.monotonic()
        requests = (self._model(job).request(job.wildcards, "gpu") for job in ready.values())
        need_mb = max((request.gpu_mem_mb for request in requests), default=0)
        fresh = now_s - self._counted_s < _COUNT_S and need_mb == self._counted_mb
        if self.placement.gpus is None or fresh:
            return
        gpus, self._counted_s, self._counted_mb = self.placement.gpus(need_mb), now_s, need_mb
        if gpus != self.gpus:
            self.logger.info(f"{count(gpus, 'GPU')} can be used, {self.gpus} before")
        self.gpus, self.most_gpus = gpus, max(gpus, self.most_gpus)

    def _run(self, name: str, started: _Started) -> Running:
        seconds = self.placement.estimates.seconds(self.jobs[name], started.kind)
        return Running(name, started.at_s, started.at_s + seconds)

    def _settle(self) -> None:
        """Take the jobs that have ended out of their slots, and learn how long they took."""
        for name, started in list(self.running.items()):
            job = started.job
            if self.dag.finished(job):
                took_s, placed = time.monotonic() - started.at_s, self.jobs[name]
                self.placement.estimates.durations.learn(
                    placed.rule, started.kind, placed.cpu_seconds, took_s
                )
            elif adapter.running(self.dag, job):
                continue
            elif started.kind == "gpu":
                self._counted_s = -math.inf  # it may have failed because its GPU is gone
            del self.running[name]
