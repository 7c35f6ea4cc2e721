"""What a job needs on each device kind, and how long it takes: as written, then learned."""

import contextlib
import json
import math
import socket
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import platformdirs
from pydantic import TypeAdapter

from ..cluster.limits import longest_of
from ..cluster.request import KINDS, DeviceKind, ResourceRequest
from ..cluster.site import Site
from ..cluster.state import ClusterState
from ..cluster.tres import tres_of
from ..errors import PlacementError
from ..runtime.files import read_private, write_private
from .failures import memory_limit_mb
from .jobs import FailureHistory, Job, JobState, ResourceModel
from .workload import Workload

#: Finished jobs that are remembered for each rule and device (no figure).
_KEPT = 30
#: A factor above is of no job.
_MOST = 1e6
_FACTORS = TypeAdapter(dict[str, list[float]])
#: Durations of a rule's jobs scatter so much, as standard deviation of their logarithm, until jobs
#: tell: this counts as three of them. With 1.2 standard deviations as margin on CPUs, instead of
#: the 40 % of a rule that is not known, runs that know ten jobs of each rule end 0.6 % sooner
#: (182 random clusters; the worst of them takes 1.58 times the best known schedule, not 1.91).
_SCATTER, _SCATTER_JOBS, _DEVIATIONS = 0.2, 3, 1.2


def margin_of(factors: Sequence[float]) -> float:
    """Return the share by which the next job may take longer, after finished ones of its rule.

    Parameters
    ----------
    factors : sequence of float
        What each took, over what it was expected to take; positive.
    """
    logs, count = [math.log(factor) for factor in factors], len(factors)
    spread = sum((log - statistics.fmean(logs)) ** 2 for log in logs)
    own = (_SCATTER_JOBS * _SCATTER**2 + spread) / (_SCATTER_JOBS + max(0, count - 1))
    margin = math.expm1(_DEVIATIONS * math.sqrt(own + _SCATTER**2 / (1 + 2 * count)))
    return min(1.0, margin)  # one job that hung must not close the CPUs to its rule


@dataclass
class Durations:
    """Factors from nominal seconds (one CPU job as configured) to seconds on a device.

    Attributes
    ----------
    path : Path or None
        File of the factors, from run to run.
    slowdown, slowdowns : float, mapping
        How much longer a CPU job takes than a GPU job, until it is learned; for single rules.
    """

    path: Path | None = None
    slowdown: float = Site().slowdown
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    _learned: dict[str, list[float]] = field(default_factory=dict)
    _new: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._learned = _read(self.path)

    def factor(self, rule: str, kind: DeviceKind, *, only: bool = False) -> float:
        """Return seconds on a device per nominal second: the median of the last jobs, if any.

        A device that never ran the rule is estimated from the one that did, unless it is the
        ``only`` one that the rule states, for which its nominal seconds are meant.
        """
        own, other = self._median(rule, kind), self._median(rule, "cpu" if kind == "gpu" else "gpu")
        if own is not None or only:
            return 1.0 if own is None else own
        slowdown = self.slowdowns.get(rule, self.slowdown)
        if other is not None:
            return other / slowdown if kind == "gpu" else other * slowdown
        return 1 / slowdown if kind == "gpu" else 1.0

    def margin(self, rule: str) -> float:
        """Return the share by which a job may take longer on a CPU than estimated."""
        return margin_of(self._learned.get(f"{rule} cpu", ()))

    def learn(self, rule: str, kind: DeviceKind, cpu_seconds: float, took_s: float) -> None:
        """Remember a finished job."""
        if cpu_seconds > 0 and took_s > 0:
            for factors in (self._learned, self._new):
                values = factors.setdefault(f"{rule} {kind}", [])
                values.append(round(took_s / cpu_seconds, 6))
                del values[:-_KEPT]

    def save(self) -> None:
        """Add what was learned to the file; another run may have written it meanwhile."""
        if self.path is None or not self._new:
            return
        factors = _read(self.path)
        for key, values in self._new.items():
            factors[key] = [*factors.get(key, []), *values][-_KEPT:]
        with contextlib.suppress(OSError):  # a full home must not end the run
            write_private(self.path, json.dumps(factors, indent=1, sort_keys=True))
            self._new.clear()

    def _median(self, rule: str, kind: DeviceKind) -> float | None:
        values = self._learned.get(f"{rule} {kind}")
        return statistics.median(values) if values else None


