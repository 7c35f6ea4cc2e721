"""Two strips of one place agree by as much as noise allows, and say where they do not."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.stitch.overlap_agreement import compare_strips

Strip = NDArray[np.float32]


def tissue(seed: int, shape: tuple[int, int] = (40, 260)) -> NDArray[np.float64]:
    """Return cells of some 8 px, in electrons."""
    rough = np.random.default_rng(seed).normal(0, 1, shape)
    smooth = ndimage.gaussian_filter(rough, 3.0, mode="wrap")
    return np.asarray(400 * np.clip(smooth / smooth.std(), 0, None) + 20)


def seen(light: NDArray[np.float64], seed: int) -> Strip:
    return np.random.default_rng(seed).poisson(light).astype(np.float32)


@pytest.mark.parametrize("shift", [(0, 0), (3, -2), (-5, 7)])
def test_a_shift_is_measured(shift: tuple[int, int]) -> None:
    light = tissue(1)
    other = np.roll(light, shift, (0, 1))
    found = compare_strips(seen(light, 2), seen(other, 3))
    assert found.shift_px == pytest.approx(shift, abs=0.3)
    assert found.ncc > 0.75 * found.expected
    assert found.expected > 0.8
    assert (found.ncc_here < 0.9 * found.ncc) == (shift != (0, 0))


def test_other_tissue_agrees_by_chance_and_noise_in_nothing() -> None:
    found = compare_strips(seen(tissue(1), 2), seen(tissue(4), 3))
    assert found.expected > 0.8
    assert found.ncc < 0.4 * found.expected
    flat = np.full((40, 260), 50.0)
    assert compare_strips(seen(flat, 1), seen(flat, 2)).expected < 0.4


def test_brightness_is_compared_by_cells() -> None:
    light = tissue(1)
    found = compare_strips(seen(0.7 * light, 2), seen(light, 3))
    assert len(found.log_ratio) == len(found.light) == (40 // 16) * (260 // 16)
    assert np.median(found.log_ratio) == pytest.approx(np.log(0.7), abs=0.02)
