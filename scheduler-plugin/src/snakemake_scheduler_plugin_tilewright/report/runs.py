"""Runs on a cluster as the ledger has them: pools, jobs that ran in them, and what they used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class PoolBand:
    """Slots of one account and device kind, as counted when a run began."""

    name: str
    account: str
    kind: str
    slots: int


@dataclass(frozen=True)
class JobBar:
    """One try of a job on a pool; times in seconds since the epoch.

    Attributes
    ----------
    sent_s : float or None
        When it was handed to Slurm.
    failed : bool
        It failed or was cancelled.
    members : int
        Jobs of Snakemake that it is, where it ended well.
    """

    job: str
    rule: str
    pool: str
    start_s: float
    end_s: float
    sent_s: float | None = None
    failed: bool = False
    members: int = 1

    @property
    def wait_s(self) -> float | None:
        """Time in the queue in seconds; Slurm cuts its times to whole seconds."""
        return None if self.sent_s is None else max(0.0, self.start_s - self.sent_s)


@dataclass(frozen=True)
class Remark:
    """Something that the ledger says beside the bars; ``time_s`` since the epoch."""

    time_s: float
    what: Literal["move", "fail", "hold"]
    text: str


@dataclass(frozen=True)
class ClusterRun:
    """One run of the workflow on a cluster; times in seconds since the epoch.

    Attributes
    ----------
    number : int
        Its place in the ledger, from 1.
    start_s, end_s : float
        ``end_s`` is the last that the ledger knows of it.
    bars : tuple of JobBar
        By start.
    causes : dict of str to int
        Failures by cause.
    unfinished : tuple of str
        Jobs without an end in the ledger.
    left_out : dict of str to str
        Account to why it was not used.
    idle_slot_s : dict of str to float
        Slot-seconds that idled while jobs were ready, by reason.
    """

    number: int
    start_s: float
    end_s: float
    pools: Mapping[str, PoolBand]
    bars: tuple[JobBar, ...]
    remarks: tuple[Remark, ...] = ()
    causes: Mapping[str, int] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    idle_slot_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def span_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Use:
    """What runs made of a pool.

    Attributes
    ----------
    pool : PoolBand
        With the most slots it had.
    jobs : int
        Tries.
    busy_s, idle_s : float
        Slot-seconds.
    wait_s : float or None
        Mean time in the queue.
    """

    pool: PoolBand
    jobs: int
    busy_s: float
    idle_s: float
    wait_s: float | None

    @property
    def utilisation(self) -> float | None:
        """Busy slot-seconds over slots × length of the runs; None without slots."""
        total_s = self.busy_s + self.idle_s
        return self.busy_s / total_s if total_s > 0 else None


def percent(share: float) -> str:
    """Return a share in words that call only nothing 0.

    >>> percent(0.0), percent(0.001), percent(0.5)
    ('0 %', 'under 1 %', '50 %')
    """
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.005 else "under 1 %"


#: Bars that overlap by less did not share a slot.
_ROUNDING_S = 0.01


def lanes(bars: Sequence[JobBar]) -> list[int]:
    """Return for each bar, given by start, the lowest lane that is free from its start on."""
    ends: list[float] = []
    found = []
    for bar in bars:
        # Times are rounded: the next in a slot may seem to start before the one before it ended.
        free = (k for k, end_s in enumerate(ends) if end_s <= bar.start_s + _ROUNDING_S)
        lane = next(free, len(ends))
        ends[lane : lane + 1] = [bar.end_s]
        found.append(lane)
    return found


def busy_s(bars: Iterable[JobBar], slots: int) -> float:
    """Return slot-seconds in use: running jobs integrated over time, at most ``slots`` at once."""
    steps = sorted(step for bar in bars for step in ((bar.start_s, 1), (bar.end_s, -1)))
    total_s, running, last_s = 0.0, 0, 0.0
    for time_s, change in steps:
        total_s += min(running, slots) * (time_s - last_s)
        running, last_s = running + change, time_s
    return total_s


def use_of(runs: Sequence[ClusterRun]) -> list[Use]:
    """Return what the runs made of each pool: GPUs first, then in the ledger's order.

    Pools without slots and jobs are left out.
    """
    pools: dict[str, PoolBand] = {}
    for pool in (pool for run in runs for pool in run.pools.values()):
        if pool.name not in pools or pool.slots > pools[pool.name].slots:
            pools[pool.name] = pool
    found = []
    for pool in sorted(pools.values(), key=lambda pool: pool.kind != "gpu"):
        bars = [bar for run in runs for bar in run.bars if bar.pool == pool.name]
        busy, total = 0.0, 0.0
        for run in runs:
            slots = run.pools[pool.name].slots if pool.name in run.pools else 0
            busy += busy_s((b for b in run.bars if b.pool == pool.name), slots)
            total += slots * run.span_s
        if not bars and not total:
            continue
        found.append(Use(pool, len(bars), busy, total - busy, mean_wait_s(bars)))
    return found


def mean_wait_s(bars: Iterable[JobBar]) -> float | None:
    """Return the mean time in the queue in seconds, None where it is not known."""
    waits = [bar.wait_s for bar in bars if bar.wait_s is not None]
    return sum(waits) / len(waits) if waits else None
