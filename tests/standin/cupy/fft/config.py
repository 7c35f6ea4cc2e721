"""Plans of transforms, kept with their work areas by the thread that made them."""

from __future__ import annotations

import threading

from .._pool import OutOfMemoryError, get_default_memory_pool

ALLOC_FAILED = 2


class CuFFTError(RuntimeError):
    """An error of cuFFT; the message is the name of its result."""

    def __init__(self, result: int) -> None:
        self.result = result
        super().__init__("CUFFT_ALLOC_FAILED")


class PlanCache(threading.local):
    """The 16 plans used last, as many as CuPy keeps."""

    def __init__(self) -> None:
        self._plans: dict[tuple[object, ...], int] = {}

    def use(self, key: tuple[object, ...], work_b: int) -> None:
        """Make the plan of a transform where there is none."""
        if key not in self._plans:
            while len(self._plans) >= 16:
                self._drop(next(iter(self._plans)))
            try:
                get_default_memory_pool().take(work_b)
            except OutOfMemoryError:
                raise CuFFTError(ALLOC_FAILED) from None
        self._plans[key] = self._plans.pop(key, work_b)

    def clear(self) -> None:
        for key in list(self._plans):
            self._drop(key)

    def _drop(self, key: tuple[object, ...]) -> None:
        get_default_memory_pool().give(self._plans.pop(key))


_CACHE = PlanCache()


def get_plan_cache() -> PlanCache:
    return _CACHE
