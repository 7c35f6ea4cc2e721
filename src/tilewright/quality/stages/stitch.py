"""Quality of stitching: raw tiles where they overlap, and the light and focus of the mosaic."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.io.results.illumination import read_illumination
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.io.results.positions import Positions, read_positions
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import save_png, scale_bar, show, small_multiples
from tilewright.quality.results import ImageLocation, QcContext, QcResult
from tilewright.quality.sampling import (
    NO_SIGNAL,
    NO_SIGNAL_DETAIL,
    FocusScan,
    scan_contrast,
    scan_focus,
)
from tilewright.quality.stages.tile_positions import tile_names
from tilewright.runtime.text import few
from tilewright.stages.calibrate.agreement import DARKEST

CAPTION = (
    "Stitched mosaics of cycle {cycle}, each in its sharpest plane, scaled from the 1st to "
    "the 99.7th percentile."
)


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the stitched mosaic of one channel.

    ``files`` are ``mosaic`` of the channel, and ``flat``, ``dark``, ``numbers`` and ``positions``
    of the cycle. What raw tiles say where they overlap was measured when they were calibrated.
    """
    positions = read_positions(Path(files["positions"]), context.sample)
    context = replace(context, tiles=len(positions.row))
    mosaic = open_mosaic(files["mosaic"])
    illumination, record = read_illumination(
        files["flat"], files["dark"], files["numbers"], context.channel
    )
    overlaps, tile_px = record["samples"][context.sample], illumination.flat.shape
    scan = scan_focus(mosaic)
    repaired = mosaic.attributes.get("repaired_camera_px") is not None
    items = [
        *_evaluate(context, mosaic, scan),
        _unlike(context, overlaps),
        *_magnification(context, overlaps["corner_px"]),
        _brightness(context, overlaps["brightness"]),
        _defects(context, record["defects"], math.prod(tile_px), repaired=repaired),
    ]
    known = np.isfinite(scan.scores).any(axis=0).all()
    numbers = {
        "best_plane": scan.best_plane + 1,
        "planes": mosaic.shape[0],
        "places": [asdict(each) for each in _locations(overlaps["unlike"], positions, tile_px)],
        "focus_per_plane": np.nanmedian(scan.scores, axis=0).tolist() if known else None,
    }
    return StageQc(items, numbers, (context.name, mosaic, scan))


def _locations(
    unlike: Sequence[Sequence[str]], positions: Positions, tile_px: tuple[int, ...]
) -> list[ImageLocation]:
    """Return the centres of overlaps in which tiles show different places."""
    corners = positions.places()
    middles = [np.mean([corners[a], corners[b]], axis=0) for a, b in unlike]
    centres = [(middle + (np.array(tile_px) - 1) / 2).tolist() for middle in middles]
    return [ImageLocation("unlike_overlaps", y, x) for y, x in centres]


def _unlike(context: QcContext, overlaps: Mapping[str, Any]) -> QcResult:
    """Evaluate the share of overlaps in which both tiles show different places."""
    unlike, textured = overlaps["unlike"], overlaps["textured"]
    names = few((f"between tile {a} and tile {b}" for a, b in unlike), 3)
    none = "no overlap has structure that stands out from the noise"
    share = len(unlike) / textured if textured else None
    return context.evaluate("unlike_overlaps", share, names if textured else none)


def _magnification(context: QcContext, corner_px: Sequence[float] | None) -> list[QcResult]:
    """Evaluate the magnification of the channel against the one that placed the tiles.

    Two standard errors are taken off.
    """
    if corner_px is None:
        return []
    middle, error = corner_px
    return [context.evaluate("channel_shift_px", max(abs(middle) - 2 * error, 0.0))]


def _brightness(context: QcContext, brightness: Mapping[str, float]) -> QcResult:
    """Evaluate the brightness of each tile."""
    if not brightness:
        none = "no overlap has light in both tiles"
        return context.evaluate("tile_brightness", None, none)
    worst = max(brightness, key=lambda tile: (round(abs(brightness[tile]), 4), tile))
    times = f"{np.exp(brightness[worst]):.2f} times as bright as its neighbours"
    bright = f"tile {worst} is {times}"
    # Shutter or lamp: measured ratios end at the darkest.
    if dark := [tile for tile, value in brightness.items() if value < np.log(2 * DARKEST)]:
        bright = f"no light in {tile_names(sorted(dark))} where the neighbours have some"
    return context.evaluate("tile_brightness", float(np.expm1(abs(brightness[worst]))), bright)


def _defects(
    context: QcContext, defects: Sequence[int] | None, tile_px: int, *, repaired: bool
) -> QcResult:
    """Evaluate the share of the camera's pixels that are defective and were not repaired."""
    if defects is None:
        return context.evaluate("hot_pixels", None, "too few tiles to tell, and none is repaired")
    many = f"{len(defects)} pixels{', all repaired' if repaired else ''}"
    return context.evaluate("hot_pixels", 0.0 if repaired else len(defects) / tile_px, many)


def _saturated(mosaic: Mosaic) -> tuple[float, str]:
    """Return the saturated share of the worst plane, counted in the raw tiles by ``stitch``."""
    shares = mosaic.attributes["saturated_share"]
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
    shape, columns = views[0][2].small.shape, min(len(views), 3)
    row_in = 10 / columns * (shape[0] / shape[1]) + 0.25
    figure, axes = small_multiples(len(views), columns, 10 / columns, row_in)
    for ax, (marker, mosaic, scan) in zip(axes, views, strict=True):
        depth = mosaic.shape[0]
        which = f", plane {scan.best_plane + 1} of {depth}" if depth > 1 else ""
        show(ax, scan.small, f"{marker}{which}")
        scale_bar(ax, mosaic.voxel_um[2] * scan.factor, scan.small.shape[1])
    save_png(figure, path)
