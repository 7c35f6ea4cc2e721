"""Bin raw tiles to estimate a flat-field, and enlarge it to the tiles' size."""

import numpy as np

from tilewright.kernels.backend import Array, Backend, cells


def bin_tile(backend: Backend, raw: Array, factor: int) -> tuple[Array, Array]:
    """Average blocks of ``factor`` x ``factor`` pixels; a rest at the far edges is cut off.

    Parameters
    ----------
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

    Examples
    --------
    >>> counts, peak = bin_tile(cpu, np.arange(16, dtype=np.uint16).reshape(4, 4), 2)
    >>> counts.tolist(), peak.tolist()
    ([[2.5, 4.5], [10.5, 12.5]], [[5, 7], [13, 15]])
    """
    counts = backend.asarray(raw, dtype=None)
    blocks = cells(counts, factor)
    # Rows first: contiguous adds are four times faster than one mean over both axes.
    total = blocks.sum(axis=1, dtype=np.float32).sum(axis=2)
    return total / np.float32(factor * factor), blocks.max(axis=1).max(axis=2)


def enlarge(backend: Backend, field: Array, shape_px: tuple[int, int], factor: int) -> Array:
    """Interpolate a smooth field of block means back to pixels, linearly.

    Parameters
    ----------
    field : array of float32, shape (h, w)
        Values at the centres of blocks.
    shape_px : tuple of int
        (y, x) to return; may be larger than ``factor`` times the field by a rest.
    factor : int
        Side of a block in pixels.

    Returns
    -------
    array of float32, shape ``shape_px``

    Examples
    --------
    >>> enlarge(cpu, cpu.asarray([[1, 3], [1, 3]]), (4, 4), 2)[0].tolist()
    [0.5, 1.5, 2.5, 3.5]
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
