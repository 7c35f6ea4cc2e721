"""Layout of the tiles of a raw folder, from names, positions, metadata or pixels."""

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

#: Difference up to which overlaps are equal: they are measured in reduced images.
_OVERLAP_TOLERANCE = 0.005


@dataclass
class TileLayout:
    """The layout of one region's tiles; None is unknown or, for ``layout``, not needed."""

    count: int
    rows: int | None = None
    cols: int | None = None
    layout: str | None = None
    overlap: float | None = None
    flip_y: bool = False
    flip_x: bool = False
    findings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def grid(self) -> tuple[int | None, int | None, str | None, float | None]:
        """The layout's columns of the samples table."""
        return self.rows, self.cols, self.layout, self.overlap


def find_layout(
    planes: Sequence[RawPlane], expected: TileLayout, cycle: int, channel: str
) -> TileLayout:
    """Return the layout of the tiles, measured in ``channel`` of ``cycle``.

    Parameters
    ----------
    planes : sequence of RawPlane
        Planes of one region.
    expected : TileLayout
        Rows, cols, layout and overlap in the metadata.
    cycle, channel
        The channel with the most structure, usually nuclei.
    """
    of_channel = [plane for plane in planes if (plane.cycle, plane.channel) == (cycle, channel)]
    if of_channel[0].tile is None:
        return _layout_of_places(of_channel, expected)
    return _layout_of_numbers(of_channel, expected)


def _layout_of_numbers(planes: list[RawPlane], expected: TileLayout) -> TileLayout:
    """Return the layout of tiles that are numbered in the order of acquisition."""
    numbers = sorted({plane.tile or 0 for plane in planes})
    expected = replace(expected, overlap=_fraction(expected.overlap, planes))
    result = replace(expected, count=len(numbers), findings=[], warnings=[])
    if expected.overlap and len(numbers) > 1:
        result.findings = [
            f"overlap {expected.overlap:.3f} from the metadata, not confirmed by the pixels"
        ]
    rows, cols = expected.rows or 0, expected.cols or 0
    fits = rows * cols == len(numbers)
    if len(numbers) == 1:
        return replace(result, rows=1, cols=1, layout=None)
    if rows and cols and not fits:
        result.warnings.append(
            f"{rows} x {cols} tiles in the metadata, but {len(numbers)} in the files"
        )
    if numbers[-1] - numbers[0] + 1 != len(numbers):
        missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))
        result.warnings.append(
            f"tiles {', '.join(map(str, missing[:10]))} are missing, so the layout could not "
            "be estimated from the pixels"
        )
        return result
    images = _images(planes, result)
    if images is None:
        return result
    backend = cpu_backend(2)
    # With a wrong overlap there may be no clear layout.
    for known in (expected.overlap, None) if expected.overlap else (None,):
        overlap = min(max(known or estimate_overlap(backend, images), 0.01), 0.9)
        size = rows, cols
        ranking = rank_layouts(backend, images, rows, cols, overlap) if fits else []
        if not is_clear(ranking):
            grid = rank_grids(backend, images, overlap)[0]
            size = grid.rows, grid.cols
            ranking = rank_layouts(backend, images, *size, overlap)
        if is_clear(ranking):
            break
    else:
        return _unclear_layout(result, fits)
    if rows and cols and size != (rows, cols):
        result.warnings.append(
            f"{rows} x {cols} tiles in the metadata, but {size[0]} x {size[1]} by the pixels, "
            "which is written"
        )
    measured = measure_overlap(backend, images, ranking[0].row, ranking[0].col, overlap)
    return _measured_layout(result, size, ranking[0], measured, overlap)


def _unclear_layout(result: TileLayout, fits: bool) -> TileLayout:
    """Return the layout of the metadata, with warnings of what is unknown."""
    why = "neighbouring tiles share too little structure to estimate the layout"
    if not fits:
        result.rows = result.cols = None
        pairs = ", ".join(f"{rows} x {cols}" for rows, cols in factor_pairs(result.count))
        result.warnings.append(f"{why}; rows x cols can be {pairs}")
    elif result.layout is None:
        result.warnings.append(f"{why}; check acquisition.layout")
    return result


def _measured_layout(
    expected: TileLayout, size: tuple[int, int], best: Any, measured: float | None, roughly: float
) -> TileLayout:
    """Return the layout by the pixels, with warnings where the metadata differ."""
    rows, cols = size
    known, overlap = expected.overlap, round(measured or expected.overlap or roughly, 3)
    layout = f"layout {best.name}, {rows} rows x {cols} columns"
    finding = f"overlap {overlap:.3f} from the pixels"
    result = replace(expected, rows=rows, cols=cols, layout=best.name, overlap=overlap)
    if known and measured is None:
        finding = expected.findings[0]
    elif known and measured and abs(measured - known) <= _OVERLAP_TOLERANCE:
        finding = f"overlap {known:.3f} from the metadata, {measured:.3f} from the pixels"
        result.overlap = known
    elif known:
        finding += f", but {known:.3f} in the metadata"
        result.warnings.append(f"{finding}; the measured one is written")
    result.findings = [f"{layout}, from the pixels (score {best.score:.2f})", finding]
    if expected.layout is not None and expected.layout != best.name and min(rows, cols) > 1:
        result.warnings.append(
            f"layout {expected.layout} in the metadata, but {best.name} by the pixels, which "
            "is written"
        )
    return result


def _layout_of_places(planes: list[RawPlane], expected: TileLayout) -> TileLayout:
    """Return the layout of tiles with row and col or a position, and check the axes' directions."""
    shape = _shape(planes)
    if shape is None:
        warning = f"{planes[0].path} is missing or cannot be read, so the grid is unknown"
        return replace(expected, count=0, rows=None, cols=None, layout=None, warnings=[warning])
    grid = arrange(planes, ScanOptions(), shape)
    full = grid.rows * grid.cols == len(grid.expected)
    rows, cols = (grid.rows, grid.cols) if full else (None, None)
    positioned = planes[0].y_px is not None
    overlap = _overlap_of_positions(grid, shape) if positioned else expected.overlap
    result = TileLayout(len(grid.expected), rows, cols, overlap=overlap)
    result.findings.append(f"{grid.rows} rows x {grid.cols} columns, {result.count} tiles")
    if not full:
        result.warnings.append(
            f"{grid.rows * grid.cols - result.count} places of the grid hold no tile: "
            "the tissue is not rectangular, or files are missing"
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
    known = result.overlap
    overlap = estimate_overlap(backend, images) if known is None else min(max(known, 0.01), 0.9)
    ranking = rank_layouts(backend, images, grid.rows, grid.cols, overlap)
    if known is None and is_clear(ranking):
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
    result.findings.append(f"the stage's {axes} runs against the image's (from the pixels)")


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
    """Return the middle plane of every tile, averaged down; None, with a warning, if one is bad."""
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
                "tiles before it, so the layout could not be estimated from the pixels"
            )
            return None
        shape = image.shape
        images.append(reduce_tile(image))
    return np.stack(images)
