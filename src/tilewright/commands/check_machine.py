"""Doctor's checks of this machine: GPUs, CuPy, memory."""

import importlib
import os
from collections.abc import Iterable, Mapping

from snakemake_scheduler_plugin_tilewright import (
    Check,
    ok,
    problem,
    problem_from,
    version_of,
    warning,
)
from tilewright.config.sizing import DataSizes
from tilewright.errors import DeviceError
from tilewright.runtime.machine import device_from_environment, usable_gpus
from tilewright.runtime.text import count

_CUPY = "pip install 'tilewright[cuda12]' (or cuda13)"
_CUPY_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
#: Share of the memory for jobs in profiles/default.
_MEMORY_SHARE = 0.9


def check_device(environ: Mapping[str, str] = os.environ) -> Iterable[Check]:
    """Check GPUs, CuPy and the driver where this machine's jobs may run on a GPU."""
    from tilewright.kernels.backend import gpu_backend

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
    except DeviceError as error:
        yield problem_from("device", error, "set TILEWRIGHT_DEVICE=cpu, or fix the GPU")
        return
    yield ok(
        "device",
        f"{count(len(gpus.devices), 'GPU')}, CuPy {version_of(*_CUPY_PACKAGES)}, "
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
        yield ok("CuPy", f"{version_of(*_CUPY_PACKAGES)} for GPU jobs")
        return
    text = f"it cannot be imported ({reason}), so no job goes to {', '.join(names)}"
    yield warning("CuPy", text, _CUPY)


def check_memory(sizes: DataSizes, rules: Iterable[str]) -> Check:
    """Check that the largest job of some rules fits into this machine's memory."""
    most_mb, rule = max((sizes.request(rule, {}, "cpu").mem_mb, rule) for rule in rules)
    have_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE / 2**20
    text = (
        f"the largest job, of {rule}, asks for {most_mb / 1024:.1f} GB of {have_mb / 1024:.1f} GB"
    )
    if most_mb > have_mb:
        return problem("memory", text, "use a larger machine, or smaller deconvolve.tile_px")
    return ok("memory", text)
