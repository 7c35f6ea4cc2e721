import numpy as np
import pytest
from scipy.special import j0, j1

from tilewright.kernels.deconvolve import psf as psf_module
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni, measured_psf

AIR = Optics(0.75, 668, 1.0, 1.44)
OIL = Optics(1.4, 600, 1.515, 1.47)
VOXEL = (1.5, 0.377, 0.377)


def test_in_focus_plane_is_the_airy_pattern_of_the_pixel() -> None:
    plane = gibson_lanni(AIR, (1.5, 0.05, 0.05), 1, max_lateral_px=61)[0]
    middle = plane.shape[0] // 2
    v = 2 * np.pi / 0.668 * 0.75 * 0.05 * np.arange(1, middle + 1)
    airy = (2 * j1(v) / v) ** 2
    assert plane[middle, middle + 1 :] / plane[middle, middle] == pytest.approx(airy, abs=4e-3)


def test_on_axis_depth_profile_matches_brute_force_quadrature() -> None:
    profile = psf_module._intensity(OIL, np.array([0.0, 0.3, 5.0]), np.array([0.0, 2.0]), 0.0)
    k, rho = 2 * np.pi / 0.6, (np.arange(200_000) + 0.5) / 200_000
    root = np.sqrt(1.515**2 - (1.4 * rho) ** 2)
    for row, z in enumerate((0.0, 2.0)):
        for column, r in enumerate((0.0, 0.3, 5.0)):
            wave = np.mean(j0(k * 1.4 * r * rho) * np.exp(1j * k * z * root) * rho)
            assert profile[row, column] == pytest.approx(abs(wave) ** 2, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize(("optics", "voxel"), [(AIR, VOXEL), (OIL, (0.25, 0.1, 0.1))])
def test_symmetric_positive_and_sum_one(optics: Optics, voxel: tuple[float, float, float]) -> None:
    psf = gibson_lanni(optics, voxel, 17)
    assert psf.dtype == np.float32
    assert all(size % 2 for size in psf.shape)
    assert psf.min() >= 0
    assert float(psf.sum()) == pytest.approx(1, abs=1e-5)
    for axis in range(3):
        np.testing.assert_allclose(psf, np.flip(psf, axis), rtol=1e-3, atol=1e-9)
    assert np.unravel_index(psf.argmax(), psf.shape) == tuple(n // 2 for n in psf.shape)


def test_depth_aberrates_and_keeps_the_peak_in_the_middle_plane() -> None:
    shallow, deep = (
        gibson_lanni(AIR, VOXEL, 17, depth_um=depth).astype(np.float64) for depth in (0, 40)
    )
    assert int(deep.max(axis=(1, 2)).argmax()) == 8
    assert deep.max() < 0.8 * shallow.max()
    assert not np.allclose(deep, deep[::-1], rtol=0.05)


@pytest.mark.parametrize("finer", [1, 2, 3])
def test_measured_psf_is_resampled_to_the_data(finer: int) -> None:
    wanted = gibson_lanni(AIR, VOXEL, 9, max_lateral_px=15)
    pitch = (VOXEL[0], VOXEL[1] / finer, VOXEL[2] / finer)
    bead = gibson_lanni(AIR, pitch, 9, max_lateral_px=16 * finer + 31 - 16 * finer % 2)
    psf = measured_psf(np.pad(bead, ((0, 1), (2, 5), (3, 4))), pitch, VOXEL, 9, max_lateral_px=15)
    assert psf.shape[0] == 9
    side = min(psf.shape[1], wanted.shape[1])
    ours, theirs = (
        image[:, cut : cut + side, cut : cut + side].ravel()
        for image, cut in ((i, (i.shape[1] - side) // 2) for i in (psf, wanted))
    )
    assert np.corrcoef(ours, theirs)[0, 1] > 0.99
