"""Widefield blur of an extended scene onto the view, and its true adjoint."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend, fast_len

T = TypeVar("T")

#: Bytes of one block of a pass: it stays in a core's cache.
_BLOCK_B = 1 << 20


def map_slices(
    backend: Backend, length: int, per_block: int, function: Callable[[slice], T]
) -> list[T]:
    """Call ``function`` on consecutive slices of ``range(length)``; results in order.

    On the CPU the slices hold ``per_block`` items and ``backend.workers`` threads share
    them (NumPy and SciPy release the GIL); on a GPU there is one slice.
    """
    step = length if backend.device == "gpu" else max(1, min(per_block, length))
    blocks = [slice(i, min(i + step, length)) for i in range(0, length, step)]
    if backend.workers <= 1 or len(blocks) <= 1:
        return [function(block) for block in blocks]
    with ThreadPoolExecutor(backend.workers) as pool:
        return list(pool.map(function, blocks))


class Blur:
    """Convolution with a PSF, from an extended scene to the view (H), and its adjoint (H').

    The scene is larger than the view, so that light from outside it is explained by what
    lies outside (Bertero & Boccacci, A&A 437:369, 2005), and circular. H blurs the scene
    and cuts the view out; H' embeds the view in zeros and correlates with the PSF, so
    ``<H x, y> = <x, H' y>`` to rounding for PSFs without any symmetry as well.

    A transform is done as 2-D FFTs of planes and 1-D FFTs of columns in one preallocated
    spectrum, so that a caller can work on planes while they are in cache and planes outside
    the view are never transformed in vain.

    Parameters
    ----------
    psf : ndarray, shape (z, y, x)
        Odd sizes, centre in the middle; scaled to sum 1. Planes beyond 2n - 1 of the view are
        cut off: they join no two planes of it.
    view : tuple of int
        (z, y, x) of the image.
    margin : tuple of int
        Voxels added around the view on each side of (z, y, x); the scene is then rounded up
        to FFT-friendly sizes.
    """

    def __init__(
        self,
        backend: Backend,
        psf: NDArray[Any],
        view: tuple[int, int, int],
        margin: tuple[int, int, int],
    ) -> None:
        self.backend = backend
        self.view = view
        psf = crop_psf(psf, view)
        nz, ny, nx = (
            fast_len(n + 2 * min(m, s // 2))
            for n, m, s in zip(view, margin, psf.shape, strict=True)
        )
        self.scene = (nz, ny, nx)
        xp = backend.xp
        self._spectrum = xp.zeros((nz, ny, nx // 2 + 1), dtype=xp.complex64)
        self._otf = self._transfer_function(psf)
        self._spectrum = xp.zeros((nz, ny, nx // 2 + 1), dtype=xp.complex64)

    def _transfer_function(self, psf: NDArray[Any]) -> Array:
        kernel = _wrap_around(psf, self.scene)
        at_z = np.unique(np.arange(-(psf.shape[0] // 2), psf.shape[0] // 2 + 1) % self.scene[0])
        for z in at_z:
            self.spread(slice(z, z + 1), self.backend.asarray(kernel[z : z + 1]))
        fft = self.backend.fft

        def columns(rows: slice) -> None:
            block = self._spectrum[:, rows]
            self._spectrum[:, rows] = fft.fft(block, axis=0, overwrite_x=True)

        map_slices(self.backend, self.scene[1], self.rows_per_block, columns)
        return self._spectrum

    @property
    def planes_per_block(self) -> int:
        """Planes that a CPU thread works on at a time."""
        return max(1, _BLOCK_B // (4 * self.scene[1] * self.scene[2]))

    @property
    def rows_per_block(self) -> int:
        """Rows of the spectrum that a CPU thread works on at a time."""
        return max(1, _BLOCK_B // (8 * self.scene[0] * (self.scene[2] // 2 + 1)))

    def spread(self, z: slice, planes: Array) -> None:
        """Write the 2-D transform of ``planes``, zero-padded to the scene, into the spectrum."""
        fft, block = self.backend.fft, self._spectrum[z]
        height = planes.shape[1]
        block[:, :height] = fft.rfft(planes, n=self.scene[2], axis=-1)
        block[:, height:] = 0
        self._spectrum[z] = fft.fft(block, axis=-2, overwrite_x=True)

    def gather(self, z: slice, height: int, width: int) -> Array:
        """Return planes ``z`` of the spectrum, transformed back: (z, height, width) float32."""
        fft, block = self.backend.fft, self._spectrum[z]
        block = fft.ifft(block, axis=-2, overwrite_x=True)
        return fft.irfft(block[:, :height], n=self.scene[2], axis=-1)[..., :width]

    def clear_outside_view(self) -> None:
        """Set the spectrum of the planes beyond the view to zero."""
        self._spectrum[self.view[0] :] = 0

    def convolve_columns(self, *, adjoint: bool) -> None:
        """Multiply the spectrum of planes by the (conjugate) transfer function along z."""
        fft = self.backend.fft
        otf = self._otf

        def columns(rows: slice) -> None:
            block = fft.fft(self._spectrum[:, rows], axis=0, overwrite_x=True)
            if adjoint:
                block *= otf[:, rows].conj()
            else:
                block *= otf[:, rows]
            self._spectrum[:, rows] = fft.ifft(block, axis=0, overwrite_x=True)

        map_slices(self.backend, self.scene[1], self.rows_per_block, columns)

    def adjoint(self, view: Array, out: Array | None = None) -> Array:
        """Return H' ``view``: (z, y, x) of the scene from (z, y, x) of the view, float32."""
        xp, step = self.backend.xp, self.planes_per_block
        result = xp.empty(self.scene, dtype=xp.float32) if out is None else out

        def store(z: slice) -> None:
            result[z] = self.gather(z, *self.scene[1:])

        map_slices(self.backend, len(view), step, lambda z: self.spread(z, view[z]))
        self.clear_outside_view()
        self.convolve_columns(adjoint=True)
        map_slices(self.backend, self.scene[0], step, store)
        return result


def crop_psf(psf: NDArray[Any], view: tuple[int, int, int]) -> NDArray[np.float32]:
    """Cut an odd-sized centred PSF to 2n - 1 samples of the view per axis; sum 1, float32.

    >>> crop_psf(np.ones((9, 5, 5)), (2, 8, 8)).shape
    (3, 5, 5)
    """
    if any(size % 2 == 0 for size in psf.shape):
        raise ValueError(f"the PSF has shape {psf.shape}; every axis must be odd (centre = peak)")
    cut = tuple(
        slice(max(0, s // 2 - (n - 1)), min(s, s // 2 + n))
        for s, n in zip(psf.shape, view, strict=True)
    )
    cropped = np.asarray(psf, np.float64)[cut]
    total = float(cropped.sum())
    if not np.isfinite(total) or total <= 0:
        raise ValueError("the PSF has no positive finite sum over the planes of this stack")
    return (cropped / total).astype(np.float32)


def _wrap_around(psf: NDArray[np.float32], scene: tuple[int, int, int]) -> NDArray[np.float32]:
    """Put the PSF's centre at index 0 of the scene; what exceeds the scene wraps around."""
    kernel = np.zeros(scene, np.float32)
    index = [(np.arange(size) - size // 2) % n for size, n in zip(psf.shape, scene, strict=True)]
    np.add.at(kernel, np.ix_(*index), psf)
    return kernel
