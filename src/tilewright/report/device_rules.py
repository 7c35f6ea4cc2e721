"""What the jobs of each rule made of their leases, and the memory they should ask for (pure)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tilewright.report.device_use import DeviceJob

MIB = 2**20
#: A slot is the largest peak of at least so many jobs, and a margin, up to whole steps.
ENOUGH, MARGIN_PERCENT, STEP_MIB = 5, 20, 64


@dataclass(frozen=True)
class Spread:
    """Median and largest of what is known; both None where nothing is."""

    median: float | None
    largest: float | None


@dataclass(frozen=True)
class Slot:
    """How much memory a job of a rule should ask for.

    Attributes
    ----------
    mib : int or None
        None: not known.
    peak_b : float
        Largest peak of the ``measured`` jobs.
    measured : int
        Jobs that were done, with a known peak, and more memory than any job that was short of it.
    short : int
        Jobs that were short of memory.
    short_b : float
        The most memory that was too little; infinite where that is not known.
    """

    mib: int | None
    peak_b: float
    measured: int
    short: int
    short_b: float


@dataclass(frozen=True)
class RuleUse:
    """What the jobs of a rule made of their leases.

    Attributes
    ----------
    rule : str
    jobs : int
    waited, held : Spread
        Seconds.
    idle_fraction : float or None
        Over all leases in which it was measured, each by its length.
    asked, granted, peak : Spread
        Bytes.
    splits : int
    failures : tuple of (outcome, reason, count)
        Most frequent first; reasons that differ only in numbers are one, in the words of the first.
    slot : Slot
    """

    rule: str
    jobs: int
    waited: Spread
    held: Spread
    idle_fraction: float | None
    asked: Spread
    granted: Spread
    peak: Spread
    splits: int
    failures: tuple[tuple[str, str, int], ...]
    slot: Slot


def rules_of(jobs: Sequence[DeviceJob], rank: Callable[[str], Any]) -> list[RuleUse]:
    """Return the use of each rule, in the order of ``rank``."""
    rules = sorted({job.rule for job in jobs}, key=rank)
    return [_use(rule, [job for job in jobs if job.rule == rule]) for rule in rules]


def slot_of(jobs: Sequence[DeviceJob]) -> Slot:
    """Return the memory that jobs of one rule should ask for.

    A job that was short of memory does not show how much it wanted, so only jobs with more than
    that are measured.
    """
    short = [job for job in jobs if job.short]
    short_b = max(
        (math.inf if job.granted_b is None else job.granted_b for job in short), default=-1.0
    )
    peaks = [
        job.peak_b
        for job in jobs
        if job.outcome == "done" and job.peak_b is not None and (job.granted_b or 0) > short_b
    ]
    peak_b = max(peaks, default=0.0)
    steps = -(-int(peak_b) * (100 + MARGIN_PERCENT) // (100 * STEP_MIB * MIB))
    mib = max(1, steps) * STEP_MIB if len(peaks) >= ENOUGH else None
    return Slot(mib, peak_b, len(peaks), len(short), max(0.0, short_b))


def _use(rule: str, jobs: Sequence[DeviceJob]) -> RuleUse:
    granted = [job for job in jobs if job.granted]
    leased = [
        (job.idle_fraction, job.held_s)
        for job in granted
        if job.idle_fraction is not None and job.held_s is not None
    ]
    leased_s = sum(held_s for _, held_s in leased)
    return RuleUse(
        rule, len(jobs),
        spread(job.waited_s for job in jobs),
        spread(job.held_s for job in granted),
        sum(idle * held_s for idle, held_s in leased) / leased_s if leased_s else None,
        spread(job.asked_b for job in jobs),
        spread(job.granted_b for job in granted),
        spread(job.peak_b for job in granted),
        sum(job.splits for job in jobs), _failures(jobs), slot_of(jobs),
    )  # fmt: skip


def _failures(jobs: Iterable[DeviceJob]) -> tuple[tuple[str, str, int], ...]:
    counts: Counter[tuple[str, str]] = Counter()
    words: dict[tuple[str, str], str] = {}
    for job in jobs:
        if job.outcome != "done":
            reason = job.reason.replace(job.name, "…")
            key = (job.outcome, re.sub(r"[\d.,]*\d", "0", reason))
            counts[key] += 1
            words.setdefault(key, reason)
    return tuple((key[0], words[key], n) for key, n in counts.most_common())


def spread(values: Iterable[float | None]) -> Spread:
    """Return the median and the largest of the values that are known."""
    known = [value for value in values if value is not None]
    return Spread(median(known), max(known)) if known else Spread(None, None)
