from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from benchmarks.scenes.array_tiles import ArrayTiles
from tests.stages.stitch.stitch_runs import (
    SIZE,
    VOXEL_UM,
    illumination,
    make_tiles,
    positions_of,
    run,
)
from tests.support.runs import digests
from tilewright.errors import ProcessingError
from tilewright.io.results.illumination import Illumination
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.stitch.blending import fuse, make_correction, tile_span


def test_chunks_give_what_one_piece_gives(tmp_path: Path, cpu: Backend) -> None:
    tiles, light = make_tiles(), illumination()
    correction = make_correction(cpu, light.flat, light.dark, light.pedestal)
    height, width = tiles.shape[1:]
    spans = [(tile_span(y, height), tile_span(x, width)) for y, x in tiles.nominal_px]
    for chunk_px in (32, 64, 256):
        mosaic = run(tiles, tmp_path / f"{chunk_px}.zarr", chunk_px=chunk_px)
        for z in range(2):
            stack, shape = list(tiles.stack[:, z]), (mosaic.shape[1], mosaic.shape[2])
            feather_px = mosaic.attributes["feather_px"]
            expected, _, _ = fuse(
                cpu, stack, spans, correction, (0, 0), shape, feather_px=feather_px
            )
            np.testing.assert_array_equal(mosaic.read(z), expected)


def test_attributes_and_voxels(tmp_path: Path) -> None:
    tiles = make_tiles()
    tiles.stack[0, 1, 20:24, 20:23] = 65535
    tiles.stack[3, 0, 0, :2] = 65000
    mosaic = run(tiles, tmp_path / "m.zarr", saturation_counts=65000)
    assert mosaic.voxel_um == VOXEL_UM
    assert mosaic.dtype == np.uint16
    assert mosaic.attributes["pedestal_counts"] == 100
    light = illumination()
    least = np.percentile((65000 - light.dark) / light.flat, 0.1) + light.pedestal
    assert mosaic.attributes["saturated_from_counts"] == int(least)
    dark = run(make_tiles(), tmp_path / "dark.zarr")
    assert dark.attributes["saturated_from_counts"] is None
    assert mosaic.attributes["clipped_low"] > 0
    assert 7 < mosaic.attributes["feather_px"] < 15


def test_positions_are_matched_by_name(tmp_path: Path) -> None:
    tiles = make_tiles()
    straight = run(tiles, tmp_path / "a.zarr")
    mixed = run(tiles, tmp_path / "b.zarr", positions_of(tiles, np.arange(12)[::-1]))
    np.testing.assert_array_equal(straight.read(), mixed.read())


def test_outside_the_tiles_is_the_pedestal(tmp_path: Path) -> None:
    tiles = make_tiles(2, 2, 1)
    tiles = ArrayTiles(tiles.stack[:3], tiles.row[:3], tiles.col[:3], tiles.nominal_px[:3])
    mosaic = run(tiles, tmp_path / "m.zarr", chunk_px=16)
    assert (mosaic.read(0, slice(75, None), slice(80, None)) == 100).all()
    assert not list((tmp_path / "m.zarr" / "0" / "0" / "6").glob("7"))


def test_same_tiles_same_bytes(tmp_path: Path) -> None:
    for workers in (1, 2, 3):
        run(make_tiles(), tmp_path / str(workers) / "m.zarr", backend=cpu_backend(workers))
    one, two, three = (digests(tmp_path / str(workers)) for workers in (1, 2, 3))
    assert one == two == three
    assert one


def test_a_tile_that_cannot_be_read_fails_the_job(tmp_path: Path) -> None:
    class Broken(ArrayTiles):
        def read(self, tile: int, z: int) -> Any:
            if (tile, z) == (7, 1):
                raise OSError("tile 7 is truncated")
            return super().read(tile, z)

    with pytest.raises(OSError, match="truncated"):
        run(Broken(**vars(make_tiles())), tmp_path / "m.zarr")
    assert not list(tmp_path.iterdir())


def test_hot_camera_pixels_are_replaced(tmp_path: Path) -> None:
    clean, hot = make_tiles(), make_tiles()
    hot.stack[..., 9, 12] = 60_000
    expected = run(clean, tmp_path / "clean.zarr", defects=[])
    assert expected.attributes["repaired_camera_px"] == 0
    repaired = run(hot, tmp_path / "repaired.zarr", defects=[9 * SIZE[1] + 12])
    assert repaired.attributes["repaired_camera_px"] == 1
    kept = run(hot, tmp_path / "kept.zarr")
    assert kept.attributes["repaired_camera_px"] is None
    wrong = [np.abs(m.read().astype(float) - expected.read()).max() for m in (repaired, kept)]
    assert wrong[0] < 0.05 * wrong[1]


