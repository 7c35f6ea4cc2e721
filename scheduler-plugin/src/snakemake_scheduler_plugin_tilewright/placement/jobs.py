"""What is placed: a job, what it needs, and the place that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from snakemake_scheduler_plugin_tilewright.runtime.snakemake_adapter import members, priority
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob

Kind = Literal["gpu", "cpu"]

KINDS: tuple[Kind, ...] = ("gpu", "cpu")


@dataclass(frozen=True, slots=True)
class Shape:
    """What one job needs.

    ``gpu_mem_mb`` is memory of its device, 0 on CPUs; its node has all ``features``, and GPUs of
    ``gpu_type`` where it names one; ``licences`` are names and numbers. ``partition`` is the one
    that its rule names, empty for that of its device kind. A place that allows it less than
    ``stated_min`` minutes does not take it.
    """

    cpus: int
    mem_mb: int
    gpus: int
    runtime_min: int
    gpu_mem_mb: int = 0
    features: tuple[str, ...] = ()
    gpu_type: str = ""
    licences: tuple[tuple[str, int], ...] = ()
    partition: str = ""
    stated_min: int = 0

    def grown(self, memory: int = 0, time: int = 0) -> Shape:
        """Return the shape after so many failures for want of memory and of time: each doubles."""
        return replace(
            self,
            mem_mb=self.mem_mb * 2**memory,
            runtime_min=self.runtime_min * 2**time,
            gpu_mem_mb=self.gpu_mem_mb * 2**memory,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where one job runs.

    Attributes
    ----------
    qos : str or None
        None where Slurm takes the account's by itself: then the user may change the account.
    shape : Shape
        What it asks Slurm for.
    pool : str
        Name of the Snakemake resource that counts its slot.
    exclude : tuple of str
        Nodes it must not run on.
    """

    account: str
    qos: str | None
    partition: str | None
    kind: Kind
    shape: Shape
    pool: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResourceModel:
    """What the jobs of a rule need, and how long they take.

    Attributes
    ----------
    devices : tuple of str
        Device kinds that may run them, the preferred one first.
    request : callable
        Wildcards and device kind to what one job needs there.
    cpu_seconds : callable
        Wildcards to about how long one job takes on CPUs.
    """

    devices: tuple[Kind, ...]
    request: Callable[[Any, Kind], Shape]
    cpu_seconds: Callable[[Any], float]


def key_of(rule: str, wildcards: Any) -> str:
    """Return the name of a job: its rule and wildcards, as the executor's comment has them.

    >>> key_of("stitch", {"sample": "a", "cycle": "1"})
    'rule_stitch_wildcards_a_1'
    """
    values = "_".join(wildcards_of(wildcards)).replace("/", "_")
    return f"rule_{rule}_wildcards_{values}" if values else f"rule_{rule}"


def wildcards_of(wildcards: Any) -> Iterable[str]:
    """Return the values of wildcards, which Snakemake's own container iterates over."""
    return map(str, wildcards.values() if isinstance(wildcards, Mapping) else wildcards or ())


def rule_of(job: Any) -> str:
    """Return the rule of a job of Snakemake; a group has the name of no rule, but all of them."""
    return f"group {'+'.join(sorted(job.rules))}" if job.is_group() else str(job.rule.name)


def name_of(job: Any) -> str:
    """Return the name of a job or group of Snakemake."""
    return key_of(job.name if job.is_group() else job.rule.name, job.wildcards)


