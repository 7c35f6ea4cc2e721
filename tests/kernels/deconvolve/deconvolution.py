"""The deconvolution of one stack in one call, without tiles and without a stopping rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.richardson_lucy import RichardsonLucy


@dataclass(frozen=True)
class Deconvolved:
    """What a deconvolution returns.

    Attributes
    ----------
    image : ndarray of float32, shape (z, y, x)
        Estimated light in the view, in the counts of the input above its background; on the
        backend's device.
    divergence : tuple of float
        Kullback's I-divergence of the data from the model, per voxel, at the start of each
        iteration, in counts.
    """

    image: Array
    divergence: tuple[float, ...]


def deconvolve(
    backend: Backend,
    image: NDArray[Any],
    psf: NDArray[Any],
    *,
    background: float,
    iterations: int,
    margin: tuple[int, int, int],
) -> Deconvolved:
    """Deconvolve one stack.

    Parameters
    ----------
    backend : Backend
        Array namespace.
    image : ndarray, shape (z, y, x)
        Counts; negative ones count as zero.
    psf : ndarray, shape (z, y, x)
        Odd sizes, centre in the middle, at the image's pitch.
    background : float
        Counts that are not blurred light.
    iterations : int
        How many; see :func:`tilewright.kernels.deconvolve.thinning.choose_iterations`.
    margin : tuple of int
        Voxels that the scene extends beyond the view, see :func:`scene_margin`.

    Returns
    -------
    Deconvolved
    """
    z, y, x = image.shape
    solver = RichardsonLucy(Blur(backend, psf, (z, y, x), margin))
    counts = backend.xp.maximum(backend.asarray(image), 0)
    solver.load(counts, background)
    curve = tuple(solver.iterate()[0] for _ in range(iterations))
    return Deconvolved(solver.estimate, curve)
