"""Binned tiles of one cycle and channel, and what their overlaps measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import ProcessingError
from tilewright.io.results.illumination import CLIPPED_BELOW
from tilewright.io.results.positions import Positions
from tilewright.kernels.backend import Bools, Ints, cells
from tilewright.kernels.camera import Top, detect_saturation
from tilewright.kernels.illumination.fixed_pattern import dust_sums
from tilewright.kernels.illumination.flat_basis import enlarge
from tilewright.kernels.illumination.overlap_cells import (
    OverlapCells,
    bin_tile,
    measure_cells,
    overlapping_pairs,
)
from tilewright.kernels.noise import mad_sigma
from tilewright.stages.tile_planes import TileSource

#: Tiles are binned to at most this many pixels on the long side: 0.26 MB per tile and plane.
_LONG_SIDE = 256
#: More cells than this add time, not accuracy.
_MAX_CELLS = 60_000
#: Four tiles have four overlaps, of which one may be empty. The error that is reported says
#: what three are worth.
MIN_EDGES = 3


@dataclass(frozen=True)
class BinnedTiles:
    """Tiles binned by ``factor``.

    Attributes
    ----------
    images : float32 (n, h, w)
        Raw counts, mean of the planes.
    peak : NDArray[Any]
        (n, h, w) of the pixel type: largest raw pixel of all planes.
    inside : bool (n, h, w)
        False in padding, whose counts are the tile's median.
    factor : int
        Binning.
    shape_px : tuple[int, int]
        (y, x) of the raw tiles.
    planes : tuple[int, ...]
        The z-planes.
    saturation : tuple[float | None, str]
        Counts from which a pixel was saturated, and how that is known.
    equal_neighbours : float
        Share of raw pixels with exactly the counts of their neighbour, median of all planes read.
    """

    images: NDArray[np.float32]
    peak: NDArray[Any]
    inside: NDArray[np.bool_]
    factor: int
    shape_px: tuple[int, int]
    planes: tuple[int, ...]
    saturation: tuple[float | None, str] = (None, "")
    equal_neighbours: float = 0.0

    @classmethod
    def empty(cls, tiles: TileSource, planes: tuple[int, ...]) -> BinnedTiles:
        """Return room for the mean of some planes of all tiles."""
        height, width = tiles.shape[1:]
        factor = max(1, -(-max(height, width) // _LONG_SIDE))
        shape = (len(tiles.row), height // factor, width // factor)
        images, peak = np.empty(shape, np.float32), np.empty(shape, tiles.dtype)
        return cls(images, peak, np.ones(shape, np.bool_), factor, (height, width), planes)

    def put(self, tile: int, mean: NDArray[np.float32], peak: NDArray[Any], hole: Bools) -> None:
        """Bin the mean and the largest pixels of a tile's planes, in which ``hole`` is padding."""
        self.images[tile] = bin_tile(mean, self.factor)
        self.peak[tile] = cells(peak, self.factor).max(axis=1).max(axis=2)
        self.inside[tile] = ~cells(hole, self.factor).any(axis=(1, 3))

    def measured(
        self, saturation_counts: float | None, tops: Sequence[Top], equal: Sequence[float]
    ) -> BinnedTiles:
        """Return them with what all planes read say of the camera.

        ``saturation_counts`` of None means the value at which the histogram piles up, or else the
        largest value of an integer pixel type.
        """
        return dataclasses.replace(
            self,
            saturation=_saturation(saturation_counts, tops, self.peak.dtype),
            equal_neighbours=round(float(np.median(equal)), 4),
        )

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Bool (n, h, w): False where a pixel was saturated in any plane."""
        limit, _ = self.saturation
        return self.peak < (np.inf if limit is None else limit)


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
    """What the flat-field of a channel is estimated from: small arrays on the host.

    Attributes
    ----------
    blocks : float64 (n, y, x)
        Means of 4 x 4 binned pixels of each tile, whose percentiles are not of noise.
    unsaturated : bool (n,)
        Tiles with at most 1 % of saturated binned pixels.
    cells : OverlapCells
        Cells in overlaps whose positions are known; none without positions.
    darkest_counts : float
        Upper bound of the camera offset: the 1st percentile of each image, of these the 5th
        percentile over images. Empty tiles give the offset itself, and a few dead pixels or a
        dropped frame do not lower it.
    mean_counts, median_counts, noise_counts : float
        Of all binned pixels; noise is that of a block.
    block_px : int
        Side of a block in raw pixels.
    shape_px, planes, saturation, equal_neighbours : float
        As those of :class:`BinnedTiles`.
    pairs : int64 (m, 2)
        All tiles that overlap.
    every_cell : OverlapCells
        Cells of all of them, also where tiles lie by the stage alone; ``edge`` indexes ``pairs``.
    dust : NDArray[np.float32]
        What tiles without padding say of dust on the sensor: :func:`.fixed_pattern.dust_sums`.
    factor : int
        Binning of the tiles that show it.
    """

    blocks: NDArray[np.float64]
    unsaturated: NDArray[np.bool_]
    cells: OverlapCells
    darkest_counts: float
    mean_counts: float
    median_counts: float
    noise_counts: float
    block_px: int
    shape_px: tuple[int, int]
    planes: tuple[int, ...]
    saturation: tuple[float | None, str]
    equal_neighbours: float
    pairs: Ints
    every_cell: OverlapCells
    dust: NDArray[np.float32]
    factor: int

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

    def at_pixels(self, field: NDArray[np.float64], block_px: int) -> NDArray[np.float32]:
        """Return a field at blocks of ``block_px`` pixels at the raw tiles' pixels."""
        return enlarge(field, self.shape_px, block_px)


