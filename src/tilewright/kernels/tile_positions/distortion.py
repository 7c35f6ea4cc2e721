"""Lens distortion: one smooth field that all tiles of a microscope share.

Brown's model (Photogrammetric Engineering 37, 1971) with one radial and two decentring terms.
With ``q`` the place in a tile less its middle, over half its diagonal (so that ``|q|`` is 1 at the
corners) the specimen there lies off by

    radial * |q|^2 q + |q|^2 p + 2 (p . q) q

Decentring is also what a radial field about another middle adds. Positions of tiles absorb any
shift, scale and skew, so the field has none: in the mean it moves the two lines alike along which a
tile meets its neighbours. Right or wrong, it then leaves the mosaic's size and skew as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.kernels.backend import Array, Backend, Floats

#: Offsets are rounded to 1/4096 px, so that devices differ in them by no more.
_STEPS = 4096
#: The inverse field is a polynomial of this degree per axis: 1e-4 px where corners are off by 3 %.
_DEGREE = 7


@dataclass(frozen=True)
class Distortion:
    """Lens distortion of tiles."""

    radial_px: float
    decentring_y_px: float
    decentring_x_px: float
    """Brown's terms in px at the distance of a corner."""
    shape: tuple[int, int]
    """(y, x) of a tile."""
    meeting: tuple[float, float] = (1.0, 1.0)
    """Lines (y, x) along which tiles meet, the middles of their overlaps, as a part of the way from
    the middle of a tile to its border.
    """

    def with_terms(self, terms_px: Floats) -> Distortion:
        """Return a field of the same tiles with other terms (3,)."""
        radial, in_y, in_x = terms_px.tolist()
        return Distortion(radial, in_y, in_x, self.shape, self.meeting)

    @property
    def terms_px(self) -> Floats:
        """Radial and decentring terms, (3,)."""
        return np.array([self.radial_px, self.decentring_y_px, self.decentring_x_px])

    def __call__(self, points_px: Floats) -> Floats:
        """Return by how much (n, 2) the specimen lies off what pixels (n, 2) say, (y, x) in px."""
        return np.asarray(basis(points_px, self.shape, self.meeting) @ self.terms_px, np.float64)

    @property
    def corner_px(self) -> float:
        """Largest displacement of a corner where the middle of the tile keeps its scale."""
        displacement = _brown(_corners(self.shape)) @ self.terms_px
        return float(np.hypot(*displacement.T).max())

    @cached_property
    def inverse(self) -> Floats:
        """Coefficients (2, k, k) of the offset by which a place of the specimen is read elsewhere.

        Component (y, x), powers of y and of x over half the diagonal, from the tile's middle.
        """
        middle, half = _frame(self.shape)
        nodes = np.cos(np.pi * (np.arange(2 * _DEGREE + 3) + 0.5) / (2 * _DEGREE + 3))
        extent = (np.array(self.shape) / 2.0 + 2.0) / half
        place = np.stack(np.meshgrid(*(nodes * e for e in extent), indexing="ij"), -1)
        place = place.reshape(-1, 2)
        offset = np.zeros_like(place)
        for _ in range(30):
            offset = -self(middle + half * place + offset)
        powers = [np.vander(axis, _DEGREE + 1, increasing=True) for axis in place.T]
        design = np.einsum("ni,nj->nij", *powers).reshape(len(place), -1)
        coefficients = np.linalg.lstsq(design, offset, rcond=None)[0]
        return np.asarray(coefficients.T.reshape(2, _DEGREE + 1, _DEGREE + 1))

    @cached_property
    def reach_px(self) -> int:
        """Whole pixels beyond which no place is read off its own."""
        edge = [np.linspace(0, n - 1, 65) for n in self.shape]
        return int(np.ceil(max(np.abs(part).max() for part in self._offsets(*edge)) + 0.01))

    def _offsets(self, y: Floats, x: Floats) -> Floats:
        middle, half = _frame(self.shape)
        left, right = (
            np.vander((axis - m) / half, _DEGREE + 1, increasing=True)
            for axis, m in zip((y, x), middle, strict=True)
        )
        return np.asarray(left @ self.inverse @ right.T, np.float64)

    def offsets(self, backend: Backend, y: Floats, x: Floats) -> tuple[Array, Array]:
        """Return where the specimen at rows ``y`` and columns ``x`` is to be read.

        Parameters
        ----------
        y, x : ndarray of float64, shape (n,) and (m,)
            Places in px from a tile's first pixel.

        Returns
        -------
        tuple of array of float32, shape (n, m)
            What is to be added to y and to x.
        """
        xp = backend.xp
        middle, half = _frame(self.shape)
        right = backend.asarray(np.vander((x - middle[1]) / half, _DEGREE + 1, increasing=True).T)
        rows = np.vander((y - middle[0]) / half, _DEGREE + 1, increasing=True) @ self.inverse
        dy, dx = (xp.rint(xp.matmul(backend.asarray(r), right) * _STEPS) / _STEPS for r in rows)
        return dy, dx


