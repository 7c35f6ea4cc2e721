"""How much of a background is subtracted from a registered channel, and what that does to it."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.registration import Subtraction
from tilewright.kernels.backend import Region, cells
from tilewright.kernels.register.background import fit_factor, oversubtracted_share
from tilewright.stages.register.plane_views import OVERVIEW_PX

#: Registered pixels of a region of the image, (ny, nx) uint16.
Read = Callable[[Region], NDArray[np.uint16]]
#: Cells on whose means factors are fitted: at 8 px, less than a cell body, noise is a few counts.
_CELL_PX = 8
#: Longest side of the overviews for quality.
_QUALITY_PX = 512


@dataclass(frozen=True)
class Background:
    """A background that is subtracted from a channel of the image.

    Attributes
    ----------
    marker : str
        Name of the background channel.
    plane : str | Path
        Its in-focus plane, one uint16 plane without pedestal.
    transform : str | Path | None
        From the reference frame to its cycle; None for the reference cycle.
    factor : float | None
        By what it is multiplied; None: fitted.
    """

    marker: str
    plane: str | Path
    transform: str | Path | None
    factor: float | None


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
        All of the image; one of each thread is in memory at a time. Their borders are multiples of
        a power of two, as those of chunks are.
    """
    side = 1
    while max(shape) > side * OVERVIEW_PX:
        side *= 2
    both = [_overview(read, shape, side, regions, pool) for read in reads]
    marker, light = (_means(image, -(-_CELL_PX // side)) for image in both)
    factor = fit_factor(marker, light) if background.factor is None else background.factor
    before, coarse = (
        _means(image, -(-max(image.shape) // _QUALITY_PX)).astype(np.float32) for image in both
    )
    return Subtraction(
        cycle=channel[1],
        channel=channel[2],
        marker=channel[0],
        background=background.marker,
        method="regression" if background.factor is None else "exposure",
        factor=factor,
        oversubtracted=oversubtracted_share(marker, light, factor),
        before=before,
        light=coarse,
    )


def _overview(
    read: Read, shape: tuple[int, int], side: int, regions: Sequence[Region], pool: Executor
) -> NDArray[np.float32]:
    """Return the means of squares of ``side`` px; the regions' borders are borders of squares."""
    small = np.zeros([max(n // side, 1) for n in shape], np.float32)

    def one(region: Region) -> None:
        means = cells(read(region), side).mean(axis=(1, 3))
        y, x = (part.start // side for part in region)
        small[y : y + means.shape[0], x : x + means.shape[1]] = means

    for _ in pool.map(one, regions):
        pass
    return small


def _means(image: NDArray[np.float32], side: int) -> NDArray[np.float64]:
    """Return the means of the whole squares of an image, or that of a smaller image."""
    side = min(side, *image.shape)
    return np.asarray(cells(image, side).mean(axis=(1, 3), dtype=np.float64))
