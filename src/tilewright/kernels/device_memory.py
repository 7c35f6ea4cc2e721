"""Out of device memory: recognise it, free what the attempt took, and retry in smaller parts.

Only the memory of the backend's device counts: a ``MemoryError`` of the host passes through, and
on the CPU nothing here does anything but call the work.
"""

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

#: cuFFT, cuBLAS and cuSOLVER allocate by themselves, outside CuPy's pool, and so does the driver.
_NO_MEMORY = re.compile(r"_ALLOC_FAILED\b|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY")


@dataclass(frozen=True)
class OomHint:
    """Message when even the smallest unit of work does not fit.

    Attributes
    ----------
    rule : str
        The rule whose memory can be configured.
    unit : str
        The smallest unit of work.
    """

    rule: str
    unit: str


@dataclass(frozen=True)
class _Shortage:
    """Megabytes that a failed attempt had."""

    available_mb: int

    def error(self, hint: OomHint) -> DeviceMemoryError:
        return DeviceMemoryError(
            f"out of memory on the GPU: {self.available_mb} MB are available to {hint.rule}, and "
            f"do not hold {hint.unit}; raise resources.{hint.rule}.gpu_mem_mb to get a larger GPU "
            "or all of one"
        )


def map_with_oom_split(
    backend: Backend,
    work: Callable[[Part], T],
    part: Part,
    halves: Callable[[Part], Sequence[Part]],
    hint: OomHint,
) -> list[T]:
    """Do ``work`` on a part; if the device runs out of memory, on its halves, and so on.

    Returns the results in the order of the parts. On a GPU one thread at a time does so: what fits
    does not depend on other threads then, and a job is split alike whenever it runs. Reading and
    writing belong outside.

    Parameters
    ----------
    work : callable
        Computes a part; done again from its start after a failure.
    halves : callable
        Returns the halves of a part, in order; empty if it is as small as may be.
    hint : OomHint
        Message for a part that cannot be halved and does not fit.

    Raises
    ------
    DeviceMemoryError
        A part that cannot be halved does not fit.

    Examples
    --------
    >>> hint = OomHint("stitch", "the smallest part of a chunk")
    >>> map_with_oom_split(cpu, sum, [1, 2, 3, 4], lambda part: [part[:2], part[2:]], hint)
    [10]
    """
    if backend.device == "cpu":
        return [work(part)]
    with backend.use.turn:
        result = _attempt(backend, work, part)
    if not isinstance(result, _Shortage):
        return [result]
    smaller = halves(part)
    if not smaller:
        raise result.error(hint)
    _record_split(backend, hint.rule, result, f"in {len(smaller)} parts")
    return [
        result
        for half in smaller
        for result in map_with_oom_split(backend, work, half, halves, hint)
    ]


def retry_smaller_on_oom(
    backend: Backend,
    work: Callable[[int], T],
    size: int,
    smaller: Callable[[int], int | None],
    hint: OomHint,
) -> T:
    """Do ``work`` with a size; if the device runs out of memory, again with a smaller one.

    Parameters
    ----------
    work : callable
        Does all of it with the size given.
    size : int
        The first to try.
    smaller : callable
        Returns the next smaller size; None after the smallest.
    hint : OomHint
        Message if the smallest size does not fit.

    Raises
    ------
    DeviceMemoryError
        The smallest size does not fit.

    Examples
    --------
    >>> hint = OomHint("deconvolve", "its smallest tile")
    >>> retry_smaller_on_oom(cpu, lambda side: side**2, 1024, lambda side: side // 2, hint)
    1048576
    """
    while True:
        result = _attempt(backend, work, size)
        if not isinstance(result, _Shortage):
            return result
        less = smaller(size)
        if less is None:
            raise result.error(hint)
        _record_split(backend, hint.rule, result, f"again with {less} instead of {size}")
        size = less


def track_device_memory(hint: OomHint) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate work with the keyword ``backend`` that is not, or not wholly, done in parts.

    Records the peak use of the device's memory when the work ends, and turns out-of-memory errors
    into :class:`DeviceMemoryError`.

    >>> @track_device_memory(OomHint("register", "two overviews"))
    ... def double(number, *, backend):
    ...     return 2 * number
    >>> double(4, backend=cpu)
    8
    """

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(work)
        def tracked_work(*args: P.args, **kwargs: P.kwargs) -> T:
            backend = cast(Backend, kwargs["backend"])
            if backend.device == "cpu":
                return work(*args, **kwargs)
            result = _attempt(backend, work, *args, **kwargs)
            if isinstance(result, _Shortage):
                raise result.error(hint)
            record_peak(backend)
            return result

        return tracked_work

    return decorate


def _attempt(
    backend: Backend, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T | _Shortage:
    """Do ``work``; if the device runs out of memory, free what it took and return the shortage."""
    try:
        return work(*args, **kwargs)
    except (MemoryError, RuntimeError) as error:
        shortage = _shortage(backend, error)
        if shortage is None:
            raise
    # The error is gone, and with it the frames that held the arrays of the failed attempt.
    gc.collect()
    # Plans keep their work areas; the cache is that of this thread.
    backend.xp.fft.config.get_plan_cache().clear()
    backend.xp.get_default_memory_pool().free_all_blocks()
    backend.xp.get_default_pinned_memory_pool().free_all_blocks()
    return shortage


def _shortage(backend: Backend, error: MemoryError | RuntimeError) -> _Shortage | None:
    """Return the shortage, or None if the error is not about the device's memory."""
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
    record_peak(backend)
    pool = xp.get_default_memory_pool()
    free_b, _ = xp.cuda.runtime.memGetInfo()
    available_b = int(free_b + pool.total_bytes())
    if backend.use.limit_b is not None:
        available_b = min(available_b, backend.use.limit_b)
    return _Shortage(available_b // 2**20)


def record_peak(backend: Backend) -> None:
    """Record the pool's size: it frees nothing by itself before memory runs out.

    >>> record_peak(gpu_backend())  # doctest: +SKIP
    """
    pool = backend.xp.get_default_memory_pool()
    backend.use.peak_b = max(backend.use.peak_b or 0, int(pool.total_bytes()))
    backend.use.limit_b = int(pool.get_limit()) or None


def _record_split(backend: Backend, rule: str, shortage: _Shortage, how: str) -> None:
    backend.use.splits += 1
    logger.warning(
        "%s: out of memory on the GPU (%d MB available): %s", rule, shortage.available_mb, how
    )
