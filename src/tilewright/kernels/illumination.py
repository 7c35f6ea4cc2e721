"""Apply a flat-field and a dark-field to raw tiles; bin tiles to estimate them."""

from __future__ import annotations

import numpy as np

from tilewright.kernels.backend import Array, Backend


def correct(backend: Backend, raw: Array, flat: Array, dark: Array, pedestal: float) -> Array:
    """Return raw counts corrected for illumination, zero light kept at ``pedestal``.

    ``(raw - dark) / flat + pedestal``: noise below zero light survives (no clipping,
    hence no bias in empty areas) and stays storable in an unsigned type.

    Parameters
    ----------
    backend : Backend
        Array namespace to compute with.
    raw : array, shape (..., y, x)
        Raw counts of any real dtype; host or device.
    flat : array, shape (y, x)
        Relative sensitivity, mean 1, > 0.
    dark : array, shape (y, x) or ()
        Counts without light.
    pedestal : float
        Counts at which zero light is kept.

    Returns
    -------
    array of float32, shape (..., y, x)
        Corrected counts on the device of ``backend``.

    Raises
    ------
    ValueError
        ``flat`` or ``dark`` does not have the shape of a plane of ``raw``.
    """
    counts = backend.asarray(raw)
    gain, zero = backend.asarray(flat), backend.asarray(dark)
    if gain.shape != counts.shape[-2:] or zero.shape not in ((), counts.shape[-2:]):
        raise ValueError(
            f"flat {gain.shape} and dark {zero.shape} do not fit tiles of {counts.shape[-2:]} "
            "pixels (y, x); give fields of the tiles' own size"
        )
    corrected = counts - zero
    corrected /= gain
    corrected += float(pedestal)
    return corrected


def bin_tile(backend: Backend, raw: Array, factor: int) -> tuple[Array, Array]:
    """Average blocks of ``factor`` x ``factor`` pixels; a rest at the far edges is cut off.

    Parameters
    ----------
    backend : Backend
        Array namespace to compute with.
    raw : array, shape (y, x)
        Raw counts; host or device.
    factor : int
        Side of a block.

    Returns
    -------
    counts : array of float32, shape (y // factor, x // factor)
        Block means.
    peak : array of the type of ``raw``, same shape
        Largest pixel of each block, which says whether one was saturated.
    """
    counts = backend.asarray(raw, dtype=None)
    h, w = counts.shape[0] // factor, counts.shape[1] // factor
    blocks = counts[: h * factor, : w * factor].reshape(h, factor, w, factor)
    # Rows first: contiguous adds are four times faster than one mean over both axes.
    total = blocks.sum(axis=1, dtype=np.float32).sum(axis=2)
    return total / np.float32(factor * factor), blocks.max(axis=1).max(axis=2)


def enlarge(backend: Backend, field: Array, shape_px: tuple[int, int], factor: int) -> Array:
    """Interpolate a smooth field of block means back to pixels, linearly.

    Parameters
    ----------
    backend : Backend
        Array namespace to compute with.
    field : array of float32, shape (h, w)
        Values at the centres of blocks.
    shape_px : tuple of int
        (y, x) to return; may be larger than ``factor`` times the field by a rest.
    factor : int
        Side of a block in pixels.

    Returns
    -------
    array of float32, shape ``shape_px``
    """
    xp = backend.xp
    # Linear suffices: between blocks of 8 px a tile-wide bow is 1e-4 off. One block more on each
    # side by extrapolation, or vignetting would end in a plateau.
    padded = xp.concatenate([2 * field[:1] - field[1:2], field, 2 * field[-1:] - field[-2:-1]])
    left, right = 2 * padded[:, :1] - padded[:, 1:2], 2 * padded[:, -1:] - padded[:, -2:-1]
    padded = xp.concatenate([left, padded, right], axis=1)
    y, x = ((xp.arange(size, dtype=np.float32) + 0.5) / factor + 0.5 for size in shape_px)
    grid = xp.stack(xp.meshgrid(y, x, indexing="ij"))
    return backend.ndimage.map_coordinates(padded, grid, order=1, mode="nearest")
