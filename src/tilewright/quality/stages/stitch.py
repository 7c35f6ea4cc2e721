"""Quality of stitching: raw tiles where they overlap, and the light and focus of the mosaic."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.results.illumination import read_illumination
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.io.results.positions import Positions, read_positions
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import new_figure, save_png, scale_bar, show
from tilewright.quality.results import ImageLocation, QcContext, QcResult
from tilewright.quality.sampling import (
    NO_SIGNAL,
    NO_SIGNAL_DETAIL,
    FocusScan,
    scan_contrast,
    scan_focus,
)
from tilewright.quality.stages.overlaps import RawAgreement, compare_tiles, evaluate_overlaps

#: Overlaps that are listed.
_LISTED = 5

CAPTION = (
    "Stitched mosaics of cycle {cycle}, each in its sharpest plane, scaled from the 1st to "
    "the 99.7th percentile."
)


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the stitched mosaic of one channel.

    ``files`` are ``mosaic`` of the channel, and ``flat``, ``dark``, ``numbers``, ``manifest``
    and ``positions`` of the cycle, whose raw planes are compared where tiles overlap.
    """
    positions = read_positions(Path(files["positions"]))
    context = replace(context, tiles=len(positions.row))
    mosaic = open_mosaic(files["mosaic"])
    illumination, _ = read_illumination(
        files["flat"], files["dark"], files["numbers"], context.channel
    )
    scan = scan_focus(mosaic)
    y_px, x_px = mosaic.attributes.get("shift_px", (0.0, 0.0))
    raw = compare_tiles(
        open_tiles(files["manifest"], context.channel),
        positions.moved(-y_px, -x_px),
        illumination,
        scan.best_plane,
    )
    repaired = mosaic.attributes.get("repaired_camera_px") is not None
    items = [
        *_evaluate(context, mosaic, scan),
        *evaluate_overlaps(context, raw, repaired=repaired),
    ]
    known = np.isfinite(scan.scores).any(axis=0).all()
    numbers = {
        "best_plane": scan.best_plane + 1,
        "planes": mosaic.shape[0],
        "places": [asdict(each) for each in _locations(raw, positions, illumination.flat.shape)],
        "focus_per_plane": np.nanmedian(scan.scores, axis=0).tolist() if known else None,
    }
    return StageQc(items, numbers, (context.name, mosaic, scan))


def _locations(raw: RawAgreement, positions: Positions, tile: Sequence[int]) -> list[ImageLocation]:
    """Return the centres of overlaps in which tiles show different places."""
    corners = positions.places()
    unlike = [o for o in raw.overlaps if o.unlike][:_LISTED]
    middles = [np.mean([corners[o.first], corners[o.second]], axis=0) for o in unlike]
    centres = [(middle + (np.array(tile) - 1) / 2).tolist() for middle in middles]
    return [ImageLocation("unlike_overlaps", y, x) for y, x in centres]


def _saturated(mosaic: Mosaic) -> tuple[float | None, str]:
    """Return the saturated share of the worst plane, counted in the raw tiles by ``stitch``."""
    shares = mosaic.attributes.get("saturated_share")
    if shares is None:
        return None, "stitch did not count saturated pixels; make the mosaic again"
    return max(shares), f"plane {int(np.argmax(shares)) + 1}" if any(shares) else ""


def _evaluate(context: QcContext, mosaic: Mosaic, scan: FocusScan) -> list[QcResult]:
    contrast = scan_contrast(mosaic, scan)
    focus, detail = None, NO_SIGNAL_DETAIL
    if contrast >= NO_SIGNAL and np.isfinite(scan.focus):
        focus, detail = scan.focus, f"plane {scan.best_plane + 1} of {mosaic.shape[0]}"
    return [
        context.evaluate("contrast", contrast),
        context.evaluate("saturated", *_saturated(mosaic)),
        context.evaluate("focus", focus, detail),
    ]


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
