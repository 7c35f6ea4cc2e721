"""Picture of a registration: the section, the field, and the worst places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from tilewright.kernels.warp import Transform
from tilewright.report.figures import (
    ORANGE,
    RED,
    display_range,
    new_figure,
    overlay,
    save_png,
    scale_bar,
)

_WORST = 3


@dataclass(frozen=True)
class BlockView:
    """One block (y, x) of the reference, and of the cycle before and after resampling.

    ``shift_px`` is what is still left between them.
    """

    at: tuple[int, int]
    reference: NDArray[np.float32]
    before: NDArray[np.float32]
    after: NDArray[np.float32]
    ncc_before: float
    ncc_after: float
    shift_px: tuple[float, float]


@dataclass(frozen=True)
class SectionView:
    """The whole section (y, x) of the reference and of the cycle, shrunk, and its blocks."""

    reference: NDArray[np.float32]
    moved: NDArray[np.float32]
    factor: int
    blocks: Sequence[BlockView]
    transform: Transform
    registered: bool
    pixel_um: float


def draw_register(view: SectionView, output_png: Path) -> None:
    """Draw the section at thumbnail size with the field, and the worst blocks."""
    small, factor = view.reference, view.factor
    worst = sorted(view.blocks, key=lambda b: (round(b.ncc_after, 4), b.at))[:_WORST]
    aspect = small.shape[0] / small.shape[1]
    top = float(np.clip(6.6 * aspect, 2.5, 7.5))
    figure = new_figure(10, top + 0.4)
    left, right = figure.subfigures(1, 2, width_ratios=(1.9, 1), squeeze=False)[0]
    axes = left.subplots()
    axes.imshow(overlay(small, view.moved), interpolation="antialiased")
    _bare(axes)
    if view.registered:
        axes.set_title("after registration", fontsize=10, loc="left", color="black")
    else:
        axes.set_title("NOT REGISTERED", fontsize=10, loc="left", color=RED, weight="bold")
    scale_bar(axes, view.pixel_um * factor, small.shape[1])
    _arrows(axes, view.transform, factor)
    grid = right.subplots(_WORST, 2, squeeze=False)
    for row, block in zip(grid, worst, strict=False):
        limits = tuple(display_range(v) for v in (block.reference, block.after))
        for ax, image, name, score in (
            (row[0], block.before, "before", block.ncc_before),
            (row[1], block.after, "after", block.ncc_after),
        ):
            ax.imshow(overlay(block.reference, image, (limits[0], limits[1])))
            ax.set_title(f"{name}, NCC {score:.2f}", fontsize=7.5, loc="left")
        y, x = (v / factor for v in block.at)
        side = block.reference.shape[0] / factor
        axes.plot(
            [x, x + side, x + side, x, x], [y, y, y + side, y + side, y], color=ORANGE, lw=1.2
        )
    axes.set_xlim(-0.5, small.shape[1] - 0.5)
    axes.set_ylim(small.shape[0] - 0.5, -0.5)
    for ax in grid.ravel():
        _bare(ax)
    save_png(figure, output_png)


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_frame_on(False)


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
    axes.quiver(
        x,
        y,
        field[1],
        field[0],
        angles="xy",
        scale_units="xy",
        color=ORANGE,
        width=0.0028,
        scale=longest / (transform.block_px * step / factor),
    )
    axes.set_xlabel(f"longest arrow {longest:.2g} px", fontsize=7.5, loc="left")
