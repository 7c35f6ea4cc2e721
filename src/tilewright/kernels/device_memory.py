"""Device memory that runs out: recognised, freed, and the work gone on with in smaller parts.

Only the memory of the backend's device counts: a ``MemoryError`` of the host passes through, and
on the CPU nothing here does anything but call the work.
"""

from __future__ import annotations

import functools
import gc
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar, cast

from tilewright.errors import DeviceMemoryError
from tilewright.kernels.backend import Backend

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")

logger = logging.getLogger(__name__)

_MB = 2**20
#: cuFFT, cuBLAS and cuSOLVER allocate by themselves, beside CuPy's pool, and so does the driver.
_NO_MEMORY = re.compile(r"_ALLOC_FAILED\b|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY")
_ASKED = re.compile(r"allocating ([\d,]+) bytes")


@dataclass(frozen=True)
class Smallest:
    """What is said when the smallest part does not fit.

    Attributes
    ----------
    rule : str
        The rule whose memory can be configured.
    what : str
        The smallest part.
    fix : str
        What helps beside more memory, as the end of a sentence that begins with "or".
    """

    rule: str
    what: str
    fix: str = ""


@dataclass(frozen=True)
class _Shortage:
    """Bytes that a failed try needed at least, and that there were."""

    needed_b: int
    available_b: int

    def error(self, smallest: Smallest) -> DeviceMemoryError:
        rule, fix = smallest.rule, f", or {smallest.fix}" if smallest.fix else ""
        return DeviceMemoryError(
            f"out of memory on the GPU: {rule} needs at least {-(-self.needed_b // _MB)} MB for "
            f"{smallest.what}, and there are {self.available_b // _MB} MB; raise "
            f"resources.{rule}.gpu_mem_mb{fix}"
        )


def in_parts(
    backend: Backend,
    work: Callable[[Part], T],
    part: Part,
    halves: Callable[[Part], Sequence[Part]],
    smallest: Smallest,
) -> list[T]:
    """Do ``work`` on a part; where the device's memory runs out, on its halves, and so on.

    On a GPU one thread at a time does so: what fits then does not depend on what others hold, so
    a job is split alike whenever it runs. Reading and writing belong outside.

    Parameters
    ----------
    work : callable
        Computes a part; done again from its start after a failure.
    halves : callable
        Returns the halves of a part, in order; empty if it is not to be halved.

    Returns
    -------
    list
        What ``work`` returned, in the order of the parts.

    Raises
    ------
    DeviceMemoryError
        A part that cannot be halved does not fit.
    """
    if backend.device == "cpu":
        return [work(part)]
    with backend.use.turn:
        result = _tried(backend, work, part)
    if not isinstance(result, _Shortage):
        return [result]
    smaller = halves(part)
    if not smaller:
        raise result.error(smallest)
    _note_split(backend, smallest.rule, result, f"in {len(smaller)} parts")
    return [done for half in smaller for done in in_parts(backend, work, half, halves, smallest)]


def shrinking(
    backend: Backend,
    work: Callable[[int], T],
    size: int,
    smaller: Callable[[int], int | None],
    smallest: Smallest,
) -> T:
    """Do ``work`` with a size; where the device's memory runs out, again with a smaller one.

    Parameters
    ----------
    work : callable
        Does all of it with the size given.
    size : int
        The first to try.
    smaller : callable
        Returns the next smaller size; None at the floor.

    Raises
    ------
    DeviceMemoryError
        The smallest size does not fit.
    """
    while True:
        result = _tried(backend, work, size)
        if not isinstance(result, _Shortage):
            return result
        less = smaller(size)
        if less is None:
            raise result.error(smallest)
        _note_split(backend, smallest.rule, result, f"again with {less} instead of {size}")
        size = less


def memory_noted(smallest: Smallest) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate work with the keyword ``backend`` that is not, or not wholly, done in parts.

    Its use of memory is noted when it ends, and memory that ran out is a
    :class:`DeviceMemoryError`.
    """

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(work)
        def noted(*args: P.args, **kwargs: P.kwargs) -> T:
            backend = cast(Backend, kwargs["backend"])
            if backend.device == "cpu":
                return work(*args, **kwargs)
            result = _tried(backend, work, *args, **kwargs)
            if isinstance(result, _Shortage):
                raise result.error(smallest)
            note_peak(backend)
            return result

        return noted

    return decorate


def _tried(
    backend: Backend, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T | _Shortage:
    """Do ``work``; where the device's memory runs out, free all that it took and say how much."""
    try:
        return work(*args, **kwargs)
    except (MemoryError, RuntimeError) as error:
        shortage = _shortage(backend, error)
        if shortage is None:
            raise
    # The error is gone, and with it the frames that held the arrays of the failed try.
    gc.collect()
    # Plans keep their work areas; the cache is that of this thread.
    backend.xp.fft.config.get_plan_cache().clear()
    backend.xp.get_default_memory_pool().free_all_blocks()
    backend.xp.get_default_pinned_memory_pool().free_all_blocks()
    return shortage


def _shortage(backend: Backend, error: MemoryError | RuntimeError) -> _Shortage | None:
    """Return what was short, or None if the error is not about the device's memory."""
    if backend.device == "cpu":
        return None
    xp = backend.xp
    if isinstance(error, MemoryError):
        if not isinstance(error, xp.cuda.memory.OutOfMemoryError):
            return None
    elif not _NO_MEMORY.search(str(error)):
        return None
    # As text: a handler that keeps the record would keep the error, its frames and their arrays.
    logger.info("device memory: %s", str(error))
    note_peak(backend)
    pool = xp.get_default_memory_pool()
    free_b, _ = xp.cuda.runtime.memGetInfo()
    available_b = int(free_b + pool.total_bytes())
    if backend.use.limit_b is not None:
        available_b = min(available_b, backend.use.limit_b)
    asked = _ASKED.search(str(error))
    asked_b = int(asked[1].replace(",", "")) if asked else 0
    # cuFFT does not say how much it asked for, and a pool in pieces fails below its limit.
    return _Shortage(max(int(pool.used_bytes()) + asked_b, available_b), available_b)


def note_peak(backend: Backend) -> None:
    """Note what the pool holds: it gives nothing back by itself before memory runs out."""
    pool = backend.xp.get_default_memory_pool()
    backend.use.peak_b = max(backend.use.peak_b or 0, int(pool.total_bytes()))
    backend.use.limit_b = int(pool.get_limit()) or None


def _note_split(backend: Backend, rule: str, shortage: _Shortage, how: str) -> None:
    backend.use.splits += 1
    logger.warning(
        "%s: out of memory on the GPU (at least %d MB needed, %d MB there): %s",
        rule,
        -(-shortage.needed_b // _MB),
        shortage.available_b // _MB,
        how,
    )
