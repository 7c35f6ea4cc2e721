"""Quality of deconvolution: rings, light, end planes, and the same place before and after."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from snakemake_scheduler_plugin_tilewright import BLUE
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.kernels.artefacts import ringing_depth
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import new_figure, plain, save_png, scale_bar, show
from tilewright.quality.results import QcContext
from tilewright.quality.sampling import FocusScan, scan_focus

#: Side of the crops shown, and of the blocks measured.
_CROP_PX = 256
#: Blocks per channel: columns of 20 planes of 256² px in float32 are 5 MB each.
_BLOCKS = 8

CAPTION = (
    "Cycle {cycle}: the most textured place of each channel in its sharpest plane before and "
    "after deconvolution (each scaled for the eye), the light in each plane, and the misfit "
    "by which the number of iterations was chosen."
)
Light = NDArray[np.float64]


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the deconvolution of one channel: ``mosaic`` and ``deconvolved``."""
    before, after = open_mosaic(files["mosaic"]), open_mosaic(files["deconvolved"])
    scan = scan_focus(before, side=_CROP_PX, count=_BLOCKS)
    light = measure_light(before, after, scan)
    ring = ring_depth(before, after, scan, scan.best_plane)
    raw, deconvolved = light.sum(axis=1).tolist()
    ratio = deconvolved / raw if raw > 0 and deconvolved > 0 else float("nan")
    # How far the brighter end plane lies over the mean plane.
    mean = float(light[1].mean())
    thick = before.shape[0] > 2
    excess = max(float(light[1, [0, -1]].max() / mean - 1), 0.0) if thick and mean > 0 else None
    thin = "" if thick else "the stack has fewer than three planes"
    items = [
        context.evaluate("ringing", ring, "nothing is bright" if ring is None else ""),
        context.evaluate("flux_factor", max(ratio, 1 / ratio), "more" if ratio >= 1 else "less"),
        context.evaluate("end_plane_excess", excess, thin),
    ]
    numbers = {"flux_ratio": ratio, "deconvolution": dict(after.attributes)}
    return StageQc(items, numbers, (context.name, before, after, scan, light))


def block_light(
    mosaic: Mosaic, z: int | slice, at: tuple[int, int], side: int
) -> NDArray[np.float32]:
    """Return a block (y, x), or (z, y, x), as light: zero light is 0."""
    pixels = mosaic.read(z, slice(at[0], at[0] + side), slice(at[1], at[1] + side))
    pedestal = np.float32(mosaic.attributes.get("pedestal_counts", 0))
    return np.asarray(pixels.astype(np.float32) - pedestal)


def measure_light(before: Mosaic, after: Mosaic, scan: FocusScan) -> Light:
    """Return light (2, z) in counts above zero light, before and after, over the scanned blocks."""
    totals = np.zeros((2, before.shape[0]))
    for at in scan.blocks:
        for k, mosaic in enumerate((before, after)):
            column = block_light(mosaic, slice(None), at, scan.side)
            totals[k] += column.sum(axis=(1, 2), dtype=np.float64)
    return totals


def ring_depth(before: Mosaic, after: Mosaic, scan: FocusScan, z: int) -> float | None:
    """Return the undershoot of plane ``z`` of ``after``, median of blocks with bright objects.

    Over that of the sharpest plane ``before``. Bright rims are not counted: sharpened membranes
    and vessel walls are rims too. None where nothing is bright.
    """
    depths = []
    for at in scan.blocks:
        plane = block_light(after, z, at, scan.side)
        raw = block_light(before, scan.best_plane, at, scan.side)
        with np.errstate(invalid="ignore"):  # a shell without pixels has no mean
            depth = ringing_depth(plane, raw)
        if np.isfinite(depth):
            depths.append(depth)
    return float(np.median(depths)) if depths else None


def draw(views: Sequence[tuple[str, Mosaic, Mosaic, FocusScan, Light]], path: Path) -> None:
    """Draw each channel before and after."""
    figure = new_figure(10, 2.7 * len(views))
    grid = figure.subplots(len(views), 4, squeeze=False, width_ratios=(1, 1, 0.75, 0.75))
    for row, (marker, before, after, scan, light) in zip(grid, views, strict=True):
        z, attributes = scan.best_plane, after.attributes
        images = [block_light(mosaic, z, scan.blocks[0], scan.side) for mosaic in (before, after)]
        show(row[0], images[0], f"{marker}, plane {z + 1}: before")
        scale_bar(row[0], before.voxel_um[2], scan.side)
        show(row[1], images[1], f"after {attributes.get('iterations', '?')} iterations")
        _profile(row[2], light)
        plain(row[3], "misfit per iteration", "iteration")
        curve = attributes.get("held_out_divergence") or attributes.get("divergence", [])
        row[3].plot(np.arange(1, len(curve) + 1), curve, "o-", color=BLUE, ms=3)
    save_png(figure, path)


def _profile(axes: Axes, light: Light) -> None:
    """Plot the light of each plane, 1 the mean before."""
    planes = np.arange(1, light.shape[1] + 1)
    before, after = light / max(light[0].mean(), 1e-9)
    axes.plot(planes, before, "o--", color="#57606a", ms=3.5, label="before")
    axes.plot(planes, after, "o-", color=BLUE, ms=3.5, label="after")
    axes.set_ylim(bottom=0)
    plain(axes, "light per plane, relative", "plane")
    axes.legend(fontsize=7, frameon=False)
