"""Snakemake's scheduler ``tilewright``: an account and a device slot for every job.

Every process that runs a job imports this, and few of them schedule: ``Scheduler`` and
``SchedulerSettings`` are loaded when Snakemake asks for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("Scheduler", "SchedulerSettings"):
        return getattr(import_module(f"{__name__}.scheduler"), name)
    raise AttributeError(f"module {__name__} has no {name}")
