"""Seams between neighbouring tiles of a mosaic, and a grid along all tile borders."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tilewright.io.results.mosaic import Mosaic
from tilewright.io.results.positions import Positions
from tilewright.kernels.artefacts import seam_reach_px, seam_score
from tilewright.quality.results import QcContext, QcResult
from tilewright.quality.sampling import NO_SIGNAL_DETAIL
from tilewright.quality.stages.overlaps import tile_name

#: Borders whose median is as sure as the limits ask for: two of 48 sound mosaics had a median above
#: 3, of three and of four borders.
_BORDERS = 6
#: Overlaps that show a grid, and the least depth that is visible, over the spread of pixels.
_GRID_BORDERS, _GRID_VISIBLE = 8, 0.2
#: The limit of 3 is four standard deviations of chance: of three, one sound mosaic in 370 warned.
_GRID_SCALE = 0.75


@dataclass(frozen=True)
class BorderSeam:
    """Seam between two neighbouring tiles."""

    first: str
    second: str
    score: float
    step: float


def evaluate_seams(
    context: QcContext,
    seams: Sequence[BorderSeam] | None,
    grid: tuple[float, float] | None,
    *,
    signal: bool,
) -> QcResult:
    """Evaluate the median seam, or a grid that is more significant.

    ``seams`` is None where tiles are blended so widely that no step shows. Without a ``signal``
    above the noise seams are properties of the noise.
    """
    seam, detail = None, NO_SIGNAL_DETAIL
    if signal and seams is None:
        seam, detail = 1.0, "tiles are blended too widely for a step to show"
    elif signal:
        detail = "no tile border has tissue on both sides"
    if signal and seams:
        # One border exceeds a limit by chance more often than the median of several.
        seam = float(np.median([s.score for s in seams])) * min(1.0, (len(seams) / _BORDERS) ** 0.5)
        worst = f"{tile_name(seams[0].first)} and {tile_name(seams[0].second)}"
        detail = f"{len(seams)} borders, worst {seams[0].score:.1f} between {worst}"
    if grid is not None and grid[0] > (seam or 1.0):
        seam = grid[0]
        detail = f"overlaps are {grid[1]:+.1f} counts off what lies beside them"
    return context.evaluate("seam", seam, detail)


def seam_scores(
    mosaic: Mosaic, positions: Positions, tile: tuple[int, int], plane: int
) -> list[BorderSeam] | None:
    """Return the seams between neighbours with tissue on both sides, worst first.

    The strip lies across the middle of the overlap and ends before the next border; the band
    where tiles are blended into each other (``feather_px``) is left out.
    A wide band hides a step from the eye, and from this number too: None where all bands do.
    """
    index = positions.places()
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    seams, hidden = [], []
    for key, other, axis in positions.neighbours(tile):
        a, b = index[key], index[other]
        reach, gap = _reach(mosaic, a[axis] + tile[axis] - b[axis], tile[axis])
        hidden.append(reach is None)
        pixels = _strip(mosaic, plane, (a, b), tile, axis, reach) if reach else None
        if reach is None or pixels is None:
            continue
        seam = seam_score(pixels, reach, pedestal_counts=pedestal, axis=axis, gap_px=gap)
        if np.isfinite(seam.step):
            seams.append(BorderSeam(key, other, round(seam.score, 4), round(seam.step, 5)))
    if hidden and all(hidden):
        return None
    return sorted(seams, key=lambda s: (-s.score, s.first, s.second))


def grid_score(
    plane: Mosaic, positions: Positions, tile: tuple[int, int]
) -> tuple[float, float] | None:
    """Return how significant a grid along all tile borders is, and its depth in counts.

    The mean of the middle of each overlap less those next to it, corners included, by a t-test over
    the overlaps, as a normal deviate; 1 where the depth is below a fifth of the pixels' spread.
    The eye sees a line by its average: a dark grid of 1.4 counts in noise of 4.4 was plain, and no
    step at a border showed it. None of fewer than eight overlaps.
    """
    depths, spreads = [], []
    index = positions.places()
    for key, other, axis in positions.neighbours(tile):
        a, b, along = index[key], index[other], 1 - axis
        width = a[axis] + tile[axis] - b[axis]
        middle = round((a[axis] + tile[axis] + b[axis]) / 2)
        half, distance = max(round(width / 4), 4), round(width)
        low = max(round(max(a[along], b[along])), 0)
        high = round(min(a[along], b[along])) + tile[along]
        start = middle - distance - 3 * half
        if width <= 0 or start < 0 or middle + distance + 3 * half > plane.shape[1 + axis]:
            continue
        across, span = slice(start, middle + distance + 3 * half), slice(low, high)
        strip = plane.read(0, *((across, span) if axis == 0 else (span, across)))
        profile = strip.mean(axis=along, dtype=np.float64)
        centre = profile[middle - start - half : middle - start + half].mean()
        ends = (profile[: 3 * half].mean() + profile[-3 * half :].mean()) / 2
        depths.append(centre - ends)
        spreads.append(stats.median_abs_deviation(strip, axis=None, scale="normal"))
    if len(depths) < _GRID_BORDERS:
        return None
    depth = float(np.mean(depths))
    # Half a count is rounding.
    if abs(depth) < max(_GRID_VISIBLE * float(np.median(spreads)), 0.5):
        return 1.0, depth
    chance = stats.ttest_1samp(depths, 0.0).pvalue
    deviate = stats.norm.isf(max(chance, 1e-300) / 2)
    return float(np.hypot(1.0, _GRID_SCALE * deviate)), depth


def _reach(mosaic: Mosaic, overlap: float, side: int) -> tuple[int | None, int]:
    """Return the reach of a strip on either side of a border, and the gap that is left out, in px.

    None where the tiles, ``side`` px across the border, are blended too widely.
    """
    feather = min(float(mosaic.attributes.get("feather_px", overlap)), overlap)
    gap = max(int(np.ceil(feather / 2)), 0)
    # The next border of this direction lies a tile's step away.
    needed = seam_reach_px(gap)
    reach = min(max(80 + 3 * gap, needed or 0), int(side - overlap - 2 * gap))
    return (None if needed is None or reach < needed else reach), gap


def _strip(
    mosaic: Mosaic,
    plane: int,
    corners: tuple[tuple[float, float], tuple[float, float]],
    tile: tuple[int, int],
    axis: int,
    reach: int,
) -> NDArray[Any] | None:
    """Read a strip (y, x) of ``reach`` px on either side of the border of two tiles."""
    a, b = corners
    middle = round((a[axis] + tile[axis] + b[axis]) / 2)
    along = 1 - axis
    margin = 0.15 * tile[along]  # the corners belong to other borders
    low = round(max(a[along], b[along]) + margin)
    high = round(min(a[along], b[along]) + tile[along] - margin)
    span = (middle - reach, middle + reach)
    if high - low < 32 or span[0] < 0 or span[1] > mosaic.shape[1 + axis] or low < 0:
        return None
    across, length = slice(*span), slice(low, high)
    return mosaic.read(plane, *((across, length) if axis == 0 else (length, across)))
