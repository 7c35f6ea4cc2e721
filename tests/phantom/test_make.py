from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from scipy import ndimage, stats

from benchmarks.phantom_truth import PhantomTruth
from tilewright.phantom.camera import poisson
from tilewright.phantom.make import Phantom, PhantomDesign, make_phantom, tile_path

SMALL: dict[str, Any] = {"cycles": 2, "channels": 2, "rows": 2, "cols": 2, "planes": 3}
SMALL |= {"tile_px": 128, "overlap": 0.2}


def write(folder: Path, **design: Any) -> None:
    make_phantom(folder, **{**SMALL, **design})


def true(**design: Any) -> PhantomTruth:
    return PhantomTruth(PhantomDesign(**{**SMALL, **design}))


def counts(folder: Path, truth: PhantomTruth, cycle: int, channel: int, tile: int) -> Any:
    at = (truth.design, cycle, channel, tile)
    planes = (tile_path(folder / "raw", *at, z) for z in range(truth.design.planes))
    return np.stack([tifffile.imread(path) for path in planes]).astype(np.float64)


def look_up(truth: PhantomTruth, image: NDArray[Any], cycle: int, tile: int, order: Any) -> Any:
    """Resample a canvas image at the true place of each pixel of a tile."""
    y, x = (np.arange(truth.design.tile_px) + p for p in truth.true_px[cycle - 1, tile])
    at = np.stack(truth.maps[cycle - 1].to_reference(y[:, None], x[None, :]))
    return ndimage.map_coordinates(image.astype(np.float64), at, order=order)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_truth_predicts_every_tile_within_noise(tmp_path: Path, seed: int) -> None:
    """A flat specimen in focus is its own projection: raw = truth × flat + dark + noise."""
    design = {"seed": seed, "planes": 1, "saturated_spots": 0, "empty_tile": False}
    write(tmp_path, **design)
    truth = true(**design)
    gain = truth.design.gain_counts
    for cycle, channel in truth.projections:
        for tile in range(4):
            raw = counts(tmp_path, truth, cycle, channel, tile)[0]
            kept = look_up(truth, truth.kept[cycle - 1], cycle, tile, 1)
            light = look_up(truth, truth.projections[cycle, channel], cycle, tile, 3)
            light = (light + Phantom.GLASS_ELECTRONS * gain) * truth.flats[channel - 1]
            sigma = np.sqrt(gain * np.maximum(light, 0) + (2.5 * gain) ** 2)
            residual = (raw - truth.camera.dark_counts - truth.camera.hot_counts - light) / sigma
            # Where tissue was torn the stored mask is binary; hot pixels clip.
            sure = (ndimage.minimum_filter(kept, 15) > 0.99) & (truth.camera.hot_counts == 0)
            # A layer is half a plane step from focus, so the plane is slightly softer.
            assert sure.mean() > 0.5
            assert abs(residual[sure].mean()) < 0.25
            assert 0.9 < residual[sure].std() < 1.5


def test_same_seed_same_bytes_and_another_seed_another_specimen(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write(tmp_path / name, seed=seed)
    a, b, c = (
        {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.*")}
        for folder in (tmp_path / name for name in "abc")
    )
    assert a == b
    assert len(a) == 3 + 2 * 2 * 4 * 3
    assert a["raw/channelnames.txt"].split() == [b"DAPI-1", b"CD3", b"DAPI-2", b"PanCK"]
    assert a["raw/Cyc1_reg1/1_00001_Z002_CH1.tif"] != c["raw/Cyc1_reg1/1_00001_Z002_CH1.tif"]


@pytest.mark.parametrize("mean", [4.0, 6.5, 12.0, 80.0, 1500.0, 60_000.0])
def test_shot_noise_is_poisson(mean: float) -> None:
    even = ((np.arange(100_000) + 0.5) / 100_000 * 2**32).astype(np.uint32)
    numbers = poisson(even, np.full(len(even), mean, np.float32)).astype(np.float64)
    truth = stats.poisson.ppf((even + 0.5) / 2**32, mean)
    assert (numbers != truth).mean() < 0.03
    assert np.abs(numbers - truth).max() <= 1 + mean * 1e-4
    assert numbers.mean() == pytest.approx(mean, rel=1e-3)
    assert numbers.var() == pytest.approx(mean, rel=3e-3)
