"""Quality of registration.

Agreement and residual of blocks are measured with scikit-image; the local error and lost tissue
with the registration's own code, on other blocks; elastic displacement, rotation and shift are
read from the transform.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from snakemake_scheduler_plugin_tilewright import ORANGE, RED
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.transform import read_transform
from tilewright.kernels.register.warp import Transform
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import (
    bare,
    display_range,
    new_figure,
    overlay,
    save_png,
    scale_bar,
    thumbnail,
)
from tilewright.quality.results import ImageLocation, QcContext, QcResult
from tilewright.quality.sampling import imaged_pixels, moved_thumbnail, textured_blocks
from tilewright.quality.stages.registered_blocks import (
    POOR_NCC,
    SIDE_PX,
    BlockView,
    compare_blocks,
    local_errors,
)
from tilewright.stages.register.lost_tissue import FACTOR, LostTissue, LostTissueSearch
from tilewright.stages.register.plane_views import PlaneView, open_views

#: Most blocks that are compared, of so many times as many candidates. A block shows tissue from so
#: far between two percentiles of the overview on. No figures.
_BLOCKS, _CANDIDATES = 48, 4
_ON_TISSUE, _GLASS, _BRIGHT = 0.1, 5, 98
#: Percentage of the places on tissue whose error lies below ``local_error_px``.
_LOCAL_PERCENTILE = 90.0

CAPTION = (
    "Nuclei of the reference cycle in magenta and of cycle {cycle} in green, white where they "
    "agree: the whole section after registration with the elastic displacements (arrows, "
    "enlarged), and the worst places before and after."
)
_WORST = 3


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the registration of one cycle.

    ``files`` are the in-focus planes of the reference channel, of the ``reference`` cycle and of
    the ``moving`` one, and the ``transform``.
    """
    fixed, other = open_mosaic(files["reference"]), open_mosaic(files["moving"])
    transform = read_transform(files["transform"])
    small, factor = thumbnail(fixed, 0)
    blocks = textured_blocks(small, factor, fixed.shape[1:], SIDE_PX, _CANDIDATES * _BLOCKS)
    compared = compare_blocks(fixed, other, transform, _tissue(small, factor, blocks))
    views = open_views(fixed, other)
    search = LostTissueSearch(views[0].size(FACTOR)) if _registered(transform) else None
    local, locations = _local(context, views, transform, search)
    items = [*_evaluate(context, compared, transform), local]
    if search:
        lost_items, lost_locations = _lost(context, search.result())
        items, locations = [*items, *lost_items], [*locations, *lost_locations]
    rotation_deg, shift_px = transform.rotation_and_shift(fixed.shape[1:])
    numbers = {
        "registered": _registered(transform),
        "blocks": len(compared),
        "ncc_before": float(np.median([b.ncc_before for b in compared])) if compared else None,
        "rotation_deg": rotation_deg,
        "shift_px": shift_px,
        "register": dict(transform.quality),
        "places": [asdict(location) for location in (*locations, *_poor(compared))],
    }
    moved = moved_thumbnail(*thumbnail(other, 0), transform, small.shape, factor)
    view = SectionView(small, moved, factor, compared, transform, fixed.voxel_um[2])
    return StageQc(items, numbers, view)


def _registered(transform: Transform) -> bool:
    return bool(transform.quality.get("registered", True))


def _lost(context: QcContext, lost: LostTissue) -> tuple[list[QcResult], list[ImageLocation]]:
    """Evaluate the shares of the reference's tissue that the cycle has lost and did not image."""
    none = "no tissue in both cycles" if lost.share is None else ""
    near = "most near y {:.0f} px, x {:.0f} px".format
    places = [ImageLocation("lost_tissue", lost.y_px, lost.x_px)] if lost.share else []
    places += [ImageLocation("not_imaged", y, x) for y, x in lost.outside_px]
    outside = [f"{name} border, {width} px wide" for name, width in lost.borders_px.items()]
    outside += [near(*at) for at in lost.outside_px[:1]]
    items = [
        context.evaluate(
            "lost_tissue", lost.share, near(lost.y_px, lost.x_px) if lost.share else none
        ),
        context.evaluate("not_imaged", lost.outside, "; ".join(outside) or none),
    ]
    return items, places


def _local(
    context: QcContext,
    views: tuple[PlaneView, PlaneView],
    transform: Transform,
    search: LostTissueSearch | None,
) -> tuple[QcResult, list[ImageLocation]]:
    """Evaluate the field's error around each block of the section, and where it is largest."""
    centres, errors = local_errors(*views, transform, search)
    if not np.isfinite(errors).any():
        return context.evaluate("local_error_px", None, "no tissue in both cycles"), []
    # A block that reaches into a tile may have its centre where no tile lies.
    seen = _imaged_at(views[0], centres) & np.isfinite(errors)
    k = int(np.nanargmax(np.round(np.where(seen, errors, np.nan if seen.any() else errors), 4)))
    y, x = centres[k]
    value = float(np.nanpercentile(errors, _LOCAL_PERCENTILE))
    item = context.evaluate("local_error_px", value, f"largest near y {y:.0f} px, x {x:.0f} px")
    return item, [ImageLocation("local_error_px", float(y), float(x), float(errors[k]))]


