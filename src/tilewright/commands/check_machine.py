"""What doctor looks at on this machine: Snakemake's plugins, CuPy, the lock of the folder."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tilewright.commands.checks import Check, count, ok, problem, said_by, warning
from tilewright.devices.health import HealthError
from tilewright.devices.lease_queue import LeaseRootError
from tilewright.devices.slurm_grant import DeviceChoiceError, device_from_environment
from tilewright.placement.jobs import Task
from tilewright.placement.sizing import Estimates
from tilewright.runtime.machine import usable_gpus
from tilewright.runtime.scratch import refused_folders
from tilewright.runtime.snakemake_adapter import is_locked

_CUPY = "pip install 'tilewright[cuda12]' (or cuda13)"
_CUPY_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
#: What profiles/default lets jobs fill.
_MEMORY_SHARE = 0.9


def check_plugins() -> Iterable[Check]:
    """Check that Snakemake finds the scheduler and the executor of the cluster profiles."""
    from snakemake_interface_executor_plugins.registry import (
        ExecutorPluginRegistry,
    )
    from snakemake_interface_scheduler_plugins.registry import SchedulerPluginRegistry

    fix = "install tilewright again in this environment: pip install -e ."
    for about, name, package, registry in (
        ("scheduler", "tilewright", "tilewright", SchedulerPluginRegistry),
        ("executor", "slurm", "snakemake-executor-plugin-slurm", ExecutorPluginRegistry),
    ):
        try:
            found = registry().is_installed(name)
        except Exception as error:  # noqa: BLE001 - a broken plugin of anybody may raise anything
            yield problem(about, f"Snakemake's plugins do not load: {error!r}", fix)
            continue
        if found:
            yield ok(about, f"plugin {name} {_version(package)}, Snakemake {_version('snakemake')}")
        else:
            yield problem(about, f"Snakemake does not find the plugin {name}", fix)


def check_device(environ: Mapping[str, str] = os.environ) -> Iterable[Check]:
    """Check GPUs, CuPy and the driver where this machine's jobs may run on a GPU."""
    from tilewright.kernels.backend import DeviceError, gpu_backend

    try:
        choice = device_from_environment(environ)
        if choice == "cpu":
            yield ok("device", "jobs on this machine run on its CPUs (TILEWRIGHT_DEVICE)")
            return
        gpus = usable_gpus(environ)
        if not gpus.devices:
            text = f"no GPU that can be used: {gpus.reason}"
            if choice == "gpu":
                yield problem("device", text, "set TILEWRIGHT_DEVICE=cpu, or give it a GPU")
            else:
                yield ok("device", f"{text}; jobs run on CPUs")
            return
        driver = gpu_backend().xp.cuda.runtime.driverGetVersion()
    except (DeviceChoiceError, DeviceError, HealthError, LeaseRootError) as error:
        yield said_by("device", error, "set TILEWRIGHT_DEVICE=cpu, or fix the GPU")
        return
    yield ok(
        "device",
        f"{count(len(gpus.devices), 'GPU')}, CuPy {_version(*_CUPY_PACKAGES)}, "
        f"driver for CUDA {driver // 1000}.{driver % 1000 // 10}",
    )


def check_cupy(gpu_pools: Iterable[str]) -> Iterable[Check]:
    """Check that CuPy is in this environment, which is that of the jobs, where GPU pools are."""
    names = list(gpu_pools)
    if not names:
        return
    try:
        importlib.import_module("cupy")
    except ImportError as error:
        reason = str(error)
    else:
        yield ok("CuPy", f"{_version(*_CUPY_PACKAGES)} for GPU jobs")
        return
    accounts = ", ".join(f"{name.removesuffix('_gpu')}: gres/gpu=0" for name in names)
    yield warning(
        "CuPy",
        f"it cannot be imported ({reason}), so jobs in {', '.join(names)} fail at once",
        f"{_CUPY}, or use no GPUs: caps: {{{accounts}}} in the site file",
    )


def check_memory(jobs: Iterable[Task], estimates: Estimates) -> Check:
    """Check that the largest job fits into this machine's memory."""
    shapes = [
        (estimates.shape(task.job.rule, task.job.wildcards, "cpu").mem_mb, task.name)
        for task in jobs
    ]
    most_mb, name = max(shapes)
    have_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE / 2**20
    text = f"the largest job, {name}, asks for {most_mb / 1024:.1f} GB of {have_mb / 1024:.1f} GB"
    if most_mb > have_mb:
        return problem("memory", text, "use a larger machine, or smaller deconvolve.tile_px")
    return ok("memory", text)


def check_lock(folder: Path) -> Iterable[Check]:
    """Check that no other run has locked a folder."""
    if is_locked(folder):
        yield problem(
            "lock",
            "this folder is locked: a run is active here, or one was killed",
            "wait for it, or, if none is active, run snakemake with --unlock",
        )
    else:
        yield ok("lock", "no run has locked this folder")


def check_scratch() -> Iterable[Check]:
    """Check that caches and temporary files can be written."""
    refused = list(refused_folders())
    for sentence in refused:
        cause, _, fix = sentence.partition("; ")
        yield problem("scratch", cause, fix)
    if not refused:
        yield ok("scratch", "caches and temporary files can be written")


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "(version not known)"
