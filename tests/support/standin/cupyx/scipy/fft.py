"""``scipy.fft`` under CuPy's name; transforms take memory for their results and their plans."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import scipy.fft
from cupy import _pool
from cupy.fft.config import get_plan_cache

_TRANSFORMS = ("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2")


def __getattr__(name: str) -> Any:
    """Take every name from SciPy."""
    found = getattr(scipy.fft, name)
    return _planned(found) if name in _TRANSFORMS else found


def _planned(transform: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(transform)
    def run(array: Any, *args: Any, **kwargs: Any) -> Any:
        result = transform(array, *args, **kwargs)
        key = (transform.__name__, array.shape, str(args), str(kwargs))
        # cuFFT's work area is of the size of the data, or none: the larger is taken.
        get_plan_cache().use(key, result.nbytes)
        return _pool.count(result)

    return run