def _imaged_at(view: PlaneView, centres: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (n,) whether a tile covers each of the places (n, 2), in px."""
    size = view.size(view.factor)
    overview = view.read(view.factor, *(slice(0, n) for n in size))
    y, x = np.rint((centres - (view.factor - 1) / 2) / view.factor).astype(int).T
    inside = (y >= 0) & (x >= 0) & (y < size[0]) & (x < size[1])
    lit = overview[np.clip(y, 0, size[0] - 1), np.clip(x, 0, size[1] - 1)] > 0
    return np.asarray(inside & lit)


def _worst(blocks: Sequence[BlockView]) -> list[BlockView]:
    """Return the blocks that match worst, the worst first."""
    return sorted(blocks, key=lambda b: (round(b.ncc_after, 4), b.at))[:_WORST]


def _poor(blocks: Sequence[BlockView]) -> list[ImageLocation]:
    """Return the centres of the blocks that match worst."""
    centres = [np.add(b.at, (np.array(b.reference.shape) - 1) / 2) for b in _worst(blocks)]
    return [
        ImageLocation("ncc", float(y), float(x), block.ncc_after)
        if block.ncc_after >= POOR_NCC
        else ImageLocation("poor_blocks", float(y), float(x))
        for block, (y, x) in zip(_worst(blocks), centres, strict=True)
    ]


def _tissue(
    small: NDArray[np.float32], factor: int, blocks: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Keep blocks with tissue, evenly over their order of texture, ``_BLOCKS`` at most."""
    floor, top = np.percentile(imaged_pixels(small), (_GLASS, _BRIGHT))
    side = max(SIDE_PX // factor, 1)
    good = [
        (y, x)
        for y, x in blocks
        if small[y // factor : y // factor + side, x // factor : x // factor + side].mean()
        > floor + _ON_TISSUE * (top - floor)
    ]
    keep = np.unique(np.linspace(0, len(good) - 1, min(len(good), _BLOCKS)).astype(int))
    return [good[k] for k in keep] if good else []


def _evaluate(context: QcContext, blocks: list[BlockView], transform: Transform) -> list[QcResult]:
    """Evaluate the blocks together: median NCC and residual, and the share that does not match."""
    scores = np.array([b.ncc_after for b in blocks])
    residuals = [float(np.hypot(*b.shift_px)) for b in blocks if b.shift_px]
    agreement = float(np.median(scores)) if blocks else None
    residual = float(np.median(residuals)) if residuals else None
    poor = float((scores < POOR_NCC).mean()) if blocks else None
    no_tissue = "" if blocks else "no block has tissue in both cycles"
    no_match = "" if residuals else "no block matches"
    items = [
        context.evaluate("ncc", agreement, no_tissue or f"{len(blocks)} blocks"),
        context.evaluate("residual_px", residual, no_tissue or no_match),
        context.evaluate("poor_blocks", poor, no_tissue),
        context.evaluate("elastic_px", float(np.hypot(*transform.field).max())),
    ]
    if not _registered(transform):
        declared = "allowed by registration.allow_unregistered"
        items.insert(0, context.evaluate("unregistered", 1.0, declared))
    return items


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
    worst = _worst(view.blocks)
    aspect = small.shape[0] / small.shape[1]
    top = float(np.clip(6.6 * aspect, 2.5, 7.5))
    figure = new_figure(10, top + 0.4)
    left, right = figure.subfigures(1, 2, width_ratios=(1.9, 1), squeeze=False)[0]
    axes = left.subplots()
    axes.imshow(overlay(small, view.moved), interpolation="antialiased")
    bare(axes)
    if _registered(view.transform):
        axes.set_title("after registration", fontsize=10, loc="left", color="black")
    else:
        axes.set_title("NOT REGISTERED", fontsize=10, loc="left", color=RED, weight="bold")
    scale_bar(axes, view.pixel_um * factor, small.shape[1])
    _arrows(axes, view.transform, factor)
    grid = right.subplots(_WORST, 2, squeeze=False)
    for row, block in zip(grid, worst, strict=False):
        limits = display_range(block.reference), display_range(block.after)
        for ax, image in zip(row, (block.before, block.after), strict=True):
            ax.imshow(overlay(block.reference, image, limits))
        row[0].set_title(f"before, NCC {block.ncc_before:.2f}", fontsize=7.5, loc="left")
        row[1].set_title(f"after, NCC {block.ncc_after:.2f}", fontsize=7.5, loc="left")
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
