"""Snakemake's executor ``tilewright``: see ``snakemake_scheduler_plugin_tilewright.executor``."""

from snakemake_scheduler_plugin_tilewright.executor import (
    Executor,
    ExecutorSettings,
    common_settings,
)

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
