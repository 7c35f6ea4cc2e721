"""Quality of registration: what the stage measured, and a picture of both cycles."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.io.results.registration import read_transform
from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.register.warp import Transform, source_region
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import (
    ORANGE,
    RED,
    bare,
    display_range,
    new_figure,
    overlay,
    save_png,
    scale_bar,
    thumbnail,
    window,
)
from tilewright.quality.results import QcContext, QcResult
from tilewright.quality.sampling import moved_thumbnail
from tilewright.stages.register.assessment import WORST
from tilewright.stages.register.resample import resample_region

CAPTION = (
    "Nuclei of the reference cycle in magenta and of cycle {cycle} in green, white where they "
    "agree: the whole section after registration with the elastic displacements (arrows, "
    "enlarged), and the worst places before and after."
)


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the registration of one cycle by what is stored with its ``transform``.

    The in-focus planes of the reference channel, of the ``reference`` cycle and of the ``moving``
    one, are drawn.
    """
    fixed, other = open_mosaic(files["reference"]), open_mosaic(files["moving"])
    transform = read_transform(files["transform"])
    quality: dict[str, Any] = dict(transform.quality)
    small, factor = thumbnail(fixed, 0)
    moved = moved_thumbnail(*thumbnail(other, 0), transform, small.shape, factor)
    worst = [p for p in quality.get("places", []) if p["metric"] == "poor_blocks"][:WORST]
    blocks = [_block(fixed, other, transform, (p["y_px"], p["x_px"])) for p in worst]
    view = SectionView(small, moved, factor, blocks, transform, fixed.voxel_um[2])
    return StageQc(_evaluate(context, quality), quality, view)


def _evaluate(context: QcContext, quality: dict[str, Any]) -> list[QcResult]:
    if not quality.get("registered", True):
        declared = "allowed by registration.allow_unregistered"
        return [context.evaluate("unregistered", 1.0, declared)]
    none = "no tissue in both cycles"
    items = [
        context.evaluate(metric, quality[metric], _near(quality, metric) or none)
        for metric in ("poor_blocks", "local_error_px")
    ]
    lost, outside = quality["lost_tissue"], quality["not_imaged"]
    if lost is None or outside is None:
        return [*items, context.evaluate("lost_tissue", None, none)]
    shares = f"{100 * lost:.1f} % lost, {100 * outside:.1f} % not imaged"
    detail = "; ".join(filter(None, [shares, _near(quality, "lost_tissue")]))
    return [*items, context.evaluate("lost_tissue", lost + outside, detail)]


def _near(quality: dict[str, Any], metric: str) -> str:
    """Return in words where a number is worst, empty where there is no such place."""
    for place in quality["places"]:
        if place["metric"] == metric:
            return f"most near y {place['y_px']:.0f} px, x {place['x_px']:.0f} px"
    return ""


@dataclass(frozen=True)
class BlockView:
    """One block (y, x) of the reference, and of the cycle before and after resampling."""

    at: tuple[int, int]
    reference: NDArray[np.float32]
    before: NDArray[np.float32]
    after: NDArray[np.float32]


def _block(
    fixed: Mosaic, other: Mosaic, transform: Transform, centre: tuple[float, float]
) -> BlockView:
    """Return the block around a place."""
    rows, columns = window(fixed.shape[1:], centre)
    reference = fixed.read(0, rows, columns).astype(np.float32)
    before, after = np.zeros_like(reference), np.zeros_like(reference)
    part = other.read(0, rows, columns)
    before[: part.shape[0], : part.shape[1]] = part
    if source_region(transform, (rows, columns), (other.shape[1], other.shape[2])) is not None:
        after[:] = resample_region(cpu_backend(), other, transform, (rows, columns))
    return BlockView((rows.start, columns.start), reference, before, after)


@dataclass(frozen=True)
class SectionView:
    """The whole section (y, x) of the reference and of the cycle, shrunk, and its blocks."""

    reference: NDArray[np.float32]
    moved: NDArray[np.float32]
    factor: int
    blocks: Sequence[BlockView]
    transform: Transform
    pixel_um: float


def draw(views: Sequence[SectionView], path: Path) -> None:
    """Draw the section at thumbnail size with the field, and the worst blocks."""
    (view,) = views
    small, factor = view.reference, view.factor
    aspect = small.shape[0] / small.shape[1]
    top = float(np.clip(6.6 * aspect, 2.5, 7.5))
    figure = new_figure(10, top + 0.4)
    left, right = figure.subfigures(1, 2, width_ratios=(1.9, 1), squeeze=False)[0]
    axes = left.subplots()
    axes.imshow(overlay(small, view.moved), interpolation="antialiased")
    bare(axes)
    if view.transform.quality.get("registered", True):
        axes.set_title("after registration", fontsize=10, loc="left", color="black")
    else:
        axes.set_title("NOT REGISTERED", fontsize=10, loc="left", color=RED, weight="bold")
    scale_bar(axes, view.pixel_um * factor, small.shape[1])
    _arrows(axes, view.transform, factor)
    grid = right.subplots(WORST, 2, squeeze=False)
    for row, block in zip(grid, view.blocks, strict=False):
        limits = display_range(block.reference), display_range(block.after)
        for ax, image in zip(row, (block.before, block.after), strict=True):
            ax.imshow(overlay(block.reference, image, limits))
        row[0].set_title("before", fontsize=7.5, loc="left")
        row[1].set_title("after", fontsize=7.5, loc="left")
        y, x = (v / factor for v in block.at)
        side = block.reference.shape[0] / factor
        axes.plot(
            [x, x + side, x + side, x, x], [y, y, y + side, y + side, y], color=ORANGE, lw=1.2
        )
    axes.set_xlim(-0.5, small.shape[1] - 0.5)
    axes.set_ylim(small.shape[0] - 0.5, -0.5)
    for ax in grid.ravel():
        bare(ax)
    save_png(figure, path)


def _arrows(axes: Axes, transform: Transform, factor: int) -> None:
    """Draw the elastic field, at most 16 arrows a side, the longest one node distance long."""
    _, rows, cols = transform.field.shape
    if rows < 2 or cols < 2:
        return
    step = max(1, -(-max(rows, cols) // 16))
    field = transform.field[:, ::step, ::step]
    y = (transform.origin_px[0] + transform.block_px * np.arange(0, rows, step)) / factor
    x = (transform.origin_px[1] + transform.block_px * np.arange(0, cols, step)) / factor
    longest = float(np.hypot(*field).max())
    if longest < 1e-3:
        return
    scale = longest / (transform.block_px * step / factor)
    style: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "color": ORANGE, "width": 0.0028}
    axes.quiver(x, y, field[1], field[0], scale=scale, **style)
    axes.set_xlabel(f"longest arrow {longest:.2g} px", fontsize=7.5, loc="left")
