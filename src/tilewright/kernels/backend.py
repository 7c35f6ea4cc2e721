"""The array namespace that kernels compute with: NumPy and SciPy, or CuPy.

Kernels take a :class:`Backend` and use only names that NumPy and CuPy share,
so one source gives the same pixels on both devices.
"""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import DeviceError

#: An array of the backend's namespace: ``numpy.ndarray`` or ``cupy.ndarray``.
Array = Any
#: Arrays on the host.
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: Rows and columns of an image.
Region = tuple[slice, slice]
Device = Literal["cpu", "gpu"]


@dataclass
class DeviceUse:
    """What a job notes of its device's memory; see :mod:`tilewright.kernels.device_memory`.

    Attributes
    ----------
    splits : int
        How often work was halved because memory ran out.
    peak_b, limit_b : int | None
        Most bytes that the memory pool held, and its limit; None: not noted, no limit.
    turn : threading.Lock
        Held by the thread whose part of the work is on the device.
    """

    splits: int = 0
    peak_b: int | None = None
    limit_b: int | None = None
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False)


@dataclass(frozen=True)
class Backend:
    """An array namespace and the FFT and ndimage modules that go with it.

    Attributes
    ----------
    device : Device
        {"cpu", "gpu"}: where arrays live.
    xp, fft, ndimage : Any
        ``numpy, scipy.fft, scipy.ndimage`` or ``cupy, cupyx.scipy.fft, cupyx.scipy.ndimage``.
    workers : int
        CPU threads that loops over chunks may use; 1 on a GPU.
    use : DeviceUse
        Shared by all copies of a backend.
    """

    device: Device
    xp: Any
    fft: Any
    ndimage: Any
    workers: int = 1
    use: DeviceUse = field(default_factory=DeviceUse, compare=False)

    def asarray(self, array: Any, dtype: Any = np.float32) -> Array:
        """Move an array to the device as ``dtype`` (``None`` keeps the dtype)."""
        return self.xp.asarray(array, dtype=dtype)

    def to_numpy(self, array: Array) -> Any:
        """Move an array of this backend to host memory as a NumPy array."""
        return np.asarray(array) if self.device == "cpu" else self.xp.asnumpy(array)


def cpu_backend(workers: int = 1) -> Backend:
    """Return the NumPy/SciPy backend using ``workers`` threads.

    >>> cpu_backend().asarray([1, 2]).dtype
    dtype('float32')
    """
    import scipy.fft
    import scipy.ndimage

    return Backend("cpu", np, scipy.fft, scipy.ndimage, workers)


def gpu_backend() -> Backend:
    """Return the CuPy backend.

    Raises
    ------
    DeviceError
        CuPy is not installed, or CUDA does not initialise. There is no fallback to the CPU.

    Examples
    --------
    >>> gpu_backend().device  # doctest: +SKIP
    'gpu'
    """
    try:
        import cupy
        import cupyx.scipy.fft
        import cupyx.scipy.ndimage
    except ImportError as error:
        raise DeviceError(
            f"TILEWRIGHT_DEVICE=gpu, but CuPy cannot be imported ({error}); "
            "install tilewright[cuda12] or tilewright[cuda13], or set TILEWRIGHT_DEVICE=cpu"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(
            f"TILEWRIGHT_DEVICE=gpu, but CUDA does not initialise ({error}); "
            "check the driver and CUDA_VISIBLE_DEVICES, or set TILEWRIGHT_DEVICE=cpu"
        ) from error
    if count == 0:
        raise DeviceError("TILEWRIGHT_DEVICE=gpu, but no CUDA device is visible")
    return Backend("gpu", cupy, cupyx.scipy.fft, cupyx.scipy.ndimage, 1)


def cells(image: Array, side: int) -> Array:
    """Return the whole cells of images (…, y, x) as (…, rows, side, columns, side).

    >>> cells(np.arange(24).reshape(4, 6), 2).sum(axis=(1, 3))
    array([[14, 22, 30],
           [62, 70, 78]])
    """
    rows, columns = (n // side for n in image.shape[-2:])
    whole = image[..., : rows * side, : columns * side]
    return whole.reshape(*image.shape[:-2], rows, side, columns, side)


def fast_len(n: int) -> int:
    """Return the smallest 2-3-5-7-smooth integer ≥ ``n``.

    One table of FFT sizes for both devices: scipy and cupyx choose different
    lengths, and another padding is another result.

    >>> [fast_len(n) for n in (1, 11, 97, 1025)]
    [1, 12, 98, 1029]
    """
    m = max(n, 1)
    while True:
        rest = m
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return m
        m += 1


@contextlib.contextmanager
def cancelling_thread_pool(backend: Backend, gpu_threads: int = 4) -> Iterator[ThreadPoolExecutor]:
    """Open a thread pool that cancels pending work after an error.

    It has the backend's threads, or ``gpu_threads`` that read and write around a GPU: four keep one
    device busy.

    >>> with cancelling_thread_pool(cpu) as pool:
    ...     list(pool.map(abs, [-1, 2]))
    [1, 2]
    """
    pool = ThreadPoolExecutor(backend.workers if backend.device == "cpu" else gpu_threads)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
