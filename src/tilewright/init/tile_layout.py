"""How the tiles of a raw folder lie: told by names, positions, metadata, or the pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.formats.common import DAMAGE_ERRORS, RawPlane, ScanOptions
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.inputs.tile_grid import TileGrid, arrange, tile_key
from tilewright.io.inputs.tiles import read_plane
from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.tile_positions.tile_layout import (
    estimate_overlap,
    is_clear,
    measure_overlap,
    rank_grids,
    rank_layouts,
)
from tilewright.kernels.tile_positions.tile_order import factor_pairs
from tilewright.stages.tile_positions.layout_check import FLIPS, reduce_tile

#: Overlaps are taken as equal within this share of a side: pixels are measured when reduced.
_SAME_OVERLAP = 0.005


@dataclass
class TileLayout:
    """The arrangement of one region's tiles; None is "not known" or, for layout, "not needed"."""

    count: int
    rows: int | None = None
    cols: int | None = None
    layout: str | None = None
    overlap: float | None = None
    flip_y: bool = False
    flip_x: bool = False
    found: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def grid(self) -> tuple[int | None, int | None, str | None, float | None]:
        """What the samples table can say of a sample."""
        return self.rows, self.cols, self.layout, self.overlap


def find_layout(
    planes: Sequence[RawPlane], told: TileLayout, cycle: int, channel: str
) -> TileLayout:
    """Return the arrangement of the tiles, looking at ``channel`` of ``cycle``.

    Parameters
    ----------
    planes : sequence of RawPlane
        Planes of one region.
    told : TileLayout
        What the metadata tell (rows, cols, layout, overlap).
    cycle, channel
        The channel with the most structure, usually nuclei.
    """
    mine = [plane for plane in planes if (plane.cycle, plane.channel) == (cycle, channel)]
    return _placed(mine, told) if mine[0].tile is None else _numbered(mine, told)


def _numbered(planes: list[RawPlane], told: TileLayout) -> TileLayout:
    """Arrange tiles known by their number in the order of acquisition."""
    numbers = sorted({plane.tile or 0 for plane in planes})
    told = replace(told, overlap=_fraction(told.overlap, planes))
    result = replace(told, count=len(numbers), found=[], warnings=[])
    if told.overlap and len(numbers) > 1:
        result.found = [
            f"overlap {told.overlap:.3f} as the metadata state, which the pixels do not confirm"
        ]
    rows, cols = told.rows or 0, told.cols or 0
    fits = rows * cols == len(numbers)
    if len(numbers) == 1:
        return replace(result, rows=1, cols=1, layout=None)
    if rows and cols and not fits:
        result.warnings.append(
            f"the metadata tell {rows} x {cols} tiles, but the files number {len(numbers)}"
        )
    if numbers[-1] - numbers[0] + 1 != len(numbers):
        missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))
        result.warnings.append(
            f"tiles {', '.join(map(str, missing[:10]))} are missing, so the layout could not "
            "be read from the pixels"
        )
        return result
    images = _images(planes, result)
    if images is None:
        return result
    backend = cpu_backend(2)
    # An overlap that is stated wrong may show nothing.
    for stated in (told.overlap, None) if told.overlap else (None,):
        overlap = min(max(stated or estimate_overlap(backend, images), 0.01), 0.9)
        size = rows, cols
        ranking = rank_layouts(backend, images, rows, cols, overlap) if fits else []
        if not is_clear(ranking):
            grid = rank_grids(backend, images, overlap)[0]
            size = grid.rows, grid.cols
            ranking = rank_layouts(backend, images, *size, overlap)
        if is_clear(ranking):
            break
    else:
        return _unclear(result, fits)
    if rows and cols and size != (rows, cols):
        result.warnings.append(
            f"the metadata tell {rows} x {cols} tiles, but the pixels fit "
            f"{size[0]} x {size[1]}, which is written"
        )
    measured = measure_overlap(backend, images, ranking[0].row, ranking[0].col, overlap)
    return _clear(result, size, ranking[0], measured, overlap)


def _unclear(result: TileLayout, fits: bool) -> TileLayout:
    """Return what the metadata tell, warning of what they do not."""
    why = "neighbouring tiles share too little structure to tell the layout"
    if not fits:
        result.rows = result.cols = None
        pairs = ", ".join(f"{rows} x {cols}" for rows, cols in factor_pairs(result.count))
        result.warnings.append(f"{why}; rows x cols can be {pairs}")
    elif result.layout is None:
        result.warnings.append(f"{why}; check acquisition.layout")
    return result


def _clear(
    told: TileLayout, size: tuple[int, int], best: Any, measured: float | None, roughly: float
) -> TileLayout:
    """Return what the pixels tell, warning where the metadata tell otherwise."""
    rows, cols = size
    stated, overlap = told.overlap, round(measured or told.overlap or roughly, 3)
    layout = f"layout {best.name}, {rows} rows x {cols} columns"
    said = f"overlap {overlap:.3f} from the pixels"
    result = replace(told, rows=rows, cols=cols, layout=best.name, overlap=overlap)
    if stated and measured is None:
        said = told.found[0]
    elif stated and measured and abs(measured - stated) <= _SAME_OVERLAP:
        said = f"overlap {stated:.3f} as the metadata state, and {measured:.3f} from the pixels"
        result.overlap = stated
    elif stated:
        said += f", where the metadata state {stated:.3f}"
        result.warnings.append(f"{said}; the measured one is written")
    result.found = [f"{layout}, from the pixels (score {best.score:.2f})", said]
    if told.layout is not None and told.layout != best.name and min(rows, cols) > 1:
        result.warnings.append(
            f"the metadata tell the layout {told.layout}, but the pixels fit {best.name}, "
            "which is written"
        )
    return result


