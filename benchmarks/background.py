"""Cells of a phantom with autofluorescence: what the image says of their markers, and the truth.

``python -m benchmarks.background SEED…`` prints what ``docs/benchmarks.md`` sums up.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.phantom_truth import PhantomTruth, mosaic_offset
from tests.support.quality.workbench import Bench, process
from tilewright.io.results.ome_zarr import open_image

#: Two stained cycles and a blank one, each with an exposure of its own.
DESIGN: dict[str, Any] = {"cycles": 3, "channels": 2, "rows": 2, "cols": 2, "planes": 5}
DESIGN |= {"tile_px": 224, "overlap": 0.15, "empty_tile": False, "saturated_spots": 0}
DESIGN |= {"autofluorescence": 0.3, "exposures_ms": (200.0, 400.0, 100.0), "blank_cycle": 3}


class Cells(NamedTuple):
    """How far the mean counts of one marker in each cell are off, over the mean of its cells.

    ``error`` is the median of the absolute error, ``bias`` the mean error of positive cells.
    """

    marker: str
    error: float
    bias: float


def compare(marker: str, measured: NDArray[np.float64], true: NDArray[np.float64]) -> Cells:
    """Compare mean counts of cells by the image and in truth."""
    positive = true > 0.25 * np.percentile(true, 99)
    wrong = (measured - true) / true[positive].mean()
    return Cells(marker, float(np.median(np.abs(wrong))), float(wrong[positive].mean()))


def cells(bench: Bench) -> Iterator[Cells]:
    """Yield the cells of each stained channel of the image that both cycles show whole."""
    truth = PhantomTruth(bench.design)
    tissue = truth.tissue
    image = open_image(bench.path("image_zarr"))
    y, x = np.indices(truth.kept.shape[1:])
    y, x = np.stack([y, x]) - mosaic_offset(bench.run.sample, truth, 1)[:, None, None]
    rim, (height, width) = 24, image.levels[0].shape[1:]
    kept = (truth.kept.min(axis=0) > 0) & (y > rim) & (x > rim)
    kept &= (y < height - rim) & (x < width - rim)
    body = tissue.nucleus + tissue.cytoplasm > 0.3
    index = np.arange(len(tissue.level))
    size = ndimage.sum(body & kept, tissue.label, index)
    whole = index[size > 0.9 * np.maximum(ndimage.sum(body, tissue.label, index), 60)]
    labels = np.where(body & kept, tissue.label, -1)
    for k, channel in enumerate(c for c in bench.experiment.channels if not c.remove):
        if channel.background is None:
            continue
        pixels = np.asarray(image.levels[0][k], np.float32)
        found = ndimage.map_coordinates(pixels, [y, x], order=1)
        expected = truth.projections[channel.cycle, int(channel.channel)]
        means = [ndimage.mean(values, labels, whole) for values in (found, expected)]
        yield compare(channel.marker, *means)


def with_method(bench: Bench, method: str) -> Bench:
    """Return the experiment with its image made by a method."""
    bench.run.edit(subtract={"method": method})
    made = Bench(bench.run, bench.design)
    made.assemble()
    return made


def main() -> None:
    """Print the errors of each seed, method and marker."""
    for seed in map(int, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as name:
            bench = process(Path(name) / "run", seed=seed, **DESIGN)
            for method in ("none", "exposure", "regression"):
                for found in cells(with_method(bench, method)):
                    print(seed, method, found)


if __name__ == "__main__":
    main()
