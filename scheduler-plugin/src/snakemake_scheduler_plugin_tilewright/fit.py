"""Jobs as they come, as long as they fit."""

from collections.abc import Iterable, Mapping
from typing import Any


def first_fit(jobs: Iterable[Any], available: Mapping[str, int | str]) -> list[Any]:
    """Return the jobs that fit at once, by priority."""
    left = {name: n for name, n in available.items() if isinstance(n, int)}
    chosen = []
    for job in sorted(jobs, key=lambda job: -job.priority):
        asked = {name: job.scheduler_resources.get(name, 0) for name in left}
        if all(left[name] >= n for name, n in asked.items() if n):
            chosen.append(job)
            left = {name: left[name] - n for name, n in asked.items()}
    return chosen
