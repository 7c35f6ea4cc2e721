"""Counts the memory of arrays as CuPy's pool does, and refuses what exceeds its limit.

Counted is what ``empty``, ``zeros``, ``ones``, ``asarray`` and the transforms return, as long as it
or a view of it lives, and a work area per plan that a thread's cache holds. What arithmetic
returns is not. Freed memory stays with the pool until it is asked to free its blocks, or short.
"""

import gc
import os
import threading
import weakref
from typing import Any

import numpy as np

#: Bytes of the pretended device.
DEVICE_B = 1 << 34


class OutOfMemoryError(MemoryError):
    """CuPy's, with CuPy's text."""


class MemoryPool:
    """The pool of the only device."""

    def __init__(self) -> None:
        self._limit = int(os.environ.get("CUPY_GPU_MEMORY_LIMIT", "0"))
        self._used = self._total = 0
        # A finaliser may run while the lock is held.
        self._lock = threading.RLock()

    def take(self, size: int) -> None:
        limit = self._limit or DEVICE_B
        with self._lock:
            if self._used + size > limit:
                gc.collect()
                self._total = self._used
            if self._used + size > limit:
                raise OutOfMemoryError(
                    f"Out of memory allocating {size:,} bytes (allocated so far: "
                    f"{self._total:,} bytes, limit set to: {limit:,} bytes)."
                )
            self._used += size
            self._total = max(self._total, self._used)

    def give(self, size: int) -> None:
        with self._lock:
            self._used -= size

    def free_all_blocks(self) -> None:
        self._total = self._used

    def total_bytes(self) -> int:
        return self._total

    def get_limit(self) -> int:
        return self._limit

    def set_limit(self, size: int) -> None:
        self._limit = size


POOL = MemoryPool()
_OWNERS: set[int] = set()


def _owner(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def is_counted(array: Any) -> bool:
    return id(_owner(array)) in _OWNERS


def count(array: Any) -> Any:
    """Take an array's memory until the last view of it is gone; what is counted stays so."""
    owner = _owner(array)
    if id(owner) not in _OWNERS:
        POOL.take(owner.nbytes)
        _OWNERS.add(id(owner))
        weakref.finalize(owner, _drop, id(owner), owner.nbytes)
    return array


def _drop(key: int, size: int) -> None:
    _OWNERS.discard(key)
    POOL.give(size)
