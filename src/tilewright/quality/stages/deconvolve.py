"""Quality of deconvolution: its fine detail, and the same place before and after."""

from collections.abc import Sequence
from pathlib import Path

from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import new_figure, save_png, scale_bar, show
from tilewright.quality.results import QcContext
from tilewright.quality.sampling import FocusScan, evaluate_detail, scan_focus

CAPTION = (
    "Cycle {cycle}: the most textured place of each channel in its sharpest plane before and "
    "after deconvolution (each scaled for the eye)."
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
    figure = new_figure(7, 2.9 * len(views))
    grid = figure.subplots(len(views), 2, squeeze=False)
    for row, (marker, before, after, scan) in zip(grid, views, strict=True):
        z, iterations = scan.best_plane, after.attributes.get("iterations", "?")
        region = tuple(slice(at, at + scan.side) for at in scan.blocks[0])
        show(row[0], before.read(z, *region), f"{marker}, plane {z + 1}: before")
        scale_bar(row[0], before.voxel_um[2], scan.side)
        show(row[1], after.read(z, *region), f"after {iterations} iterations")
    save_png(figure, path)
