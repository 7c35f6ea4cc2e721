"""Quality of the in-focus plane: which planes it used, how high the tissue lies, its detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.io.mosaic import Mosaic, open_mosaic
from tilewright.kernels.backend import cpu_backend
from tilewright.report.figures import BLUE, new_figure, save_png, scale_bar, show
from tilewright.report.places import FocusScan, scan_focus
from tilewright.report.quality import Files, Findings
from tilewright.report.verdict import Item, Limits, Subject, judge


@dataclass(frozen=True)
class _InFocus:
    marker: str
    small: NDArray[np.float32]
    pixel_um: float
    height_um: NDArray[np.float32]
    usage: NDArray[np.float64]


CAPTION = (
    "Cycle {cycle}: the in-focus plane of each channel, the height at which the tissue was "
    "sharpest, and how much of it each plane was sharpest for."
)


def findings(subject: Subject, files: Files, limits: Limits) -> Findings:
    """Judge the in-focus plane of one channel by ``plane`` and its ``height`` map."""
    plane = open_mosaic(files["plane"])
    height = np.squeeze(tifffile.imread(files["height"])).astype(np.float32)
    scan, small, factor = scan_focus(cpu_backend(), plane)
    usage = np.asarray(plane.attributes.get("plane_usage", []), np.float64)
    view = _InFocus(subject.marker, small, plane.voxel_um[2] * factor, height, usage)
    return Findings(_judge(subject, plane, scan, limits), dict(plane.attributes), view)


def _judge(subject: Subject, plane: Mosaic, scan: FocusScan, limits: Limits) -> list[Item]:
    """Judge one in-focus plane from its own pixels and what ``edf`` stored with it."""
    usage = plane.attributes.get("plane_usage", [])
    lost = {
        int(entry["z"]) + 1: entry["reason"]
        for entry in plane.attributes.get("excluded_planes", [])
    }
    planes = max(len(usage), 1)
    clipped = plane.attributes.get("clipped_high", 0) / float(np.prod(plane.shape))
    items = [
        judge(
            subject,
            "focus",
            scan.focus,
            limits,
            detail="" if np.isfinite(scan.focus) else "no signal to focus on",
        ),
        judge(
            subject,
            "damaged_planes",
            len(lost) / planes,
            limits,
            detail=", ".join(f"plane {z}: {reason}" for z, reason in lost.items()),
        ),
        judge(subject, "clipped", clipped, limits),
    ]
    if planes > 2:
        at_edge = usage[0] + usage[-1] if sum(usage) else None
        detail = "" if sum(usage) else "no plane stands out anywhere"
        items.append(judge(subject, "focus_edge", at_edge, limits, detail=detail))
        ends = plane.attributes.get("focus_ends", [])
        if ends:
            named = zip((1, planes), ends, strict=True)
            detail = ", ".join(f"plane {z}: {share:.0%}" for z, share in named if share)
            items.append(judge(subject, "tissue_beyond", max(ends), limits, detail=detail))
    return items


def draw(views: Sequence[_InFocus], path: Path) -> None:
    """Draw the in-focus plane of each channel, its heights and its use of planes."""
    aspect = views[0].small.shape[0] / views[0].small.shape[1]
    figure = new_figure(10, len(views) * float(np.clip(4 * aspect + 0.3, 1.8, 5)))
    grid = figure.subplots(len(views), 3, squeeze=False, width_ratios=(1, 1.12, 0.5))
    for row, view in zip(grid, views, strict=True):
        show(row[0], view.small, f"{view.marker}: in-focus plane")
        scale_bar(row[0], view.pixel_um, view.small.shape[1])
        limits = (float(view.height_um.min()), float(view.height_um.max()) + 1e-3)
        drawn = show(row[1], view.height_um, "height of focus, µm", limits, cmap="viridis")
        bar = figure.colorbar(drawn, ax=row[1], shrink=0.85, pad=0.01)
        bar.ax.tick_params(labelsize=7)
        planes = np.arange(1, len(view.usage) + 1)
        row[2].barh(planes, view.usage, color=BLUE, height=0.8)
        row[2].set_title("use of planes", fontsize=9, loc="left")
        row[2].invert_yaxis()
        row[2].tick_params(labelsize=7)
        row[2].spines[["top", "right"]].set_visible(False)
    save_png(figure, path)
