"""Every kernel that a rule runs on a GPU, there and on the CPU: whether they agree, and times.

``python -m benchmarks.gpu [--px 1024] [--planes 20] [--repeats 5]`` makes its data on the spot and
returns 1 where devices disagree. A kernel is repeated until 3 s have passed, at most, which keeps
the whole below 10 minutes.

It runs on the stand-in for CuPy as well (``tests/benchmarks/test_gpu.py``), where parity is
meaningful and speed is not.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu_cases import cases
from tilewright.kernels.backend import Backend, cpu_backend, gpu_backend

_ENOUGH_S = 3.0


def wait(backend: Backend) -> None:
    """Wait until the device has done all that it was asked for."""
    if backend.device == "gpu":
        backend.xp.cuda.runtime.deviceSynchronize()


def seconds(backend: Backend, run: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call, after one that is not counted, within about 3 s."""
    run()
    wait(backend)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        wait(backend)
        found.append(time.perf_counter() - began)
        if sum(found) > _ENOUGH_S:
            break
    return float(np.median(found))


def difference(device: Backend, found: Any, cpu: Backend, expected: Any) -> float:
    """Return the largest difference of two results, over the largest value of the second."""
    there, here = (
        np.asarray(backend.to_numpy(result), np.float64)
        for backend, result in ((device, found), (cpu, expected))
    )
    return float(np.abs(there - here).max() / max(np.abs(here).max(), 1e-12))


def main() -> int:
    """Run all cases, print the table, and return 1 where devices disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--px", type=int, default=1024)
    parser.add_argument("--planes", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    gpu, cpu = gpu_backend(), cpu_backend(cores)
    print(f"CPU: {cores} cores")
    print(f"{'kernel':34}{'GPU ms':>9}{'CPU ms':>9}{'ratio':>7}{'differ':>9}")
    wrong = 0
    made = (cases(backend, options.px, options.planes) for backend in (gpu, cpu))
    for there, here in zip(*made, strict=True):
        differ = difference(gpu, there.run(), cpu, here.run())
        wrong += differ > there.tolerance
        on_gpu, on_cpu = (
            seconds(backend, case.run, options.repeats)
            for backend, case in ((gpu, there), (cpu, here))
        )
        print(f"{there.name:34}{1e3 * on_gpu:9.2f}{1e3 * on_cpu:9.1f}{on_cpu / on_gpu:7.1f}"
              f"{differ:9.1e}")  # fmt: skip
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
