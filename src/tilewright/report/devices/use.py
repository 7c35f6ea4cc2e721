"""The jobs' lines of evidence: runs, bars, and the memory to ask for (pure).

The lines are written by :meth:`tilewright.devices.evidence.Held.evidence`; bytes are of
device memory, times in seconds since the epoch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright.report.runs import ClusterRun, JobBar, PoolBand
from snakemake_scheduler_plugin_tilewright.runtime.files import JsonLines, read_json_lines
from snakemake_scheduler_plugin_tilewright.runtime.records import (
    is_number,
    is_text,
    is_time,
)
from tilewright.devices.health import classify

#: The lines do not say which run they are of: leases further apart are taken for two runs.
GAP_S = 900.0
MIB = 2**20
#: A slot is the largest peak of at least so many jobs, and a margin, up to whole steps.
ENOUGH, MARGIN_PERCENT, STEP_MIB = 5, 20, 64
#: Characters of a UUID that tell devices apart: GPU- and eight digits.
_SHORT = 12


@dataclass(frozen=True)
class DeviceJob:
    """One line; None: not known.

    Attributes
    ----------
    uuid : str
        Empty where it got no device.
    outcome : str
        ``done``, ``failed`` or ``not granted``.
    start_s : float
        When the lease began.
    idle_fraction : float or None
        Share of the lease in which the device did not compute.
    splits : int
        Tiles that were halved for lack of memory.
    """

    name: str
    rule: str
    uuid: str
    outcome: str
    reason: str
    start_s: float
    waited_s: float | None
    held_s: float | None
    idle_fraction: float | None
    asked_b: float | None
    granted_b: float | None
    peak_b: float | None
    splits: int

    @property
    def granted(self) -> bool:
        """Whether it got a device."""
        return self.outcome != "not granted"

    @property
    def on_device(self) -> bool:
        """Whether it is known where it was, and for how long."""
        return bool(self.granted and self.uuid and self.held_s is not None)

    @property
    def end_s(self) -> float:
        """When the lease ended; its start where that is not known."""
        return self.start_s + (self.held_s or 0.0)

    @property
    def bar(self) -> JobBar:
        """What is drawn of it."""
        failed = self.outcome == "failed"
        return JobBar(self.name, self.rule, self.uuid, self.start_s, self.end_s, failed=failed)

    @property
    def short(self) -> bool:
        """Whether its memory was too little: it halved tiles, or failed for lack of it."""
        return self.splits > 0 or (self.outcome == "failed" and classify(self.reason) == "memory")


def read_evidence(path: Path) -> JsonLines:
    """Return the lines of a file of evidence."""
    checks = {"job": lambda job: is_text(job) and job != "", "time_s": is_time}
    return read_json_lines(path, checks, checks)


def jobs_of(lines: Iterable[Mapping[str, Any]]) -> list[DeviceJob]:
    """Return the jobs by start."""
    jobs = [
        DeviceJob(
            name=line["job"],
            rule=line["job"].split("/")[0],
            uuid=str(line.get("uuid") or ""),
            outcome=str(line.get("outcome") or ""),
            reason=str(line.get("reason") or ""),
            start_s=float(line["time_s"]),
            waited_s=_positive(line, "waited_s"),
            held_s=_positive(line, "held_s"),
            idle_fraction=_positive(line, "idle_fraction"),
            # what is asked for a whole device is the least that will do, which tells nothing
            asked_b=None if line.get("whole") else _positive(line, "requested_b"),
            granted_b=_positive(line, "granted_b"),
            peak_b=_positive(line, "peak_b"),
            splits=int(_positive(line, "splits") or 0),
        )
        for line in lines
    ]
    return sorted(jobs, key=lambda job: (job.start_s, job.end_s, job.name, job.uuid))


def device_runs(jobs: Iterable[DeviceJob]) -> list[ClusterRun]:
    """Return the runs that jobs seem to be of: their leases lie less than :data:`GAP_S` apart.

    A device is a pool of one slot in them, so that they are drawn as runs on a cluster are. It is
    called by the beginning of its UUID, as long as it takes to tell the devices apart.
    """
    groups: list[list[DeviceJob]] = []
    end_s = -math.inf
    for job in sorted(jobs, key=since_s):
        if since_s(job) - end_s > GAP_S:
            groups.append([])
        groups[-1].append(job)
        end_s = max(end_s, job.end_s)
    uuids = sorted({job.uuid for group in groups for job in group if job.on_device})
    length = _SHORT
    while len({uuid[:length] for uuid in uuids}) < len(uuids):
        length += 1
    pools = {uuid: PoolBand(uuid, uuid[:length], "gpu", 1) for uuid in uuids}
    runs = []
    for k, group in enumerate(groups, 1):
        # A job that asks for less may pass one that waits.
        held = sorted((job for job in group if job.on_device), key=lambda job: job.start_s)
        bars = tuple(job.bar for job in held)
        own = {uuid: pools[uuid] for uuid in uuids if any(bar.pool == uuid for bar in bars)}
        end_s = max(job.end_s for job in group)
        runs.append(ClusterRun(k, since_s(group[0]), end_s, own, bars))
    return runs


def since_s(job: DeviceJob) -> float:
    """Return when a job began to wait for its lease."""
    return job.start_s - (job.waited_s or 0.0)


def _positive(line: Mapping[str, Any], key: str) -> float | None:
    value: Any = line.get(key)
    known = is_time if key.endswith("_s") else is_number
    return float(value) if known(value) and value >= 0 else None


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


def failures(jobs: Iterable[DeviceJob]) -> list[tuple[str, str, int]]:
    """Return outcome, reason and count of what was not done, the most frequent first.

    Reasons that differ only in numbers are one, in the words of the first.
    """
    found: dict[tuple[str, str], tuple[str, str, int]] = {}
    for job in jobs:
        if job.outcome != "done":
            reason = job.reason.replace(job.name, "…")
            key = (job.outcome, re.sub(r"[\d.,]*\d", "0", reason))
            outcome, words, count = found.get(key, (job.outcome, reason, 0))
            found[key] = (outcome, words, count + 1)
    return sorted(found.values(), key=lambda failure: -failure[2])


def idle_fraction(jobs: Iterable[DeviceJob]) -> float | None:
    """Return the share of all leases in which the device did not compute, where it was measured."""
    leased = [
        (job.idle_fraction, job.held_s)
        for job in jobs
        if job.idle_fraction is not None and job.held_s is not None
    ]
    leased_s = sum(held_s for _, held_s in leased)
    return sum(idle * held_s for idle, held_s in leased) / leased_s if leased_s else None
