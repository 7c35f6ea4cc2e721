"""Not CuPy: NumPy under CuPy's name, for tests on machines without a GPU.

With the folder above on ``PYTHONPATH`` a process takes the GPU's way through the program
(choice of device, its checks, its failures) while the CPU computes. It says nothing about
speed or rounding on a device. It counts as devices what ``CUDA_VISIBLE_DEVICES`` lists, so a
job that Slurm gave no GPU finds none. Of a device's memory it knows what ``_pool`` counts.
"""

from __future__ import annotations

from typing import Any

import numpy

from . import _pool, cuda, fft
from ._pool import get_default_memory_pool, get_default_pinned_memory_pool

__all__ = ["cuda", "fft", "get_default_memory_pool", "get_default_pinned_memory_pool"]
__version__ = "0+standin"

empty, zeros, ones = (_pool.counted(make) for make in (numpy.empty, numpy.zeros, numpy.ones))


def asarray(array: Any, dtype: Any = None) -> Any:
    """Return an array of the device; what is not there yet is copied, as from a host."""
    if isinstance(array, numpy.ndarray) and _pool.is_counted(array):
        return _pool.count(numpy.asarray(array, dtype))
    return _pool.count(numpy.array(array, dtype))


def asnumpy(array: Any) -> Any:
    """Return an array of the host: a copy, so that the device's memory is free again."""
    return numpy.array(array)


def __getattr__(name: str) -> Any:
    """Take every other name from NumPy."""
    return getattr(numpy, name)
