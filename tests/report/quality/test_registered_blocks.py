from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from tilewright.report.quality.registered_blocks import _Texture


@pytest.mark.parametrize("shape", [(256, 256), (96, 131), (40, 256)])
def test_products_of_waves_smooth_as_sums_over_a_mirrored_block_do(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(1).poisson(300, shape).astype(np.float32)
    root = np.sqrt(image)
    band = ndimage.gaussian_filter(root, 1.2) - ndimage.gaussian_filter(root, 12.0)
    texture = _Texture.of(image)
    np.testing.assert_allclose(texture.pixels, band, atol=1e-4)
    np.testing.assert_allclose(texture.smoothed(3.0), ndimage.gaussian_filter(band, 3.0), atol=1e-4)
    np.testing.assert_allclose(texture.energy, ndimage.gaussian_filter(band**2, 12.0), atol=1e-4)
