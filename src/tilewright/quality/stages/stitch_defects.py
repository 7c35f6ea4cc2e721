"""Defects of a mosaic: blocks never written, light below zero, and defective pixels."""

import itertools

import numpy as np

from tilewright.io.results.mosaic import Mosaic
from tilewright.io.results.positions import Positions
from tilewright.kernels.backend import cells
from tilewright.kernels.camera import CameraDefects
from tilewright.quality.results import QcContext, QcResult
from tilewright.quality.sampling import covered
from tilewright.quality.stages.overlaps import RawAgreement, tile_name

#: Side of the blocks; a camera never reads one value all over such a block.
_BLOCK_PX = 32
#: Chunks read together, a side.
_CHUNKS = 2
#: Standard deviations of a block's mean below zero light that noise does not reach.
_BELOW_SIGMAS = 6.0
#: A defect remains where it stands out by so many spreads of its surroundings in most tiles; the
#: largest of nine pixels of noise reaches 3.
_STANDS_OUT = 8.0


def evaluate_blocks(
    context: QcContext,
    mosaic: Mosaic,
    positions: Positions,
    tile: tuple[int, int],
    plane: int,
    raw: RawAgreement,
) -> list[QcResult]:
    """Evaluate blocks that were never written in any plane, and light below zero in one.

    Every block of every plane within a tile is read, those of a few chunks at once. Tiles with
    padding are left out. Tiles without light are no evidence of light below zero: what they show is
    the error of the camera offset.
    """
    side = _BLOCK_PX
    grid = tuple(n // side for n in mosaic.shape[1:])
    inside = covered(positions.without(raw.padded_tiles), tile, grid, side, margin=1)
    with_light = covered(positions.without(raw.dark_tiles), tile, grid, side, margin=1)
    ceiling = np.iinfo(mosaic.dtype).max if mosaic.dtype.kind == "u" else np.inf
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    blank: list[tuple[int, int, int]] = []
    below = 0
    step = max(mosaic.chunk_px // side, 1)
    starts = [range(0, n, step * _CHUNKS) for n in inside.shape]
    for z, top, left in itertools.product(range(mosaic.shape[0]), *starts):
        span = slice(top, top + step * _CHUNKS), slice(left, left + step * _CHUNKS)
        here = inside[span]
        rows, columns = (
            slice(first * side, (first + n) * side)
            for first, n in zip((top, left), here.shape, strict=True)
        )
        blocks = cells(mosaic.read(z, rows, columns), side)
        low = blocks.min(axis=(1, 3))
        flat = here & (low == blocks.max(axis=(1, 3))) & (low < ceiling)
        blank += [(z, (top + y) * side, (left + x) * side) for y, x in np.argwhere(flat).tolist()]
        if z == plane:
            mean = blocks.mean(axis=(1, 3), dtype=np.float64)
            sigma = blocks.std(axis=(1, 3), dtype=np.float64) / side
            dark = mean < pedestal - 0.5 - _BELOW_SIGMAS * sigma
            below += int((with_light[span] & dark & ~flat).sum())
    where = sorted({(z + 1, _tile_at(positions, tile, y + 16, x + 16)) for z, y, x in blank})
    names = ", ".join(f"plane {z} {name}" for z, name in where[:3])
    more = f" and {len(where) - 3} more places" if len(where) > 3 else ""
    count = int(inside.sum())
    return [
        context.evaluate("blank_area", len(blank) / max(count * mosaic.shape[0], 1), names + more),
        context.evaluate("below_zero", below / max(count, 1)),
    ]


def _tile_at(positions: Positions, tile: tuple[int, int], y: float, x: float) -> str:
    """Name the tile whose middle is nearest to a pixel of the mosaic."""
    middle = np.stack([positions.y_px + tile[0] / 2, positions.x_px + tile[1] / 2], 1)
    k = int(np.argmin(np.round(np.hypot(*(middle - (y, x)).T), 3)))
    return tile_name(str(positions.tile[k]))


def evaluate_defects(
    context: QcContext,
    mosaic: Mosaic,
    positions: Positions,
    tile: tuple[int, int],
    defects: CameraDefects | None,
    plane: int,
) -> QcResult:
    """Evaluate the share of the camera's defects that the mosaic still shows; 0 of none.

    One that remains stands out at its place of most tiles.
    """
    if defects is None:
        return context.evaluate("hot_pixels", None, "too few tiles to tell, and none is repaired")
    contrasts: list[list[float]] = [[] for _ in range(len(defects))]
    ring = np.ones((7, 7), bool)
    ring[1:-1, 1:-1] = False
    corners = list(zip(positions.y_px, positions.x_px, strict=True))[:16] if len(defects) else []
    for y, x in corners:
        # A tile at once: the 7 x 7 px around each defect would decode a whole chunk each.
        first_row, first_column = max(round(float(y)) - 3, 0), max(round(float(x)) - 3, 0)
        rows = slice(first_row, round(float(y)) + tile[0] + 4)
        image = mosaic.read(plane, rows, slice(first_column, round(float(x)) + tile[1] + 4))
        for k, at in enumerate(defects.pixel.tolist()):
            row, column = divmod(at, tile[1])
            top = round(float(y)) + row - 3 - first_row
            left = round(float(x)) + column - 3 - first_column
            near = image[max(top, 0) : top + 7, max(left, 0) : left + 7].astype(np.float64)
            if near.shape == (7, 7):
                level = np.median(near[ring])
                spread = 1.4826 * float(np.median(np.abs(near[ring] - level))) + 1.0
                contrasts[k].append(float(np.abs(near[2:5, 2:5] - level).max()) / spread)
    remaining = sum(1 for values in contrasts if len(values) and np.median(values) > _STANDS_OUT)
    many = f"the camera has {len(defects)} defective pixels"
    return context.evaluate("hot_pixels", remaining / max(len(defects), 1), many)
