"""``scipy.fft`` under CuPy's name; transforms take memory for their results and their plans."""

import functools
from collections.abc import Callable
from typing import Any

import scipy.fft
from cupy import _plans, _pool
from scipy.fft import *  # noqa: F403


def _planned(transform: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(transform)
    def run(array: Any, *args: Any, **kwargs: Any) -> Any:
        result = transform(array, *args, **kwargs)
        key = (transform.__name__, array.shape, str(args), str(kwargs))
        # cuFFT's work area is of the size of the data, or none: the larger is taken.
        _plans.get_plan_cache().use(key, result.nbytes)
        return _pool.count(result)

    return run


for _name in ("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2"):
    globals()[_name] = _planned(getattr(scipy.fft, _name))
