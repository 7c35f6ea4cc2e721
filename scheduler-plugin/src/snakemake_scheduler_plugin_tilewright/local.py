"""One run on one machine: each job that could use a GPU goes to one, or to CPUs, as it starts."""

import heapq
import logging
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from .placement.jobs import key_of
from .placement.order import Durations, Node, Order
from .placement.request import DeviceKind
from .resources import MODEL, Placement


class LocalRun:
    """Chooses the jobs that start on one machine with GPUs, and the device kind of each."""

    def __init__(self, dag: Any, placement: Placement, logger: logging.Logger) -> None:
        self.dag, self.placement, self.logger = dag, placement, logger
        self.durations, self.order = Durations(), Order(self._nodes)
        self.started: dict[Any, tuple[DeviceKind, float]] = {}
        self.tries = 0

    def select(self, selectable: Sequence[Any], available: Mapping[str, int | str]) -> list[Any]:
        """Return the jobs that start now, each on its device kind."""
        self._learn(selectable)
        able = [job for job in selectable if self._can_use_gpu(job)]
        others = [job for job in selectable if job not in set(able)]
        for job, kind in self._kinds(able, available).items():
            self._set(job, kind)
        waits = {job for job in able if self._name(job) not in self.placement.chosen}
        chosen = first_fit([job for job in [*able, *others] if job not in waits], available)
        if not chosen and selectable and not self.started:
            chosen = [selectable[0]]  # although it does not fit: nothing would ask again
        for job in able:
            if job in chosen:
                kind = self.placement.chosen.get(self._name(job), "cpu")
                self.started[job] = kind, time.monotonic()
                where = "a GPU" if kind == "gpu" else "CPUs"
                self.logger.info(f"{self._name(job)} goes to {where}")
        return chosen

    def _kinds(self, able: Sequence[Any], available: Mapping[str, Any]) -> dict[Any, DeviceKind]:
        """Return the device kinds of those that may start: a GPU, or CPUs where that ends sooner.

        Those that wait for a GPU which ends them sooner have none.
        """
        usable = self._usable(able)
        taken = [at for at, (kind, _) in self.started.items() if kind == "gpu"]
        free = min(usable - len(taken), available.get("gpu", usable))
        ends = sorted(self._end_s(job) for job in taken)
        found: dict[Any, DeviceKind] = {}
        for job in sorted(able, key=lambda one: self.order.of([one], self.durations)):
            self.placement.chosen.pop(self._name(job), None)
            gpu_s, cpu_s = (self._seconds(job, kind) for kind in ("gpu", "cpu"))
            needs_gpu = "cpu" not in self._devices(job)
            if free > 0 or (needs_gpu and not ends):  # without one, the job says why it fails
                found[job], free = "gpu", free - 1
                heapq.heappush(ends, time.monotonic() + gpu_s)
            elif not needs_gpu and (not ends or time.monotonic() + cpu_s < ends[0] + gpu_s):
                found[job] = "cpu"
            else:
                heapq.heapreplace(ends, ends[0] + gpu_s)
        return found

    def _usable(self, able: Sequence[Any]) -> int:
        """Return how many GPU slots could hold the largest of the jobs, taken ones among them."""
        models = [self._model(job).request(job.wildcards, "gpu") for job in able]
        need_mb = max((request.gpu_mem_mb for request in models), default=0)
        assert self.placement.gpus is not None
        return self.placement.gpus(need_mb) if able else 0

    def _set(self, job: Any, kind: DeviceKind) -> None:
        """Choose the device kind of a job, whose rule's functions are asked again."""
        self.placement.chosen[self._name(job)] = kind
        self.tries += 1
        job.add_aux_resource(f"tilewright_{self.tries}", 1)  # which drops what it had

    def _learn(self, selectable: Sequence[Any]) -> None:
        """Forget jobs that have ended, and learn how long those took that ended well."""
        for job, (kind, at_s) in list(self.started.items()):
            if self.dag.finished(job):
                took_s, nominal_s = time.monotonic() - at_s, self._nominal_s(job)
                self.durations.learn(job.rule.name, kind, nominal_s, took_s)
            elif job not in selectable:
                continue
            del self.started[job]

    def _can_use_gpu(self, job: Any) -> bool:
        return not job.is_group() and "gpu" in self._devices(job)

    def _devices(self, job: Any) -> Sequence[DeviceKind]:
        name = "" if job.is_group() else job.resources.get(MODEL) or ""
        model = self.placement.models.get(name)
        return model.devices if model else ("cpu",)

    def _model(self, job: Any) -> Any:
        return self.placement.model(job.resources[MODEL])

    def _name(self, job: Any) -> str:
        return key_of(job.resources[MODEL], job.wildcards)

    def _nominal_s(self, job: Any) -> float:
        known = (job.resources.get(MODEL) or "") in self.placement.models
        return float(self._model(job).cpu_seconds(job.wildcards)) if known else 10.0

    def _seconds(self, job: Any, kind: DeviceKind) -> float:
        return self.durations.factor(job.rule.name, kind) * self._nominal_s(job)

    def _end_s(self, job: Any) -> float:
        """Return when a job is expected to end; one that is late, as late again."""
        kind, at_s = self.started[job]
        end_s, now_s = at_s + self._seconds(job, kind), time.monotonic()
        return end_s if end_s > now_s else 2 * now_s - end_s

    def _nodes(self) -> dict[Hashable, Node]:
        jobs = [job for job in self.dag.needrun_jobs() if not self.dag.finished(job)]
        return {
            job: Node(
                job.rule.name, tuple(self._devices(job)), self._nominal_s(job),
                float(job.priority), [*self.dag.job_dependencies(job)],
            )
            for job in jobs
        }  # fmt: skip


def first_fit(jobs: Iterable[Any], available: Mapping[str, int | str]) -> list[Any]:
    """Return the jobs that fit at once, by priority."""
    left = {name: n for name, n in available.items() if isinstance(n, int)}
    chosen = []
    for job in sorted(jobs, key=lambda job: -job.priority):
        asked = {name: job.scheduler_resources.get(name, 0) for name in left}
        if all(left[name] >= n for name, n in asked.items() if n):
            chosen.append(job)
            left = {name: left[name] - n for name, n in asked.items()}
    return chosen
