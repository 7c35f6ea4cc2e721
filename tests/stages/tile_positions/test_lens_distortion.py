"""Positions and mosaics of tiles seen through a lens of known distortion, and through none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from tests.support.array_tiles import ArrayTiles
from tests.support.lens_tiles import OFFSET, SIZE, Floats, even_light, lens_tiles, scale_of
from tilewright.io.results.distortion import (
    read_distortion,
)
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.reading import ResultFileError, read_json
from tilewright.kernels.backend import Backend
from tilewright.report.quality.overlaps import compare_tiles
from tilewright.stages.stitch.fuse import StitchError, stitch
from tilewright.stages.tile_positions.locate import LocatedTiles, locate, write_located

CORNER_PX = 2.0
#: Of an overlap of 12 %.
MEETING = 0.88
GRIDS = {"2 x 2": (2, 2), "3 x 3": (3, 3), "1 x 4": (1, 4), "3 x 5": (3, 5)}


def placed(tiles: ArrayTiles, backend: Backend, distortion: str = "auto") -> LocatedTiles:
    assert distortion in ("auto", "none")
    off = {"distortion": "none"} if distortion == "none" else {}
    return locate(tiles, even_light(), backend=backend, **off)  # type: ignore[arg-type]


def used(found: LocatedTiles) -> bool:
    return found.distortion is not None and found.distortion.used


def squared_error(found: LocatedTiles, true: Floats, scale: float) -> float:
    """Return the mean square error of the tiles of the main island, px²."""
    main = found.positions.island == 0
    error = (found.yx_px - true / scale)[main]
    return float(np.mean((error - error.mean(axis=0)) ** 2))


@pytest.mark.parametrize("empty", [0.0, 0.4], ids=["full", "sparse"])
@pytest.mark.parametrize("name", GRIDS)
def test_positions_are_as_good_as_without_distortion(
    cpu: Backend, tmp_path: Path, name: str, empty: float
) -> None:
    shape, scale = GRIDS[name], scale_of(CORNER_PX, MEETING)
    good, corrected, raw = [], [], []
    for seed in (41, 42) if name == "3 x 5" else (41, 42, 43):
        even, true, _ = lens_tiles(seed, *shape, 0.0, empty=empty)
        bent, _, _ = lens_tiles(seed, *shape, CORNER_PX, empty=empty)
        plain, same = placed(even, cpu), placed(even, cpu, "none")
        assert not used(plain)
        for folder, found in (("auto", plain), ("none", same)):
            write_located(tmp_path / folder, found)
        for file in ("positions.csv", "edges.csv", "TileConfiguration.txt"):
            assert (tmp_path / "auto" / file).read_bytes() == (
                tmp_path / "none" / file
            ).read_bytes()
        found, uncorrected = placed(bent, cpu), placed(bent, cpu, "none")
        if np.count_nonzero(uncorrected.edges.accepted) < 2:
            assert not used(found), "a single overlap cannot be held out"
            continue
        assert used(found)
        assert found.distortion is not None
        assert found.distortion.distortion.corner_px == pytest.approx(CORNER_PX, abs=0.25)
        good.append(squared_error(plain, true, 1.0))
        corrected.append(squared_error(found, true, scale))
        raw.append(squared_error(uncorrected, true, scale))
    assert len(good) >= 2
    # Two or three overlaps know the field to 5 % only.
    allowed = 2.5 if name == "1 x 4" else 1.5
    assert np.mean(corrected) <= allowed**2 * np.mean(good)
    assert np.mean(corrected) < 0.4**2 * np.mean(raw)


def test_rows_may_lie_as_bricks_do(cpu: Backend) -> None:
    tiles, _, light = lens_tiles(54, 4, 4, 0.0)
    moved = tiles.nominal_px + np.stack([0 * tiles.row, 90.0 * (tiles.row % 2)], axis=1)
    canvas = np.pad(light, ((0, 0), (0, 120)), mode="reflect")
    places = np.rint(moved).astype(int)
    stack = np.stack([canvas[y : y + SIZE, x : x + SIZE] for y, x in places])[:, None]
    noise = np.random.default_rng(0).normal(OFFSET, 3.0, stack.shape)
    bricks = ArrayTiles((stack + noise).astype(np.float32), tiles.row, tiles.col, moved)
    found = placed(bricks, cpu)
    assert found.distortion is not None
    assert not found.distortion.used
    assert found.distortion.blocks > 5 * found.distortion.overlaps
    assert squared_error(found, places.astype(np.float64), 1.0) < 0.02**2


def mosaic_of(
    folder: Path, tiles: ArrayTiles, found: LocatedTiles, backend: Backend, name: str
) -> Floats:
    write_located(folder, found)
    stitch(
        tiles,
        found.positions,
        even_light(),
        folder / f"{name}.zarr",
        backend=backend,
        voxel_um=(1.0, 0.5, 0.5),
        chunk_px=256,
        feather_px=None,
        distortion=read_distortion(folder / "distortion.json"),
    )
    image = open_mosaic(folder / f"{name}.zarr")
    return np.asarray(image.read(0, *(slice(0, n) for n in image.shape[1:])), np.float64)


def misfit(image: Floats, light: Floats, true: Floats, found: LocatedTiles, scale: float) -> float:
    """Return the noise-free error of a mosaic around the corners of tiles, over the contrast.

    Where four tiles meet, each shows its corner.
    """
    shift = true.mean(axis=0) / scale - found.yx_px.mean(axis=0)
    errors, contrast = [], []
    middle = (SIZE - 1) / 2
    for y, x in found.yx_px[: len(true) // 2]:
        near = np.mgrid[y + SIZE - 40 : y + SIZE + 8, x + SIZE - 40 : x + SIZE + 8]
        near = np.rint(near)
        if near[1].max() > image.shape[1] - 4:
            continue
        # The mosaic's middle of a tile is the specimen's: its scale is about it.
        place = (near + (shift - middle + middle / scale)[:, None, None]) * scale
        truth = ndimage.map_coordinates(light, place, order=3)
        shown = image[tuple(near.astype(int))] - OFFSET
        errors.append(ndimage.gaussian_filter(shown - truth, 1.0))
        contrast.append(ndimage.gaussian_filter(truth, 1.0))
    return float(np.std(errors) / np.std(contrast))


def test_mosaics_are_free_of_distortion(cpu: Backend, guarded: Backend, tmp_path: Path) -> None:
    scale = scale_of(CORNER_PX, MEETING)
    even, true, light = lens_tiles(51, 3, 3, 0.0)
    bent, _, _ = lens_tiles(51, 3, 3, CORNER_PX)
    misfits: dict[str, float] = {}
    for name, tiles, mode, over in (
        ("even", even, "auto", 1.0),
        ("freed", bent, "auto", scale),
        ("bent", bent, "none", scale),
    ):
        found = placed(tiles, cpu, mode)
        image = mosaic_of(tmp_path / name, tiles, found, cpu, name)
        misfits[name] = misfit(image, light, true, found, over)
    # What noise and interpolation leave is in the mosaic without distortion too.
    left, gone = (misfits[name] ** 2 - misfits["even"] ** 2 for name in ("freed", "bent"))
    assert misfits["freed"] < 1.2 * misfits["even"]
    assert left < 0.2 * gone
    attributes = open_mosaic(tmp_path / "freed" / "freed.zarr").attributes
    assert attributes["distortion_corner_px"] == pytest.approx(CORNER_PX, abs=0.1)
    assert "distortion_corner_px" not in open_mosaic(tmp_path / "even" / "even.zarr").attributes
    found = placed(bent, cpu)
    lens = read_distortion(tmp_path / "freed" / "distortion.json")
    mosaic = open_mosaic(tmp_path / "freed" / "freed.zarr")
    known, ignored = (
        compare_tiles(bent, mosaic, found.positions, even_light(), 0, field).overlaps
        for field in (lens, None)
    )
    assert len(known) == len(ignored) == 12
    unlike = [1.0 - np.mean([o.found.ncc_here for o in some]) for some in (known, ignored)]
    assert unlike[0] < 0.75 * unlike[1]
    other = placed(bent, guarded)
    np.testing.assert_allclose(other.yx_px, found.yx_px, atol=1e-3)


def test_the_file_says_what_was_found(cpu: Backend, tmp_path: Path) -> None:
    bent, _, _ = lens_tiles(52, 2, 3, CORNER_PX)
    found = placed(bent, cpu)
    write_located(tmp_path, found)
    path = tmp_path / "distortion.json"
    lens, numbers = read_distortion(path), read_json(path)
    assert found.distortion is not None
    assert lens is not None
    np.testing.assert_allclose(lens.terms_px, found.distortion.distortion.terms_px, atol=1e-4)
    assert (lens.shape, numbers["overlaps"]) == ((SIZE, SIZE), 7)
    with pytest.raises(StitchError, match="lens distortion is of tiles of"):
        stitch(
            ArrayTiles(bent.stack[:, :, 2:], bent.row, bent.col, bent.nominal_px),
            found.positions, even_light(), tmp_path / "m.zarr", backend=cpu,
            voxel_um=(1.0, 1.0, 1.0), chunk_px=128, feather_px=None,
            distortion=lens,
        )  # fmt: skip
    for text in ("{}", "[1]", "not json", '{"used": true}'):
        path.write_text(text)
        with pytest.raises(ResultFileError, match="is no lens distortion"):
            read_distortion(path)


@pytest.mark.gpu
def test_gpu_agrees(cpu: Backend, gpu: Backend, tmp_path: Path) -> None:
    bent, _, _ = lens_tiles(53, 3, 3, CORNER_PX)
    expected, found = placed(bent, cpu), placed(bent, gpu)
    assert used(expected)
    assert used(found)
    np.testing.assert_allclose(found.yx_px, expected.yx_px, atol=1e-3)
    images = [
        mosaic_of(tmp_path / backend.device, bent, expected, backend, backend.device)
        for backend in (cpu, gpu)
    ]
    np.testing.assert_allclose(images[1], images[0], atol=1.0)
