from __future__ import annotations

import numpy as np
import pytest

from tilewright.kernels.camera_offset import empty_tile_offset


def _flat() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    return np.asarray(1 - 0.3 * (x**2 + y**2) + 0.05 * x)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_offset_of_empty_tiles_with_tissue_in_some_corners(seed: int) -> None:
    rng = np.random.default_rng(seed)
    flat = _flat()
    images = 700 + rng.uniform(280, 320, (60, 1, 1)) * flat + rng.normal(0, 3, (60, 32, 32))
    images[:8, :10, :10] += 4000 * flat[:10, :10]
    images[40:] += rng.uniform(3000, 5000, (20, 1, 1)) * flat
    offset, error = empty_tile_offset(images, flat)
    assert offset == pytest.approx(700, abs=15)
    assert error < 15


def test_tissue_everywhere_or_an_even_flat_say_nothing() -> None:
    rng = np.random.default_rng(0)
    flat = _flat()
    texture = rng.uniform(100, 5000, (60, 8, 8)).repeat(4, axis=1).repeat(4, axis=2)
    assert empty_tile_offset(100 + texture * flat, flat)[1] > 50
    assert empty_tile_offset(100 + texture, np.ones((32, 32)))[1] == np.inf
    assert empty_tile_offset(100 + texture[:6], flat)[1] == np.inf
