"""Transforms from the reference frame to a moving image, and resampling under them.

A pixel ``(y, x)`` of the reference lies in the moving image at
``affine @ (y, x, 1) + field(y, x)``, the field being interpolated by Catmull-Rom splines
between nodes (Keys 1981, https://doi.org/10.1109/TASSP.1981.1163711). Pixels are resampled
by the cubic spline through the samples (Unser 1999, https://doi.org/10.1109/79.799930).
Its recursive prefilter is replaced by its truncated impulse response, and displacements are
computed from global coordinates only: a pixel has one value, whatever the chunk it is in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend, Floats, Region

#: The response of the cubic spline's prefilter decays as 0.268**k; 0.268**10 = 2e-6: the truncation
#: stays below 0.2 counts at a step of 65535.
_PREFILTER_RADIUS = 9
#: Source pixels needed around the positions sampled: prefilter, four taps, and the rounding.
HALO_PX = _PREFILTER_RADIUS + 3


@dataclasses.dataclass(frozen=True)
class Transform:
    """Map from (y, x) of the reference to (y, x) of the moving image, in full-resolution pixels.

    Attributes
    ----------
    affine : float64 (2, 3)
        Linear part and shift, in px.
    field : float32 (2, gy, gx)
        Residual displacement (y, x) at the nodes, in px; constant beyond the outer nodes.
    origin_px : float64 (2,)
        Reference position of node (0, 0).
    block_px : float
        Distance of neighbouring nodes.
    confidence : float32 (gy, gx)
        0 (not measured: interpolated from the neighbours) to 1.
    quality : Mapping[str, object]
        Quality numbers; ``registered`` is False for a declared identity.
    """

    affine: Floats
    field: NDArray[np.float32]
    origin_px: Floats
    block_px: float
    confidence: NDArray[np.float32]
    quality: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @staticmethod
    def identity(quality: Mapping[str, object] | None = None) -> Transform:
        """Return the transform that leaves every pixel in its place."""
        return Transform(
            np.eye(2, 3),
            np.zeros((2, 1, 1), np.float32),
            np.zeros(2),
            1.0,
            np.zeros((1, 1), np.float32),
            quality or {},
        )

    @cached_property
    def is_identity(self) -> bool:
        """Whether resampling would copy the pixels as they are."""
        return bool(np.array_equal(self.affine, np.eye(2, 3)) and not self.field.any())

    def points(self, points_px: Floats) -> Floats:
        """Return the moving positions of reference positions; both (n, 2) float64, (y, x) in px."""
        moving_px = points_px @ self.affine[:, :2].T + self.affine[:, 2]
        (rows, wy), (columns, wx) = (self.taps(axis, points_px[:, axis]) for axis in (0, 1))
        for i in range(4):
            for j in range(4):
                moving_px += (wy[i] * wx[j])[:, None] * self.field[:, rows[i], columns[j]].T
        return np.asarray(moving_px)

    def rotation_and_shift(self, shape: tuple[int, int]) -> tuple[float, list[float]]:
        """Return the rotation, degrees, and the shift (y, x), px, at the centre of a (y, x) shape.

        >>> shifted = dataclasses.replace(Transform.identity(), affine=np.eye(2, 3) + [0, 0, 2.5])
        >>> shifted.rotation_and_shift((8, 8))
        (0.0, [2.5, 2.5])
        """
        centre = (np.array([shape], np.float64) - 1) / 2
        linear = self.affine[:, :2]
        rotation = np.degrees(np.arctan2(linear[1, 0] - linear[0, 1], np.trace(linear)))
        return float(rotation), (self.points(centre) - centre)[0].tolist()

    def taps(self, axis: int, positions_px: Floats) -> tuple[NDArray[np.intp], Floats]:
        """Return the four nodes, (4, n), around each position and their weights, (4, n)."""
        nodes = self.field.shape[1 + axis]
        u = np.clip((positions_px - self.origin_px[axis]) / self.block_px, 0, nodes - 1)
        first = np.floor(u).astype(np.intp)
        index = np.clip(first + np.arange(-1, 3)[:, None], 0, nodes - 1)
        return index, cubic_weights(u - first)


def cubic_weights(fraction: Floats) -> Floats:
    """Return the four Catmull-Rom weights, (4, …), at ``fraction`` in [0, 1).

    >>> cubic_weights(np.array([0.5]))[:, 0].tolist()
    [-0.0625, 0.5625, 0.5625, -0.0625]
    """
    t = np.asarray(fraction, np.float64)
    t2, t3 = t * t, t * t * t
    inner = [1 - 2.5 * t2 + 1.5 * t3, 0.5 * t + 2 * t2 - 1.5 * t3]
    return np.stack([-0.5 * t + t2 - 0.5 * t3, *inner, 0.5 * (t3 - t2)])


def displacement(backend: Backend, transform: Transform, y_px: Floats, x_px: Floats) -> Array:
    """Return moving minus reference position on the grid ``y_px`` × ``x_px``.

    Parameters
    ----------
    y_px, x_px : (ny,), (nx,) float64
        Reference rows and columns.

    Returns
    -------
    (2, ny, nx) float32
        On the backend, in px; the same for a pixel whatever the grid around it.

    Examples
    --------
    >>> shifted = dataclasses.replace(Transform.identity(), affine=np.eye(2, 3) + [0, 0, 2.5])
    >>> displacement(cpu, shifted, np.arange(2.0), np.arange(3.0))[:, 1, 2].tolist()
    [2.5, 2.5]
    """
    linear = transform.affine[:, :2] - np.eye(2)
    by_row = linear[:, :1] * y_px + transform.affine[:, 2:]
    by_column = linear[:, 1:] * x_px
    out = backend.asarray(by_row)[:, :, None] + backend.asarray(by_column)[:, None, :]
    if transform.field.any():
        (rows, wy), (columns, wx) = transform.taps(0, y_px), transform.taps(1, x_px)
        low, high = int(columns.min()), int(columns.max()) + 1
        part = np.zeros((2, len(y_px), high - low))
        for i in range(4):
            part += transform.field[:, rows[i], low:high] * wy[i][:, None]
        nodes = backend.asarray(part)
        for j in range(4):
            taps = backend.xp.take(nodes, backend.asarray(columns[j] - low, np.int64), axis=2)
            out += taps * backend.asarray(wx[j])
    return out


def source_region(
    transform: Transform, region: Region, source_shape: tuple[int, int]
) -> Region | None:
    """Return the part of the moving image that resampling ``region`` reads.

    Parameters
    ----------
    region : (slice, slice)
        Rows and columns of the reference.
    source_shape : (int, int)
        Size of the moving image.

    Returns
    -------
    (slice, slice) or None
        Within the moving image; None where the region shows nothing of it.

    Examples
    --------
    >>> source_region(Transform.identity(), (slice(0, 10), slice(20, 30)), (100, 100))
    (slice(0, 22, None), slice(8, 42, None))
    """
    (y0, y1), (x0, x1) = ((part.start, part.stop - 1) for part in region)
    corners = np.array([[y, x, 1.0] for y in (y0, y1) for x in (x0, x1)]) @ transform.affine.T
    nodes = []
    for axis, (low, high) in enumerate(((y0, y1), (x0, x1))):
        index, _ = transform.taps(axis, np.array([low, high], np.float64))
        nodes.append(slice(int(index.min()), int(index.max()) + 1))
    part = transform.field[:, nodes[0], nodes[1]].astype(np.float64)
    slices = []
    for axis in range(2):
        spread = 0.15 * np.ptp(part[axis])  # Catmull-Rom overshoots by up to 1/8 per axis
        low = int(np.floor(corners[:, axis].min() + part[axis].min() - spread)) - HALO_PX
        high = int(np.ceil(corners[:, axis].max() + part[axis].max() + spread)) + HALO_PX + 1
        low, high = max(low, 0), min(high, source_shape[axis])
        if low >= high:
            return None
        slices.append(slice(low, high))
    return slices[0], slices[1]


def spline_coefficients(backend: Backend, image: Array) -> Array:
    """Return the cubic spline coefficients of ``image``, (y, x) float32, mirrored at its edges."""
    k = np.arange(-_PREFILTER_RADIUS, _PREFILTER_RADIUS + 1)
    pole = np.sqrt(3.0) - 2.0
    taps = pole ** np.abs(k)
    weights = backend.asarray(taps / taps.sum())
    rows = backend.ndimage.correlate1d(image, weights, axis=0, mode="mirror")
    return backend.ndimage.correlate1d(rows, weights, axis=1, mode="mirror")


def sample(
    backend: Backend,
    source: Array,
    source_origin: tuple[int, int],
    source_shape: tuple[int, int],
    shift: Array,
    origin: tuple[int, int],
    order: int = 3,
) -> tuple[Array, Array]:
    """Resample a part of an image at ``origin + (i, j) + shift[:, i, j]``.

    Parameters
    ----------
    source : (sy, sx) float32
        Part of the moving image, on the backend.
    source_origin, source_shape : (int, int)
        Where that part begins in the moving image, and the size of the whole image.
    shift : (2, ny, nx) float32
        Displacements in px.
    origin : (int, int)
        Row and column of ``shift[:, 0, 0]``.
    order : int
        3, or 1 to interpolate linearly in half the time.

    Returns
    -------
    values, inside : (ny, nx) float32, (ny, nx) bool
        Zero, and False, where the moving image ends (half a pixel beyond its outer centres).

    Examples
    --------
    >>> image, shift = cpu.asarray(np.arange(16).reshape(4, 4)), cpu.asarray([[[1.5]], [[1.5]]])
    >>> values, inside = sample(cpu, image, (0, 0), (4, 4), shift, (0, 0), 1)
    >>> values.item(), inside.item()
    (7.5, True)
    """
    positions = _positions(backend, shift, origin)
    inside = (positions[0] >= -0.5) & (positions[0] <= source_shape[0] - 0.5)
    inside &= (positions[1] >= -0.5) & (positions[1] <= source_shape[1] - 0.5)
    for axis in (0, 1):
        positions[axis] -= float(source_origin[axis] - 2)
        positions[axis] = _snap(backend, positions[axis])
    values = _interpolated(backend, source, positions, order)
    values *= inside
    return values, inside


def _interpolated(backend: Backend, source: Array, positions: Array, order: int) -> Array:
    """Return values of an image at positions (2, ny, nx) from two pixels before its first."""
    # Two pixels more on each side, so that no tap of a pixel inside leaves the array: the two
    # libraries treat such taps differently.
    coefficients = spline_coefficients(backend, source) if order == 3 else source
    return backend.ndimage.map_coordinates(
        backend.xp.pad(coefficients, 2, mode="reflect"),
        positions,
        output=backend.xp.float32,
        order=order,
        mode="constant",
        cval=0.0,
        prefilter=False,
    )


def _positions(backend: Backend, shift: Array, origin: tuple[int, int]) -> Array:
    """Return ``origin + (i, j) + shift[:, i, j]`` as (2, ny, nx) float64."""
    xp = backend.xp
    _, ny, nx = shift.shape
    positions = shift.astype(xp.float64)
    positions[0] += xp.arange(ny, dtype=xp.float64)[:, None] + float(origin[0])
    positions[1] += xp.arange(nx, dtype=xp.float64)[None, :] + float(origin[1])
    return positions


def _snap(backend: Backend, positions: Array) -> Array:
    """Return positions, those near a whole pixel moved onto it."""
    # CuPy takes the floor of a position in float32 and its fraction in float64: just below a whole
    # pixel they disagree, and the value is that of the next pixel (60 of 1024² on an H100). 2**-11
    # is half a step of float32 at 8192 px.
    xp = backend.xp
    whole = xp.rint(positions)
    return xp.where(xp.abs(positions - whole) < 2**-11, whole, positions)


def warp(
    backend: Backend,
    source: NDArray[np.generic],
    source_origin: tuple[int, int],
    source_shape: tuple[int, int],
    transform: Transform,
    region: Region,
) -> NDArray[np.uint16]:
    """Resample ``region`` of the reference frame from a part of the moving image.

    Parameters
    ----------
    source : (sy, sx) number
        The part of the moving image named by :func:`source_region`, in counts.
    source_origin, source_shape : (int, int)
        Where that part begins in the moving image, and the size of the whole image.
    region : (slice, slice)
        Rows and columns of the reference.

    Returns
    -------
    (ny, nx) uint16
        Rounded and clipped to 0…65535; 0 outside the moving image.

    Examples
    --------
    >>> image = np.arange(400, dtype=np.uint16).reshape(20, 20)
    >>> region = slice(0, 2), slice(0, 3)
    >>> warp(cpu, image, (0, 0), (20, 20), Transform.identity(), region).tolist()
    [[0, 1, 2], [20, 21, 22]]
    """
    xp = backend.xp
    y_px, x_px = (np.arange(part.start, part.stop, dtype=np.float64) for part in region)
    shift = displacement(backend, transform, y_px, x_px)
    origin = (int(region[0].start), int(region[1].start))
    image = backend.asarray(source)
    values, _ = sample(backend, image, source_origin, source_shape, shift, origin)
    counts = xp.clip(xp.rint(values), 0, 65535).astype(xp.uint16)
    return np.asarray(backend.to_numpy(counts))
