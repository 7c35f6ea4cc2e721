"""A job of a run: what it needs, where it was sent, and what became of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..slurm.jobs import SlurmJob
from ..slurm.reasons import Cause
from .request import SLOWDOWN, DeviceKind, Place, ResourceRequest


def key_of(rule: str, wildcards: Any) -> str:
    """Return the name of a job: its rule and wildcards.

    >>> key_of("stitch", {"sample": "a", "cycle": "1"})
    'rule_stitch_wildcards_a_1'
    """
    # Snakemake's own container iterates over the values
    own = wildcards.values() if isinstance(wildcards, Mapping) else wildcards or ()
    values = "_".join(map(str, own)).replace("/", "_")
    return f"rule_{rule}_wildcards_{values}" if values else f"rule_{rule}"


@dataclass
class History:
    """The failures of one job.

    Attributes
    ----------
    memory, time : int
        Times it ran out of either.
    causes : list of str
        Cause and last words of each failure.
    free : int
        Tries that ended by no fault of the job, after which it was sent again.
    excluded : set of Place
        Where Slurm does not take it, or where it was ended twice by others.
    words : list of str
        Slurm's words for each of these.
    failed : set of (str, tuple of str)
        Device kind and partitions where a node or its device failed.
    """

    memory: int = 0
    time: int = 0
    causes: list[str] = field(default_factory=list)
    free: int = 0
    excluded: frozenset[Place] = frozenset()
    words: list[str] = field(default_factory=list)
    preempted: list[Place] = field(default_factory=list)
    failed: set[tuple[DeviceKind, tuple[str, ...]]] = field(default_factory=set)


@dataclass(eq=False)
class Task:
    """A job of Snakemake, or a group of jobs, that is ready: until it has ended.

    Attributes
    ----------
    job : object
        That of Snakemake.
    requests : dict
        What it asks for on each device kind that may run it, the preferred one first.
    cpu_seconds : float
        About how long it takes on CPUs; only ratios between jobs of a rule count.
    slowdown : float
        How much longer it takes on CPUs than on a GPU, until jobs of the run tell.
    order : tuple of float
        Jobs of a smaller one go first.
    account, qos : str
        What the user chose; empty is any.
    log : str
        Its log file; empty if it has none.
    units : sequence
        The jobs of Snakemake that it is: more than one where it is a group.
    least : ResourceRequest or None
        Memory and minutes that its rule asks for at this try, by its own function of the attempt.
    slurm_name : str
        The job's name in Slurm, another one for each submission.
    slurm_id : int
        Its number; 0 as long as sbatch has not said it.
    sent_s, observed_s : float
        When it was sent, and when the queue last showed it.
    waits_since_s : float
        Since when it waits where it is: not while it ran, before it was requeued, or was held.
    slurm_job : SlurmJob or None
        How the queue last showed it.
    explained : str
        Why it pends, as last shown to the user.
    group : int
        The same number for jobs that are `alike`.
    switches : int
        How often it was cancelled while it pended, to be sent to the other device kind.
    bound : {"gpu", "cpu"} or None
        The kind for which it was cancelled, until it is sent there.
    moves : int
        How often it went to another place of the same kind while it pended.
    leaves : bool
        It was cancelled for that just now.
    had_room : bool
        All limits of its place were known as it was sent, and had room.
    """

    job: Any
    name: str
    rule: str
    requests: dict[DeviceKind, ResourceRequest]
    cpu_seconds: float = 1.0
    slowdown: float = SLOWDOWN
    order: tuple[float, ...] = ()
    account: str = ""
    qos: str = ""
    log: str = ""
    units: Sequence[Hashable] = ()
    least: ResourceRequest | None = None
    history: History = field(default_factory=History)
    place: Place | None = None
    slurm_name: str = ""
    slurm_id: int = 0
    sent_s: float = 0.0
    observed_s: float = 0.0
    waits_since_s: float = 0.0
    slurm_job: SlurmJob | None = None
    explained: str = ""
    group: int = 0
    switches: int = 0
    bound: DeviceKind | None = None
    moves: int = 0
    leaves: bool = False
    had_room: bool = False

    @property
    def running(self) -> bool:
        """Whether it runs, as the queue last showed."""
        return self.slurm_job is not None and not self.slurm_job.pending

    @property
    def pending(self) -> bool:
        """Whether it was sent and has not begun, as far as is known."""
        return self.place is not None and not self.running

    @property
    def obstacle(self) -> str:
        """What keeps it from starting; ``order`` as long as Slurm has not said it."""
        return self.slurm_job.waiting.obstacle if self.slurm_job else "order"

    @property
    def size(self) -> Hashable:
        """What is the same for jobs that Slurm takes at the same places."""
        growth = self.history.memory, self.history.time
        return self.rule, tuple(self.requests.items()), self.account, self.qos, growth

    @property
    def alike(self) -> Hashable:
        """What is the same for jobs that may go to the same places and take as long."""
        return self.size, self.bound, round(self.cpu_seconds, 1), self.history.excluded

    def forget(self) -> None:
        """Take it back: it is ready again, with what is known of it by now."""
        self.place, self.slurm_job, self.slurm_id, self.explained = None, None, 0, ""

    def request(self, kind: DeviceKind) -> ResourceRequest:
        """Return what it asks for on a device kind, after its failures."""
        grown = self.requests[kind].double(self.history.memory, self.history.time)
        if self.least is None:
            return grown
        mem_mb = max(grown.mem_mb, self.least.mem_mb)
        return replace(
            grown, mem_mb=mem_mb, runtime_min=max(grown.runtime_min, self.least.runtime_min)
        )

    def event(self) -> dict[str, Any]:
        """Return what the ledger says of each event of a job that was sent."""
        found: dict[str, Any] = {"job": self.name, "rule": self.rule}
        if self.place is not None:
            found |= {"pool": self.place.pool, "account": self.place.account}
            found |= {"kind": self.place.kind, "qos": self.place.qos or None}
        return found | {"slurm_id": self.slurm_id or None}


@dataclass(frozen=True)
class End:
    """How a job ended, for Snakemake.

    Attributes
    ----------
    words : str
        Why it failed; empty where it did not.
    final : bool
        It is not to be tried again.
    """

    task: Task
    words: str = ""
    final: bool = False


def exclude(history: History, place: Place, words: str) -> None:
    """Note that a job does not go to a place any more."""
    history.excluded |= {place}
    history.words.append(words)


def next_try(history: History, cause: Cause, words: str) -> tuple[str, bool, bool]:
    """Note a failure; return what the job gets next, whether it is free, and whether it is final.

    A free one does not count as a try of Snakemake: the job is sent again.
    """
    failure = f"{cause}: {words}"
    twice = failure in history.causes
    history.causes.append(failure)
    few = history.free < _MOST_FREE
    match cause:
        case "memory":
            history.memory += 1
            return "gets twice the memory with its next try (--retries)", False, False
        case "time":
            history.time += 1
            return "gets twice the time with its next try (--retries)", False, False
        case "node" | "device" | "preempted" | "refused" if few:
            history.free += 1
            return "is sent elsewhere", True, False
        case "error" if twice:
            return "failed twice in the same way and is not tried again", False, True
        case _:
            return "is tried again if Snakemake has a try left (--retries)", False, False


#: Failures that are no fault of the job and do not count as tries; more of them do (no figure).
_MOST_FREE = 10


def names_of(tasks: Iterable[Task]) -> str:
    """Return the first of some jobs, and how many more there are."""
    first, *more = [one.name for one in tasks]
    return f"{first} and {len(more)} more" if more else first


def with_minutes(request: ResourceRequest, longest_min: int | None) -> ResourceRequest:
    """Return a request with no more minutes than a place allows, where the user chose none."""
    if longest_min is None or request.required_min or request.runtime_min <= longest_min:
        return request
    return replace(request, runtime_min=longest_min)
