"""One pass over all planes of a mosaic: what was never written, and light below zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.io.mosaic import Mosaic
from tilewright.io.positions import Positions
from tilewright.kernels.camera import CameraDefects
from tilewright.report.overlaps import tile_name
from tilewright.report.verdict import Item, Limits, Subject, judge

#: Side of the blocks that are looked at; a camera never reads one value all over such a block.
_BLOCK_PX = 32
#: Standard deviations of a block's mean below zero light that noise does not reach.
_BELOW_SIGMAS = 6.0
#: A defect is left where it stands out by so many spreads of its surroundings in most tiles; the
#: largest of nine pixels of noise reaches 3.
_STANDS_OUT = 8.0


@dataclass(frozen=True)
class MosaicScan:
    """Blocks inside tiles, of all planes.

    Attributes
    ----------
    blocks : int
    blank : list of (z, y, x)
        First pixels of blocks that hold a single value.
    below_zero : int
        Blocks of the plane looked at whose mean lies below zero light.
    plane_blocks : int
    """

    blocks: int
    blank: list[tuple[int, int, int]]
    below_zero: int
    plane_blocks: int


def scan_mosaic(
    mosaic: Mosaic, positions: Positions, tile: tuple[int, int], plane: int
) -> MosaicScan:
    """Look at every block of every plane; memory holds one row of chunks."""
    side = _BLOCK_PX
    inside = _inside(mosaic, positions, tile)
    ceiling = np.iinfo(mosaic.dtype).max if mosaic.dtype.kind == "u" else np.inf
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    blank: list[tuple[int, int, int]] = []
    below = 0
    step = max(mosaic.chunk_px // side, 1)
    for z in range(mosaic.shape[0]):
        for first in range(0, inside.shape[0], step):
            last = min(first + step, inside.shape[0])
            rows = slice(first * side, last * side)
            strip = mosaic.read(z, rows, slice(0, inside.shape[1] * side))
            cells = strip.reshape(last - first, side, inside.shape[1], side)
            here = inside[first:last]
            low = cells.min(axis=(1, 3))
            flat = here & (low == cells.max(axis=(1, 3))) & (low < ceiling)
            blank += [
                (z, int(first + y) * side, int(x) * side) for y, x in np.argwhere(flat).tolist()
            ]
            if z == plane:
                mean = cells.mean(axis=(1, 3), dtype=np.float64)
                sigma = cells.std(axis=(1, 3), dtype=np.float64) / side
                dark = mean < pedestal - 0.5 - _BELOW_SIGMAS * sigma
                below += int((here & dark & ~flat).sum())
    count = int(inside.sum())
    return MosaicScan(count * mosaic.shape[0], blank, below, count)


def _inside(mosaic: Mosaic, positions: Positions, tile: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which blocks (rows, columns) lie inside one tile."""
    side = _BLOCK_PX
    inside = np.zeros([n // side for n in mosaic.shape[1:]], bool)
    for y, x in zip(positions.y_px, positions.x_px, strict=True):
        rows, columns = (
            slice(int(np.ceil((start + 1) / side)), int((start + n - 1) // side))
            for start, n in zip((y, x), tile, strict=True)
        )
        inside[rows, columns] = True
    return inside


def tile_at(positions: Positions, tile: tuple[int, int], y: float, x: float) -> str:
    """Name the tile whose middle is nearest to a pixel of the mosaic."""
    middle = np.stack([positions.y_px + tile[0] / 2, positions.x_px + tile[1] / 2], 1)
    k = int(np.argmin(np.round(np.hypot(*(middle - (y, x)).T), 3)))
    return tile_name((int(positions.row[k]), int(positions.col[k])))


def judge_scan(
    subject: Subject,
    scan: MosaicScan,
    positions: Positions,
    tile: tuple[int, int],
    limits: Limits,
) -> list[Item]:
    """Judge what was never written, and light below zero."""
    where = sorted({(z + 1, tile_at(positions, tile, y + 16, x + 16)) for z, y, x in scan.blank})
    named = ", ".join(f"plane {z} {name}" for z, name in where[:3])
    more = f" and {len(where) - 3} more places" if len(where) > 3 else ""
    total, plane = max(scan.blocks, 1), max(scan.plane_blocks, 1)
    return [
        judge(subject, "blank_area", len(scan.blank) / total, limits, detail=named + more),
        judge(subject, "below_zero", scan.below_zero / plane, limits),
    ]


def defects_left(
    mosaic: Mosaic,
    positions: Positions,
    tile: tuple[int, int],
    defects: CameraDefects,
    plane: int,
) -> float:
    """Return the share of the camera's defects that still show in the mosaic; 0 of none.

    A defect that is left stands out at its place of most tiles.
    """
    found: list[list[float]] = [[] for _ in range(len(defects))]
    ring = np.ones((7, 7), bool)
    ring[1:-1, 1:-1] = False
    for y, x in list(zip(positions.y_px, positions.x_px, strict=True))[:16]:
        for k, at in enumerate(defects.pixel.tolist()):
            row, column = divmod(at, tile[1])
            top, left = round(float(y)) + row - 3, round(float(x)) + column - 3
            near = mosaic.read(
                plane, slice(max(top, 0), top + 7), slice(max(left, 0), left + 7)
            ).astype(np.float64)
            if near.shape == (7, 7):
                around = near[ring]
                spread = 1.4826 * float(np.median(np.abs(around - np.median(around)))) + 1.0
                found[k].append(float(np.abs(near[2:5, 2:5] - np.median(around)).max()) / spread)
    left = sum(1 for values in found if len(values) and np.median(values) > _STANDS_OUT)
    return left / max(len(defects), 1)
