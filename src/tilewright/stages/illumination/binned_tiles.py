"""Binned tiles of one cycle and channel, and what their overlaps measure."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.results.illumination import CLIPPED_BELOW
from tilewright.io.results.positions import Positions
from tilewright.kernels.backend import Array, Backend, cells
from tilewright.kernels.camera import Top, detect_saturation, equal_neighbours, top_of
from tilewright.kernels.illumination.binning import bin_tile, enlarge
from tilewright.kernels.illumination.overlap_cells import (
    OverlapCells,
    measure_cells,
    overlapping_pairs,
)
from tilewright.kernels.padding import fill, padding
from tilewright.stages.tile_source import TileSource

#: Tiles are binned to at most this many pixels on the long side: 0.26 MB per tile and plane.
LONG_SIDE = 256
#: Binned tiles of all planes, 170 MB: where there are more than 200 tiles, fewer planes are read.
_MOST_IMAGES = 1000
#: More cells than this add time, not accuracy.
_MAX_CELLS = 60_000
#: Fewer overlaps of known position are no estimate.
_FEW_PAIRS = 3


@dataclass(frozen=True)
class BinnedTiles:
    """Tiles binned by ``factor``, on the device."""

    images: Array
    """float32 (planes, n, h, w): raw counts."""
    valid: Array | None
    """bool (planes, n, h, w), or None: False where a pixel was saturated; None where none was."""
    factor: int
    """Binning."""
    shape_px: tuple[int, int]
    """(y, x) of the raw tiles."""
    planes: tuple[int, ...]
    """The z-planes read."""
    saturation: tuple[float | None, str] = (None, "")
    """Counts from which a pixel was saturated, and how that is known."""
    equal_neighbours: float = 0.0
    """Share of raw pixels with exactly the counts of their neighbour, median of all planes read."""
    inside: Array | None = None
    """bool (planes, n, h, w), or None: False in padding, whose counts are the tile's median."""

    def usable(self, plane: int) -> Array | None:
        """Return which binned pixels (n, h, w) show light, not saturated; None where all do."""
        known = [of[plane] for of in (self.valid, self.inside) if of is not None]
        return reduce(operator.and_, known) if known else None


