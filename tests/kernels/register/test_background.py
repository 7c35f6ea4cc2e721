import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.register.background import fit_factor, oversubtracted_share, subtract

Cells = NDArray[np.float64]


def tissue(seed: int, positive: float, factor: float, offset: float = 0.0) -> tuple[Cells, Cells]:
    """Return cells of a marker and of its background; the marker is in a share of the tissue."""
    rng = np.random.default_rng(seed)
    texture = ndimage.gaussian_filter(rng.standard_normal((120, 130)), 1.5)
    own = 300 * np.exp(texture / texture.std() / 2)
    own[:30] = 5  # glass
    places = ndimage.gaussian_filter(rng.standard_normal(own.shape), 1)
    stained = (places > np.quantile(places, 1 - positive)) * rng.uniform(200, 2000, own.shape)
    noise = rng.normal(0, 8, (2, *own.shape))
    marker = factor * own + offset + stained * (own > 5) + noise[0]
    return np.maximum(marker, 0.1), np.maximum(own + noise[1], 0.1)


@given(st.integers(0, 65535), st.integers(0, 65535), st.floats(0, 100, allow_nan=False, width=32))
def test_the_formula(marker: int, background: int, factor: float) -> None:
    first, second = (np.full((2, 3), value, np.uint16) for value in (marker, background))
    left = subtract(cpu_backend(), first, second, factor)
    assert left.dtype == np.uint16
    # float32 knows 65535 * 100 to half a count
    assert abs(int(left[0, 0]) - np.clip(marker - factor * background, 0, 65535)) <= 1


@pytest.mark.parametrize("positive", [0.0, 0.05, 0.3, 0.6])
@pytest.mark.parametrize(("factor", "offset"), [(0.4, 0.0), (3.0, 0.0), (1.5, 200.0)])
def test_stains_do_not_change_the_factor(positive: float, factor: float, offset: float) -> None:
    for seed in range(3):
        found = fit_factor(*tissue(seed, positive, factor, offset))
        assert found == pytest.approx(factor, rel=0.06)


def test_lost_tissue_does_not_change_the_factor_and_nothing_in_common_gives_none() -> None:
    marker, background = tissue(0, 0.3, 2.0)
    marker[40:46] = 3  # 7 % of the tissue
    marker[:, 100:] = 0  # outside the cycle
    assert fit_factor(marker, background) == pytest.approx(2.0, rel=0.06)
    nothing = np.zeros_like(marker)
    assert fit_factor(nothing, background) == fit_factor(marker, nothing) == 0
    assert np.isnan(oversubtracted_share(marker, nothing, 1.0))
    assert np.isnan(oversubtracted_share(marker, background, 0.0))
