"""Snakemake's executor and scheduler ``tilewright``: an account and a device slot for every job.

Every process that runs a job imports this, and few of them schedule: what it offers is loaded when
it is asked for. Other packages import these names, and no module of the package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .orphaned import active_run, refuse_second_run
    from .placement.request import DeviceKind, ResourceModel, ResourceRequest
    from .report.page import environment, run_section
    from .resources import Placement, allocated_gpus, detect
    from .runtime.cause import cause_line
    from .runtime.errors import PlacementError
    from .runtime.files import append_json, read_json_lines
    from .runtime.snakemake_adapter import SetUpError, command, is_locked, runs_nothing, targets
    from .scheduler import Scheduler, SchedulerSettings

#: Module to its public names.
_NAMES = {
    "orphaned": "active_run refuse_second_run",
    "placement.request": "DeviceKind ResourceModel ResourceRequest",
    "report.page": "environment run_section",
    "resources": "Placement allocated_gpus detect",
    "runtime.cause": "cause_line",
    "runtime.errors": "PlacementError",
    "runtime.files": "append_json read_json_lines",
    "runtime.snakemake_adapter": "SetUpError command is_locked runs_nothing targets",
    "scheduler": "Scheduler SchedulerSettings",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__} has no {name}")