def read_binned(
    backend: Backend, tiles: TileSource, planes: int, saturation_counts: float | None
) -> BinnedTiles:
    """Read ``planes`` evenly spaced z-planes of every tile, binned; fewer of very many tiles.

    ``saturation_counts`` of None means the value at which the histogram piles up, or else the
    largest value of an integer pixel type.
    """
    depth, *size = tiles.shape
    factor = max(1, -(-max(size) // LONG_SIDE))
    planes = min(planes, depth, max(1, _MOST_IMAGES // len(tiles.row)))
    z_planes = tuple(((2 * k + 1) * depth) // (2 * planes) for k in range(planes))
    places = [(k, tile) for k in range(len(z_planes)) for tile in range(len(tiles.row))]
    shape = (len(z_planes), len(tiles.row), size[0] // factor, size[1] // factor)
    images = backend.xp.empty(shape, dtype=np.float32)
    peak = backend.xp.empty(shape, dtype=tiles.dtype)
    padded = backend.xp.zeros(shape, dtype=bool)

    def read(place: tuple[int, int]) -> tuple[Top, float]:
        k, tile = place
        raw = tiles.read(tile, z_planes[k])
        found = padding(raw)
        if found is not None:
            raw = fill(raw, found)
            padded[k, tile] = backend.asarray(cells(found, factor).any(axis=(1, 3)), dtype=None)
        images[k, tile], peak[k, tile] = bin_tile(backend, raw, factor)
        return top_of(raw), equal_neighbours(raw)

    with ThreadPoolExecutor(backend.workers) as pool:
        results = pool.map(read, places)
        statistics = list(tqdm(results, "illumination: tiles", len(places), mininterval=5))
    tops, equal = zip(*statistics, strict=True)
    limit, how = _saturation(saturation_counts, tops, tiles.dtype)
    valid = None if limit is None else peak < limit
    some_saturated = valid is not None and not bool(valid.all())
    return BinnedTiles(
        images,
        valid if some_saturated else None,
        factor,
        (size[0], size[1]),
        z_planes,
        (limit, how),
        round(float(np.median(equal)), 4),
        ~padded if bool(padded.any()) else None,
    )


def _saturation(
    configured: float | None, tops: Sequence[Top], dtype: np.dtype[Any]
) -> tuple[float | None, str]:
    if configured is not None:
        return float(configured), "given"
    largest = float(np.iinfo(dtype).max) if np.issubdtype(dtype, np.integer) else None
    limit = detect_saturation(tops)
    if limit is not None and limit != largest:
        return limit, CLIPPED_BELOW
    return largest, "unknown" if largest is None else "largest value of the pixel type"


@dataclass(frozen=True)
class TileMeasures:
    """What the flat-field of a channel is estimated from: small arrays on the host."""

    blocks: NDArray[np.float64]
    """float64 (n, y, x): means of 4 x 4 binned pixels of each tile, whose percentiles are not of
    noise, averaged over its planes.
    """
    unsaturated: NDArray[np.bool_]
    """bool (n,): tiles with at most 1 % of saturated binned pixels in every plane."""
    cells: OverlapCells
    """Cells in overlaps; none without positions."""
    darkest_counts: float
    """Upper bound of the camera offset: the 1st percentile of each image, of these the 5th
    percentile over images. Empty tiles give the offset itself, and a few dead pixels or a dropped
    frame do not lower it.
    """
    mean_counts: float
    median_counts: float
    noise_counts: float
    """Of all binned pixels; noise is that of a block."""
    saturated_share: float
    """Of binned pixels."""
    block_px: int
    """Side of a block in raw pixels."""
    shape_px: tuple[int, int]
    planes: tuple[int, ...]
    saturation: tuple[float | None, str]
    equal_neighbours: float
    """As those of :class:`BinnedTiles`."""

    def has_signal(self, offset_counts: float, *, offset_known: bool) -> bool:
        """Whether the mean signal is well above the noise of a block.

        Twice the noise if the offset is known, four times if it is a low percentile, which lies
        2.3 times the noise below the offset of empty tiles.
        """
        light = self.mean_counts - offset_counts
        return light >= (2.0 if offset_known else 4.0) * self.noise_counts and light > 0

    def offset_excess(self, offset_counts: float) -> float:
        """Return how far an offset lies above the darkest counts, in noise of a block.

        2.3 where tiles are empty, by their 1st percentile; less where they hold light. Noise is
        taken for a count at least: a camera that cuts off black shows none.
        """
        return (offset_counts - self.darkest_counts) / max(self.noise_counts, 1.0)

    def less(self, structure_counts: NDArray[np.float64]) -> TileMeasures:
        """Take a dark-field at the blocks off blocks and cells."""
        first, second = self.cells.sampled(structure_counts)
        cells = dataclasses.replace(
            self.cells, first=self.cells.first - first, second=self.cells.second - second
        )
        return dataclasses.replace(self, blocks=self.blocks - structure_counts, cells=cells)

    def at_pixels(self, backend: Backend, field: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return a field at the blocks at the raw tiles' pixels."""
        pixels = enlarge(backend, backend.asarray(field), self.shape_px, self.block_px)
        return np.asarray(backend.to_numpy(pixels), np.float32)


def measure_tiles(
    backend: Backend,
    tiles: TileSource,
    positions: Positions | None,
    planes: int,
    saturation_counts: float | None,
) -> TileMeasures:
    """Read a channel's tiles (:func:`read_binned`); return what its flat-field is estimated from.

    Without ``positions`` there are no overlaps.
    """
    binned = read_binned(backend, tiles, planes, saturation_counts)
    side = 4 if min(binned.images.shape[2:]) >= 16 else 1
    means = cells(binned.images, side).mean(axis=(-3, -1))
    low = backend.xp.percentile(means.reshape(-1, means[0, 0].size), 1, axis=1)
    whole = np.ones(len(tiles.row), dtype=np.bool_)
    if binned.valid is not None:
        whole = backend.to_numpy(binned.valid.mean(axis=(2, 3)) >= 0.99).all(axis=0)
    return TileMeasures(
        backend.to_numpy(means).astype(np.float64).mean(axis=0),
        whole,
        OverlapCells.none() if positions is None else overlap_cells(backend, binned, positions),
        float(np.percentile(backend.to_numpy(low), 5)),
        float(means.mean(dtype=np.float64)),
        float(backend.xp.median(binned.images)),
        _pixel_noise(backend, binned) / side,
        0.0 if binned.valid is None else round(1.0 - float(binned.valid.mean()), 6),
        side * binned.factor,
        binned.shape_px,
        binned.planes,
        binned.saturation,
        binned.equal_neighbours,
    )


def _pixel_noise(backend: Backend, binned: BinnedTiles) -> float:
    """Return the noise of a binned pixel in the tiles that have least of it."""
    # Differences of neighbours along both axes leave out slopes and straight edges, the 10th
    # percentile of images tissue: its steps were taken for noise of 877 counts where it was 9.
    scatter = []
    for images in binned.images:
        step = images[:, 1:] - images[:, :-1]
        step = backend.xp.abs(step[:, :, 1:] - step[:, :, :-1]) / 2
        middle = backend.xp.median(step.reshape(step.shape[0], -1), axis=1)
        scatter.append(backend.to_numpy(middle))
    return float(np.percentile(np.concatenate(scatter), 10)) / 0.6745


def overlap_cells(backend: Backend, binned: BinnedTiles, positions: Positions) -> OverlapCells:
    """Measure cells in all overlaps whose positions are known well enough.

    Both tiles must be of one component and of a sigma of at most a quarter of a cell.
    """
    place = np.stack([positions.y_px, positions.x_px], axis=1).astype(np.float64)
    cell = _cell_side(place, binned)
    pairs = overlapping_pairs(place, binned.shape_px, cell * binned.factor)
    sure = np.asarray(positions.sigma_px) <= cell * binned.factor / 4
    component = np.asarray(positions.island)
    known = sure[pairs].all(axis=1) & (component[pairs[:, 0]] == component[pairs[:, 1]])
    # Nothing matched, as in overlaps of 2 %: at stage positions two tiles show places so near
    # that their typical difference is the flat-field's, only with more scatter.
    pairs = pairs[known] if known.sum() >= _FEW_PAIRS else pairs
    all_cells = OverlapCells.join(
        [
            measure_cells(
                backend,
                images,
                binned.usable(k),
                place,
                pairs,
                shape_px=binned.shape_px,
                factor=binned.factor,
                cell=cell,
            )
            for k, images in enumerate(binned.images)
        ]
    )
    if len(all_cells) <= _MAX_CELLS:
        return all_cells
    sample = np.random.default_rng(0).choice(len(all_cells), _MAX_CELLS, replace=False)
    return all_cells.take(np.sort(sample))


def _cell_side(place: NDArray[np.float64], binned: BinnedTiles) -> int:
    """Side of a cell in binned pixels: 4, or a quarter of the typical overlap if that is narrow."""
    pairs = overlapping_pairs(place, binned.shape_px, binned.factor)
    if len(pairs) == 0:
        return 4
    shared = np.asarray(binned.shape_px) - np.abs(place[pairs[:, 1]] - place[pairs[:, 0]])
    width = float(np.median(shared.min(axis=1))) / binned.factor
    return int(np.clip(width // 4, 1, 4))
