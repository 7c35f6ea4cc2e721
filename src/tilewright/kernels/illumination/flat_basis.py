"""Smooth log flat-fields: Legendre products of rms 1 over the tile, which spans -1 to 1."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.legendre import legvander
from numpy.typing import NDArray

from tilewright.kernels.backend import Floats, Ints

#: Largest total degree: 119 coefficients. A ring half way to the border of a tenth of the tile's
#: width is left at 6 % with 14 and at 10 % with 12.
MAX_ORDER = 14
#: Size of the largest log field; a fit of noise alone would overflow.
_LARGEST = 20.0


def degrees(order: int = MAX_ORDER) -> Ints:
    """Return the degrees (y, x) of each column, sorted by total degree, as (columns, 2).

    The constant is left out, as a flat-field has mean 1.
    """
    pairs = [(i, total - i) for total in range(1, order + 1) for i in range(total + 1)]
    return np.array(pairs, dtype=np.int64)


def legendre_design(place: Floats, order: int = MAX_ORDER) -> Floats:
    """Return the columns (m, columns) at ``place`` (m, 2) in -1 to 1; those of a lower order first.

    Every column has rms 1 over the tile and is orthogonal to the others, so the sum of squared
    coefficients is the mean square of the log flat-field.
    """
    y, x = legvander(place[:, 0], order), legvander(place[:, 1], order)
    i, j = degrees(order).T
    return np.asarray(y[:, i] * x[:, j] * _norm(order))


def log_flat(coefficient: Floats, place: Floats) -> Floats:
    """Return the log flat-field, up to a constant, at ``place`` (m, 2); between -20 and 20."""
    grid = _grid(coefficient)
    y, x = (legvander(axis, grid.shape[0] - 1) for axis in place.T)
    value = np.einsum("mi,mi->m", y @ grid, x)
    return np.asarray(np.clip(value, -_LARGEST, _LARGEST), dtype=np.float64)


def flat_field(coefficient: Floats, shape_px: tuple[int, int]) -> NDArray[np.float32]:
    """Return the flat-field of mean 1 at pixel centres, float32 (y, x).

    >>> flat_field(np.array([0.1, 0.0]), (2, 4))[0].round(2)
    array([0.87, 0.95, 1.04, 1.13], dtype=float32)
    """
    grid = _grid(coefficient)
    y, x = (legvander(axis, grid.shape[0] - 1) for axis in pixel_centres(shape_px))
    log_field = y @ grid @ x.T
    field = np.exp(np.maximum(log_field - log_field.max(), -_LARGEST))
    return np.asarray(field / field.mean(), dtype=np.float32)


def pixel_centres(shape_px: tuple[int, int]) -> tuple[Floats, Floats]:
    """Return y and x of pixel centres in -1 to 1."""
    y, x = ((np.arange(size) + 0.5) / size * 2.0 - 1.0 for size in shape_px)
    return y, x


def enlarge(
    field: NDArray[np.floating[Any]], shape_px: tuple[int, int], factor: int
) -> NDArray[np.float32]:
    """Interpolate a smooth field of block means back to pixels, linearly.

    Linear suffices: between blocks of 8 px a tile-wide bow is 1e-4 off. Beyond the outermost
    centres it is extrapolated, or vignetting would end in a plateau.

    Parameters
    ----------
    field : ndarray, shape (h, w)
        Values at the centres of blocks.
    shape_px : tuple of int
        (y, x) to return; may be larger than ``factor`` times the field by a rest.
    factor : int
        Side of a block in pixels.

    Returns
    -------
    ndarray of float32, shape ``shape_px``

    Examples
    --------
    >>> enlarge(np.array([[1, 3], [1, 3]]), (4, 4), 2)[0].tolist()
    [0.5, 1.5, 2.5, 3.5]
    """
    for axis, size in enumerate(shape_px):
        place = (np.arange(size) + 0.5) / factor - 0.5
        low = np.clip(np.floor(place), 0, field.shape[axis] - 2).astype(np.int64)
        part = np.expand_dims((place - low).astype(np.float32), 1 - axis)
        field = field.take(low, axis) * (1 - part) + field.take(low + 1, axis) * part
    return field.astype(np.float32)


@lru_cache(maxsize=4)
def design_grid(shape_px: tuple[int, int], order: int = MAX_ORDER) -> Floats:
    """Return the columns at all pixel centres, (y * x, columns); read-only.

    >>> design_grid((8, 8), 1).shape
    (64, 2)
    """
    y, x = np.meshgrid(*pixel_centres(shape_px), indexing="ij")
    design = legendre_design(np.stack([y.ravel(), x.ravel()], axis=1), order)
    design.flags.writeable = False
    return design


def _norm(order: int) -> Floats:
    return np.asarray(np.sqrt((2.0 * degrees(order) + 1.0).prod(axis=1)))


def _grid(coefficient: Floats) -> Floats:
    order = int((np.sqrt(9 + 8 * len(coefficient)) - 3) / 2 + 0.5)
    grid = np.zeros((order + 1, order + 1))
    i, j = degrees(order).T
    grid[i, j] = coefficient * _norm(order)
    return grid
