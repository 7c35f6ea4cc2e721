"""The truth of a phantom."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.positions import read_positions
from tilewright.phantom.camera import CycleMap
from tilewright.phantom.make import Phantom, PhantomDesign


@dataclass(frozen=True)
class PhantomTruth:
    """What is true of a phantom; arrays count cycles and channels from 0, ``projections`` from 1.

    ``true_px`` are (y, x) of tiles ordered by (row, col), on the canvas of their cycle; ``tissue``
    and ``kept`` (0 where a cycle lost tissue) are on the reference canvas, and so are
    ``projections``: specimens in focus, in counts above the offset, without vignetting and loss.
    """

    design: PhantomDesign
    true_px: NDArray[np.float64]
    flat: NDArray[np.float32]
    dark_counts: NDArray[np.float32]
    hot_counts: NDArray[np.float32]
    tissue: NDArray[np.uint8]
    kept: NDArray[np.uint8]
    maps: list[CycleMap]
    projections: dict[tuple[int, int], NDArray[np.float32]]


def mosaic_offset(sample: Path, truth: PhantomTruth, cycle: int) -> NDArray[np.float64]:
    """Return where the first pixel (y, x) of a cycle's mosaic lies on the phantom's canvas."""
    found = read_positions(sample / f"tile_positions/cycle{cycle}/positions.csv")
    placed = np.stack([found.y_px, found.x_px], axis=1)
    tied = found.island == 0
    offset: NDArray[np.float64] = (truth.true_px[cycle - 1] - placed)[tied].mean(axis=0)
    return offset


def truth_of(design: PhantomDesign) -> PhantomTruth:
    """Return what is true of the phantom of a design."""
    phantom = Phantom(design)
    return PhantomTruth(
        design=design,
        true_px=phantom.true_px,
        flat=np.stack(phantom.flats),
        dark_counts=phantom.camera.dark_counts,
        hot_counts=phantom.camera.hot_counts,
        tissue=(phantom.tissue.mask > 0.5).astype(np.uint8),
        kept=np.stack([kept > 0.5 for kept in phantom.presence]).astype(np.uint8),
        maps=phantom.maps,
        projections={
            seen: specimen.projection * np.float32(design.gain_counts)
            for specimen in phantom.specimens()
            for seen in specimen.channels
        },
    )
