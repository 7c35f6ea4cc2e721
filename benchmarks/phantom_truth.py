"""The truth of a phantom."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.positions import read_positions
from tilewright.phantom.make import Phantom, PhantomDesign


class PhantomTruth(Phantom):
    """A phantom with what is true of its images on the canvas of the reference cycle.

    ``kept`` is false where a cycle lost tissue; ``projections``, by (cycle, channel) from 1, are
    specimens in focus, in counts above the offset, without vignetting and loss.
    """

    def __init__(self, design: PhantomDesign) -> None:
        super().__init__(design)
        self.mask = self.tissue.mask > 0.5
        self.kept = np.stack(self.presence) > 0.5
        self.projections = {
            (one.cycle, one.channel): one.in_focus() * np.float32(design.gain_counts)
            for one in self.specimens()
        }


def mosaic_offset(sample: Path, truth: Phantom, cycle: int) -> NDArray[np.float64]:
    """Return where the first pixel (y, x) of a cycle's mosaic lies on the phantom's canvas."""
    found = read_positions(sample / f"tile_positions/cycle{cycle}/positions.csv")
    placed = np.stack([found.y_px, found.x_px], axis=1)
    tied = found.island == 0
    true = truth.true_px[cycle - 1][found.row * truth.design.cols + found.col]
    offset: NDArray[np.float64] = (true - placed)[tied].mean(axis=0)
    return offset
