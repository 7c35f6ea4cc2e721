"""Quality of deconvolution: its fine detail, and the same place before and after."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import BLUE, new_figure, plain, save_png, scale_bar, show
from tilewright.quality.results import QcContext
from tilewright.quality.sampling import FocusScan, evaluate_detail, scan_focus

CAPTION = (
    "Cycle {cycle}: the most textured place of each channel in its sharpest plane before and "
    "after deconvolution (each scaled for the eye), and the misfit by which the number of "
    "iterations was chosen."
)


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the deconvolution of one channel: ``mosaic`` and ``deconvolved``."""
    before, after = open_mosaic(files["mosaic"]), open_mosaic(files["deconvolved"])
    scan = scan_focus(before, count=1)
    numbers = {"deconvolution": dict(after.attributes)}
    items = [evaluate_detail(context, after, before)]
    return StageQc(items, numbers, (context.name, before, after, scan))


def draw(views: Sequence[tuple[str, Mosaic, Mosaic, FocusScan]], path: Path) -> None:
    """Draw each channel before and after."""
    figure = new_figure(10, 2.9 * len(views))
    grid = figure.subplots(len(views), 3, squeeze=False, width_ratios=(1, 1, 0.75))
    for row, (marker, before, after, scan) in zip(grid, views, strict=True):
        z, attributes = scan.best_plane, after.attributes
        region = tuple(slice(at, at + scan.side) for at in scan.blocks[0])
        show(row[0], before.read(z, *region), f"{marker}, plane {z + 1}: before")
        scale_bar(row[0], before.voxel_um[2], scan.side)
        show(
            row[1], after.read(z, *region), f"after {attributes.get('iterations', '?')} iterations"
        )
        plain(row[2], "misfit per iteration", "iteration")
        curve = attributes["held_out_divergence"]
        row[2].plot(np.arange(1, len(curve) + 1), curve, "o-", color=BLUE, ms=3)
    save_png(figure, path)