@dataclass(frozen=True, slots=True)
class Past:
    """The failures of one job.

    Attributes
    ----------
    memory, time : int
        Times it ran out of either.
    causes : tuple of str
        Cause and last words of each failure.
    nodes : frozenset of str
        Nodes that died under it.
    """

    memory: int = 0
    time: int = 0
    causes: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fixed:
    """What the user chose for a job, in its rule or on the command line, and what stays so."""

    account: str | None = None
    partition: str | None = None
    cpus: int | None = None
    mem_mb: int | None = None
    runtime_min: int | None = None

    def applied(self, shape: Shape) -> Shape:
        """Return a shape with what was chosen."""
        return replace(
            shape,
            cpus=self.cpus or shape.cpus,
            mem_mb=self.mem_mb or shape.mem_mb,
            runtime_min=self.runtime_min or shape.runtime_min,
            stated_min=self.runtime_min or shape.stated_min,
            partition=self.partition or shape.partition,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a workflow.

    Attributes
    ----------
    name, rule : str
        Unique name as in the executor's comment, and the rule that durations are learned for.
    kinds : tuple of str
        Device kinds that may run it.
    needs : tuple of str
        Names of the jobs that must be done first.
    nominal_s : float
        About how long it takes on CPUs; only ratios between jobs of a rule count.
    fixed : Fixed
        What the user chose for it.
    log : str
        Its log file; empty if it has none.
    priority : float
        Jobs of a higher one go first.
    members : int
        Jobs of Snakemake that it is: more than one where it is a group.
    model : ResourceModel or None
        What it needs.
    """

    name: str
    rule: str
    kinds: tuple[Kind, ...]
    needs: tuple[str, ...] = ()
    nominal_s: float = 1.0
    fixed: Fixed = Fixed()
    wildcards: Any = None
    log: str = ""
    priority: float = 0.0
    members: int = 1
    model: ResourceModel | None = None


def job_of(
    job: Any,
    needs: Iterable[Any],
    model: ResourceModel,
    fixed: Fixed = Fixed(),
    kinds: tuple[Kind, ...] | None = None,
) -> Job:
    """Return a job or group of Snakemake, which needs others of Snakemake, as a job to place."""
    wildcards = job.wildcards
    return Job(
        name_of(job),
        rule_of(job),
        kinds or model.devices,
        tuple(map(name_of, needs)),
        model.cpu_seconds(wildcards),
        fixed,
        wildcards,
        str(job.log[0]) if len(job.log) else "",
        priority(job),
        sum(1 for _ in members(job)),
        model,
    )


@dataclass(slots=True)
class Task:
    """A job in a run: where it was sent, and what became of it.

    Attributes
    ----------
    place : Place or None
        Where it was sent.
    sent_s : float
        When; seconds since the epoch.
    after_id : int
        The queue's jobs up to this number are not this try.
    seen : SlurmJob or None
        What the queue last said of this try.
    moved : str
        Why it was cancelled to be placed again; empty if it was not.
    moves : int
        How often it was.
    refused : str
        Why it was cancelled for good: no place is left that Slurm takes it on.
    bound : (str, str) or None
        Account and device kind that it was moved for.
    left : frozenset of (str, str)
        Accounts and device kinds that it was moved away from: it does not go back there.
    said : str
        Why it pends, as it was last said to the user.
    odd_s : float or None
        Since when the queue shows it in a state that does not end by itself, or not at all.
    least_mem_mb, least_min : int
        Memory and minutes that its rule asks for at this try, by its own function of the attempt.
    """

    job: Job
    place: Place | None = None
    sent_s: float = 0.0
    after_id: int = 0
    seen: SlurmJob | None = None
    past: Past = Past()
    moved: str = ""
    moves: int = 0
    bound: tuple[str, Kind] | None = None
    left: frozenset[tuple[str, Kind]] = frozenset()
    refused: str = ""
    said: str = ""
    odd_s: float | None = None
    least_mem_mb: int = 0
    least_min: int = 0

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.name

    @property
    def waiting(self) -> bool:
        """Whether it was sent and the queue does not show it yet."""
        return self.place is not None and self.seen is None

    @property
    def runs(self) -> bool:
        """Whether it was sent and runs, as far as the queue says."""
        return self.place is not None and self.seen is not None and self.seen.state == "RUNNING"

    @property
    def pends(self) -> bool:
        """Whether it was sent and has not begun, as far as the queue says."""
        state = self.seen.state if self.seen else "PENDING"
        return self.place is not None and state in ("PENDING", "CONFIGURING")

    def taken_as(self, other: Task) -> bool:
        """Return whether Slurm took it where another was sent, then or later."""
        if self is other or not (self.seen and self.place and other.place):
            return False
        here, there = self.place, other.place
        same = (here.account, here.kind) == (there.account, there.kind)
        return same and self.sent_s >= other.sent_s

    @property
    def active(self) -> bool:
        """Whether it was sent and has not ended, as far as the queue says."""
        return self.place is not None and (self.seen is None or self.seen.active)


def observe(tasks: Iterable[Task], queue: Iterable[SlurmJob], workdir: str) -> None:
    """Note what the queue says of each job that was sent from a folder."""
    last: dict[str, SlurmJob] = {}
    for job in queue:
        if job.workdir == workdir and (job.comment not in last or job.id > last[job.comment].id):
            last[job.comment] = job
    for task in tasks:
        if task.place is None:
            continue
        found = last.get(task.job.name)
        if found is not None and found.id > task.after_id:
            task.seen = found
