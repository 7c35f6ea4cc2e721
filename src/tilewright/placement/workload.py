"""The jobs of a run, pools with their slots, and what a round of placing decides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.placement.jobs import KINDS, Kind

#: Standard deviation of the logarithm of the keys of a shaken order.
_SHAKE = 0.15


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the run.

    Attributes
    ----------
    name, rule : str
        Unique name, and the rule that estimates are kept for.
    kinds : tuple of str
        Device kinds that may run it; QC and light rules have ``("cpu",)``.
    needs : tuple of str
        Names of the jobs that must be done first.
    work : float
        Size relative to the job that the rule's estimate is for.
    group : str, optional
        Jobs that better stay on one account: one sample and cycle.
    account : str, optional
        The only account that may run it, where the user chose one.
    """

    name: str
    rule: str
    kinds: tuple[Kind, ...]
    needs: tuple[str, ...] = ()
    work: float = 1.0
    group: str | None = None
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A job in a slot: its start, and when it is expected to end, in seconds of the clock.

    One that was ``moved`` was ended in another slot to begin anew; it stays where it is.
    """

    job: str
    start_s: float
    end_s: float
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Slots:
    """One account's slots of one device kind; ``free`` are those that can be filled now."""

    name: str
    account: str
    kind: Kind
    slots: int
    free: int
    running: tuple[Running, ...] = ()

    @property
    def room(self) -> int:
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
class Seen:
    """GPU slots over the run: when they were last counted, and since when each lost one is gone."""

    at_s: float = -math.inf
    slots: int = 0
    gone_s: tuple[float, ...] = ()

    def after(self, slots: int, now_s: float) -> Seen:
        """Return what is known with a new count; of one time only the first count is kept."""
        if now_s <= self.at_s:
            return self
        gone_s = self.gone_s + (now_s,) * (self.slots - slots)
        return Seen(now_s, slots, gone_s[: len(gone_s) - max(0, slots - self.slots)])

    def back_s(self, now_s: float) -> list[float]:
        """Return when slots are back: what is gone for a while stays away as long again."""
        return [2 * now_s - gone_s for gone_s in self.gone_s]


@dataclass(frozen=True, slots=True)
class Way:
    """How slots are filled.

    ``aim_s`` is when everything should be done, in seconds of the clock. GPUs take the jobs that
    gain most from them (``by_gain``) or those with the longest chain. A ``patient`` way takes a
    CPU slot only where that also beats waiting for a GPU behind the jobs that are ready now.
    ``shake`` is the number of a random change to both orders, 0 for none.
    ``seen`` is what the next round has to know of the slots until now.
    """

    aim_s: float
    by_gain: bool = True
    patient: bool = False
    end_s: float = math.inf
    seen: Seen = Seen()
    shake: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """Who starts, why each other ready job waits, the way that was followed and when it ends."""

    starts: tuple[Decision, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    way: Way | None = None
    end_s: float = math.inf


class Line:
    """An order of all jobs: the number at each place, and the place of each number.

    Places are plain integers, which heaps compare three times as fast as tuples.
    """

    def __init__(self, *keys: NDArray[np.float64]) -> None:
        self.jobs: list[int] = np.lexsort(keys).tolist()
        self.place = [0] * len(self.jobs)
        for place, i in enumerate(self.jobs):
            self.place[i] = place


class Lines(NamedTuple):
    """Jobs by the longest chain, by the most a GPU gains them, and by the least."""

    by_chain: Line
    by_gain: Line
    by_loss: Line


class Workload:
    """Jobs with estimates: durations, and what comes after each job.

    Parameters
    ----------
    jobs : iterable of Job
        The whole run; jobs that are done may be among them.
    estimates_s : mapping
        (rule, kind) to seconds. Make a new workload when estimates change.
    """

    def __init__(self, jobs: Iterable[Job], estimates_s: Mapping[tuple[str, Kind], float]) -> None:
        self.jobs = list(jobs)
        self.index = {job.name: i for i, job in enumerate(self.jobs)}
        self.seconds = [
            [max(1e-6, estimates_s[j.rule, kind] * j.work) if kind in j.kinds else math.inf
             for j in self.jobs]
            for kind in KINDS
        ]  # fmt: skip
        self.needs = [[self.index[n] for n in j.needs if n in self.index] for j in self.jobs]
        self.feeds: list[list[int]] = [[] for _ in self.jobs]
        for i, needs in enumerate(self.needs):
            for need in needs:
                self.feeds[need].append(i)
        self.tail_s = self._tails()
        self.chain_s = [min(g, c) + t for g, c, t in zip(*self.seconds, self.tail_s, strict=True)]
        gains = [c / g if g < math.inf else 0.0 for g, c in zip(*self.seconds, strict=True)]
        self.flows = np.array([*self.seconds, self.tail_s])
        self.flow_order = np.argsort(-np.array(gains), kind="stable")
        self._keys = -np.array(gains), -np.array(self.chain_s)
        self._lines: dict[int, Lines] = {}
        self.by_chain = self.lines(0).by_chain

    def lines(self, shake: int) -> Lines:
        """Return the orders of all jobs; those of a shake other than 0 are a little at random."""
        if shake not in self._lines:
            gain, chain = self._keys
            if shake:
                noise = np.random.default_rng(shake).normal(0.0, _SHAKE, (2, len(self.jobs)))
                gain, chain = np.exp(noise) * (gain, chain)
            self._lines[shake] = Lines(Line(gain, chain), Line(chain, gain), Line(chain, -gain))
        return self._lines[shake]

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
