"""How fine an image is, where the answer is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.edf.resolution import FINEST_PX, THRESHOLD, resolution_px, ring_sums

SIDE = 384


def light(rng: np.random.Generator, slope: float) -> NDArray[np.float64]:
    """Return an image of power (q / 0.1 cycles/px) to the ``slope``."""
    radius = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE))
    radius[0, 0] = 1 / SIDE
    spectrum = np.fft.rfft2(rng.normal(size=(SIDE, SIDE))) * (radius / 0.1) ** (slope / 2)
    return np.asarray(np.fft.irfft2(spectrum, s=(SIDE, SIDE)))


def estimate(seed: int, slope: float, period_px: float) -> float:
    """Return the resolution of light whose halves correlate by the threshold at a period."""
    rng = np.random.default_rng(seed)
    # S / (S + N) is the correlation of two halves: N is chosen for the threshold at the period.
    power = (1 / period_px / 0.1) ** slope
    noise = np.sqrt(power * (1 - THRESHOLD) / THRESHOLD)
    sums = []
    for _ in range(3):
        scene = light(rng, slope)
        one, two = (scene + rng.normal(0, noise, scene.shape) for _ in range(2))
        sums.append(ring_sums(cpu_backend(1), one, two))
    return resolution_px(sums)


@settings(max_examples=12)
@given(st.integers(0, 2**31), st.sampled_from([-3.0, -4.0]), st.floats(2.8, 10.0))
def test_it_is_where_noise_takes_over(seed: int, slope: float, period_px: float) -> None:
    # One estimate is known to 5 % (standard deviation of 400), here to six of those.
    assert estimate(seed, slope, period_px) == pytest.approx(period_px, rel=0.3)


def test_it_has_no_bias() -> None:
    ratios = [estimate(seed, -3.0, 5.0) / 5.0 for seed in range(20)]
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.03)


def test_what_agrees_everywhere_or_nowhere(cpu: Backend) -> None:
    rng = np.random.default_rng(2)
    scene, (one, two) = light(rng, -3.0), rng.normal(size=(2, SIDE, SIDE))
    assert resolution_px([ring_sums(cpu, scene, 2 * scene)]) == FINEST_PX
    for first, second in ((one, two), (np.full((SIDE, SIDE), np.nan),) * 2):
        assert resolution_px([ring_sums(cpu, first, second)]) > 50


def test_debris_that_both_halves_show_do_not_count(cpu: Backend) -> None:
    rng = np.random.default_rng(4)
    scene = light(rng, -4.0)
    halves = scene + rng.normal(0, 3, (2, *scene.shape))
    plain = resolution_px([ring_sums(cpu, halves[0], halves[1])])
    weight = np.ones(scene.shape, np.float32)
    for y, x in rng.integers(60, SIDE - 60, (5, 2)):
        halves[:, y, x] += 1000
        weight *= np.clip(np.hypot(*(np.indices(scene.shape) - [[[y]], [[x]]])) / 12 - 1, 0, 1)
    assert resolution_px([ring_sums(cpu, halves[0], halves[1])]) < 0.5 * plain
    told = resolution_px([ring_sums(cpu, halves[0], halves[1], weight.astype(np.float32))])
    assert told == pytest.approx(plain, rel=0.2)