def local_durations() -> Path:
    """Return the file of what was learned on this machine."""
    return platformdirs.user_cache_path("tilewright") / f"durations-{socket.gethostname()}.json"


def _read(path: Path | None) -> dict[str, list[float]]:
    """Return the factors of a file; one that is absent or damaged holds none."""
    try:
        found = _FACTORS.validate_python(read_private(path)) if path else {}
    except (OSError, ValueError):
        return {}
    return {key: [v for v in values if 0 < v < _MOST] for key, values in found.items()}


def either_model(gpu: Mapping[str, int], cpu: Mapping[str, int]) -> ResourceModel:
    """Return the model of a rule whose author writes what a job needs on each device kind.

    Raises
    ------
    PlacementError
        A key is absent or unknown, or a value is no positive integer.

    Examples
    --------
    >>> model = either_model(
    ...     gpu={"cpus": 2, "mem_mb": 8000, "runtime": 10},
    ...     cpu={"cpus": 8, "mem_mb": 16000, "runtime": 60},
    ... )
    >>> model.request({}, "gpu").gpus, model.cpu_seconds({})
    (1, 1800.0)
    """
    requests: dict[DeviceKind, ResourceRequest] = {
        "gpu": _request(gpu, gpus=1),
        "cpu": _request(cpu, gpus=0),
    }
    half_limit_s = 0.5 * 60 * requests["cpu"].runtime_min
    return ResourceModel(KINDS, lambda _, kind: requests[kind], lambda _: half_limit_s)


def _request(values: Mapping[str, int], gpus: int) -> ResourceRequest:
    known = {"cpus", "mem_mb", "runtime", "gpus"}
    if wrong := sorted(values.keys() - known):
        raise PlacementError(f"either() takes {', '.join(sorted(known))}, and not {wrong[0]}")
    for key in ("cpus", "mem_mb", "runtime"):
        value = values.get(key)
        if not isinstance(value, int) or value < 1:
            raise PlacementError(f"either() needs {key} for each kind, an integer above 0")
    return ResourceRequest(
        values["cpus"], values["mem_mb"], values.get("gpus", gpus), values["runtime"]
    )


@dataclass(frozen=True, eq=False)
class Shape:
    """What jobs ask for that ask for the same.

    Attributes
    ----------
    task : JobState
        One of them, as it was.
    enough_min : dict of {"gpu", "cpu"} to float
        Minutes that are twice what they are estimated to take.
    """

    task: JobState
    enough_min: Mapping[DeviceKind, float]


