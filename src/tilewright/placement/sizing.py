"""What a job needs on each device kind, and how long it takes: stated first, then learned."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import platformdirs

from tilewright.placement.failures import memory_limit_mb
from tilewright.placement.jobs import KINDS, Job, Kind, Shape, Sizes, Task, wildcards_of
from tilewright.placement.limits import Capacity
from tilewright.placement.workload import Workload
from tilewright.runtime.files import write_whole

#: Finished jobs that are remembered for each rule and device.
_KEPT = 30


@dataclass
class Durations:
    """Factors from nominal seconds (one CPU job as configured) to seconds on a device.

    Attributes
    ----------
    path : Path or None
        Where factors are kept from run to run.
    slowdown : float
        How much longer a CPU job takes than a GPU job, until it is learned.
    slowdowns : mapping
        The same for single rules.
    """

    path: Path | None = None
    slowdown: float = 5.0
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    _seen: dict[str, list[float]] = field(default_factory=dict)
    _new: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen = _read(self.path)

    def factor(self, rule: str, kind: Kind) -> float:
        """Return seconds on a device per nominal second: the median of the last jobs, if any.

        A device that never ran the rule is estimated from the one that did.
        """
        own, other = self._median(rule, kind), self._median(rule, "cpu" if kind == "gpu" else "gpu")
        if own is not None:
            return own
        slowdown = self.slowdowns.get(rule, self.slowdown)
        if other is not None:
            return other / slowdown if kind == "gpu" else other * slowdown
        return 1 / slowdown if kind == "gpu" else 1.0

    def learned(self, rule: str, kind: Kind) -> bool:
        """Return whether a job of the rule was seen to end on a device."""
        return bool(self._seen.get(f"{rule} {kind}"))

    def learn(self, rule: str, kind: Kind, nominal_s: float, took_s: float) -> None:
        """Remember a finished job."""
        if nominal_s > 0 and took_s > 0:
            for kept in (self._seen, self._new):
                values = kept.setdefault(f"{rule} {kind}", [])
                values.append(round(took_s / nominal_s, 6))
                del values[:-_KEPT]

    def save(self) -> None:
        """Add what was learned to the file; another run may have written it meanwhile."""
        if self.path is None or not self._new:
            return
        kept = _read(self.path)
        for key, values in self._new.items():
            kept[key] = [*kept.get(key, []), *values][-_KEPT:]
        with contextlib.suppress(OSError):  # a full home must not end the run
            write_whole(self.path, json.dumps(kept, indent=1, sort_keys=True))
            self._new.clear()

    def _median(self, rule: str, kind: Kind) -> float | None:
        values = self._seen.get(f"{rule} {kind}")
        return statistics.median(values) if values else None


def local_durations() -> Path:
    """Return the file of what was learned on this machine."""
    return platformdirs.user_cache_path("tilewright") / f"durations-{socket.gethostname()}.json"


def _read(path: Path | None) -> dict[str, list[float]]:
    """Return the factors of a file; one that is absent or damaged holds none."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {
        str(key): [float(v) for v in values if isinstance(v, int | float) and v > 0]
        for key, values in content.items()
        if isinstance(values, list)
    }


