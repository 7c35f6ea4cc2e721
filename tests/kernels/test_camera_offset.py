from __future__ import annotations

import numpy as np
import pytest

from tilewright.kernels.camera import empty_tiles


def _flat() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    return np.asarray(1 - 0.3 * (x**2 + y**2) + 0.05 * x)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dark_field_of_empty_tiles_with_tissue_in_some_corners(seed: int) -> None:
    rng = np.random.default_rng(seed)
    flat = _flat()
    y = np.linspace(-1, 1, 32)[:, None] + np.zeros((32, 32))
    stray = 60 * np.cos(3 * y)
    stray -= np.polyval(np.polyfit(flat.ravel(), stray.ravel(), 1), flat)
    images = 700 + rng.uniform(280, 320, (45, 1, 1)) * flat + stray
    images += rng.normal(0, 3, images.shape)
    images[:14, :18, :20] += rng.uniform(2000, 6000, (14, 1, 1))
    images[30:] += rng.uniform(3000, 5000, (15, 1, 1)) * flat
    found = empty_tiles(images, flat)
    assert found.offset_counts == pytest.approx(700, abs=25)
    assert found.error_counts < 5
    assert found.structure_counts.mean() == pytest.approx(0, abs=1e-6)
    assert np.abs(found.structure_counts - stray)[3:-3, 3:-3].max() < 20


def test_tissue_everywhere_or_an_even_flat_say_nothing() -> None:
    rng = np.random.default_rng(0)
    flat = _flat()
    texture = rng.uniform(100, 5000, (60, 8, 8)).repeat(4, axis=1).repeat(4, axis=2)
    assert empty_tiles(100 + texture * flat, flat).error_counts > 50
    assert empty_tiles(100 + texture, np.ones((32, 32))).error_counts == np.inf


@pytest.mark.parametrize("tiles", [12, 60])
def test_no_dark_field_below_zero(tiles: int) -> None:
    """A glow steeper than the flat-field, as sparse stains have it, is not an offset below 0."""
    flat = _flat()
    images = 100 + 300 * (flat**2)[None] + np.zeros((tiles, 1, 1))
    assert empty_tiles(images, flat).error_counts == np.inf
