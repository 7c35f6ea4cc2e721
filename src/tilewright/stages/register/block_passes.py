"""Passes over two images: block shifts of the whole pair under a transform, cell by cell.

Images are read through ``read(y, x)`` a cell at a time, so that memory holds one overview of
each image and the cells in work, whatever the size of the images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.kernels.backend import Array, Backend, Region
from tilewright.kernels.register.alignment import BANDPASS_HALO_PX, bandpass_sqrt
from tilewright.kernels.register.block_shifts import (
    BlockShifts,
    hann,
    overlapping_blocks,
    refine_shifts,
    search_shifts,
)
from tilewright.kernels.register.warp import HALO_PX, Transform, displacement, sample
from tilewright.stages.register.plane_views import PlaneView
from tilewright.stages.tile_windows import regions

#: Side of a cell, in binned pixels: large enough for FFT batches, small enough for caches.
_CELL_PX = 576
#: Tissue is where the texture has a tenth of the energy that it has at bright places.
TISSUE_ENERGY = 0.1


@dataclass(frozen=True)
class Pass:
    """One pass: blocks of ``2 step`` binned pixels, every ``step``, starting at ``offset``.

    ``search`` is the largest shift searched by correlation; 0 takes a Gauss-Newton step.
    ``halo_px`` are the binned pixels that are read around a cell.
    """

    factor: int
    step: int
    search: int = 0
    offset: int = 0
    halo_px: int = BANDPASS_HALO_PX

    def grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of blocks that cover an image of ``shape`` pixels."""
        rows, columns = (-(-(size // self.factor - self.offset) // self.step) + 1 for size in shape)
        return rows, columns


@dataclass(frozen=True)
class BlockGrid:
    """Shifts of a grid of blocks, in full-resolution px; fields as in :class:`BlockShifts`.

    ``centres_px`` is (gy gx, 2); ``origin_px`` and ``spacing_px`` define the same grid.
    """

    shape: tuple[int, int]
    origin_px: float
    spacing_px: float
    blocks: BlockShifts

    @property
    def centres_px(self) -> NDArray[np.float64]:
        """Return the blocks' centres in the reference, (gy gx, 2)."""
        axes = [self.origin_px + self.spacing_px * np.arange(n) for n in self.shape]
        return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)

    @property
    def on_tissue(self) -> NDArray[np.bool_]:
        """Return (n, 2): which blocks show tissue in the reference and in the moving image."""
        energy = self.blocks.energy
        bright = np.maximum(np.percentile(energy, 95.0, axis=0), 1e-9)
        tissue: NDArray[np.bool_] = energy > TISSUE_ENERGY * bright
        return tissue


@dataclass(frozen=True)
class Overlay:
    """A part of both images in the reference's frame, binned.

    Attributes
    ----------
    region : Region
        Rows and columns of the reference.
    counts, textures : tuple[Array, Array]
        pair of (y, x) float32: reference and moving image; textures are not masked.
    inside : float32 (y, x)
        1 where both have pixels, as in :func:`aligned`.
    """

    region: Region
    counts: tuple[Array, Array]
    textures: tuple[Array, Array]
    inside: Array


#: Measures a part of a pass; the region is that of its pixels without the halo, in which each pixel
#: of the images comes once.
Observe = Callable[[Region, Overlay], None]


def measure_blocks(
    backend: Backend,
    reference: PlaneView,
    moving: PlaneView,
    transform: Transform,
    pass_: Pass,
    name: str,
    *,
    observe: Observe | None = None,
) -> BlockGrid:
    """Measure how far the moving image is from where ``transform`` puts it, block by block.

    ``observe`` is called with all parts, so that other measurements need no second pass.
    """
    grid = pass_.grid(reference.shape)
    cells = regions(grid, max(1, _CELL_PX // pass_.step))
    inner = dataclasses.replace(backend, workers=1)

    def one(cell: Region) -> BlockShifts:
        return _measure_cell(inner, reference, moving, transform, pass_, cell, observe)

    fields: dict[str, NDArray[np.float64]] = {}
    with ThreadPoolExecutor(backend.workers) as pool:
        results = tqdm(pool.map(one, cells), name, len(cells), False, mininterval=5)
        for cell, blocks in zip(cells, results, strict=True):
            for key, values in vars(blocks).items():
                whole = fields.setdefault(key, np.full((*grid, *values.shape[1:]), np.nan))
                whole[cell] = values.reshape(whole[cell].shape)
    flat = {key: whole.reshape(-1, *whole.shape[2:]) for key, whole in fields.items()}
    flat["shift_px"] = flat["shift_px"] * pass_.factor
    flat["variance_px2"] = flat["variance_px2"] * pass_.factor**2
    origin_px, spacing_px = pass_.factor * pass_.offset - 0.5, float(pass_.factor * pass_.step)
    return BlockGrid(grid, origin_px, spacing_px, BlockShifts(**flat))


def _measure_cell(
    backend: Backend,
    reference: PlaneView,
    moving: PlaneView,
    transform: Transform,
    pass_: Pass,
    cell: Region,
    observe: Observe | None,
) -> BlockShifts:
    size = reference.size(pass_.factor)
    spans = [
        ((part.start - 1) * pass_.step + pass_.offset, part.stop * pass_.step + pass_.offset)
        for part in cell
    ]
    y, x = (
        slice(max(low - pass_.halo_px, 0), min(high + pass_.halo_px, n))
        for (low, high), n in zip(spans, size, strict=True)
    )
    overlay = _overlay(backend, reference, moving, transform, pass_, (y, x))
    if observe:
        # The last row of blocks reaches into the next cell by a step.
        rows, columns = (
            slice(max(low, 0), min(high - pass_.step, n))
            for (low, high), n in zip(spans, size, strict=True)
        )
        observe((rows, columns), overlay)
    pad, crop = [], []
    for (low, high), part, n in zip(spans, (y, x), size, strict=True):
        crop.append(slice(max(low, 0) - part.start, min(high, n) - part.start))
        pad.append((max(-low, 0), max(high - n, 0)))
    xp, inside = backend.xp, overlay.inside
    first, second = (image * inside for image in overlay.textures)
    images = [
        overlapping_blocks(backend, xp.pad(image[crop[0], crop[1]], pad), pass_.step)
        for image in ((first, second) if pass_.search else (first, second, inside))
    ]
    if pass_.search:
        window = hann(backend, 2 * pass_.step)
        reach = (pass_.search, pass_.search)
        return search_shifts(backend, images[0] * window, images[1] * window, reach)
    return refine_shifts(backend, images[0], images[1], images[2])


def _overlay(
    backend: Backend,
    reference: PlaneView,
    moving: PlaneView,
    transform: Transform,
    pass_: Pass,
    region: Region,
) -> Overlay:
    order = 1 if pass_.search else 3  # a search finds a tenth of a pixel or so in any case
    *counts, inside = aligned(backend, reference, moving, transform, pass_.factor, region, order)
    first, second = (
        bandpass_sqrt(backend, image, view.levels)
        for image, view in zip(counts, (reference, moving), strict=True)
    )
    return Overlay(region, (counts[0], counts[1]), (first, second), inside)


def aligned(
    backend: Backend,
    reference: PlaneView,
    moving: PlaneView,
    transform: Transform,
    factor: int,
    read: Sequence[slice],
    order: int = 3,
) -> tuple[Array, Array, Array]:
    """Read a part of both images, the moving one in the reference's frame.

    Parameters
    ----------
    factor : int
        Binning; ``read`` is in binned pixels.
    read : two slices
        Rows and columns of the reference.
    order : int
        Of the interpolation: 3, or 1.

    Returns
    -------
    reference, moving, mask : (y, x) float32
        Counts; the mask is 1 where both have pixels, 4 px and more from the moving image's end.
    """
    xp = backend.xp
    y, x = read
    first = backend.asarray(reference.read(factor, y, x))
    centre = (factor - 1) / 2
    y_px, x_px = (factor * np.arange(part.start, part.stop) + centre for part in read)
    shift = displacement(backend, transform, y_px, x_px) / factor
    low = backend.to_numpy(shift.min(axis=(1, 2)))
    high = backend.to_numpy(shift.max(axis=(1, 2)))
    shape = moving.size(factor)
    source = []
    for axis, part in enumerate(read):
        start = max(int(np.floor(part.start + low[axis])) - HALO_PX, 0)
        stop = min(int(np.ceil(part.stop + high[axis])) + HALO_PX, shape[axis])
        source.append(slice(start, stop))
    if any(part.start >= part.stop for part in source):
        empty = xp.zeros(first.shape, xp.float32)
        return first, empty, empty
    pixels = backend.asarray(moving.read(factor, source[0], source[1]))
    starts = (source[0].start, source[1].start)
    warped, inside = sample(backend, pixels, starts, shape, shift, (y.start, x.start), order)
    mask = inside.astype(xp.float32)
    if not bool(inside.all()):
        # The end of the moving image is an edge of its texture only.
        mask = backend.ndimage.minimum_filter(mask, 9, mode="nearest")
    return first, warped, mask
