"""How much of a background is subtracted from a registered channel, and what that does to it."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.subtraction import Subtraction
from tilewright.kernels.backend import Region
from tilewright.kernels.register.background import fit_factor, oversubtracted_share

#: Registered pixels of a region of the image, (ny, nx) uint16.
Read = Callable[[Region], NDArray[np.uint16]]
#: Cells on whose means factors are fitted: at 8 px, less than a cell body, noise is a few counts.
_CELL_PX = 8
#: Most cells on a side: larger images have larger cells, so that memory is bounded.
_MOST_CELLS = 2048
#: Longest side of the overviews for quality.
_OVERVIEW_PX = 512


@dataclass(frozen=True)
class Background:
    """A background that is subtracted from a channel of the image."""

    marker: str
    """Name of the background channel."""
    plane: str | Path
    """Its in-focus plane, one uint16 plane without pedestal."""
    transform: str | Path | None
    """From the reference frame to its cycle; None for the reference cycle."""
    factor: float | None
    """By what it is multiplied; None: fitted."""


class CellSums:
    """Sums of the whole square cells of an image (y, x) that comes region by region.

    Whole numbers, so that neither threads nor the regions' order change a bit.
    """

    def __init__(self, shape: tuple[int, int], side: int) -> None:
        self._side = side
        self._whole = tuple(max(n // side, 1) for n in shape)
        self._total = np.zeros([-(-n // side) for n in shape], np.int64)
        self._turn = threading.Lock()

    def add(self, region: Region, pixels: NDArray[Any]) -> None:
        """Add the pixels (ny, nx) of a region; its borders need not be those of cells."""
        part, target = pixels, []
        for axis, span in enumerate(region):
            first, last = span.start // self._side, -(-span.stop // self._side)
            starts = np.maximum(np.arange(first, last) * self._side - span.start, 0)
            part = np.add.reduceat(part, starts, axis=axis, dtype=np.int64)
            target.append(slice(first, last))
        with self._turn:
            self._total[target[0], target[1]] += part

    @property
    def means(self) -> NDArray[np.float64]:
        """Mean of each whole cell."""
        whole: NDArray[np.int64] = self._total[: self._whole[0], : self._whole[1]]
        return whole / self._side**2


def survey(
    channel: tuple[str, int, str],
    background: Background,
    reads: tuple[Read, Read],
    shape: tuple[int, int],
    regions: Sequence[Region],
    pool: Executor,
) -> Subtraction:
    """Measure how much of a background is to be subtracted from a channel; both are registered.

    Parameters
    ----------
    channel : (str, int, str)
        Marker, cycle and channel.
    reads : (callable, callable)
        Read the channel, and its background.
    shape : (int, int)
        (y, x) of the image.
    regions : sequence of (slice, slice)
        All of the image; one of each thread is in memory at a time.
    """
    cell = max(_CELL_PX, -(-max(shape) // _MOST_CELLS))
    side = max(1, -(-max(shape) // _OVERVIEW_PX))
    sums = [[CellSums(shape, n) for n in (cell, side)] for _ in reads]
    _sum_cells(sums, reads, regions, pool)
    (marker, light), overviews = (
        [total.means for total in pair] for pair in zip(*sums, strict=True)
    )
    factor = fit_factor(marker, light) if background.factor is None else background.factor
    before, coarse = (means.astype(np.float32) for means in overviews)
    return Subtraction(
        cycle=channel[1],
        channel=channel[2],
        marker=channel[0],
        background=background.marker,
        method="regression" if background.factor is None else "exposure",
        factor=factor,
        oversubtracted=oversubtracted_share(marker, light, factor),
        emptied=0.0,  # counted while it is subtracted
        before=before,
        light=coarse,
        side=side,
    )


def _sum_cells(
    sums: Sequence[Sequence[CellSums]],
    reads: tuple[Read, Read],
    regions: Sequence[Region],
    pool: Executor,
) -> None:
    """Add all regions of the channel and of its background to their sums."""

    def one(region: Region) -> None:
        for read, of_read in zip(reads, sums, strict=True):
            pixels = read(region)
            for total in of_read:
                total.add(region, pixels)

    for _ in pool.map(one, regions):
        pass
