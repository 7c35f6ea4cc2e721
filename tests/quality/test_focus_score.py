"""Metrics of one image where their value is known; what they are for: tests/quality."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Backend
from tilewright.kernels.noise import photon_transfer
from tilewright.quality.sampling import focus_score

PEDESTAL = 100.0
SIZE = 320
HAZE = 120.0
Image = NDArray[np.float64]


def tissue(seed: int) -> Image:
    """Nuclei with texture on the left three quarters, in photo-electrons."""
    rng = np.random.default_rng(seed)
    seeds = rng.random((SIZE, SIZE)) < 0.0025
    seeds[:, SIZE * 3 // 4 :] = False
    blobs = ndimage.gaussian_filter(seeds.astype(float), 5.0) * 2 * np.pi * 25
    texture = 1 + 0.4 * ndimage.gaussian_filter(rng.standard_normal((SIZE, SIZE)), 1.2) * 4
    nuclei = 1 / (1 + np.exp(-10 * (blobs - 0.55)))
    light = 600 * nuclei * np.clip(texture, 0.1, None)
    return np.asarray(ndimage.gaussian_filter(light, 1.0) + HAZE)


def camera(light: Image, seed: int, read: float = 2.0, gain: float = 1.0) -> Image:
    rng = np.random.default_rng(1000 + seed)
    electrons = rng.poisson(light) + rng.normal(0, read, light.shape)
    return np.asarray(np.clip(np.rint(gain * electrons + PEDESTAL), 0, 65535))


def blurred(light: Image, sigma_px: float = 2.0) -> Image:
    return np.asarray(ndimage.gaussian_filter(light, sigma_px))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_focus_falls_with_defocus_and_ignores_gain_and_offset(seed: int) -> None:
    light = tissue(seed)
    scores = [focus_score(camera(blurred(light, s), seed)) for s in (0, 1, 2, 4)]
    assert scores[0] > 1.5 * scores[1] > 3 * scores[2]
    assert scores[2] > 5 * scores[3]
    image = 4 * camera(light, seed) + 77
    assert focus_score(image) == pytest.approx(scores[0], rel=1e-3)


def test_nothing_but_noise_has_no_focus() -> None:
    noise = camera(np.full((SIZE, SIZE), 50.0), 0)
    assert np.isnan(focus_score(noise))
    with pytest.raises(ValueError, match="64 px"):
        focus_score(noise[:64, :63])


def test_pixels_outside_tiles_do_not_count(cpu: Backend) -> None:
    image = camera(tissue(2), 2)
    padded = np.pad(image, 40, constant_values=PEDESTAL)
    plain, around = (photon_transfer(cpu, i, PEDESTAL).variance(HAZE) for i in (image, padded))
    assert around == pytest.approx(plain, rel=0.15)
    assert photon_transfer(cpu, np.full((9, 9), 7.0), 0.0) == (0, 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("gain", "read"), [(1.0, 2.0), (0.5, 8.0), (3.0, 1.0)])
def test_photon_transfer_measures_noise(cpu: Backend, seed: int, gain: float, read: float) -> None:
    noise = photon_transfer(cpu, camera(tissue(seed), seed, read, gain), PEDESTAL)
    assert noise.gain == pytest.approx(gain, rel=0.3)
    # Against the noise where the image is dark: the haze and the read noise.
    dark = gain**2 * (HAZE + read**2)
    assert noise.variance(gain * HAZE) == pytest.approx(dark, rel=0.25)
