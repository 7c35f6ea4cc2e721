"""The deconvolution of one stack in one call, without tiles and without a stopping rule."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.richardson_lucy import RichardsonLucy


class Deconvolved(NamedTuple):
    """Light in the view above the background (z, y, x), and each iteration's first divergence."""

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
    """Deconvolve one stack (z, y, x) of counts, of which ``background`` are not blurred light."""
    z, y, x = image.shape
    solver = RichardsonLucy(Blur(backend, psf, (z, y, x), margin))
    solver.load(backend.xp.maximum(backend.asarray(image), 0), background)
    curve = tuple(solver.iterate()[0] for _ in range(iterations))
    return Deconvolved(solver.estimate, curve)
