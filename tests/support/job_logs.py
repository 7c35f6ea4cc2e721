"""What the log of a job says that it took."""

import re
from pathlib import Path

_CPU_TIME = re.compile(r"CPU time ([\d.]+) s, and ([\d.]+) s to start")
_PEAK = re.compile(r"peak memory (\d+) MB")


def cpu_times_s(log: Path) -> tuple[float, float]:
    """Return the CPU seconds in which a job worked, and in which it started, by its log."""
    work_s, start_s = _CPU_TIME.findall(log.read_text("utf-8"))[-1]
    return float(work_s), float(start_s)


def peak_mb(log: Path) -> int:
    """Return the most memory that a job has held, by its log."""
    return int(_PEAK.findall(log.read_text("utf-8"))[-1])
