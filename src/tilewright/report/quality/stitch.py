"""Quality of the stitched mosaic: light, focus, and whether tile borders show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.results.distortion import read_distortion
from tilewright.io.results.illumination import read_illumination
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.io.results.positions import Positions, read_positions
from tilewright.kernels.artefacts import seam_reach_px, seam_score
from tilewright.kernels.metrics import empty_fraction
from tilewright.report.figures import new_figure, save_png, scale_bar, show
from tilewright.report.judge import Files, Findings
from tilewright.report.quality.mosaic_scan import judge_blocks, judge_defects
from tilewright.report.quality.overlaps import (
    Key,
    RawAgreement,
    compare_tiles,
    judge_overlaps,
    tile_name,
)
from tilewright.report.quality.places import (
    NO_SIGNAL,
    FocusScan,
    Place,
    contrast_to_noise,
    covered,
    scan_focus,
)
from tilewright.report.quality.stitched_view import arrays, look
from tilewright.report.verdict import Item, Subject

#: Tile borders that are listed.
_WORST = 5
#: Overlaps that tell a grid, and the depth that is seen, over the scatter of pixels.
_GRID_BORDERS, _GRID_VISIBLE = 8, 0.2


CAPTION = (
    "Stitched mosaics of cycle {cycle}, each in its sharpest plane, scaled from the 1st to "
    "the 99.7th percentile."
)


def findings(subject: Subject, files: Files) -> Findings:
    """Judge the stitched mosaic of one channel.

    ``files`` are ``mosaic``, ``flat`` and ``dark`` of the channel, and ``manifest``,
    ``positions`` and ``distortion`` of the cycle, whose raw planes are compared where tiles
    overlap.
    """
    positions = read_positions(Path(files["positions"]))
    mosaic = open_mosaic(files["mosaic"])
    illumination = read_illumination(Path(files["flat"]), Path(files["dark"]))
    tile = (illumination.flat.shape[0], illumination.flat.shape[1])
    scan = scan_focus(mosaic)
    best = scan.best_plane
    seams = seam_scores(mosaic, positions, tile, best)
    grid = grid_score(open_mosaic(files["plane"]), positions, tile) if "plane" in files else None
    tiles = open_tiles(files["manifest"], subject.channel)
    lens = read_distortion(files["distortion"])
    raw = compare_tiles(tiles, mosaic, positions, illumination, best, lens)
    items = [
        *_judge(subject, mosaic, scan, positions, tile, seams, grid),
        *judge_blocks(subject, mosaic, positions, tile, best),
        *judge_overlaps(subject, raw),
        judge_defects(subject, mosaic, positions, tile, raw.defects, best),
    ]
    known = np.isfinite(scan.scores).any(axis=0).all()
    numbers = {
        "best_plane": best + 1,
        "planes": mosaic.shape[0],
        "worst_seams": [asdict(seam) for seam in seams[:_WORST]],
        "places": [asdict(place) for place in _places(seams, raw, positions, tile)],
        "focus_per_plane": np.nanmedian(scan.scores, axis=0).tolist() if known else None,
    }
    kept = arrays(look(mosaic, scan), subject.channel)
    return Findings(items, numbers, (subject.name, mosaic, scan), kept)


@dataclass(frozen=True)
class BorderSeam:
    """Seam between two neighbouring tiles (row, col)."""

    first: tuple[int, int]
    second: tuple[int, int]
    score: float
    step: float


def seam_scores(
    mosaic: Mosaic, positions: Positions, tile: tuple[int, int], plane: int
) -> list[BorderSeam]:
    """Return the seams between neighbours with tissue on both sides, worst first.

    The strip lies across the middle of the overlap and ends before the next border; the band
    where tiles are blended into each other (``feather_px``) is left out.
    A wide band hides a step from the eye, and from this number too.
    """
    index = positions.places()
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    found = []
    for key, a in index.items():
        for axis, other in ((0, (key[0] + 1, key[1])), (1, (key[0], key[1] + 1))):
            if other not in index:
                continue
            strip = _strip(mosaic, plane, a, index[other], tile, axis)
            if strip is None:
                continue
            pixels, border, gap = strip
            seam = seam_score(pixels, border, pedestal_counts=pedestal, axis=axis, gap_px=gap)
            if np.isfinite(seam.step):
                found.append(BorderSeam(key, other, round(seam.score, 4), round(seam.step, 5)))
    return sorted(found, key=lambda s: (-s.score, s.first, s.second))


def grid_score(
    plane: Mosaic, positions: Positions, tile: tuple[int, int]
) -> tuple[float, float] | None:
    """Return how far a grid along all tile borders stands out of chance, and its depth in counts.

    The mean of the middle of each overlap less those beside it, corners included, by a t-test over
    the overlaps, as a normal deviate; 1 where the depth is below a fifth of how pixels scatter.
    The eye sees a line by its average: a dark grid of 1.4 counts in noise of 4.4 was plain, and no
    step at a border told of it. None of fewer than eight overlaps.
    """
    depths, spreads = [], []
    index = positions.places()
    for (row, col), a in index.items():
        for axis, other in ((0, (row + 1, col)), (1, (row, col + 1))):
            if other not in index:
                continue
            b, along = index[other], 1 - axis
            width = a[axis] + tile[axis] - b[axis]
            middle = round((a[axis] + tile[axis] + b[axis]) / 2)
            half, away = max(round(width / 4), 4), round(width)
            low = max(round(max(a[along], b[along])), 0)
            high = round(min(a[along], b[along])) + tile[along]
            start = middle - away - 3 * half
            if width <= 0 or start < 0 or middle + away + 3 * half > plane.shape[1 + axis]:
                continue
            across, beside = slice(start, middle + away + 3 * half), slice(low, high)
            strip = plane.read(0, *((across, beside) if axis == 0 else (beside, across)))
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
    return float(np.hypot(1.0, stats.norm.isf(max(chance, 1e-300) / 2))), depth


def _places(
    seams: Sequence[BorderSeam], raw: RawAgreement, positions: Positions, tile: tuple[int, int]
) -> list[Place]:
    """Return the middles of the overlaps where tiles differ most."""
    corners = positions.places()
    displaced = sorted((o for o in raw.overlaps if o.displaced), key=lambda o: -o.error_px)
    unlike = [o for o in raw.overlaps if o.unlike]
    found: list[tuple[str, Key, Key, float | None]] = [
        *(("seam", s.first, s.second, s.score) for s in seams[:_WORST]),
        *(("overlap_shift_px", o.first, o.second, o.error_px) for o in displaced[:_WORST]),
        *(("unlike_overlaps", o.first, o.second, None) for o in unlike[:_WORST]),
    ]
    places = []
    for metric, first, second, value in found:
        middle = np.mean([corners[first], corners[second]], axis=0) + (np.array(tile) - 1) / 2
        places.append(Place(metric, float(middle[0]), float(middle[1]), value))
    return places


def _strip(
    mosaic: Mosaic,
    plane: int,
    a: tuple[float, float],
    b: tuple[float, float],
    tile: tuple[int, int],
    axis: int,
) -> tuple[NDArray[Any], int, int] | None:
    """Read a strip (y, x) across the border of two tiles: pixels, border and gap in it."""
    overlap = a[axis] + tile[axis] - b[axis]
    middle = round((a[axis] + tile[axis] + b[axis]) / 2)
    feather = min(float(mosaic.attributes.get("feather_px", overlap)), overlap)
    gap = max(int(np.ceil(feather / 2)), 0)
    # The next border of this direction lies a tile's step away.
    needed = seam_reach_px(gap)
    reach = min(max(80 + 3 * gap, needed or 0), int(tile[axis] - overlap - 2 * gap))
    along = 1 - axis
    margin = 0.15 * tile[along]  # the corners belong to other borders
    low = round(max(a[along], b[along]) + margin)
    high = round(min(a[along], b[along]) + tile[along] - margin)
    span = (middle - reach, middle + reach)
    if needed is None or reach < needed or high - low < 32:
        return None
    if span[0] < 0 or span[1] > mosaic.shape[1 + axis] or low < 0:
        return None
    across, beside = slice(*span), slice(low, high)
    pixels = mosaic.read(plane, *((across, beside) if axis == 0 else (beside, across)))
    return pixels, reach, gap


def _saturated(mosaic: Mosaic, raw_px: int) -> tuple[float | None, str]:
    """Return the saturated share of the worst plane, counted in the raw tiles by ``stitch``."""
    counts = mosaic.attributes.get("saturated_raw_px")
    if counts is None:
        return None, "stitch did not count saturated pixels; set camera.saturation_counts"
    per_plane = np.atleast_1d(np.asarray(counts, float))
    return float(per_plane.max()) / raw_px, f"plane {int(per_plane.argmax()) + 1}"


def _judge(
    subject: Subject,
    mosaic: Mosaic,
    scan: FocusScan,
    positions: Positions,
    tile: tuple[int, int],
    seams: Sequence[BorderSeam],
    grid: tuple[float, float] | None,
) -> list[Item]:
    clipped = mosaic.attributes.get("clipped_low", 0) + mosaic.attributes.get("clipped_high", 0)
    y, x = scan.blocks[0]
    block = mosaic.read(scan.best_plane, slice(y, y + scan.side), slice(x, x + scan.side))
    contrast = contrast_to_noise(block)
    # Focus, tissue and seams of a field without signal are properties of its noise.
    signal = contrast >= NO_SIGNAL
    empty, seam, focus, at_edge = None, None, None, None
    said = dict.fromkeys(("empty", "seam", "focus", "edge"), "nothing stands out from the noise")
    if signal:
        valid = covered(positions, tile, scan.small.shape, scan.factor)
        empty, said["empty"] = empty_fraction(scan.small, valid=valid), ""
        said["seam"] = "no tile border has tissue on both sides"
        if seams:
            seam = float(np.median([s.score for s in seams]))
            worst = f"{tile_name(seams[0].first)} and {tile_name(seams[0].second)}"
            said["seam"] = f"{len(seams)} borders, worst {seams[0].score:.1f} between {worst}"
        if np.isfinite(scan.focus):
            focus, said["focus"] = scan.focus, f"plane {scan.best_plane + 1} of {mosaic.shape[0]}"
            at_edge, said["edge"] = scan.at_edge, ""
    if grid is not None and grid[0] > (seam or 1.0):
        seam = grid[0]
        said["seam"] = f"overlaps are {grid[1]:+.1f} counts off what lies beside them"
    items = [
        subject.judge("contrast", contrast),
        subject.judge("empty", empty, said["empty"]),
        subject.judge("saturated", *_saturated(mosaic, len(positions.row) * tile[0] * tile[1])),
        subject.judge("clipped", clipped / float(np.prod(mosaic.shape))),
        subject.judge("focus", focus, said["focus"]),
        subject.judge("seam", seam, said["seam"]),
    ]
    if mosaic.shape[0] > 2:
        items.append(subject.judge("focus_edge", at_edge, said["edge"]))
    return items


def draw(views: Sequence[tuple[str, Mosaic, FocusScan]], path: Path) -> None:
    """Draw the mosaic of each channel."""
    columns = min(len(views), 3)
    rows = -(-len(views) // columns)
    shape = views[0][2].small.shape
    height = rows * (10 / columns * (shape[0] / shape[1]) + 0.25)
    figure = new_figure(10, max(height, 1.5))
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for ax, (marker, mosaic, scan) in zip(axes, views, strict=False):
        depth = mosaic.shape[0]
        which = f", plane {scan.best_plane + 1} of {depth}" if depth > 1 else ""
        show(ax, scan.small, f"{marker}{which}")
        scale_bar(ax, mosaic.voxel_um[2] * scan.factor, scan.small.shape[1])
    for ax in axes[len(views) :]:
        ax.set_axis_off()
    save_png(figure, path)
