import numpy as np
import pytest
from scipy import ndimage

from tilewright.kernels.padding import blank_padding, fill_padding, padding


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shift", [(0, 80), (-3, 0), (2, -5), (12, 12)])
def test_a_shifted_or_turned_tile_is_masked(seed: int, shift: tuple[int, int]) -> None:
    plane = np.random.default_rng(seed).poisson(200, (256, 320)).astype(np.uint16)
    assert padding(plane) is None
    for angle in (0.0, 2.0):
        turned = ndimage.rotate(plane, angle, reshape=False, order=1, cval=0)
        moved = ndimage.shift(turned, shift, order=0, cval=0)
        found = padding(moved)
        assert found is not None
        assert not np.any((moved == 0) & ~found)
        assert found.mean() - (moved == 0).mean() < 0.03
        assert np.isnan(blank_padding(moved)).sum() == found.sum()
        assert fill_padding(moved).min() > 100


@pytest.mark.parametrize("counts", [1, 2, 4, 5, 8])
def test_zeros_that_are_counts_are_no_padding(counts: int) -> None:
    plane = np.random.default_rng(counts).poisson(counts, (256, 256)).astype(np.uint16)
    assert padding(plane) is None
    assert fill_padding(plane) is plane