def _frame(shape: tuple[int, int]) -> tuple[Floats, float]:
    """Return the middle (y, x) of a tile and half its diagonal, px."""
    size = np.array(shape, np.float64)
    return (size - 1.0) / 2.0, float(np.hypot(*size)) / 2.0


def _corners(shape: tuple[int, int]) -> Floats:
    height, width = shape
    size = np.array([height, width], np.float64) / math.hypot(height, width)
    return np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]) * size


def _brown(q: Floats) -> Floats:
    """Return Brown's three terms (n, 2, 3) at places (n, 2) from the middle."""
    y, x = q.T
    square = y * y + x * x
    terms = (
        (square * y, square + 2.0 * y * y, 2.0 * y * x),
        (square * x, 2.0 * y * x, square + 2.0 * x * x),
    )
    return np.stack([np.stack(row, -1) for row in terms], axis=1)


def basis(
    points_px: Floats, shape: tuple[int, int], meeting: tuple[float, float] = (1.0, 1.0)
) -> Floats:
    """Return the field's three terms (n, 2, 3) at pixels (n, 2) of a tile of ``shape``.

    Shift, scale and skew are taken out: the mean of a term is zero over the tile, and the same over
    the two lines of ``meeting``.
    """
    middle, half = _frame(shape)
    q = (points_px - middle) / half
    a, b = (np.array(shape) / np.hypot(*shape)) ** 2
    terms = _brown(q)
    # The mean of the radial term over such a line, in units of q.
    terms[:, :, 0] -= np.array([a * meeting[0] ** 2 + b / 3.0, b * meeting[1] ** 2 + a / 3.0]) * q
    terms[:, 0, 1] -= a + b / 3.0
    terms[:, 1, 2] -= b + a / 3.0
    return terms


def undistort(
    backend: Backend, distortion: Distortion, image: Array, origin: tuple[int, int] = (0, 0)
) -> Array:
    """Return an image (y, x) cut from a tile at ``origin`` as a lens without distortion shows it.

    Read by cubic splines, because it is measured: cubic convolution moves fine structure by 0.02 px
    more or less from place to place, which passes for 3 % of a field of 2 px.

    >>> lens = Distortion(2.0, 0.0, 0.0, (32, 32))
    >>> round(float(undistort(cpu, lens, np.indices((32, 32))[1])[0, 0]), 1)
    0.2
    """
    xp = backend.xp
    size = [np.arange(n, dtype=np.float64) for n in image.shape]
    dy, dx = distortion.offsets(
        backend, *(axis + at for axis, at in zip(size, origin, strict=True))
    )
    rows, columns = (backend.asarray(axis) for axis in size)
    places = xp.stack([dy + rows[:, None], dx + columns[None, :]])
    pixels = backend.asarray(image)
    return backend.ndimage.map_coordinates(pixels, places, order=3, mode="nearest")
