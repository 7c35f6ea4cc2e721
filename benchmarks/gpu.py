"""Every kernel that a rule runs on a GPU, there and on the CPU: whether they agree, and times.

``python -m benchmarks.gpu [--px 1024] [--planes 20] [--repeats 5]`` makes its data
on the spot and returns 1 where devices disagree. A kernel is repeated until 3 s have passed, at
most, which keeps the whole below 10 minutes. Copies of 512 MB and FFTs of the kernels' own
size are timed first, in the same run. A kernel's bound is the time in which the device copies the
bytes that the kernel must read and write, and does its FFTs; the last column is that bound over
the time measured. Data of the heavy kernels start and end in device memory, so that transfers are
not in it.

It runs on the stand-in for CuPy as well (``tests/benchmarks/test_gpu.py``), where parity is
meaningful and speed is not.
"""

import argparse
import os
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from tests.support.gpu_cases import Case, cases
from tests.support.gpu_cases_of_rules import cases_of_rules
from tilewright.kernels.backend import Backend, cpu_backend, gpu_backend

_ENOUGH_S = 3.0
COPY_B = 512 * 2**20
#: Voxels of a full cycle: 63 tiles of 1440 x 1920 x 20 planes in 4 channels.
FULL_VOXELS = 63 * 1440 * 1920 * 20 * 4


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


class Limits:
    """What a device can do: bytes copied a second, and the time of FFTs."""

    def __init__(self, backend: Backend, copy_b: int, repeats: int) -> None:
        self.backend, self.repeats = backend, repeats
        xp = backend.xp
        source, target = (xp.ones(copy_b // 4, xp.float32) for _ in range(2))

        def copy() -> None:
            target[...] = source

        self.bytes_per_s = 2 * copy_b / seconds(backend, copy, repeats)

    def fft_s(self, shape: tuple[int, ...]) -> float:
        """Return the seconds of one real FFT."""
        values = self.backend.xp.ones(shape, self.backend.xp.float32)
        axes = tuple(range(len(shape)))
        with self.backend.fft_threads():
            return seconds(
                self.backend, lambda: self.backend.fft.rfftn(values, axes=axes), self.repeats
            )

    def bound_s(self, case: Case) -> float:
        """Return the least time of a case."""
        return case.bytes_ / self.bytes_per_s + sum(n * self.fft_s(shape) for n, shape in case.ffts)


def main() -> int:
    """Run all cases, print the table, and return 1 where devices disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--px", type=int, default=1024)
    parser.add_argument("--planes", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--copy-b", type=int, default=COPY_B)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    gpu, cpu = gpu_backend(), cpu_backend(cores)
    limits = Limits(gpu, options.copy_b, options.repeats)
    print(f"the device copies {limits.bytes_per_s / 1e9:.0f} GB/s; CPU: {cores} cores")
    print(f"{'kernel':34}{'GPU ms':>9}{'CPU ms':>9}{'ratio':>7}{'differ':>9}{'of bound':>10}")
    cycle_s, wrong = 0.0, 0
    data = (options.px, options.planes)
    made = (chain(cases(b, *data), cases_of_rules(b, *data[:2])) for b in (gpu, cpu))
    for one, other in zip(*made, strict=True):
        first, second = (np.asarray(b.to_numpy(c.run()), np.float64)
                         for b, c in ((gpu, one), (cpu, other)))  # fmt: skip
        differ = float(np.abs(first - second).max() / max(np.abs(second).max(), 1e-12))
        on_gpu, on_cpu = (seconds(b, c.run, options.repeats) for b, c in ((gpu, one), (cpu, other)))
        wrong += differ > one.tolerance
        if one.voxels:
            cycle_s += on_gpu * FULL_VOXELS / one.voxels
        print(f"{one.name:34}{1e3 * on_gpu:9.2f}{1e3 * on_cpu:9.1f}{on_cpu / on_gpu:7.1f}"
              f"{differ:9.1e}{limits.bound_s(one) / on_gpu:10.2f}")  # fmt: skip
    print(f"kernels of a full cycle with the multi-plane Wiener plane: {cycle_s:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
