"""Quality of the in-focus plane: which planes it used, and its focus."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.io.results.result_file import result_file_errors
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import (
    BLUE,
    THUMBNAIL_PX,
    new_figure,
    plain,
    save_png,
    scale_bar,
    show,
)
from tilewright.quality.results import QcContext, QcResult
from tilewright.quality.sampling import FocusScan, evaluate_detail, evaluate_focus, scan_focus

CAPTION = (
    "Cycle {cycle}: the in-focus plane of each channel, the height at which the tissue was "
    "sharpest, and how much of it each plane was sharpest for."
)


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the in-focus ``plane`` of one channel, its ``height`` map and the ``mosaic``."""
    plane = open_mosaic(files["plane"])
    with result_file_errors(files["height"], "height map"):
        height = np.squeeze(tifffile.imread(files["height"])).astype(np.float32)
    scan = scan_focus(plane)
    stack = open_mosaic(files["mosaic"])
    focus, blurred = evaluate_focus(context, plane, scan)
    items = [focus, *_evaluate(context, plane), evaluate_detail(context, plane, stack)]
    numbers = {
        **plane.attributes,
        "height_um": np.percentile(height, (5, 50, 95)).tolist(),
        "places": [asdict(location) for location in blurred],
    }
    # Drawing 4096 x 4096 heights takes 1 GB.
    step = -(-max(height.shape) // THUMBNAIL_PX)
    return StageQc(items, numbers, (context.name, plane, scan, height[::step, ::step].copy()))


def _evaluate(context: QcContext, plane: Mosaic) -> list[QcResult]:
    """Evaluate what the stage found in the stack: damaged planes, and where the tissue is sharp."""
    planes = max(len(plane.attributes.get("plane_usage", [])), 1)
    excluded = plane.attributes.get("excluded_planes", [])
    lost = {int(entry["z"]) + 1: entry["reason"] for entry in excluded}
    damaged = ", ".join(f"plane {z}: {reason}" for z, reason in lost.items())
    items = [context.evaluate("damaged_planes", len(lost) / planes, damaged)]
    ends = plane.attributes.get("focus_ends", [])
    if planes > 2 and ends:
        ends_of = zip((1, planes), ends, strict=True)
        detail = ", ".join(f"plane {z}: {100 * share:.0f} %" for z, share in ends_of if share)
        items.append(context.evaluate("focus_edge", max(ends), detail))
    if "below_noise" in plane.attributes:
        area = float(np.prod(plane.shape))
        items.append(context.evaluate("undershoot", plane.attributes["below_noise"] / area))
    return items


def draw(views: Sequence[tuple[str, Mosaic, FocusScan, NDArray[np.float32]]], path: Path) -> None:
    """Draw the in-focus plane of each channel, its heights and its use of planes."""
    shape = views[0][2].small.shape
    row_in = float(np.clip(4 * (shape[0] / shape[1]) + 0.3, 1.8, 5))
    figure = new_figure(10, len(views) * row_in)
    grid = figure.subplots(len(views), 3, squeeze=False, width_ratios=(1, 1.12, 0.5))
    for row, (marker, plane, scan, height_um) in zip(grid, views, strict=True):
        usage = plane.attributes.get("plane_usage", [])
        show(row[0], scan.small, f"{marker}: in-focus plane")
        scale_bar(row[0], plane.voxel_um[2] * scan.factor, scan.small.shape[1])
        if len(usage) < 2:  # of one plane there is no height to see
            for axes in row[1:]:
                axes.set_visible(False)
            continue
        limits = (float(height_um.min()), float(height_um.max()) + 1e-3)
        drawn = show(row[1], height_um, "height of focus, µm", limits, cmap="viridis")
        bar = figure.colorbar(drawn, ax=row[1], shrink=0.85, pad=0.01)
        bar.ax.tick_params(labelsize=7)
        row[2].barh(np.arange(1, len(usage) + 1), usage, color=BLUE, height=0.8)
        plain(row[2], "use of planes", "")
        row[2].invert_yaxis()
    save_png(figure, path)
