"""What doctor checks first: Snakemake's plugins, caches, the lock of the folder."""

from collections.abc import Iterable
from pathlib import Path

from ..placement.orphaned import sender_of
from ..runtime.scratch import refused_folders
from ..runtime.snakemake_command import is_locked
from .checks import Check, ok, problem, problem_from, version_of

_OWN = "snakemake-scheduler-plugin-tilewright"


def check_all(folder: Path) -> Iterable[Check]:
    """Check what a run in a folder needs on any machine."""
    yield from check_plugins()
    yield from check_scratch()
    yield from check_lock(folder)


def check_plugins() -> Iterable[Check]:
    """Check that Snakemake finds the scheduler and the executor of the cluster profiles."""
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
    from snakemake_interface_scheduler_plugins.registry import SchedulerPluginRegistry

    fix = "install snakemake-scheduler-plugin-tilewright again in this environment"
    for about, name, package, registry in (
        ("scheduler", "tilewright", _OWN, SchedulerPluginRegistry),
        ("executor", "slurm", "snakemake-executor-plugin-slurm", ExecutorPluginRegistry),
    ):
        try:
            found = registry().is_installed(name)
        except Exception as error:  # noqa: BLE001 - a broken plugin of anybody may raise anything
            yield problem(about, f"Snakemake's plugins do not load: {error!r}", fix)
            continue
        if found:
            yield ok(
                about, f"plugin {name} {version_of(package)}, Snakemake {version_of('snakemake')}"
            )
        else:
            yield problem(about, f"Snakemake does not find the plugin {name}", fix)


def check_scratch() -> Iterable[Check]:
    """Check that caches and temporary files can be written."""
    refused = [problem_from("scratch", sentence, "") for sentence in refused_folders()]
    yield from refused or [ok("scratch", "caches and temporary files can be written")]


def check_lock(folder: Path) -> Iterable[Check]:
    """Check that no other run has locked a folder."""
    if not is_locked(folder):
        yield ok("lock", "no run has locked this folder")
        return
    sender = sender_of(folder)
    if sender.active:
        text, fix = "a run is active here and has locked this folder", "wait until it has ended"
    elif sender.active is None:
        text = "this folder is locked: a run is active here, or one was killed"
        fix = "wait for it, or, if none is active, run snakemake with --unlock"
    else:
        text, fix = "a run that was killed left this folder locked", "run snakemake with --unlock"
    yield problem("lock", text, fix)
