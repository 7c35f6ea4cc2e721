"""Whether a tile has the same brightness in the mosaic, where no other tile covers it."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.stitch.overlap_agreement import CELL_PX, cell_means

#: Cells of a part below which their median is no brightness.
_LEAST_CELLS = 4
#: Parts of a tile that are compared with the mosaic, in cells a side; and the share of a tile's
#: bright end from which a cell has light enough.
_PART_CELLS = 4
_LIGHT = 0.1


def uncovered_cells(
    key: str, corners: Mapping[str, tuple[float, float]], shape: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return which cells (rows, columns) of a tile no other tile covers."""
    alone = np.ones([n // CELL_PX for n in shape], bool)
    for other, corner in corners.items():
        step = [round(b - a) for a, b in zip(corners[key], corner, strict=True)]
        if other != key and all(abs(move) < n for move, n in zip(step, shape, strict=True)):
            rows, columns = (
                slice(max(move, 0) // CELL_PX, -(-min(n, n + move) // CELL_PX))
                for move, n in zip(step, shape, strict=True)
            )
            alone[rows, columns] = False
    return alone


def largest_change(
    light: NDArray[np.float32],
    mosaic: Mosaic,
    corner: tuple[float, float],
    alone: NDArray[np.bool_],
    plane: int,
) -> float:
    """Return the largest share by which a part of a tile is brighter or dimmer in the mosaic.

    NaN where no part has light.
    """
    # The tile is read where the mosaic has its pixels: half a pixel off, sharp nuclei in a corner
    # of their cells passed for changes of up to 23 %.
    start = [max(math.ceil(round(v, 3)), 0) for v in corner]
    y, x = (at - v for at, v in zip(start, corner, strict=True))
    own = cell_means(light[int(y) :, int(x) :], (y % 1, x % 1))
    spans = [slice(at, at + CELL_PX * n) for at, n in zip(start, own.shape, strict=True)]
    fused = mosaic.read(plane, *spans).astype(np.float32)
    fused -= np.float32(mosaic.attributes.get("pedestal_counts", 0))
    rows, columns = (n // CELL_PX for n in fused.shape)
    means = own[:rows, :columns], cell_means(fused)
    usable = alone[:rows, :columns] & (means[0] > max(_LIGHT * np.nanpercentile(means[0], 95), 0))
    ratio = np.where(usable, np.maximum(means[1], 0) / np.maximum(means[0], 1e-6), np.nan)
    largest = math.nan
    for part in np.array_split(np.arange(rows), max(rows // _PART_CELLS, 1)):
        for other in np.array_split(np.arange(columns), max(columns // _PART_CELLS, 1)):
            values = ratio[np.ix_(part, other)]
            values = values[np.isfinite(values)]
            if len(values) >= _LEAST_CELLS:
                change = max(float(np.median(values)), 1e-3)
                largest = float(np.fmax(largest, max(change, 1 / change) - 1))
    return largest