@dataclass
class Estimates:
    """What the jobs of a run need and how long they take, by rule and device kind."""

    durations: Durations
    _requests: dict[tuple[str, DeviceKind], ResourceRequest] = field(default_factory=dict)
    #: By job, with what of its state was looked at (held, so that ids stay its own); by size.
    _shapes: dict[str, tuple[tuple[int, ...], Shape, Job, FailureHistory]] = field(
        default_factory=dict
    )
    _alike: dict[Hashable, Shape] = field(default_factory=dict)

    def forget(self, name: str) -> None:
        """Ask for what a job needs again: its input was not there before."""
        self._shapes.pop(name, None)
        for kind in KINDS:
            self._requests.pop((name, kind), None)

    def factor(self, job: Job, kind: DeviceKind) -> float:
        """Return seconds on a device kind per nominal second of a job."""
        only = job.model is not None and kind not in job.model.devices
        return self.durations.factor(job.rule, kind, only=only)

    def seconds(self, job: Job, kind: DeviceKind) -> float:
        """Return about how long a job runs on a device kind."""
        return self.factor(job, kind) * job.cpu_seconds

    def request(self, job: Job, kind: DeviceKind) -> ResourceRequest:
        """Return what a job needs on a device kind, with at least twice the estimated time."""
        request = self._requests.get((job.name, kind))
        if request is None:
            assert job.model is not None
            request = self._requests[job.name, kind] = job.model.request(job.wildcards, kind)
        minutes, twice_min = request.runtime_min, 2 * self.seconds(job, kind) / 60
        if twice_min > minutes + 1:
            # in steps of 19 %: jobs whose durations differ a little ask for the same
            minutes = int(_rounded_up(twice_min))
        return replace(request, runtime_min=max(1, minutes, request.required_min))

    def shape(self, task: JobState) -> Shape:
        """Return the shape of a job; its estimates are those of the last workload."""
        job, history = task.job, task.history
        known = id(job), id(history), task.least_mem_mb, task.least_min
        # 10,000 jobs are then as many lookups, not as many computations: 3 s were 0.2 s
        found = self._shapes.get(task.name)
        if found and found[0] == known:
            return found[1]
        needs = [self.request(job, kind) for kind in job.kinds]
        # steps of 19 %: durations that differ a little make no shapes of their own
        twice = {kind: _rounded_up(self.seconds(job, kind) / 30) for kind in job.kinds}
        size = (*needs, *twice.items(), job.overrides, history.memory, history.time, *known[2:])
        if size not in self._alike:
            self._alike[size] = Shape(replace(task), twice)
        self._shapes[task.name] = known, self._alike[size], job, history
        return self._alike[size]

    def largest(
        self, tasks: Iterable[JobState], state: ClusterState
    ) -> dict[DeviceKind, ResourceRequest]:
        """Return for each device kind that a job may use a request as large as all of theirs."""
        shapes = {self.shape(task) for task in tasks}
        found: dict[DeviceKind, ResourceRequest] = {}
        for kind in KINDS:
            own = [one.task for one in shapes if kind in one.task.job.kinds]
            if requests := [self.request_of(task, kind, state) for task in own]:
                names = {one.partition for one in requests}
                found[kind] = ResourceRequest(
                    max(one.cpus for one in requests),
                    max(one.mem_mb for one in requests),
                    max(one.gpus for one in requests),
                    max(one.runtime_min for one in requests),
                    partition=names.pop() if len(names) == 1 else "",
                )
        return found

    def workload(self, jobs: Iterable[Job]) -> Workload:
        """Return the policy's view of all jobs, with what is known now."""
        jobs = list(jobs)
        self._shapes.clear()
        self._alike.clear()
        rules = {job.rule: job for job in jobs}
        return Workload(
            jobs,
            {(rule, kind): self.factor(job, kind) for rule, job in rules.items() for kind in KINDS},
            {rule: self.durations.margin(rule) for rule in rules},
        )

    def request_of(self, task: JobState, kind: DeviceKind, state: ClusterState) -> ResourceRequest:
        """Return what a job asks for on a device kind, after its failures and the user's choices.

        Memory and time double with each failure for want of them; grown memory is cut to the
        most that any account allows. What no account can hold from the start is not cut: it is
        refused.
        """
        job = task.job
        base = job.overrides.apply_to(self.request(job, kind))
        places = state.places(kind, base.partition)
        if task.history.memory:  # which doubles what Slurm gives by default
            mems = [tres_of(base, where)["mem"] for _, where in places]
            base = replace(base, mem_mb=max(mems, default=base.mem_mb))
        grown = base.double(task.history.memory, task.history.time)
        mem_mb = max(grown.mem_mb, task.least_mem_mb)
        runtime_min = max(grown.runtime_min, task.least_min)
        longest = longest_of(where for _, where in places)
        if longest is not None:
            runtime_min = min(runtime_min, max(longest, base.required_min))
        most_mb = memory_limit_mb(job, state) if task.history.memory else None
        if most_mb is not None:
            mem_mb = max(base.mem_mb, min(mem_mb, most_mb))
        return replace(grown, mem_mb=mem_mb, runtime_min=runtime_min)


def _rounded_up(minutes: float) -> float:
    """Return the next power of the fourth root of 2."""
    return math.exp2(math.ceil(4 * math.log2(max(minutes, 1.0))) / 4)
