"""What is placed: a job, what it needs, and the place that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..cluster.request import DeviceKind, ResourceRequest, Target
from ..runtime.snakemake_adapter import members, priority
from ..slurm.jobs import SlurmJob, is_held


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where one job runs, on none of the nodes in ``exclude``, and the ``reason`` it starts now."""

    target: Target
    request: ResourceRequest
    exclude: tuple[str, ...] = ()
    reason: str = ""
    estimate_s: float = 0.0


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

    devices: tuple[DeviceKind, ...]
    request: Callable[[Any, DeviceKind], ResourceRequest]
    cpu_seconds: Callable[[Any], float]


def key_of(rule: str, wildcards: Any) -> str:
    """Return the name of a job: its rule and wildcards, as the executor's comment has them.

    >>> key_of("stitch", {"sample": "a", "cycle": "1"})
    'rule_stitch_wildcards_a_1'
    """
    # Snakemake's own container iterates over the values
    own = wildcards.values() if isinstance(wildcards, Mapping) else wildcards or ()
    values = "_".join(map(str, own)).replace("/", "_")
    return f"rule_{rule}_wildcards_{values}" if values else f"rule_{rule}"


def rule_of(job: Any) -> str:
    """Return the rule of a job of Snakemake; a group has the name of no rule, but all of them."""
    return f"group {'+'.join(sorted(job.rules))}" if job.is_group() else str(job.rule.name)


def name_of(job: Any) -> str:
    """Return the name of a job or group of Snakemake."""
    return key_of(job.name if job.is_group() else job.rule.name, job.wildcards)


