"""The stage with ``multiplane_wiener``: a stitched mosaic in, its in-focus plane out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from tests.stages.edf.edf_runs import CPU, projected, run, store
from tests.support.mosaics import OPTICS
from tests.support.wavy_stack import psnr
from tests.support.wiener_scene import PEDESTAL, PLANES, SIZE, debris_light, fine_psf, scene
from tilewright.io.results.mosaic import open_mosaic
from tilewright.stages.edf import plane as edf
from tilewright.stages.edf.projections import plan_projection

DIRECT: dict[str, Any] = {"method": "multiplane_wiener"}


def counts_of(seed: int, **options: Any) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    counts, truth = scene(seed, **options)
    return counts.astype(np.uint16), truth


def test_the_plane_is_nearer_the_truth_than_focus_weighted(tmp_path: Path) -> None:
    stack, truth = counts_of(2)
    source = store(tmp_path / "in.zarr", stack, 96)
    soft, _ = run(tmp_path, source, "soft", method="focus_weighted")
    mosaic, heights = run(tmp_path, source, **DIRECT)
    image = mosaic.read(0).astype(float)
    assert psnr(image, truth) > psnr(soft.read(0), truth) + 3
    assert image.mean() == pytest.approx(truth.mean(), rel=0.04)
    assert mosaic.shape == (1, SIZE, SIZE)
    assert mosaic.dtype == np.uint16
    found = mosaic.attributes
    assert (found["method"], found["excluded_planes"]) == ("multiplane_wiener", [])
    assert found["pedestal_counts"] == found["clipped_high"] == 0
    assert 0 < found["clipped_low"] < 0.3 * image.size
    assert found["noise_gain"] == pytest.approx(1, rel=0.4)
    assert len(found["plane_usage"]) == PLANES
    assert sum(found["plane_usage"]) == pytest.approx(1, abs=1e-4)
    assert found["undecided_fraction"] < 0.05
    assert found["below_noise"] < 0.004 * image.size
    # The sheet lies between planes 1 and 7 and turns at both.
    assert min(found["plane_usage"][2:7]) > max(found["plane_usage"][::8])
    assert heights.dtype == np.float32
    sheet = 4 + 2.7 * np.sin(2 * np.pi * (np.arange(SIZE) + 40) / 230 + 2)
    bright = truth > np.percentile(truth, 70)
    error = np.abs(heights - 1.5 * sheet[::8, None])[bright[::8, ::8]]
    assert np.median(error) < 0.6


def test_haze_is_left_and_its_share_is_told(tmp_path: Path) -> None:
    shares = {}
    for haze in (0.0, 1.5):
        stack, truth = counts_of(1, haze=haze)
        mosaic, _ = projected(tmp_path, stack, chunk_px=192, **DIRECT)
        shares[haze] = mosaic.attributes["background_share"]
        assert mosaic.read(0).mean() == pytest.approx((1 + haze) * truth.mean(), rel=0.25)
    assert shares[0] < 0.2
    # 0.6 in the mean: the darkest tenth of each place is less.
    assert 0.35 < shares[1.5] < 0.6


def test_dark_grain_is_no_worse_than_after_deconvolution(tmp_path: Path) -> None:
    stack, truth = counts_of(4, photons=60.0, empty=True)
    image = projected(tmp_path, stack, **DIRECT)[0].read(0).astype(float)
    dark = (slice(20, -20), slice(SIZE // 2 + 40, -10))
    assert truth[dark].max() < 1
    # 20 iterations of Richardson-Lucy, in focus again, come to 0.15 counts (raw: 2) and 34 dB.
    assert image[dark].std() < 0.15
    assert psnr(image, truth) > 34


def test_debris_at_borders_of_the_mosaic_and_of_tiles_wear_no_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What continues the mosaic mirrors debris; a tile's window ends beside another."""
    places = ((SIZE - 1, 60), (130, 128))
    tissue = counts_of(2)[0] + np.random.default_rng(3).poisson(150, (PLANES, SIZE, SIZE))
    full = tissue + sum(debris_light(1e5, 3.0, 4, place) for place in places)
    images = []
    for stack, tile_px in ((tissue, 1024), (full, 1024), (full, 128)):
        pixels = np.minimum(stack, 65535).astype(np.uint16)
        source = store(tmp_path / "in.zarr", pixels, 96)
        if tile_px == 1024:
            plan = plan_projection(CPU, open_mosaic(source), "multiplane_wiener", OPTICS, None)
        with monkeypatch.context() as patch:
            patch.setattr(edf, "plan_projection", lambda *_, plan=plan: plan)
            patch.setattr(edf, "TILE_PX", tile_px)
            images.append(run(tmp_path, source, **DIRECT)[0].read(0).astype(float))
    clean, whole, tiled = images
    y, x = np.mgrid[:SIZE, :SIZE]
    for place in places:
        away = np.hypot(y - place[0], x - place[1])
        for first in range(20, 44, 4):
            ring = (away >= first) & (away < first + 4)
            assert np.median(whole[ring]) == pytest.approx(np.median(clean[ring]), rel=0.1)
    # At borders planes are mixed by the focus of the stack with its debris, in float32.
    assert np.abs(tiled - whole).max() <= 2


