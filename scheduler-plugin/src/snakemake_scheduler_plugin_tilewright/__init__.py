"""Snakemake's scheduler ``tilewright``: an account and a device slot for every job.

Every process that runs a job imports this, and few of them schedule: what it offers is loaded when
it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from snakemake_scheduler_plugin_tilewright.errors import PlacementError

if TYPE_CHECKING:
    from snakemake_scheduler_plugin_tilewright.errors import PlacementError as PlacementError
    from snakemake_scheduler_plugin_tilewright.placement.cluster import slots as slots
    from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind as Kind
    from snakemake_scheduler_plugin_tilewright.placement.jobs import ResourceModel as ResourceModel
    from snakemake_scheduler_plugin_tilewright.placement.jobs import Shape as Shape
    from snakemake_scheduler_plugin_tilewright.placement.resources import Placement as Placement
    from snakemake_scheduler_plugin_tilewright.placement.resources import detect as detect
    from snakemake_scheduler_plugin_tilewright.scheduler import Scheduler as Scheduler
    from snakemake_scheduler_plugin_tilewright.scheduler import (
        SchedulerSettings as SchedulerSettings,
    )

#: Public names by the module that they come from.
_MODULES = {
    "Scheduler": "scheduler",
    "SchedulerSettings": "scheduler",
    "slots": "placement.cluster",
    "detect": "placement.resources",
    "Placement": "placement.resources",
    "Kind": "placement.jobs",
    "PlacementError": "errors",
    "ResourceModel": "placement.jobs",
    "Shape": "placement.jobs",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__} has no {name}")