def _placed(planes: list[RawPlane], told: TileLayout) -> TileLayout:
    """Arrange tiles that bring row and col or a position, and check the axes' directions."""
    shape = _shape(planes)
    if shape is None:
        warning = f"{planes[0].path} is missing or cannot be read, so the grid is not known"
        return replace(told, count=0, rows=None, cols=None, layout=None, warnings=[warning])
    grid = arrange(planes, ScanOptions(), shape)
    whole = grid.rows * grid.cols == len(grid.expected)
    rows, cols = (grid.rows, grid.cols) if whole else (None, None)
    positioned = planes[0].y_px is not None
    overlap = _overlap_of_positions(grid, shape) if positioned else told.overlap
    result = TileLayout(len(grid.expected), rows, cols, overlap=overlap)
    result.found.append(f"{grid.rows} rows x {grid.cols} columns, {result.count} tiles")
    if not whole:
        result.warnings.append(
            f"{grid.rows * grid.cols - result.count} places of the grid hold no tile: "
            "a tissue that is no rectangle, or missing files"
        )
    elif min(grid.rows, grid.cols) > 1:
        _check_directions(planes, grid, result)
    return result


def _check_directions(planes: list[RawPlane], grid: TileGrid, result: TileLayout) -> None:
    """Find stage axes that run against the image's."""
    places = grid.places[planes[0].cycle]
    numbered = [p._replace(tile=places[tile_key(p)].tile) for p in planes]
    images = _images(numbered, result)
    if images is None:
        return
    backend = cpu_backend(2)
    told = result.overlap
    overlap = estimate_overlap(backend, images) if told is None else min(max(told, 0.01), 0.9)
    ranking = rank_layouts(backend, images, grid.rows, grid.cols, overlap)
    if told is None and is_clear(ranking):
        measured = measure_overlap(backend, images, ranking[0].row, ranking[0].col, overlap)
        result.overlap = round(measured or overlap, 3)
    best = ranking[0].name
    if not is_clear(ranking) or best == "raster_right_down":
        return
    if best not in FLIPS:
        result.warnings.append(
            f"the tiles fit each other better as {best} than by their own rows and columns; "
            "check the stage positions, or with a pattern swap its {row} and {col}"
        )
        return
    result.flip_y, result.flip_x = FLIPS[best]
    axes = " and ".join(a for a, on in (("y", result.flip_y), ("x", result.flip_x)) if on)
    result.found.append(f"the stage's {axes} runs against the image's (from the pixels)")


def _overlap_of_positions(grid: TileGrid, shape: tuple[int, int]) -> float | None:
    """Return the median overlap of neighbours whose positions are known."""
    places = {(p.row, p.col): p for tiles in grid.places.values() for p in tiles.values()}
    steps = []
    for (row, col), place in places.items():
        below, right = places.get((row + 1, col)), places.get((row, col + 1))
        if below is not None:
            steps.append((below.y_px - place.y_px) / shape[0])
        if right is not None:
            steps.append((right.x_px - place.x_px) / shape[1])
    return round(max(0.0, 1.0 - float(np.median(steps))), 3) if steps else None


def _fraction(overlap: float | None, planes: list[RawPlane]) -> float | None:
    """Return an overlap as a fraction; numbers from 1 on are pixels."""
    if overlap is None or overlap < 1:
        return overlap
    shape = _shape(planes)
    fraction = overlap / shape[1] if shape else 0.0
    return fraction if 0.01 <= fraction <= 0.9 else None


def _shape(planes: list[RawPlane]) -> tuple[int, int] | None:
    header = read_headers({planes[0].path: 1})[planes[0].path]
    return None if header.problem else (header.height_px, header.width_px)


def _images(planes: list[RawPlane], result: TileLayout) -> NDArray[np.float32] | None:
    """Return the middle plane of every tile, reduced by averaging; warn of one that is not such."""
    stacks: dict[int, list[RawPlane]] = {}
    for plane in sorted(planes, key=lambda plane: plane.z or 0):
        stacks.setdefault(plane.tile or 0, []).append(plane)
    images: list[NDArray[np.float32]] = []
    shape: tuple[int, ...] | None = None
    for number in sorted(stacks):
        middle = stacks[number][len(stacks[number]) // 2]
        page = middle.page
        try:
            if page is None:
                page = read_headers({middle.path: 1})[middle.path].pages // 2
            image = read_plane(middle.path, page)
            if image.ndim != 2 or shape not in (None, image.shape):
                raise ValueError(image.shape)
        except DAMAGE_ERRORS:
            result.warnings.append(
                f"{middle.path} is missing, cannot be read, or is of another size than the "
                "tiles before it, so the pixels do not tell how the tiles lie"
            )
            return None
        shape = image.shape
        images.append(reduce_tile(image))
    return np.stack(images)
