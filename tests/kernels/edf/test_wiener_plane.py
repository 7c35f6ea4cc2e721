"""What the multi-plane Wiener plane is made of; the plane itself: tests/stages/edf."""

from typing import Any

import numpy as np
import pytest
from scipy import fft

from tests.support.gpu_cases import NOISE, wiener_maps
from tests.support.wiener_scene import ALL, PEDESTAL, SIZE, fine_psf, scene
from tilewright.kernels.backend import Backend
from tilewright.kernels.edf import channel_model, transfer, wiener_finish
from tilewright.kernels.edf.wiener_filters import make_filters
from tilewright.kernels.edf.wiener_plane import WienerPlane


def frequency(size: int) -> Any:
    return np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size))


def test_haze_share_tells_the_floor_from_its_blur() -> None:
    rng = np.random.default_rng(0)
    same = rng.standard_normal(500)
    blurred = 0.7 * same + 0.2 * rng.standard_normal(500)

    def share(there: Any, known: float = 4.0) -> float:
        pairs = [(same, same), (same, blurred), (blurred, blurred)]
        pairs += [(same, there), (blurred, there), (there, there)]
        products = [np.dot(u, v) for u, v in pairs]
        return wiener_finish.haze_share([np.array([*products, known, 1.0])])

    assert share(same) == share(1.3 * same) == 1
    # Light of unknown depth.
    assert share(same, 2.0) == 0
    assert share(blurred) == 0
    # What the planes show otherwise hides which of the two it is.
    assert share(same + 0.2 * rng.standard_normal(500)) == 1
    assert share(same + 3 * rng.standard_normal(500)) == 0
    assert wiener_finish.haze_share([]) == wiener_finish.haze_share([np.zeros(8)]) == 0


def test_between_the_wide_radii_far_light_is_not_lost() -> None:
    """Linear interpolation between 129 radii takes a tenth of what lies 32 px from the axis."""
    at = np.arange(-64, 65)
    psf = np.zeros((3, 129, 129))
    psf[1, 64, 64] = 1.0
    psf[0] = psf[2] = np.exp(-0.5 * ((np.hypot(at[:, None], at) - 48) / 3) ** 2)
    profiles = transfer.transfer_profiles(psf, transfer.WIDE_RADII)
    shown = fft.irfft2(transfer.profile_at(profiles, 1, frequency(256)), s=(256, 256))
    shown = np.roll(shown, (64, 64), (0, 1))[64, 8:24]
    np.testing.assert_allclose(shown, psf[2, 64, 8:24], atol=0.02)


def test_power_is_that_of_the_light_and_not_of_the_noise(cpu: Backend) -> None:
    bright, truth = scene(1, 3000.0)
    dim, _ = scene(1, 100.0)
    profiles = transfer.transfer_profiles(fine_psf())
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
    channel, maps = wiener_maps(counts, cpu)
    wiener, rng = WienerPlane(maps, make_filters(channel)), np.random.default_rng(3)
    # Noise of 10 counts hardly moves the weights.
    again = [counts + rng.normal(0, 10, counts.shape).astype(np.float32) for _ in range(6)]
    images = np.stack([wiener.project(stack).image for stack in again])
    scatter = images.var(axis=0, ddof=1)[20:-20, 20:-20].mean()
    noise = NOISE.variance(counts.mean(axis=0) - PEDESTAL).mean()
    expected = wiener.project(counts).variance.mean() * 100 / noise
    assert scatter == pytest.approx(expected, rel=0.5)
