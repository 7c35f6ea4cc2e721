"""What the multi-plane Wiener plane is made of; the plane itself: tests/stages/edf."""

from typing import Any

import numpy as np
import pytest
from scipy import fft

from benchmarks.gpu_cases import NOISE, wiener_of
from tests.support.wiener_scene import ALL, PEDESTAL, SIZE, fine_psf, scene
from tilewright.kernels.backend import Backend
from tilewright.kernels.edf import channel_model


def frequency(size: int) -> Any:
    return np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size))


def test_power_is_that_of_the_light_and_not_of_the_noise(cpu: Backend) -> None:
    bright, truth = scene(1, 3000.0)
    dim, _ = scene(1, 100.0)
    profiles = channel_model.transfer_profiles(fine_psf())
    powers = [channel_model.object_power(cpu, [c], profiles, ALL) for c in (bright, dim)]
    middle = profiles[len(profiles) // 2]
    taper = np.outer(*(np.hanning(SIZE + 2)[1:-1],) * 2)
    spectrum = np.abs(fft.rfft2((truth - truth.mean()) * taper)) ** 2 / (taper**2).sum()
    for ring in (12, 20, 30):
        inside = np.abs(frequency(SIZE) * 128 / np.sqrt(0.5) - ring) < 2
        wanted = spectrum[inside].mean() / middle[ring] ** 2
        assert powers[0][ring - 2 : ring + 3].mean() == pytest.approx(wanted, rel=0.5)
        assert powers[1][ring - 2 : ring + 3].mean() * 900 == pytest.approx(wanted, rel=0.6)
    assert all((power > 0).all() for power in powers)


def test_variance_is_that_of_the_noise(cpu: Backend) -> None:
    counts, _ = scene(1)
    _, wiener = wiener_of(counts, cpu)
    rng = np.random.default_rng(3)
    # Noise of 10 counts hardly moves the weights.
    again = [counts + rng.normal(0, 10, counts.shape).astype(np.float32) for _ in range(6)]
    images = np.stack([wiener.project(stack).image for stack in again])
    scatter = images.var(axis=0, ddof=1)[20:-20, 20:-20].mean()
    noise = NOISE.variance(counts.mean(axis=0) - PEDESTAL).mean()
    variance = wiener.project(counts).variance
    assert variance is not None
    expected = variance.mean() * 100 / noise
    assert scatter == pytest.approx(expected, rel=0.5)
