"""Dust on the sensor is found where tiles show it, and nowhere else."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.scenes.illumination import vignette
from tilewright.kernels.illumination.fixed_pattern import dust_sums, find_dust

SIDE, OFFSET = 192, 100.0
#: Middle (y, x), diameter in px, and share of the light that a spot takes.
SPOTS = ((40, 50, 8, 0.3), (120, 30, 5, 0.25), (90, 150, 12, 0.2))
EVEN = np.ones((SIDE, SIDE), np.float32)
#: Corners with a fifth of the light of the middle.
BENT = vignette(SIDE, 0.8).astype(np.float32)


def dusty() -> NDArray[np.float64]:
    y, x = np.indices((SIDE, SIDE))
    gain = np.ones((SIDE, SIDE))
    for at_y, at_x, diameter, share in SPOTS:
        edge = np.clip(diameter / 2 + 0.5 - np.hypot(y - at_y, x - at_x), 0, 1)
        gain *= 1 - share * edge
    return gain


def tiles(gain: NDArray[np.float64] | float, count: int, seed: int) -> NDArray[np.float32]:
    """Return counts of nuclei on a background, most of each tile empty, with a hot pixel."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        nuclei = np.zeros((SIDE, SIDE))
        nuclei[tuple(rng.integers(0, SIDE, (2, 25)))] = rng.uniform(0.3, 1, 25)
        light = 60 + 9e4 * ndimage.gaussian_filter(nuclei, 5)
        counts = OFFSET + rng.poisson(light * gain)
        counts[70, 110] += 5000
        made.append(counts)
    return np.array(made, np.float32)


@pytest.mark.parametrize("flat", [EVEN, BENT], ids=["even", "bent"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_spots_are_found_with_their_depth(seed: int, flat: NDArray[np.float32]) -> None:
    true = dusty()
    found = find_dust(dust_sums(tiles(true * flat, 64, seed)), flat, OFFSET)
    assert found is not None
    for y, x, _, share in SPOTS:
        assert found.gain[y, x] == pytest.approx(1 - share, abs=0.1)
    assert not (found.gain < 1)[ndimage.binary_dilation(true < 1, iterations=4) == 0].any()
    assert np.std(found.gain / true) < np.std(true) / 2


@pytest.mark.parametrize("flat", [EVEN, BENT], ids=["even", "bent"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_clean_sensor_has_no_dust_and_few_tiles_do_not_tell(
    seed: int, flat: NDArray[np.float32]
) -> None:
    assert find_dust(dust_sums(tiles(np.float64(flat), 64, seed)), flat, OFFSET) is None
    assert find_dust(dust_sums(tiles(dusty() * flat, 3, seed)), flat, OFFSET) is None


def test_constant_and_black_tiles_are_no_evidence() -> None:
    for counts in (0.0, OFFSET, 65535.0):
        sums = dust_sums(np.full((9, 64, 64), counts, np.float32))
        assert find_dust(sums, EVEN[:64, :64], OFFSET) is None
    assert find_dust(dust_sums(np.zeros((0, 64, 64), np.float32)), EVEN[:64, :64], OFFSET) is None
