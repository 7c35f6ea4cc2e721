"""Quality of the in-focus plane: which planes it used, how high the tissue lies, its detail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.io.mosaic import Mosaic, open_mosaic
from tilewright.kernels.backend import cpu_backend
from tilewright.report.figures import BLUE, new_figure, plain, save_png, scale_bar, show
from tilewright.report.places import FocusScan, scan_focus
from tilewright.report.quality import Files, Findings
from tilewright.report.verdict import Item, Subject

CAPTION = (
    "Cycle {cycle}: the in-focus plane of each channel, the height at which the tissue was "
    "sharpest, and how much of it each plane was sharpest for."
)


def findings(subject: Subject, files: Files) -> Findings:
    """Judge the in-focus plane of one channel by ``plane`` and its ``height`` map."""
    plane = open_mosaic(files["plane"])
    height = np.squeeze(tifffile.imread(files["height"])).astype(np.float32)
    scan = scan_focus(cpu_backend(), plane)
    view = (subject.name, plane, scan, height)
    return Findings(_judge(subject, plane, scan), dict(plane.attributes), view)


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


def draw(views: Sequence[tuple[str, Mosaic, FocusScan, NDArray[np.float32]]], path: Path) -> None:
    """Draw the in-focus plane of each channel, its heights and its use of planes."""
    shape = views[0][2].small.shape
    row_in = float(np.clip(4 * (shape[0] / shape[1]) + 0.3, 1.8, 5))
    figure = new_figure(10, len(views) * row_in)
    grid = figure.subplots(len(views), 3, squeeze=False, width_ratios=(1, 1.12, 0.5))
    for row, (marker, plane, scan, height_um) in zip(grid, views, strict=True):
        show(row[0], scan.small, f"{marker}: in-focus plane")
        scale_bar(row[0], plane.voxel_um[2] * scan.factor, scan.small.shape[1])
        limits = (float(height_um.min()), float(height_um.max()) + 1e-3)
        drawn = show(row[1], height_um, "height of focus, µm", limits, cmap="viridis")
        bar = figure.colorbar(drawn, ax=row[1], shrink=0.85, pad=0.01)
        bar.ax.tick_params(labelsize=7)
        usage = plane.attributes.get("plane_usage", [])
        row[2].barh(np.arange(1, len(usage) + 1), usage, color=BLUE, height=0.8)
        plain(row[2], "use of planes", "")
        row[2].invert_yaxis()
    save_png(figure, path)
