"""Quality of the in-focus plane: which planes it used, how high the tissue lies, its detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray

from snakemake_scheduler_plugin_tilewright import BLUE
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.kernels.edf.resolution import FINEST_PX
from tilewright.kernels.metrics import focus_score
from tilewright.report.figures import THUMBNAIL_PX, new_figure, plain, save_png, scale_bar, show
from tilewright.report.judge import Files, Findings
from tilewright.report.quality.deconvolve import block_light, ring_depth
from tilewright.report.quality.places import CPU, FocusScan, judge_detail, scan_focus
from tilewright.report.quality.rings import judge_rings
from tilewright.report.verdict import Item, Subject

#: Blocks compared with the stack, and their side: columns of 20 planes are 5 MB each.
_BLOCKS, _BLOCK_PX = 8, 256

CAPTION = (
    "Cycle {cycle}: the in-focus plane of each channel, the height at which the tissue was "
    "sharpest, and how much of it each plane was sharpest for."
)


def findings(subject: Subject, files: Files) -> Findings:
    """Judge the in-focus ``plane`` of one channel, its ``height`` map and the ``mosaic``."""
    plane = open_mosaic(files["plane"])
    height = np.squeeze(tifffile.imread(files["height"])).astype(np.float32)
    scan = scan_focus(plane)
    stack = open_mosaic(files["mosaic"])
    rings, places = judge_rings(subject, plane, stack)
    items = [*_judge(subject, plane, scan), *_compared(subject, plane, stack), rings]
    numbers = {
        **plane.attributes,
        "height_um": np.percentile(height, (5, 50, 95)).tolist(),
        "places": [asdict(place) for place in places],
    }
    # Drawing 4096 x 4096 heights takes 1 GB.
    step = -(-max(height.shape) // THUMBNAIL_PX)
    return Findings(items, numbers, (subject.name, plane, scan, height[::step, ::step].copy()))


def _judge(subject: Subject, plane: Mosaic, scan: FocusScan) -> list[Item]:
    """Judge one in-focus plane from its own pixels and what ``edf`` stored with it."""
    usage = plane.attributes.get("plane_usage", [])
    excluded = plane.attributes.get("excluded_planes", [])
    lost = {int(entry["z"]) + 1: entry["reason"] for entry in excluded}
    planes = max(len(usage), 1)
    clipped = plane.attributes.get("clipped_high", 0) / float(np.prod(plane.shape))
    no_focus = "" if np.isfinite(scan.focus) else "no signal to focus on"
    damaged = ", ".join(f"plane {z}: {reason}" for z, reason in lost.items())
    items = [
        subject.judge("focus", scan.focus, no_focus),
        subject.judge("damaged_planes", len(lost) / planes, damaged),
        subject.judge("clipped", clipped),
    ]
    if planes > 2:
        at_edge = usage[0] + usage[-1] if sum(usage) else None
        detail = "" if sum(usage) else "no plane stands out anywhere"
        items.append(subject.judge("focus_edge", at_edge, detail))
        ends = plane.attributes.get("focus_ends", [])
        if ends:
            named = zip((1, planes), ends, strict=True)
            detail = ", ".join(f"plane {z}: {share:.0%}" for z, share in named if share)
            items.append(subject.judge("tissue_beyond", max(ends), detail))
    return items


def _compared(subject: Subject, plane: Mosaic, stack: Mosaic) -> list[Item]:
    """Judge what became of the raw stack's light, and what the stage says of its filters."""
    told = plane.attributes
    scan = scan_focus(stack, side=_BLOCK_PX, count=_BLOCKS)
    depth = ring_depth(stack, plane, scan, 0)
    kept = np.ones(stack.shape[0], bool)
    kept[[int(entry["z"]) for entry in told.get("excluded_planes", [])]] = False
    before, after = (
        sum(float(block_light(mosaic, slice(None), at, scan.side)[z].mean()) for at in scan.blocks)
        for mosaic, z in ((stack, kept), (plane, [0]))
    )
    # What was found to be haze was taken out on purpose.
    after += len(scan.blocks) * float(told.get("haze_counts", 0.0))
    ratio = after / before if before > 0 and after > 0 else float("nan")
    which = "" if abs(ratio - 1) < 0.01 else "more" if ratio > 1 else "less"
    items = [
        subject.judge("ringing", depth, "nothing is bright" if depth is None else ""),
        subject.judge("flux_factor", max(ratio, 1 / ratio), which),
        _detail(subject, plane, scan),
    ]
    if told.get("resolution_px") is not None:  # it takes four planes
        resolution = float(told["resolution_px"])
        fine = ", as fine as the pixels" if resolution == FINEST_PX else ""
        detail = f"{resolution * plane.voxel_um[2]:.3g} µm{fine}"
        items.append(subject.judge("resolution_px", resolution, detail))
    if "below_noise" in told:
        area = float(np.prod(plane.shape))
        items.append(subject.judge("undershoot", told["below_noise"] / area))
    return items


def _detail(subject: Subject, plane: Mosaic, scan: FocusScan) -> Item:
    """Judge the plane's fine detail by that of each block's sharpest raw plane."""
    ratios = []
    for at, scores in zip(scan.blocks, scan.scores, strict=True):
        if np.isfinite(scores).any():
            score = focus_score(CPU, block_light(plane, 0, at, scan.side))
            ratios.append(score / float(np.nanmax(scores)) if np.isfinite(score) else 0.0)
    return judge_detail(subject, ratios)


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
