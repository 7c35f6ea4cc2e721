"""Plans of transforms, kept with their work areas by the thread that made them."""

import threading
from typing import Any

import numpy as np

from ._pool import OutOfMemoryError, count


class CuFFTError(RuntimeError):
    """An error of cuFFT; the message is the name of its result."""


class PlanCache(threading.local):
    """The 16 plans used last, as many as CuPy keeps; they go with their thread."""

    def __init__(self) -> None:
        self._plans: dict[tuple[object, ...], Any] = {}

    def use(self, key: tuple[object, ...], work_b: int) -> None:
        """Make the plan of a transform where there is none."""
        plan = self._plans.pop(key, None)
        try:
            self._plans[key] = count(np.empty(work_b, np.uint8)) if plan is None else plan
        except OutOfMemoryError:
            raise CuFFTError("CUFFT_ALLOC_FAILED") from None
        if len(self._plans) > 16:
            del self._plans[next(iter(self._plans))]

    def clear(self) -> None:
        self._plans.clear()


_CACHE = PlanCache()


def get_plan_cache() -> PlanCache:
    return _CACHE
