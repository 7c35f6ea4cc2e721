"""Quality of the stitched mosaic: light, focus, and whether tile borders show."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.results.illumination import read_illumination
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.io.results.positions import Positions, read_positions
from tilewright.kernels.metrics import empty_fraction
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import new_figure, save_png, scale_bar, show
from tilewright.quality.results import ImageLocation, QcContext, QcResult
from tilewright.quality.sampling import (
    NO_SIGNAL,
    NO_SIGNAL_DETAIL,
    FocusScan,
    covered,
    scan_contrast,
    scan_focus,
)
from tilewright.quality.stages.overlaps import Key, RawAgreement, compare_tiles, evaluate_overlaps
from tilewright.quality.stages.seams import BorderSeam, evaluate_seams, grid_score, seam_scores
from tilewright.quality.stages.stitch_defects import evaluate_blocks, evaluate_defects
from tilewright.quality.stitched_view import arrays, view_of

#: Tile borders that are listed.
_WORST = 5

CAPTION = (
    "Stitched mosaics of cycle {cycle}, each in its sharpest plane, scaled from the 1st to "
    "the 99.7th percentile."
)


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the stitched mosaic of one channel.

    ``files`` are ``mosaic`` of the channel, and ``flat``, ``dark``, ``numbers``, ``manifest`` and
    ``positions`` of the cycle, whose raw planes are compared where tiles overlap.
    """
    positions = read_positions(Path(files["positions"]))
    context = replace(context, tiles=len(positions.row))
    mosaic = open_mosaic(files["mosaic"])
    illumination, _ = read_illumination(
        files["flat"], files["dark"], files["numbers"], context.channel
    )
    tile = (illumination.flat.shape[0], illumination.flat.shape[1])
    scan = scan_focus(mosaic)
    best = scan.best_plane
    seams = seam_scores(mosaic, positions, tile, best)
    grid = grid_score(open_mosaic(files["plane"]), positions, tile) if "plane" in files else None
    tiles = open_tiles(files["manifest"], context.channel)
    y_px, x_px = mosaic.attributes.get("shift_px", (0.0, 0.0))
    placed = positions.moved(-y_px, -x_px)
    raw = compare_tiles(tiles, mosaic, placed, illumination, best)
    items = [
        *_evaluate(context, mosaic, scan, positions, tile, seams, grid),
        *evaluate_blocks(context, mosaic, positions, tile, best, raw),
        *evaluate_overlaps(context, raw),
        evaluate_defects(context, mosaic, placed, tile, raw.defects, best),
    ]
    known = np.isfinite(scan.scores).any(axis=0).all()
    numbers = {
        "best_plane": best + 1,
        "planes": mosaic.shape[0],
        "worst_seams": [asdict(seam) for seam in (seams or [])[:_WORST]],
        "places": [asdict(location) for location in _locations(seams or [], raw, positions, tile)],
        "focus_per_plane": np.nanmedian(scan.scores, axis=0).tolist() if known else None,
    }
    stored = arrays(view_of(mosaic, scan), context.channel)
    return StageQc(items, numbers, (context.name, mosaic, scan), stored)


def _locations(
    seams: Sequence[BorderSeam], raw: RawAgreement, positions: Positions, tile: tuple[int, int]
) -> list[ImageLocation]:
    """Return the centres of the overlaps where tiles differ most."""
    corners = positions.places()
    displaced = sorted((o for o in raw.overlaps if o.displaced), key=lambda o: -o.error_px)
    unlike = [o for o in raw.overlaps if o.unlike]
    issues: list[tuple[str, Key, Key, float | None]] = [
        *(("seam", s.first, s.second, s.score) for s in seams[:_WORST]),
        *(("overlap_shift_px", o.first, o.second, o.error_px) for o in displaced[:_WORST]),
        *(("unlike_overlaps", o.first, o.second, None) for o in unlike[:_WORST]),
    ]
    locations = []
    for metric, first, second, value in issues:
        middle = np.mean([corners[first], corners[second]], axis=0) + (np.array(tile) - 1) / 2
        locations.append(ImageLocation(metric, float(middle[0]), float(middle[1]), value))
    return locations


def _saturated(mosaic: Mosaic) -> tuple[float | None, str]:
    """Return the saturated share of the worst plane, counted in the raw tiles by ``stitch``."""
    shares = mosaic.attributes.get("saturated_share")
    if shares is None:
        return None, "stitch did not count saturated pixels; make the mosaic again"
    return max(shares), f"plane {int(np.argmax(shares)) + 1}" if any(shares) else ""


def _evaluate(
    context: QcContext,
    mosaic: Mosaic,
    scan: FocusScan,
    positions: Positions,
    tile: tuple[int, int],
    seams: Sequence[BorderSeam] | None,
    grid: tuple[float, float] | None,
) -> list[QcResult]:
    clipped = mosaic.attributes.get("clipped_low", 0) + mosaic.attributes.get("clipped_high", 0)
    contrast = scan_contrast(mosaic, scan)
    signal = contrast >= NO_SIGNAL
    empty, empty_detail = None, NO_SIGNAL_DETAIL
    focus, focus_detail = None, NO_SIGNAL_DETAIL
    at_edge, edge_detail = None, NO_SIGNAL_DETAIL
    if signal:
        valid = covered(positions, tile, scan.small.shape, scan.factor)
        empty, empty_detail = empty_fraction(scan.small, valid=valid), ""
    if signal and np.isfinite(scan.focus):
        focus, focus_detail = scan.focus, f"plane {scan.best_plane + 1} of {mosaic.shape[0]}"
        at_edge, edge_detail = scan.at_edge, ""
    items = [
        context.evaluate("contrast", contrast),
        context.evaluate("empty", empty, empty_detail),
        context.evaluate("saturated", *_saturated(mosaic)),
        context.evaluate("clipped", clipped / float(np.prod(mosaic.shape))),
        context.evaluate("focus", focus, focus_detail),
        evaluate_seams(context, seams, grid, signal=signal),
    ]
    if mosaic.shape[0] > 2:
        items.append(context.evaluate("focus_edge", at_edge, edge_detail))
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
