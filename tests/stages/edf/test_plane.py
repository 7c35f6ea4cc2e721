"""The stage: mosaic in, one plane and a height map out."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from tests.stages.edf.edf_runs import (
    CPU,
    DECONVOLVED,
    light_of,
    projected,
    run,
    store,
)
from tests.support.mosaics import OPTICS, VOXEL_UM
from tests.support.wavy_stack import PEDESTAL, PLANES, SIZE, psnr, wavy
from tests.support.wiener_scene import scene
from tilewright.errors import ProcessingError
from tilewright.io.results.mosaic import open_mosaic
from tilewright.kernels.backend import Backend
from tilewright.stages.deconvolve.mosaic_psf import mosaic_psf
from tilewright.stages.edf import Method, projections
from tilewright.stages.edf import plane as edf


def test_a_raw_stack_is_projected_by_focus_weighted(tmp_path: Path) -> None:
    stack, truth, height = wavy(1)
    mosaic, heights = projected(tmp_path, stack, chunk_px=64)
    image = mosaic.read(0)
    assert mosaic.shape == (1, SIZE, SIZE)
    assert image.dtype == np.uint16
    assert mosaic.voxel_um == pytest.approx(VOXEL_UM)
    best_plane = max(psnr(plane, truth) for plane in (*stack, stack.max(axis=0)))
    assert psnr(image, truth) > max(best_plane + 4, 30)
    tissue = truth > 100
    # Raw counts over the pedestal, not rescaled.
    assert image[tissue].mean() == pytest.approx(truth[tissue].mean(), rel=0.06)
    found = mosaic.attributes
    assert (found["method"], found["excluded_planes"]) == ("focus_weighted", [])
    assert found["pedestal_counts"] == found["clipped_high"] == 0
    assert found["clipped_low"] < 0.5 * image.size
    assert found["noise_gain"] == pytest.approx(1, rel=0.4)
    assert len(found["plane_usage"]) == PLANES
    assert sum(found["plane_usage"]) == pytest.approx(1, abs=1e-4)
    assert min(found["plane_usage"][2:7]) > 0.05 > max(found["plane_usage"][::8])
    assert heights.shape == (SIZE // 8, SIZE // 8)
    assert heights.dtype == np.float32
    tissue = truth[::8, ::8] > 100
    assert np.median(np.abs(heights - 1.5 * height[::8, ::8])[tissue]) < 0.6


def with_gap() -> NDArray[np.uint16]:
    """Return a stack of no round size with a gap that is wider than what a window sees of it."""
    counts = scene(3)[0].astype(np.uint16)
    stack = np.concatenate([counts, counts[:, :, ::-1], counts], axis=2)[:, :107, :555]
    stack[:, :, 150:430] = int(PEDESTAL)
    stack[:, :31, :40] = int(PEDESTAL)
    return stack


#: Of chunks and tiles, px, and threads; the last one is the first on other threads.
SPLITS = ((96, 1024, 1), (70, 104, 3), (64, 64, 1), (96, 1024, 2))


@pytest.mark.parametrize(
    ("method", "make"),
    [
        ("focus_weighted", lambda: wavy(2)[0]),
        ("sum_projection", lambda: light_of(2)),
        pytest.param(
            "multiplane_wiener", lambda: scene(3)[0].astype(np.uint16), marks=pytest.mark.slow
        ),
        pytest.param("multiplane_wiener", with_gap, marks=pytest.mark.slow),
    ],
)
def test_tiles_and_threads_are_invisible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method, make: Callable[[], Any]
) -> None:
    """The plan is fixed: other chunks are other samples, and the noise would differ."""
    stack = make()
    attributes = DECONVOLVED if method == "sum_projection" else None
    source = open_mosaic(store(tmp_path / "first.zarr", stack, 96, attributes))
    plan = projections.plan_projection(CPU, source, method, OPTICS, None)
    monkeypatch.setattr(edf, "plan_projection", lambda *_: plan)
    results = []
    for chunk_px, tile_px, workers in SPLITS:
        monkeypatch.setattr(edf, "TILE_PX", tile_px)
        backend = dataclasses.replace(CPU, workers=workers)
        options = {"attributes": attributes, "backend": backend, "method": method}
        mosaic, heights = projected(tmp_path, stack, chunk_px, **options)
        results.append((mosaic.read().astype(int), heights, mosaic.attributes["plane_usage"]))
    whole, heights, usage = results[0]
    within = 2e-3 if method == "multiplane_wiener" else 1e-4
    for image, other_heights, other_usage in results[1:3]:
        difference = np.abs(image - whole)
        assert difference.max() <= 2
        assert (difference > 1).sum() <= 1
        assert (difference != 0).mean() < 0.01
        np.testing.assert_allclose(other_heights, heights, atol=0.01)  # µm
        assert other_usage == pytest.approx(usage, abs=within)
    image, other_heights, _ = results[3]
    np.testing.assert_array_equal(image, whole)
    np.testing.assert_array_equal(other_heights, heights)


def test_a_deconvolved_stack_keeps_the_scale_of_the_optics(tmp_path: Path) -> None:
    light = light_of(3)
    share = {}
    for factor in (1, 10):
        brighter = light * np.float32(factor)
        mosaic, _ = projected(tmp_path, brighter, attributes=DECONVOLVED)
        assert mosaic.attributes["method"] == "sum_projection"
        share[factor] = mosaic.attributes["scale"]
        mean = light.sum(0).mean() * factor * share[factor]
        assert mosaic.read().mean() == pytest.approx(mean, rel=0.02)
    # Every plane of a widefield PSF has the same light, and 2 n - 1 planes have a part.
    assert share[1] == share[10] == pytest.approx(1 / (2 * PLANES - 1), rel=0.15)


def test_the_sample_counts_below_the_coverslip_only(tmp_path: Path) -> None:
    mosaic = open_mosaic(store(tmp_path / "in.zarr", light_of(3), 96, DECONVOLVED))
    indices = [{**OPTICS, "sample_refractive_index": index} for index in (None, 1.33, 1.5)]
    at_surface = [mosaic_psf(mosaic, optics, None) for optics in indices]
    assert (at_surface[0] == at_surface[1:]).all()
    deep_down = {**OPTICS, "depth_um": 20.0}
    deep = mosaic_psf(mosaic, deep_down, None)
    assert deep.max() < 0.98 * at_surface[0].max()
    with pytest.raises(ProcessingError, match="sample_refractive_index"):
        mosaic_psf(mosaic, {**deep_down, "sample_refractive_index": None}, None)


def stack_for(method: str) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    counts, truth = scene(1) if method == "multiplane_wiener" else wavy(1)[:2]
    return counts.astype(np.uint16), truth


@pytest.mark.parametrize(
    ("method", "at_least_db"), [("focus_weighted", 28), ("multiplane_wiener", 38)]
)
def test_damaged_planes_are_left_out_of_every_chunk_and_named(
    tmp_path: Path, method: str, at_least_db: float
) -> None:
    stack, truth = stack_for(method)
    stack[0] = 65535
    stack[5] = np.roll(stack[5], (90, 60), (0, 1))
    mosaic, _ = projected(tmp_path, stack, 64, method=method)
    assert [item["z"] for item in mosaic.attributes["excluded_planes"]] == [0, 5]
    assert all(item["reason"] for item in mosaic.attributes["excluded_planes"])
    assert mosaic.attributes["plane_usage"][0] == mosaic.attributes["plane_usage"][5] == 0
    assert psnr(mosaic.read(0).astype(np.float32), truth) > at_least_db


def test_one_plane_passes_through_to_sixteen_bits(tmp_path: Path) -> None:
    plane = wavy(1)[0][4:5]
    plane[0, 0, :2] = 0, 100
    mosaic, heights = projected(tmp_path, plane, chunk_px=64)
    expected = np.maximum(plane[0].astype(int) - int(PEDESTAL), 0)
    np.testing.assert_array_equal(mosaic.read(0), expected)
    assert mosaic.attributes["clipped_low"] == (plane < PEDESTAL).sum() > 0
    assert mosaic.attributes["plane_usage"] == [1.0]
    assert not heights.any()
    light = np.full((1, 64, 64), 100.0, np.float32)
    light[0, 3, 4:9] = 1e6
    mosaic, _ = projected(tmp_path, light, attributes=DECONVOLVED)
    assert mosaic.attributes["clipped_high"] == 5
    assert mosaic.read(0).max() == 65535


@pytest.mark.parametrize("shape", [(4, 5, 11), (PLANES, 96, 96)])
def test_an_empty_channel_is_dark_and_at_mid_stack(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Also of a mosaic smaller than a block, and whatever the method."""
    empty = np.full(shape, int(PEDESTAL), np.uint16)
    for method in ("focus_weighted", "multiplane_wiener"):
        mosaic, heights = projected(tmp_path, empty, method=method)
        assert not mosaic.read().any()
        assert (heights == 1.5 * (shape[0] - 1) / 2).all()
        assert heights.shape == (-(-shape[1] // 8), -(-shape[2] // 8))
        assert mosaic.attributes["undecided_fraction"] == 1
    light = np.zeros(shape, np.float32)
    assert not projected(tmp_path, light, attributes=DECONVOLVED)[0].read().any()


def test_impossible_methods_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source = store(tmp_path / "in.zarr", wavy(1)[0], 64)
    with pytest.raises(ProcessingError, match="has not been deconvolved"):
        run(tmp_path, source, method="sum_projection")
    with pytest.raises(ProcessingError, match="numerical_aperture"):
        run(tmp_path, source, method="multiplane_wiener", optics=None)
    light = store(tmp_path / "light.zarr", light_of(1), 64, DECONVOLVED)
    with pytest.raises(ProcessingError, match="needs the stitched stack"):
        run(tmp_path, light, method="multiplane_wiener")
    broken = np.full((3, 64, 64), np.nan, np.float32)
    with pytest.raises(ProcessingError, match="not finite"):
        run(tmp_path, store(tmp_path / "nan.zarr", broken, 64))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["in.zarr", "light.zarr", "nan.zarr"]


def test_an_interrupted_run_leaves_the_old_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store(tmp_path / "in.zarr", wavy(1)[0], 64)
    before, heights = run(tmp_path, source)
    image = before.read()

    def full_disk(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("tilewright.stages.edf.plane.tifffile.imwrite", full_disk)
    with pytest.raises(OSError, match="no space"):
        run(tmp_path, source)
    np.testing.assert_array_equal(open_mosaic(tmp_path / "out.zarr").read(), image)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out_height.tif"), heights)
    names = ["in.zarr", "out.zarr", "out_height.tif"]
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == names


@pytest.mark.parametrize("method", ["focus_weighted", "multiplane_wiener"])
def test_another_device_agrees(tmp_path: Path, other: Backend, method: str) -> None:
    stack, _ = stack_for(method)
    a, b = (projected(tmp_path, stack, method=method, backend=k)[0].read() for k in (CPU, other))
    assert np.abs(a.astype(int) - b).max() <= 1