@dataclass
class Estimates:
    """What the jobs of a run need and how long they take, by rule and device kind.

    Attributes
    ----------
    sizes : Sizes
        What the workflow states.
    durations : Durations
        What was learned.
    max_time_min : mapping
        Longest job of the partition of each device kind, where there is one.
    """

    sizes: Sizes
    durations: Durations
    max_time_min: Mapping[Kind, int | None] = field(default_factory=dict)
    _sized: dict[Hashable, tuple[Shape, float]] = field(default_factory=dict)

    def seconds(self, job: Job, kind: Kind) -> float:
        """Return about how long a job runs on a device kind."""
        return self.durations.factor(job.rule, kind) * job.nominal_s

    def shape(self, rule: str, wildcards: Any, kind: Kind) -> Shape:
        """Return the shape of a job on a device kind, no longer than its partition allows."""
        key = (rule, kind, *wildcards_of(wildcards))
        if key not in self._sized:
            shape = self.sizes.shape(rule, wildcards, gpu=kind == "gpu")
            self._sized[key] = shape, self.sizes.nominal_s(rule, wildcards)
        shape, nominal_s = self._sized[key]
        minutes = max(shape.runtime_min, self.durations.factor(rule, kind) * nominal_s / 30)
        most = self.max_time_min.get(kind)
        runtime_min = int(min(minutes, most)) if most is not None else int(minutes)
        return replace(shape, runtime_min=max(1, runtime_min))

    def is_small(self, job: Job) -> bool:
        """Return whether a job is so small that it needs no slot: CPUs only, and one of them."""
        return job.kinds == ("cpu",) and self.shape(job.rule, job.wildcards, "cpu").cpus == 1

    def workload(self, jobs: Iterable[Job]) -> Workload:
        """Return the policy's view of all jobs but the small ones, with what is known now."""
        large = [job for job in jobs if not self.is_small(job)]
        rules = {job.rule for job in large}
        factor = self.durations.factor
        return Workload(
            large, {(rule, kind): factor(rule, kind) for rule in rules for kind in KINDS}
        )

    def shape_of(self, task: Task, kind: Kind, capacity: Capacity) -> Shape:
        """Return what a task asks for on a device kind, after its failures and the user's choices.

        Memory and time double with each failure for want of them; grown memory is cut to the
        most that any account allows. What no account can hold from the start is not cut: it is
        refused.
        """
        job = task.job
        base = job.fixed.applied(self.shape(job.rule, job.wildcards, kind))
        grown = base.grown(task.past.memory, task.past.time)
        partition = capacity.partitions.get(kind)
        if partition is not None and partition.max_time_min is not None:
            grown = replace(grown, runtime_min=min(grown.runtime_min, partition.max_time_min))
        most_mb = memory_limit_mb(job, capacity.accounts, partition)
        if task.past.memory and most_mb is not None:
            return replace(grown, mem_mb=max(base.mem_mb, min(grown.mem_mb, most_mb)))
        return grown


class Shapes:
    """The shapes of tasks under one capacity; tasks of equal size share one mapping.

    10,000 tasks are then as many lookups, not as many computations: 3 s were 0.2 s.
    """

    def __init__(self, estimates: Estimates, capacity: Capacity) -> None:
        self.estimates, self.capacity = estimates, capacity
        self._of_task: dict[str, Mapping[Kind, Shape]] = {}
        self._of_size: dict[Hashable, Mapping[Kind, Shape]] = {}

    def of(self, task: Task) -> Mapping[Kind, Shape]:
        """Return the shape of a task on each device kind that may run it."""
        found = self._of_task.get(task.name)
        if found is None:
            job, past = task.job, task.past
            stated = [self.estimates.shape(job.rule, job.wildcards, kind) for kind in job.kinds]
            size = (job.kinds, *stated, job.fixed, past.memory, past.time)
            found = self._of_size.get(size)
            if found is None:
                found = {
                    kind: self.estimates.shape_of(task, kind, self.capacity) for kind in job.kinds
                }
                self._of_size[size] = found
            self._of_task[task.name] = found
        return found

    def largest(self, tasks: Iterable[Task]) -> dict[Kind, Shape]:
        """Return for each device kind that a task may use a shape that holds all of them."""
        distinct = list({id(shapes): shapes for shapes in map(self.of, tasks)}.values())
        found: dict[Kind, Shape] = {}
        for kind in KINDS:
            shapes = [shapes[kind] for shapes in distinct if kind in shapes]
            if shapes:
                found[kind] = Shape(
                    max(shape.cpus for shape in shapes),
                    max(shape.mem_mb for shape in shapes),
                    max(shape.gpus for shape in shapes),
                    max(shape.runtime_min for shape in shapes),
                )
        return found

    def without_largest(self, tasks: Iterable[Task]) -> list[Task]:
        """Return the tasks that ask for less than the largest, in memory or in CPUs.

        Where no task is the largest in both, those with most memory go.
        """
        tops = self.largest(tasks := list(tasks)).values()
        cpus, mem_mb = max(top.cpus for top in tops), max(top.mem_mb for top in tops)
        less = [t for t in tasks if all(s.cpus < cpus or s.mem_mb < mem_mb
                                        for s in self.of(t).values())]  # fmt: skip
        if len(less) < len(tasks):
            return less
        return [t for t in tasks if all(s.mem_mb < mem_mb for s in self.of(t).values())]
