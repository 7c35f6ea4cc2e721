"""Quality of the in-focus plane: which planes it used, how high the tissue lies, its detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.io.mosaic import Mosaic, open_mosaic
from tilewright.kernels.backend import cpu_backend
from tilewright.report.figures import BLUE, new_figure, save_png, scale_bar, show
from tilewright.report.places import FocusScan, scan_focus, zip_channels
from tilewright.report.quality_file import Quality, write_quality
from tilewright.report.verdict import Item, Subject, Threshold, judge, resolve_thresholds


@dataclass(frozen=True)
class _View:
    marker: str
    small: NDArray[np.float32]
    pixel_um: float
    height_um: NDArray[np.float32]
    usage: NDArray[np.float64]


def qc_edf(
    projections: Sequence[str | Path],
    heights: Sequence[str | Path],
    output_json: Path,
    output_png: Path,
    *,
    sample: str,
    cycle: int,
    channels: Sequence[str],
    markers: Sequence[str],
    thresholds: Mapping[str, Mapping[str, Any]],
) -> None:
    """Judge the in-focus planes of one cycle.

    Parameters
    ----------
    projections, heights : sequences of path
        In-focus plane and height map of each channel.
    output_json, output_png : Path
        Verdicts and picture.
    sample : str
    cycle : int
    channels, markers : sequences of str
        Channel tokens and marker names, parallel to the files.
    thresholds : mapping
        ``qc.thresholds`` of the config.
    """
    limits = resolve_thresholds(thresholds)
    backend = cpu_backend()
    items: list[Item] = []
    numbers: dict[str, Any] = {}
    views = []
    for files in zip_channels(channels, markers, projections, heights):
        plane = open_mosaic(files.paths[0])
        height = np.squeeze(tifffile.imread(files.paths[1])).astype(np.float32)
        scan, small, factor = scan_focus(backend, plane)
        subject = Subject(sample, cycle, "edf", files.channel, files.marker)
        items += _judge(subject, plane, scan, limits)
        numbers[files.channel] = dict(plane.attributes)
        usage = np.asarray(plane.attributes.get("plane_usage", []), np.float64)
        views.append(_View(files.marker, small, plane.voxel_um[2] * factor, height, usage))
    caption = (
        f"Cycle {cycle}: the in-focus plane of each channel, the height at which the tissue was "
        "sharpest, and how much of it each plane was sharpest for."
    )
    _draw(views, output_png)
    write_quality(output_json, Quality(sample, cycle, "edf", tuple(items), numbers, caption))


def _judge(
    subject: Subject, plane: Mosaic, scan: FocusScan, limits: Mapping[str, Threshold]
) -> list[Item]:
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


def _draw(views: Sequence[_View], output_png: Path) -> None:
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
    save_png(figure, output_png)
