"""Jobs with estimates, pools with their slots, and what the policy decides about them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..cluster.request import KINDS, DeviceKind, Target
from .jobs import Job

#: Margin of a job on a CPU of whose rule nothing is known, as a share of its time (no figure).
UNKNOWN_MARGIN = 0.4


@dataclass(frozen=True, slots=True)
class Running:
    """A job in a slot: its start, and when it is expected to end, in seconds of the clock."""

    job: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Slots:
    """One account's slots of one device kind; ``free`` are those that can be filled now.

    Of slots that are free at one time those of the lowest ``rank`` are taken first.
    """

    name: str
    account: str
    kind: DeviceKind
    slots: int
    free: int
    running: tuple[Running, ...] = ()
    rank: int = 0
    target: Target | None = None

    @property
    def fillable(self) -> int:
        """Slots that may be filled now, never more than are left of ``slots``."""
        return max(0, min(self.free, self.slots - len(self.running)))


@dataclass(frozen=True, slots=True)
class Decision:
    """A job that starts now: its pool, estimated start and end (seconds of the clock), and why."""

    job: str
    pool: str
    start_s: float
    end_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class GpuSlots:
    """The number of GPU slots during a run.

    Attributes
    ----------
    at_s : float
        When they were last counted, in seconds of the clock.
    gone_s : tuple of float
        For each slot that was lost and has not come back, when it went.
    """

    at_s: float = -math.inf
    slots: int = 0
    gone_s: tuple[float, ...] = ()

    def counted(self, slots: int, now_s: float) -> GpuSlots:
        """Return what is known after a new count; a second count at one time is ignored."""
        if now_s <= self.at_s:
            return self
        gone_s = self.gone_s + (now_s,) * (self.slots - slots)
        return GpuSlots(now_s, slots, gone_s[: len(gone_s) - max(0, slots - self.slots)])

    def returns_s(self, now_s: float) -> list[float]:
        """Return when each lost slot is expected back: after as long again as it has been gone."""
        return [2 * now_s - gone_s for gone_s in self.gone_s]


@dataclass(frozen=True, slots=True)
class Choice:
    """Who starts, why each other ready job waits, and what the next round has to know."""

    starts: tuple[Decision, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    gpu_slots: GpuSlots = GpuSlots()


class Workload:
    """Jobs with estimates: durations, and what comes after each job.

    Parameters
    ----------
    jobs : iterable of Job
        The whole run; jobs that are done may be among them.
    estimates_s : mapping
        (rule, kind) to seconds. Make a new workload when estimates change.
    margins : mapping, optional
        Rule to the share by which one of its jobs may take longer than estimated on a CPU.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        estimates_s: Mapping[tuple[str, DeviceKind], float],
        margins: Mapping[str, float] | None = None,
    ) -> None:
        self.jobs = list(jobs)
        self.margin = [(margins or {}).get(j.rule, UNKNOWN_MARGIN) for j in self.jobs]
        self.index = {job.name: i for i, job in enumerate(self.jobs)}
        self.seconds = [
            [max(1e-6, estimates_s[j.rule, kind] * j.cpu_seconds) if kind in j.kinds else math.inf
             for j in self.jobs]
            for kind in KINDS
        ]  # fmt: skip
        self.needs = [[self.index[n] for n in j.needs if n in self.index] for j in self.jobs]
        self.feeds: list[list[int]] = [[] for _ in self.jobs]
        for i, needs in enumerate(self.needs):
            for need in needs:
                self.feeds[need].append(i)
        tail_s = self._tails()
        self.chain_s = [min(g, c) + t for g, c, t in zip(*self.seconds, tail_s, strict=True)]
        gain = [-c / g if g < math.inf else 0.0 for g, c in zip(*self.seconds, strict=True)]
        keys = [(-j.priority, -s, n) for j, s, n in zip(self.jobs, self.chain_s, gain, strict=True)]
        self.place = [0] * len(self.jobs)  # which heaps and sorts compare faster than tuples
        for place, i in enumerate(sorted(range(len(self.jobs)), key=keys.__getitem__)):
            self.place[i] = place

    def _tails(self) -> list[float]:
        """Seconds from each job's end to the end of all that needs it, at the faster kind."""
        tail_s = [0.0] * len(self.jobs)
        unseen = [len(feeds) for feeds in self.feeds]
        leaves = [i for i, count in enumerate(unseen) if not count]
        for i in leaves:
            chain_s = tail_s[i] + min(self.seconds[0][i], self.seconds[1][i])
            for need in self.needs[i]:
                tail_s[need] = max(tail_s[need], chain_s)
                unseen[need] -= 1
                if not unseen[need]:
                    leaves.append(need)
        if len(leaves) < len(self.jobs):
            raise ValueError("jobs need each other in a circle")
        return tail_s
