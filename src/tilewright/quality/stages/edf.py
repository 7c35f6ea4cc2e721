"""Quality of the in-focus plane: which planes it used, how high the tissue lies, its detail."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray

from snakemake_scheduler_plugin_tilewright import BLUE
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.io.results.result_file import result_file_errors
from tilewright.kernels.metrics import focus_score
from tilewright.quality.dark_rings import evaluate_rings
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import THUMBNAIL_PX, new_figure, plain, save_png, scale_bar, show
from tilewright.quality.results import QcContext, QcResult
from tilewright.quality.sampling import FocusScan, evaluate_detail, evaluate_focus, scan_focus
from tilewright.quality.stages.deconvolve import block_light, ring_depth

#: Blocks compared with the stack, and their side: columns of 20 planes are 5 MB each.
_BLOCKS, _BLOCK_PX = 8, 256

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
    rings, locations = evaluate_rings(context, plane, stack)
    focus, blurred = evaluate_focus(context, plane, scan)
    items = [focus, *_evaluate(context, plane), *_compare(context, plane, stack), rings]
    numbers = {
        **plane.attributes,
        "height_um": np.percentile(height, (5, 50, 95)).tolist(),
        "places": [asdict(location) for location in (*locations, *blurred)],
    }
    # Drawing 4096 x 4096 heights takes 1 GB.
    step = -(-max(height.shape) // THUMBNAIL_PX)
    return StageQc(items, numbers, (context.name, plane, scan, height[::step, ::step].copy()))


def _evaluate(context: QcContext, plane: Mosaic) -> list[QcResult]:
    """Evaluate one in-focus plane by its own pixels and attributes."""
    usage = plane.attributes.get("plane_usage", [])
    excluded = plane.attributes.get("excluded_planes", [])
    lost = {int(entry["z"]) + 1: entry["reason"] for entry in excluded}
    planes = max(len(usage), 1)
    clipped = plane.attributes.get("clipped_high", 0) / float(np.prod(plane.shape))
    damaged = ", ".join(f"plane {z}: {reason}" for z, reason in lost.items())
    items = [
        context.evaluate("damaged_planes", len(lost) / planes, damaged),
        context.evaluate("clipped", clipped),
    ]
    if planes > 2:
        at_edge = usage[0] + usage[-1] if sum(usage) else None
        detail = "" if sum(usage) else "no plane stands out anywhere"
        items.append(context.evaluate("focus_edge", at_edge, detail))
        ends = plane.attributes.get("focus_ends", [])
        if ends:
            ends_of = zip((1, planes), ends, strict=True)
            detail = ", ".join(f"plane {z}: {share:.0%}" for z, share in ends_of if share)
            items.append(context.evaluate("tissue_beyond", max(ends), detail))
    return items


def _compare(context: QcContext, plane: Mosaic, stack: Mosaic) -> list[QcResult]:
    """Evaluate the plane against the raw stack, and the filters by the plane's attributes."""
    attributes = plane.attributes
    scan = scan_focus(stack, side=_BLOCK_PX, count=_BLOCKS)
    depth = ring_depth(stack, plane, scan, 0)
    included = np.ones(stack.shape[0], bool)
    included[[int(entry["z"]) for entry in attributes.get("excluded_planes", [])]] = False
    before, after = (
        sum(float(block_light(mosaic, slice(None), at, scan.side)[z].mean()) for at in scan.blocks)
        for mosaic, z in ((stack, included), (plane, [0]))
    )
    # Haze is removed on purpose.
    after += len(scan.blocks) * float(attributes.get("haze_counts", 0.0))
    ratio = after / before if before > 0 and after > 0 else float("nan")
    which = "" if abs(ratio - 1) < 0.01 else "more" if ratio > 1 else "less"
    items = [
        context.evaluate("ringing", depth, "nothing is bright" if depth is None else ""),
        context.evaluate("flux_factor", max(ratio, 1 / ratio), which),
        _detail(context, plane, scan),
    ]
    if "below_noise" in attributes:
        area = float(np.prod(plane.shape))
        items.append(context.evaluate("undershoot", attributes["below_noise"] / area))
    return items


def _detail(context: QcContext, plane: Mosaic, scan: FocusScan) -> QcResult:
    """Evaluate the plane's fine detail by that of each block's sharpest raw plane."""
    ratios = []
    for at, scores in zip(scan.blocks, scan.scores, strict=True):
        if np.isfinite(scores).any():
            score = focus_score(block_light(plane, 0, at, scan.side))
            ratios.append(score / float(np.nanmax(scores)) if np.isfinite(score) else 0.0)
    return evaluate_detail(context, ratios)


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
