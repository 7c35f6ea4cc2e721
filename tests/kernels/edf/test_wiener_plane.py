"""The multi-plane Wiener plane against the truth of stacks that a simulated microscope took."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import fft, ndimage

from tests.support.wavy_stack import psnr
from tests.support.wiener_scene import ALL, NOISE, PEDESTAL, SIZE, fine_psf, prepare, sample, scene
from tilewright.kernels.backend import Backend
from tilewright.kernels.edf import (
    channel_model,
    transfer,
    wiener_filters,
    wiener_finish,
    wiener_plane,
)
from tilewright.kernels.edf.focus import focus_weighted
from tilewright.kernels.edf.focus_maps import FocusMaps
from tilewright.kernels.pooling import downsample_mean

#: Of a transfer profile, cycles per pixel.
RADIUS = np.linspace(0, np.sqrt(0.5), 129)


def frequency(size: int) -> Any:
    return np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size))


def test_filters_weigh_the_noise_as_wieners_does() -> None:
    """Where all planes show the light alike, each of k has the filter S / (k S + N)."""
    planes, noise, levels = 3, 400.0, wiener_filters.NOISE_LEVELS
    power = 1e5 * np.exp(-12 * RADIUS)
    profiles = np.ones((2 * transfer.FINE * (planes - 1) + 1, RADIUS.size))
    channel = channel_model.ChannelModel(profiles, np.ones(planes, bool), power, noise)
    ridge = levels[:, None] * noise / power + wiener_filters._MODEL_ERROR
    expected = (planes / (planes + ridge) ** 2) @ (2 * np.pi * RADIUS * RADIUS[1])
    found = wiener_filters.make_filters(channel).noise
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-5)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_plane_is_near_the_truth_in_raw_counts(cpu: Backend, seed: int) -> None:
    counts, truth, *_ = seen = sample(seed)
    soft = focus_weighted(cpu, counts, NOISE, PEDESTAL, ALL).image
    assert seen.psnr > psnr(soft, truth) + 3
    assert np.maximum(seen.plane, 0).mean() == pytest.approx(truth.mean(), rel=0.05)


def test_height_and_winner_follow_the_sheet_and_nothing_wins_in_noise() -> None:
    counts, truth, prepared, _ = sample(1)
    _, found = prepared.whole(counts)
    rows = np.arange(SIZE).reshape(-1, 4).mean(axis=1) + 40
    sheet = 4 + 2.7 * np.sin(2 * np.pi * rows / 230 + 1)[:, None]
    bright = ndimage.zoom(truth, 0.25, order=1) > np.percentile(truth, 70)
    inner = np.zeros_like(bright)
    inner[6:-6, 6:-6] = bright[6:-6, 6:-6]
    assert np.abs(found.height - sheet)[inner].mean() < 0.4
    assert np.abs(found.sharpest - sheet)[inner & (found.sharpest >= 0)].mean() < 0.6
    assert (found.sharpest[inner] >= 0).mean() > 0.95
    np.testing.assert_allclose(found.weights.sum(axis=0), 1, rtol=1e-5)
    rng = np.random.default_rng(0)
    noise = rng.poisson(20, counts.shape) + rng.normal(PEDESTAL, 2, counts.shape)
    _, empty = prepared.whole(noise.astype(np.float32))
    assert (empty.sharpest < 0).mean() > 0.95
    assert float(empty.image.mean()) == pytest.approx(20, rel=0.06)


@pytest.mark.slow
def test_dark_grain_is_no_worse_than_after_deconvolution(cpu: Backend) -> None:
    counts, truth = scene(4, 60.0, empty=True)
    prepared = prepare(cpu, counts)
    variance = prepared.whole(counts)[1].variance
    image = wiener_finish.finish(cpu, prepared.plane(counts), variance)
    dark = (slice(20, -20), slice(SIZE // 2 + 40, -10))
    assert truth[dark].max() < 1
    # 20 iterations of Richardson-Lucy, in focus again, come to 0.15 counts (raw: 2) and 34 dB.
    assert image[dark].std() < 0.15
    assert psnr(image, truth) > 34


def test_finishing_takes_grain_and_keeps_light(cpu: Backend) -> None:
    truth = np.zeros((96, 96), np.float32)
    truth[20:50, 20:50] = 40
    grain = ndimage.gaussian_filter(np.random.default_rng(5).normal(0, 12, truth.shape), 1)
    noisy = truth + grain.astype(np.float32)
    image = wiener_finish.finish(cpu, noisy, np.full((24, 24), grain.var(), np.float32))
    assert image.mean() == pytest.approx(noisy.mean(), rel=0.05)
    assert image[70:].std() < 0.4 * np.maximum(noisy, 0)[70:].std()
    assert image[25:45, 25:45].mean() == pytest.approx(40, rel=0.05)
    assert image.min() >= 0


def test_variance_is_that_of_the_noise() -> None:
    counts, _, prepared, _ = sample(1)
    rng = np.random.default_rng(3)
    again = [counts + rng.normal(0, 10, counts.shape).astype(np.float32) for _ in range(6)]
    # The same weights for all: noise of 10 counts hardly moves them.
    maps, found = prepared.whole(counts)
    images = np.stack([prepared.whole(stack)[1].image for stack in again])
    scatter = images.var(axis=0, ddof=1)[20:-20, 20:-20].mean()
    light = counts.mean(axis=0) - PEDESTAL
    expected = found.variance.mean() * 100 / NOISE.variance(light).mean()
    assert maps.planes == list(range(len(ALL)))
    assert scatter == pytest.approx(expected, rel=0.5)


@pytest.mark.parametrize("z", [0, 4])
def test_a_plane_left_out_has_no_part(cpu: Backend, z: int) -> None:
    counts, truth, *_ = whole = sample(2)
    plane_mask, spoiled = ALL.copy(), counts.copy()
    plane_mask[z], spoiled[z] = False, 60000
    images = [prepare(cpu, stack, plane_mask).plane(stack) for stack in (counts, spoiled)]
    np.testing.assert_array_equal(images[0], images[1])
    assert psnr(np.maximum(images[0], 0), truth) > whole.psnr - 3
    assert images[0].mean() == pytest.approx(truth.mean(), rel=0.06)


@pytest.mark.parametrize("cut", [64, 100])
def test_tiles_agree_with_the_whole(cut: int) -> None:
    counts, _, prepared, whole = sample(3)
    parts = [prepared.plane(counts, rows) for rows in (slice(0, cut), slice(cut, SIZE))]
    assert np.abs(np.concatenate(parts) - whole).max() < 1


def test_few_ranks_are_as_good_as_all(cpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, truth, few, _ = seen = sample(1)
    monkeypatch.setattr(wiener_filters, "_RANK_LOSS", 1e-9)
    monkeypatch.setattr(wiener_filters, "_MOST_RANK", 60)
    all_of_them = prepare(cpu, counts)
    assert few.filters.rank <= 14 < 20 < all_of_them.filters.rank
    assert seen.psnr > psnr(np.maximum(all_of_them.plane(counts), 0), truth) - 0.2


@pytest.mark.parametrize(("seed", "haze"), [(1, 1.5), (2, 1.2), (3, 2.5)])
def test_haze_is_taken_out_and_tissue_is_none(cpu: Backend, seed: int, haze: float) -> None:
    counts, truth, prepared, image = hazy = sample(seed, haze)
    share = prepared.haze_share(counts)
    assert share > 0.9
    floor = wiener_finish.estimate_background(cpu, downsample_mean(image))
    variance = prepared.whole(counts)[1].variance
    clear = wiener_finish.finish(cpu, image, variance, floor, share)
    assert psnr(clear, truth) > hazy.psnr + 3
    # Nearly all of the haze is gone, and little else.
    assert abs(float(clear.mean() - truth.mean())) < 0.15 * haze * truth.mean()
    plane = wiener_finish.finish(cpu, image, variance, floor, 0.0)
    assert plane.mean() == pytest.approx(image.mean(), rel=0.01)
    plain = sample(seed)
    assert plain.prepared.haze_share(plain.counts) == 0


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


def test_unseen_pixels_do_not_count_as_dark() -> None:
    counts, truth, prepared, whole = sample(2)
    seen = np.ones((SIZE, SIZE), bool)
    seen[:, :60] = False
    hidden = np.where(seen, counts, np.float32(PEDESTAL))
    near, far = ((slice(20, -20), columns) for columns in (slice(60, 90), slice(150, -20)))
    masked, unmasked = (prepared.plane(hidden, seen=mask) for mask in (seen, None))
    error, without = (np.abs(image[near] - truth[near]).mean() for image in (masked, unmasked))
    assert error < 0.7 * without
    np.testing.assert_allclose(masked[far], whole[far], atol=2)


def test_fill_mirrors_what_was_seen() -> None:
    stack = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    seen = np.ones((3, 8), bool)
    seen[:, 5:] = False
    out = wiener_finish.fill(stack.copy(), seen)
    np.testing.assert_array_equal(out, stack[:, :, [0, 1, 2, 3, 4, 3, 2, 1]])
    assert wiener_finish.fill(stack, np.ones_like(seen)) is stack


def test_saturation_leaves_no_dark_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, _, prepared, _ = sample(3)
    reach = np.hypot(*(np.mgrid[:SIZE, :SIZE] - 96))
    blob = 40000 * np.exp(-0.5 * (reach / 5) ** 2)
    clipped = np.minimum(counts + blob.astype(np.float32), 4000)
    saturated = (clipped >= 4000).any(axis=0)
    image = prepared.plane(clipped, saturated=saturated)
    # The fallback to ``focus_weighted`` would hide the dark ring.
    monkeypatch.setattr(wiener_plane, "_FALLBACK", (2.0, 3.0))
    plain = prepared.plane(clipped)
    np.testing.assert_allclose(image[saturated], 4000 - PEDESTAL, rtol=0.06)
    assert np.abs(plain[saturated] - 3900).max() > 200
    assert np.isfinite(image).all()
    assert image[(reach > 22) & (reach < 40)].min() > -0.08 * 3900


def test_trust_falls_towards_what_was_not_seen() -> None:
    border = np.full((40, 40), 50, np.float32)
    assert wiener_finish.confidence_weight(border).min() == 1
    seen = np.ones((40, 40), bool)
    seen[:, 30:] = False
    trust = wiener_finish.confidence_weight(border, seen)
    assert (trust[:, :22] == 1).all()
    assert (np.diff(trust[0]) <= 0).all()
    assert (trust[:, 30:] == 0).all()
    spot = np.zeros((40, 40), bool)
    spot[20, 20] = True
    assert wiener_finish.confidence_weight(border, saturated=spot)[20, 14:27].max() < 0.1
    border[:] = np.arange(40)
    assert wiener_finish.confidence_weight(border)[0, 0] == pytest.approx(0.5 / 8)


def test_kernels_have_the_profiles_of_their_filters(cpu: Backend) -> None:
    kernels = wiener_filters._kernels(np.exp(-0.5 * (RADIUS / 0.1) ** 2)[None, None])
    mixing = np.ones((2, 1, 5, 1), np.float32)
    filters = wiener_filters.Filters(kernels.astype(np.float32), mixing, mixing[..., 0])
    grid = filters.on_grid(cpu, (96, 240))[0, 0]
    square = np.fft.fftfreq(96)[:49, None] ** 2 + np.fft.rfftfreq(240) ** 2
    np.testing.assert_allclose(grid, np.exp(-0.5 * square / 0.01), atol=2e-3)
    assert grid[0, 0] == pytest.approx(1, abs=1e-5)


def test_transfer_profiles_are_the_transforms_of_the_planes() -> None:
    at = np.arange(-30, 31)
    sigmas = np.array([3.0, 1.5, 1.0, 1.5, 3.0])[:, None, None]
    psf = np.exp(-0.5 * (at[:, None] ** 2 + at**2) / sigmas**2) / sigmas**2
    profiles = transfer.transfer_profiles(psf)
    wanted = np.exp(-2 * (np.pi * sigmas[:, 0] * RADIUS) ** 2)
    np.testing.assert_allclose(profiles[:, :80], wanted[:, :80], atol=1e-3)


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


def test_power_that_neighbours_do_not_share_falls_on() -> None:
    power = 1e6 * (np.arange(129) + 1.0) ** -2
    told = np.arange(129) < 50
    wrong = np.where(told, power, 1e6)
    error, modes = 1e-3 * wrong, np.full(129, 1000.0)
    found = channel_model._with_tail(wrong, error, modes, told)
    np.testing.assert_allclose(found[3:50], power[3:50])
    assert (found[50:] < 1.1 * power[50]).all()
    slope = np.polyfit(np.log(RADIUS[50:]), np.log(found[50:]), 1)[0]
    assert slope == pytest.approx(-4, abs=0.3)
    everywhere = channel_model._with_tail(wrong, error, modes, np.ones(129, bool))
    assert everywhere[60] == pytest.approx(1e6)


def test_another_device_agrees(cpu: Backend, other: Backend) -> None:
    counts, _, _, wanted = sample(1)
    # The pretended device takes either's way.
    for device in (other, replace(other, device="gpu")):
        image = prepare(device, counts).plane(counts)
        assert np.linalg.norm(image - wanted) < 1e-3 * np.linalg.norm(wanted)
        if other.device == "cpu":
            np.testing.assert_allclose(image, wanted, atol=0.1)
    finished = []
    for device in (cpu, other):
        image = device.asarray(wanted)
        floor = wiener_finish.estimate_background(device, downsample_mean(image))
        variance = device.asarray(np.full([n // 4 for n in wanted.shape], 9.0))
        found = wiener_finish.finish(device, image, variance, floor, 0.5)
        finished.append(device.to_numpy(found))
    np.testing.assert_allclose(finished[0], finished[1], atol=1e-3)
    assert 0 <= prepare(other, counts).haze_share(counts) <= 1


def test_refuses_what_it_cannot_use(cpu: Backend) -> None:
    counts, _, prepared, _ = sample(1)
    channel, profiles = prepared.channel, prepared.channel.profiles
    first_left_out = replace(channel, plane_mask=np.arange(len(ALL)) > 0)
    maps = FocusMaps(cpu, first_left_out, NOISE, PEDESTAL, (96, 96))
    whole, found = prepared.whole(counts)
    make, power = wiener_filters.make_filters, channel_model.object_power
    for said, call, *arguments in (
        ("a stack of 9 needs", make, replace(channel, profiles=profiles[16:-16])),
        ("no plane", make, replace(channel, plane_mask=~ALL)),
        ("two planes", power, cpu, [counts], profiles, np.arange(len(ALL)) == 3),
        ("too small", power, cpu, [counts[:, :40]], profiles, ALL),
        ("odd", transfer.transfer_profiles, np.ones((4, 5, 5))),
        ("sum", transfer.transfer_profiles, np.zeros((5, 5, 5))),
        ("multiples of 8", prepared.wiener_plane, [100, 96]),
        ("but windows are", prepared.wiener_plane([96, 96]).project, counts),
        ("other planes", wiener_plane.WienerPlane, maps, prepared.filters),
        ("too small", wiener_finish.haze_moments, whole, counts, found),
    ):
        with pytest.raises(ValueError, match=said):
            call(*arguments)