@dataclass(frozen=True, slots=True)
class FailureHistory:
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
class UserOverrides:
    """What the user chose for a job, in its rule or on the command line, and what stays so.

    ``options`` are names and values of a request, by options of sbatch.
    """

    account: str | None = None
    partition: str | None = None
    cpus: int | None = None
    mem_mb: int | None = None
    runtime_min: int | None = None
    options: tuple[tuple[str, Any], ...] = ()
    qos: str | None = None

    def apply_to(self, request: ResourceRequest) -> ResourceRequest:
        """Return a request with what was chosen."""
        return replace(
            request,
            cpus=self.cpus or request.cpus,
            mem_mb=request.mem_mb if self.mem_mb is None else self.mem_mb,
            runtime_min=self.runtime_min or request.runtime_min,
            required_min=self.runtime_min or request.required_min,
            partition=self.partition or request.partition,
            **dict(self.options),
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a workflow.

    Attributes
    ----------
    name, rule : str
        Unique name as in the executor's comment, and the rule that durations are learned for.
    needs : tuple of str
        Names of the jobs that must be done first.
    cpu_seconds : float
        About how long it takes on CPUs; only ratios between jobs of a rule count.
    log : str
        Its log file; empty if it has none.
    priority : float
        Jobs of a higher one go first.
    members : int
        Jobs of Snakemake that it is: more than one where it is a group.
    """

    name: str
    rule: str
    kinds: tuple[DeviceKind, ...]
    needs: tuple[str, ...] = ()
    cpu_seconds: float = 1.0
    overrides: UserOverrides = UserOverrides()
    wildcards: Any = None
    log: str = ""
    priority: float = 0.0
    members: int = 1
    model: ResourceModel | None = None


def job_of(
    job: Any,
    needs: Iterable[Any],
    model: ResourceModel,
    fixed: UserOverrides = UserOverrides(),
    kinds: tuple[DeviceKind, ...] | None = None,
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
class JobState:
    """A job in a run: where it was sent, and what became of it.

    Attributes
    ----------
    sent_s : float
        When it was sent; seconds since the epoch.
    delayed_s : float
        When it was last seen running or held, after which its wait counts anew.
    after_id : int
        The queue's jobs up to this number are not this try.
    slurm_job : SlurmJob or None
        This try in the queue, as it last was.
    move_reason : str
        Why it was cancelled to be moved; empty if it was not.
    moves : int
        How often it was.
    excluded_targets : frozenset of Target
        Those that it pended at in vain: it does not go back there.
    submission : str or None
        Why this try was not submitted, empty where Slurm took it; None is not known yet.
    refused : str
        Why it was cancelled for good: no target is left that Slurm takes it on.
    last_reason : str
        Why it pends, as last explained to the user.
    unexpected_since_s : float or None
        Since when the queue shows it in a state that does not end by itself, or not at all.
    preempted_in : tuple of str
        Partitions and QOS where it was preempted, each time.
    least_mem_mb, least_min : int
        Memory and minutes that its rule asks for at this try, by its own function of the attempt.
    """

    job: Job
    assignment: Assignment | None = None
    sent_s: float = 0.0
    delayed_s: float = 0.0
    after_id: int = 0
    slurm_job: SlurmJob | None = None
    history: FailureHistory = FailureHistory()
    move_reason: str = ""
    moves: int = 0
    excluded_targets: frozenset[Target] = frozenset()
    submission: str | None = None
    refused: str = ""
    last_reason: str = ""
    unexpected_since_s: float | None = None
    least_mem_mb: int = 0
    least_min: int = 0
    preempted_in: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.name

    @property
    def waiting(self) -> bool:
        """Whether it was sent and the queue does not show it yet."""
        return self.assignment is not None and self.slurm_job is None

    @property
    def running(self) -> bool:
        """Whether it was sent and runs, as far as the queue says."""
        return self.assignment is not None and self.slurm_state == "RUNNING"

    @property
    def pending(self) -> bool:
        """Whether it was sent and has not begun, as far as the queue says."""
        return self.assignment is not None and self.slurm_state in ("PENDING", "CONFIGURING")

    @property
    def pending_since_s(self) -> float:
        """Since when it waits for room: not while it ran, before it was requeued, or was held."""
        return max(self.sent_s, self.delayed_s)

    @property
    def slurm_state(self) -> str:
        """Its state in the queue, ``PENDING`` as long as it is not there."""
        return self.slurm_job.state if self.slurm_job else "PENDING"

    @property
    def active(self) -> bool:
        """Whether it was sent and has not ended, as far as the queue says."""
        return self.assignment is not None and (self.slurm_job is None or self.slurm_job.active)

    def event(self) -> dict[str, Any]:
        """Return what the ledger says of each event of a job that was sent."""
        found: dict[str, Any] = {"job": self.name, "rule": self.job.rule}
        if self.assignment is not None:
            target = self.assignment.target
            found |= {"pool": target.pool, "account": target.account, "kind": target.device}
        return found | {"slurm_id": self.slurm_job.id if self.slurm_job else None}

    def taken_as(self, other: JobState) -> bool:
        """Return whether Slurm took it where another was sent, then or later."""
        if self is other or not (self.slurm_job and self.assignment and other.assignment):
            return False
        same = self.assignment.target == other.assignment.target
        return same and self.sent_s >= other.sent_s


def observe(
    states: Iterable[JobState], queue: Iterable[SlurmJob], workdir: str, now_s: float
) -> None:
    """Note what the queue says of each job that was sent from a folder."""
    last: dict[str, SlurmJob] = {}
    for job in queue:
        if job.workdir == workdir and (job.comment not in last or job.id > last[job.comment].id):
            last[job.comment] = job
    for state in states:
        if state.assignment is None:
            continue
        found = last.get(state.job.name)
        if found is not None and found.id > state.after_id:
            state.slurm_job = found
        if state.running or (state.slurm_job and is_held(state.slurm_job)):
            state.delayed_s = now_s


def with_own_gpus(queue: Iterable[SlurmJob], states: Iterable[JobState]) -> list[SlurmJob]:
    """Return a queue with the GPUs of own jobs, which it lacks where GPUs are no TRES."""
    gpus = {
        s.slurm_job.id: s.assignment.request.gpus for s in states if s.slurm_job and s.assignment
    }
    return [
        replace(job, tres={"gres/gpu": gpus[job.id], **job.tres}) if gpus.get(job.id) else job
        for job in queue
    ]
