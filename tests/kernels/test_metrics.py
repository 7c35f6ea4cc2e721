"""Metrics of one image where their value is known; what they are for: tests/quality."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels import artefacts, metrics
from tilewright.kernels.backend import Backend
from tilewright.kernels.noise import photon_transfer

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


def step(image: Image, share: float) -> Image:
    out = image.copy()
    out[:, SIZE * 3 // 8 :] = (out[:, SIZE * 3 // 8 :] - PEDESTAL) * (1 + share) + PEDESTAL
    return out


def blurred(light: Image, sigma_px: float = 2.0) -> Image:
    return np.asarray(ndimage.gaussian_filter(light, sigma_px))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_focus_falls_with_defocus_and_ignores_gain_and_offset(seed: int) -> None:
    light = tissue(seed)
    scores = [metrics.focus_score(camera(blurred(light, s), seed)) for s in (0, 1, 2, 4)]
    assert scores[0] > 1.5 * scores[1] > 3 * scores[2]
    assert scores[2] > 5 * scores[3]
    image = 4 * camera(light, seed) + 77
    assert metrics.focus_score(image) == pytest.approx(scores[0], rel=1e-3)


def test_focus_and_emptiness_of_nothing_but_noise() -> None:
    noise = camera(np.full((SIZE, SIZE), 50.0), 0)
    assert np.isnan(metrics.focus_score(noise))
    assert metrics.empty_fraction(noise) > 0.98
    assert metrics.empty_fraction(camera(tissue(1), 0)) < 0.55
    with pytest.raises(ValueError, match="64 px"):
        metrics.focus_score(noise[:64, :63])


def test_pixels_outside_tiles_do_not_count(cpu: Backend) -> None:
    image = camera(tissue(1), 1)
    image[:, SIZE * 3 // 4 :] = PEDESTAL
    valid = np.broadcast_to(np.arange(SIZE) < SIZE * 3 // 4, image.shape)
    inside = metrics.empty_fraction(image, valid=valid)
    assert inside < metrics.empty_fraction(image) - 0.05
    assert metrics.empty_fraction(image, valid=np.zeros_like(valid)) == 1
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


def test_seam_score_is_one_and_rises_with_a_step_of_two_percent() -> None:
    """Twelve borders of one mosaic joined, as the report does: 3840 lines."""
    starts = np.random.default_rng(0).integers(8, 90, 12)
    strips = [camera(tissue(k), k)[:, start : start + 128] for k, start in enumerate(starts)]
    joined, scores = np.concatenate(strips), {}
    for share in (0.0, 0.02, -0.02, 0.05):
        strip = joined.copy()
        strip[:, 64:] = (strip[:, 64:] - PEDESTAL) * (1 + share) + PEDESTAL
        seam = artefacts.seam_score(strip, 64, pedestal_counts=PEDESTAL)
        assert seam.step == pytest.approx(share, abs=0.012)
        scores[share] = seam.score
    assert 1 <= scores[0.0] < 2
    assert min(scores[0.02], scores[-0.02]) > 1.5 * scores[0.0]
    assert scores[0.05] > 5


def test_seam_score_along_the_other_axis_and_with_a_gap() -> None:
    image = step(camera(tissue(3), 3), 0.1)
    strip = image[:, SIZE * 3 // 8 - 80 : SIZE * 3 // 8 + 80]
    across = artefacts.seam_score(strip, 80, pedestal_counts=PEDESTAL)
    assert across == artefacts.seam_score(strip.T, 80, pedestal_counts=PEDESTAL, axis=0)
    gapped = artefacts.seam_score(strip, 80, pedestal_counts=PEDESTAL, gap_px=3)
    assert gapped.step == pytest.approx(0.1, abs=0.06)


@pytest.mark.parametrize("gap_px", [0, 5, 19, 33, 102])
def test_seam_needs_the_reach_it_says(gap_px: int) -> None:
    reach = artefacts.seam_reach_px(gap_px)
    assert reach is not None
    strip = np.random.default_rng(gap_px).normal(100, 1, (64, 2 * reach)).astype(np.float32)
    assert np.isfinite(artefacts.seam_score(strip, reach, gap_px=gap_px).score)
    with pytest.raises(ValueError, match="px"):
        artefacts.seam_score(strip[:, 1:-1], reach - 1, gap_px=gap_px)
    assert artefacts.seam_reach_px(140) is None, "a seam under a wide gap cannot be told"


def test_without_contrast_there_is_no_number() -> None:
    image = camera(tissue(0), 0)
    assert np.isnan(artefacts.ringing_depth(np.ones((32, 32)), np.ones((32, 32))))
    assert np.isnan(metrics.ncc(image, np.full_like(image, 7)))
    assert np.isnan(metrics.ncc(image, image, np.zeros(image.shape, bool)))
    assert metrics.ncc(image, 3 * image + 5) == pytest.approx(1)
    assert metrics.ncc(image, -image) == pytest.approx(-1)
