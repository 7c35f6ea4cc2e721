"""Quality of deconvolution: rings, light, end planes, and the same place before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from tilewright.io.mosaic import Mosaic, open_mosaic
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.metrics import ringing
from tilewright.report.figures import BLUE, new_figure, save_png, scale_bar, show
from tilewright.report.places import FocusScan, scan_focus
from tilewright.report.quality import Files, Findings
from tilewright.report.verdict import Limits, Subject, judge

#: Side of the crops shown, and of the blocks measured.
_CROP_PX = 256
#: Blocks per channel: columns of 20 planes of 256² px in float32 are 5 MB each.
_BLOCKS = 8


@dataclass(frozen=True)
class Light:
    """Light per plane (z,) in counts above zero light, before and after, over the blocks."""

    before: NDArray[np.float64]
    after: NDArray[np.float64]

    @property
    def ratio(self) -> float:
        """Total after over total before; NaN without light."""
        total, after = float(self.before.sum()), float(self.after.sum())
        return after / total if total > 0 and after > 0 else float("nan")

    @property
    def end_excess(self) -> float:
        """How far the brighter end plane lies over the mean plane; NaN for thin stacks."""
        mean = self.after.mean()
        if len(self.after) < 3 or mean <= 0:
            return float("nan")
        return float(max(self.after[0], self.after[-1]) / mean - 1)


@dataclass(frozen=True)
class _BeforeAfter:
    """One channel's crops (y, x) before and after, and its light."""

    marker: str
    before: NDArray[np.float32]
    after: NDArray[np.float32]
    plane: int
    light: Light
    pixel_um: float
    iterations: str
    curve: list[float]


CAPTION = (
    "Cycle {cycle}: the most textured place of each channel in its sharpest plane before and "
    "after deconvolution (each scaled for the eye), the light in each plane, and the misfit "
    "by which the number of iterations was chosen."
)


def findings(subject: Subject, files: Files, limits: Limits) -> Findings:
    """Judge the deconvolution of one channel by the mosaics ``stitched`` and ``deconvolved``."""
    backend = cpu_backend()
    before, after = open_mosaic(files["stitched"]), open_mosaic(files["deconvolved"])
    scan, _, _ = scan_focus(backend, before, side=_CROP_PX, count=_BLOCKS)
    light = measure_light(before, after, scan)
    moats = moat_depths(backend, before, after, scan)
    ring = float(np.median(moats)) if moats else None
    dim = "" if moats else "nothing is bright"
    change = "more" if light.ratio >= 1 else "less"
    excess = max(light.end_excess, 0.0) if np.isfinite(light.end_excess) else None
    thin = "" if before.shape[0] > 2 else "the stack has fewer than three planes"
    ends = thin if excess is None else ""
    items = [
        judge(subject, "ringing", ring, limits, detail=dim),
        judge(subject, "flux_factor", max(light.ratio, 1 / light.ratio), limits, detail=change),
        judge(subject, "end_plane_excess", excess, limits, detail=ends),
    ]
    numbers = {"flux_ratio": light.ratio, "deconvolution": dict(after.attributes)}
    return Findings(items, numbers, _view(subject.marker, before, after, scan, light))


def _block(mosaic: Mosaic, z: int | slice, at: tuple[int, int], side: int) -> NDArray[np.float32]:
    """Read a block as light: zero light is 0."""
    pixels = mosaic.read(z, slice(at[0], at[0] + side), slice(at[1], at[1] + side))
    pedestal = np.float32(mosaic.attributes.get("pedestal_counts", 0))
    return np.asarray(pixels.astype(np.float32) - pedestal)


def measure_light(before: Mosaic, after: Mosaic, scan: FocusScan) -> Light:
    """Sum the light of each plane over the scanned blocks."""
    totals = np.zeros((2, before.shape[0]))
    for at in scan.blocks:
        for k, mosaic in enumerate((before, after)):
            column = _block(mosaic, slice(None), at, scan.side)
            totals[k] += column.sum(axis=(1, 2), dtype=np.float64)
    return Light(totals[0], totals[1])


def moat_depths(backend: Backend, before: Mosaic, after: Mosaic, scan: FocusScan) -> list[float]:
    """Return the undershoot that deconvolution added in each scanned block with bright objects.

    Bright rims are not counted: sharpened membranes and vessel walls are rims too.
    """
    depths = []
    for at in scan.blocks:
        plane = _block(after, scan.best_plane, at, scan.side)
        raw = _block(before, scan.best_plane, at, scan.side)
        with np.errstate(invalid="ignore"):  # a shell without pixels has no mean
            depth = ringing(backend, plane, raw).undershoot
        if np.isfinite(depth):
            depths.append(depth)
    return depths


def _view(
    marker: str, before: Mosaic, after: Mosaic, scan: FocusScan, light: Light
) -> _BeforeAfter:
    at, side = scan.blocks[0], scan.side
    curve = after.attributes.get("held_out_divergence") or after.attributes.get("divergence", [])
    return _BeforeAfter(
        marker,
        _block(before, scan.best_plane, at, side),
        _block(after, scan.best_plane, at, side),
        scan.best_plane,
        light,
        before.voxel_um[2],
        str(after.attributes.get("iterations", "?")),
        [float(v) for v in curve],
    )


def draw(views: Sequence[_BeforeAfter], path: Path) -> None:
    """Draw each channel before and after."""
    figure = new_figure(10, 2.7 * len(views))
    grid = figure.subplots(len(views), 4, squeeze=False, width_ratios=(1, 1, 0.75, 0.75))
    for row, view in zip(grid, views, strict=True):
        show(row[0], view.before, f"{view.marker}, plane {view.plane + 1}: before")
        scale_bar(row[0], view.pixel_um, view.before.shape[1])
        show(row[1], view.after, f"after {view.iterations} iterations")
        _profile(row[2], view)
        _plain(row[3], "misfit per iteration", "iteration")
        row[3].plot(np.arange(1, len(view.curve) + 1), view.curve, "o-", color=BLUE, ms=3)
    save_png(figure, path)


def _plain(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(label, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _profile(axes: Axes, view: _BeforeAfter) -> None:
    """Plot the light of each plane, 1 the mean before."""
    planes = np.arange(1, len(view.light.before) + 1)
    scale = max(view.light.before.mean(), 1e-9)
    axes.plot(planes, view.light.before / scale, "o--", color="#57606a", ms=3.5, label="before")
    axes.plot(planes, view.light.after / scale, "o-", color=BLUE, ms=3.5, label="after")
    axes.set_ylim(bottom=0)
    _plain(axes, "light per plane, relative", "plane")
    axes.legend(fontsize=7, frameon=False)
