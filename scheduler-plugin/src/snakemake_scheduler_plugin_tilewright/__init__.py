"""Snakemake's executor and scheduler ``tilewright``: an account and a device slot for every job.

Every process that runs a job imports this, and few of them schedule: what it offers is loaded when
it is asked for. Other packages import these names, and no module of the package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .commands.checks import Check, ok, problem, problem_from, version_of, warning
    from .commands.doctor import check_all, on_slurm, show_checks
    from .commands.slurm_here import has_slurm
    from .orphaned import active_run, refuse_second_run
    from .placement.cluster import Cluster
    from .placement.request import DeviceKind, ResourceModel, ResourceRequest
    from .pools import make_pools
    from .report.page import environment, run_section
    from .report.palette import BLUE, COLOURS, GREY, ORANGE, RED, colours_of, pale
    from .resources import Placement, detect
    from .runtime.allocation import allocated_gpus
    from .runtime.cause import cause_line
    from .runtime.errors import PlacementError
    from .runtime.json_lines import append_json, read_json_lines
    from .runtime.run_state import span_text
    from .runtime.snakemake_command import SetUpError, command, is_locked, runs_nothing, targets
    from .scheduler import Scheduler, SchedulerSettings

#: Module to its public names.
_NAMES = {
    "commands.checks": "Check ok problem problem_from version_of warning",
    "commands.doctor": "check_all on_slurm show_checks",
    "commands.slurm_here": "has_slurm",
    "placement.cluster": "Cluster",
    "orphaned": "active_run refuse_second_run",
    "pools": "make_pools",
    "placement.request": "DeviceKind ResourceModel ResourceRequest",
    "report.page": "environment run_section",
    "report.palette": "BLUE COLOURS GREY ORANGE RED colours_of pale",
    "resources": "Placement detect",
    "runtime.allocation": "allocated_gpus",
    "runtime.cause": "cause_line",
    "runtime.errors": "PlacementError",
    "runtime.json_lines": "append_json read_json_lines",
    "runtime.run_state": "span_text",
    "runtime.snakemake_command": "SetUpError command is_locked runs_nothing targets",
    "scheduler": "Scheduler SchedulerSettings",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__} has no {name}")