def test_what_was_not_seen_is_dark_and_does_not_darken_what_was(tmp_path: Path) -> None:
    stack, truth = counts_of(2)
    gap = (slice(None), slice(0, 70))
    stack[:, *gap] = int(PEDESTAL)
    mosaic, heights = projected(tmp_path, stack, **DIRECT)
    image = mosaic.read(0).astype(float)
    assert not image[gap].any()
    near = (slice(16, -16), slice(72, 100))
    assert image[near].mean() == pytest.approx(truth[near].mean(), rel=0.08)
    assert np.corrcoef(image[near].ravel(), truth[near].ravel())[0, 1] > 0.97
    assert mosaic.attributes["undecided_fraction"] == pytest.approx(70 / SIZE, abs=0.05)
    # Mid-stack.
    assert (heights[:, :8] == 1.5 * (PLANES - 1) / 2).all()


def test_saturated_pixels_keep_their_counts(tmp_path: Path) -> None:
    stack, _ = counts_of(3)
    y, x = np.mgrid[:SIZE, :SIZE] - 96
    blob = 4e5 * np.exp(-0.5 * (np.hypot(y, x) / 5) ** 2)
    stack = np.minimum(stack + blob, 65535).astype(np.uint16)
    saturated = (stack == 65535).all(axis=0)
    mosaic, _ = projected(tmp_path, stack, **DIRECT)
    assert saturated.sum() > 100
    np.testing.assert_allclose(mosaic.read(0)[saturated], 65535 - PEDESTAL, rtol=0.02)
    told = {"saturated_from_counts": 30_000}
    mosaic, _ = projected(tmp_path, np.minimum(stack, 30_000), attributes=told, **DIRECT)
    np.testing.assert_allclose(mosaic.read(0)[saturated], 30_000 - PEDESTAL, rtol=0.02)


def test_two_planes_are_enough_and_one_passes_through(tmp_path: Path) -> None:
    stack = counts_of(1)[0]
    light = np.maximum(stack[4].astype(int) - int(PEDESTAL), 0)
    alone, _ = projected(tmp_path, stack[4:5], **DIRECT, optics=None)
    np.testing.assert_array_equal(alone.read(0), light)
    pair = np.stack([stack[4], np.full_like(stack[4], 65535)])
    one, _ = projected(tmp_path, pair, **DIRECT)
    assert [item["z"] for item in one.attributes["excluded_planes"]] == [1]
    np.testing.assert_array_equal(one.read(0), light)
    mosaic, _ = projected(tmp_path, stack[3:5], **DIRECT)
    assert mosaic.attributes["method"] == "multiplane_wiener"
    assert mosaic.read(0).mean() == pytest.approx(stack[3:5].mean() - PEDESTAL, rel=0.1)


def test_a_mosaic_smaller_than_a_block_and_one_of_grain(tmp_path: Path) -> None:
    stack = counts_of(1)[0]
    small, heights = projected(tmp_path, stack[:, 90:101, 80:121], chunk_px=64, **DIRECT)
    assert small.attributes["method"] == "multiplane_wiener"
    assert small.read(0).std() > 10
    assert heights.shape == (2, 6)
    grain = np.random.default_rng(0).normal(PEDESTAL + 20, 5, (PLANES, 96, 96))
    noise, _ = projected(tmp_path, grain.astype(np.uint16), **DIRECT)
    assert noise.attributes["undecided_fraction"] > 0.95


def test_a_measured_psf_is_used_instead(tmp_path: Path) -> None:
    stack, truth = counts_of(1)
    source = store(tmp_path / "in.zarr", stack, 96)
    middle = len(fine_psf()) // 2
    # A bead at the mosaic's step, over fewer planes than the stack has.
    tifffile.imwrite(tmp_path / "bead.tif", fine_psf()[middle - 8 : middle + 9 : 2])
    wrong = np.zeros((9, 9, 9), np.float32)
    wrong[4, 4, 4] = 1
    tifffile.imwrite(tmp_path / "wrong.tif", wrong)
    scores = []
    for name in ("bead.tif", "wrong.tif"):
        options = DIRECT | {"optics": None, "psf_file": tmp_path / name}
        scores.append(psnr(run(tmp_path, source, name, **options)[0].read(0), truth))
    assert scores[0] > 40
    assert scores[1] < scores[0] - 3
