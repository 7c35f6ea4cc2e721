"""Not CuPy: NumPy under CuPy's name, for tests on machines without a GPU.

With the folder above on ``PYTHONPATH`` a process takes the GPU's way through the program
(choice of device, its checks, its failures) while the CPU computes. It says nothing about
speed or rounding on a device. It counts as devices what ``CUDA_VISIBLE_DEVICES`` lists, so a
job that Slurm gave no GPU finds none. Of a device's memory it knows what ``_pool`` counts.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy

from . import _plans, _pool, cuda

__all__ = ["cuda", "fft"]
__version__ = "0+standin"
fft = SimpleNamespace(config=_plans)


def get_default_memory_pool() -> _pool.MemoryPool:
    return _pool.POOL


def get_default_pinned_memory_pool() -> _pool.MemoryPool:
    """Return a pool that holds nothing."""
    return _pool.MemoryPool()


def _counted(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: _pool.count(make(*args, **kwargs))


empty, zeros, ones = map(_counted, (numpy.empty, numpy.zeros, numpy.ones))


def asarray(array: Any, dtype: Any = None) -> Any:
    """Return an array of the device; what is not there yet is copied, as from a host."""
    there = isinstance(array, numpy.ndarray) and _pool.is_counted(array)
    return _pool.count((numpy.asarray if there else numpy.array)(array, dtype))


def asnumpy(array: Any) -> Any:
    """Return an array of the host: a copy, so that the device's memory is free again."""
    return numpy.array(array)


def __getattr__(name: str) -> Any:
    """Take every other name from NumPy."""
    return getattr(numpy, name)