def measure_tiles(binned: BinnedTiles, positions: Positions | None) -> TileMeasures:
    """Return what the flat-field of a channel is estimated from; no overlaps without positions.

    Raises
    ------
    ProcessingError
        ``positions`` are of other tiles.
    """
    count = len(binned.images)
    if positions is not None and len(positions.y_px) != count:
        raise ProcessingError(
            f"{len(positions.y_px)} positions do not fit {count} tiles; make them again: "
            "snakemake -R calibrate"
        )
    side = 4 if min(binned.images.shape[1:]) >= 16 else 1
    means = cells(binned.images, side).mean(axis=(-3, -1))
    low = np.percentile(means.reshape(count, -1), 1, axis=1)
    valid = binned.valid
    pairs, known, every = np.zeros((0, 2), np.int64), np.zeros(0, np.bool_), OverlapCells.none()
    if positions is not None:
        pairs, known, every = overlap_cells(binned, positions)
    return TileMeasures(
        means.astype(np.float64),
        valid.mean(axis=(1, 2)) >= 0.99,
        _some(every.take(known[every.edge])),
        float(np.percentile(low, 5)),
        float(means.mean(dtype=np.float64)),
        float(np.median(binned.images)),
        _pixel_noise(binned.images) / side,
        side * binned.factor,
        binned.shape_px,
        binned.planes,
        binned.saturation,
        binned.equal_neighbours,
        pairs,
        every,
        dust_sums(binned.images[binned.inside.all(axis=(1, 2))]),
        binned.factor,
    )


def _pixel_noise(binned: NDArray[np.float32]) -> float:
    """Return the noise of a binned pixel in the tiles that have least of it."""
    # Differences of neighbours along both axes leave out slopes and straight edges, the 10th
    # percentile of images tissue: its steps were taken for noise of 877 counts where it was 9.
    scatter = []
    for image in binned:
        step = image[1:] - image[:-1]
        scatter.append(mad_sigma(step[:, 1:] - step[:, :-1]) / 2)
    return float(np.percentile(scatter, 10))


def overlap_cells(binned: BinnedTiles, positions: Positions) -> tuple[Ints, Bools, OverlapCells]:
    """Measure cells in all overlaps.

    Returns
    -------
    pairs : ndarray of int64, shape (m, 2)
        Overlapping tiles.
    known : ndarray of bool, shape (m,)
        Whether their positions are known well enough: both are of one component and of a sigma of
        at most a quarter of a cell.
    cells : OverlapCells
        Of all pairs.
    """
    place = np.stack([positions.y_px, positions.x_px], axis=1).astype(np.float64)
    cell = _cell_side(place, binned)
    pairs = overlapping_pairs(place, binned.shape_px, cell * binned.factor)
    sure = np.asarray(positions.sigma_px) <= cell * binned.factor / 4
    component = np.asarray(positions.island)
    known = sure[pairs].all(axis=1) & (component[pairs[:, 0]] == component[pairs[:, 1]])
    # Nothing matched, as in overlaps of 2 %: at stage positions two tiles show places so near
    # that their typical difference is the flat-field's, only with more scatter.
    known |= known.sum() < MIN_EDGES
    found = measure_cells(
        binned.images,
        binned.valid & binned.inside,
        place,
        pairs,
        shape_px=binned.shape_px,
        factor=binned.factor,
        cell=cell,
    )
    return pairs, known, found


def _some(cells: OverlapCells) -> OverlapCells:
    """Return the cells, or as many of them as are enough."""
    if len(cells) <= _MAX_CELLS:
        return cells
    sample = np.random.default_rng(0).choice(len(cells), _MAX_CELLS, replace=False)
    return cells.take(np.sort(sample))


def _cell_side(place: NDArray[np.float64], binned: BinnedTiles) -> int:
    """Side of a cell in binned pixels: 4, or a quarter of the typical overlap if that is narrow."""
    pairs = overlapping_pairs(place, binned.shape_px, binned.factor)
    if len(pairs) == 0:
        return 4
    shared = np.asarray(binned.shape_px) - np.abs(place[pairs[:, 1]] - place[pairs[:, 0]])
    width = float(np.median(shared.min(axis=1))) / binned.factor
    return int(np.clip(width // 4, 1, 4))