def test_misfits_are_named(tmp_path: Path) -> None:
    tiles = make_tiles()
    with pytest.raises(ProcessingError, match="tile 11 "):
        run(tiles, tmp_path / "m.zarr", positions_of(tiles, slice(11)))
    light = illumination()
    short, below = replace(light, flat=light.flat[1:]), replace(light, pedestal=-5.0)
    bad = {"flat-field has shape": short, "median is -5 counts": below}
    for message, field in bad.items():
        with pytest.raises(ProcessingError, match=message):
            run(tiles, tmp_path / "m.zarr", illumination=field)
    assert not list(tmp_path.iterdir())


def test_another_device_stitches_the_same(tmp_path: Path, other: Backend) -> None:
    tiles = make_tiles()
    here, there = (run(tiles, tmp_path / f"{k}.zarr", backend=b).read().astype(int)
                   for k, b in enumerate((cpu_backend(2), other)))  # fmt: skip
    assert np.abs(here - there).max() <= (other.device == "gpu")


def test_a_channel_that_the_optics_displace_is_placed_back(tmp_path: Path) -> None:
    # The other channel's tiles show the specimen 1.25 px lower and 0.75 px further left.
    rng = np.random.default_rng(4)
    scene = ndimage.gaussian_filter(rng.random((400, 400)), 2) * 60_000
    places = [(y, x) for y in (20.0, 150.0) for x in (20.0, 150.0)]

    def tiles_of(shift_px: tuple[float, float]) -> ArrayTiles:
        """Return tiles of 160 px, read off the scene by a Fourier shift."""
        moved = ndimage.fourier_shift(np.fft.fft2(scene), shift_px)
        light = np.rint(np.fft.ifft2(moved).real).astype(np.uint16)
        stack = [light[int(y) :, int(x) :][:160, :160] for y, x in places]
        row, col = np.divmod(np.arange(4), 2)
        return ArrayTiles(np.stack(stack)[:, None], row, col, np.array(places))

    even = Illumination.from_fields(np.ones((160, 160)), 0.0)
    options = {"illumination": even}
    first = run(tiles_of((0, 0)), tmp_path / "1.zarr", **options)
    second = run(tiles_of((1.25, -0.75)), tmp_path / "2.zarr", shift_px=(1.25, -0.75), **options)
    assert second.shape == first.shape
    assert second.attributes["shift_px"] == [1.25, -0.75]
    inner = slice(4, -4), slice(4, -4)
    error = second.read(0)[inner].astype(float) - first.read(0)[inner]
    spread = first.read(0)[inner].std()
    assert np.abs(error).max() < 0.1 * spread
    left = run(tiles_of((1.25, -0.75)), tmp_path / "3.zarr", **options)
    assert np.abs(left.read(0)[inner].astype(float) - first.read(0)[inner]).max() > 0.5 * spread


def test_padding_is_no_light(tmp_path: Path) -> None:
    """Where another tile shows the place its pixels are used, elsewhere there is no light."""
    tiles = replace(make_tiles(), nominal_px=np.round(make_tiles().nominal_px))
    smooth = np.linspace(900.0, 1100.0, SIZE[1])[None, None, None]
    tiles = replace(tiles, stack=np.broadcast_to(smooth, tiles.stack.shape).astype(np.uint16))
    flat = illumination()
    flat = replace(flat, flat=np.ones_like(flat.flat))
    whole = run(tiles, tmp_path / "whole.zarr", illumination=flat).read(0)
    padded = replace(tiles, stack=tiles.stack.copy())
    padded.stack[4, :, :, :5] = 0  # in the middle: below tile 3
    padded.stack[0, :, :6] = 0  # at the upper border of all
    mosaic = run(padded, tmp_path / "padded.zarr", illumination=flat).read(0)
    y, x = (int(v) for v in tiles.nominal_px[0])
    lost = (mosaic == 100) & (whole != 100)
    assert lost[y : y + 6, x : x + 40].all()
    assert lost.sum() < 8 * SIZE[1]
    assert mosaic[mosaic != 100].min() >= 899
    y, x = (int(v) for v in tiles.nominal_px[4])
    at = np.s_[y + 20 : y + 40, x : x + 5]
    assert (mosaic[at] > 1000).all()  # of tile 3 alone, whose right side is brighter
