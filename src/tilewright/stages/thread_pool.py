"""Threads of a stage."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tilewright.kernels.backend import Backend


@contextmanager
def cancelling_thread_pool(backend: Backend, gpu_threads: int) -> Iterator[ThreadPoolExecutor]:
    """Open a thread pool that cancels pending work after an error.

    It has the backend's threads, or ``gpu_threads`` that read and write around a GPU.
    """
    pool = ThreadPoolExecutor(backend.workers if backend.device == "cpu" else gpu_threads)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
