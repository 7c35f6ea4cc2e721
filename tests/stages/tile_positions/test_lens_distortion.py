"""Positions and mosaics of tiles seen through a lens of known distortion, and through none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from tests.support.array_tiles import ArrayTiles
from tests.support.lens_tiles import OFFSET, SIZE, Floats, even_light, lens_tiles, scale_of
from tests.support.runs import digests
from tilewright.errors import ProcessingError, ResultFileError
from tilewright.io.results.distortion import read_distortion
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.result_file import checksum_path, read_json
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.quality.stages.overlaps import compare_tiles
from tilewright.stages.stitch.fuse import stitch
from tilewright.stages.tile_positions.locate import TileLocations, locate, write_located

CPU = cpu_backend(workers=2)
CORNER_PX = 2.0
#: Of an overlap of 12 %.
SCALE = scale_of(CORNER_PX, 0.88)


def placed(tiles: ArrayTiles, mode: Any = "auto", backend: Backend = CPU) -> TileLocations:
    return locate(tiles, even_light(), backend=backend, distortion=mode)


def used(found: TileLocations) -> bool:
    return found.distortion is not None and found.distortion.used


def squared_error(found: TileLocations, true: Floats, scale: float) -> float:
    """Return the mean square error of the tiles of the main island, px²."""
    error = (found.yx_px - true / scale)[found.positions.island == 0]
    return float(np.mean((error - error.mean(axis=0)) ** 2))


@pytest.mark.parametrize(
    ("rows", "cols", "empty"),
    [(2, 2, 0.0), (2, 2, 0.4), (1, 4, 0.0), (1, 4, 0.4), (3, 3, 0.0), (3, 3, 0.4)],
)
def test_positions_are_as_good_as_without_distortion(
    tmp_path: Path, rows: int, cols: int, empty: float
) -> None:
    errors = []
    for seed in (41, 42, 43) if empty and rows < 3 else (41, 42):
        even, true, _ = lens_tiles(seed, rows, cols, 0.0, empty=empty)
        bent, _, _ = lens_tiles(seed, rows, cols, CORNER_PX, empty=empty)
        plain = placed(even)
        assert not used(plain)
        if seed == 41:
            for mode, tiles in (("auto", plain), ("none", placed(even, "none"))):
                write_located(tmp_path / mode, tiles)
                (tmp_path / mode / "distortion.json").unlink()
                checksum_path(tmp_path / mode / "distortion.json").unlink()
            files = digests(tmp_path / "auto")
            assert files == digests(tmp_path / "none")
            assert len(files) == 6
        found, uncorrected = placed(bent), placed(bent, "none")
        if np.count_nonzero(uncorrected.edges.accepted) < 2:
            assert not used(found), "a single overlap cannot be held out"
            continue
        assert used(found)
        assert found.distortion is not None
        assert found.distortion.distortion.corner_px == pytest.approx(CORNER_PX, abs=0.25)
        scales = (plain, 1.0), (found, SCALE), (uncorrected, SCALE)
        errors.append([squared_error(tiles, true, scale) for tiles, scale in scales])
    assert len(errors) >= 2
    good, corrected, raw = np.mean(errors, axis=0)
    # Two or three overlaps know the field to 5 % only.
    assert corrected <= (2.5 if rows == 1 else 1.5) ** 2 * good
    assert corrected < 0.4**2 * raw


def test_rows_may_lie_as_bricks_do() -> None:
    tiles, _, light = lens_tiles(54, 4, 4, 0.0)
    moved = tiles.nominal_px + np.stack([0 * tiles.row, 90.0 * (tiles.row % 2)], axis=1)
    canvas = np.pad(light, ((0, 0), (0, 120)), mode="reflect")
    places = np.rint(moved).astype(int)
    stack = np.stack([canvas[y : y + SIZE, x : x + SIZE] for y, x in places])[:, None]
    noise = np.random.default_rng(0).normal(OFFSET, 3.0, stack.shape)
    bricks = ArrayTiles((stack + noise).astype(np.float32), tiles.row, tiles.col, moved)
    found = placed(bricks)
    assert found.distortion is not None
    assert not found.distortion.used
    assert found.distortion.blocks > 5 * found.distortion.overlaps
    assert squared_error(found, places.astype(np.float64), 1.0) < 0.02**2


def fused(path: Path, tiles: ArrayTiles, found: TileLocations, lens: Any, backend: Backend) -> None:
    options: dict[str, Any] = {"voxel_um": (1.0, 0.5, 0.5), "chunk_px": 256, "feather_px": None}
    light = even_light()
    stitch(tiles, found.positions, light, path, backend=backend, distortion=lens, **options)


def mosaic_of(folder: Path, tiles: ArrayTiles, found: TileLocations, backend: Backend) -> Floats:
    write_located(folder, found)
    fused(folder / "m.zarr", tiles, found, read_distortion(folder / "distortion.json"), backend)
    image = open_mosaic(folder / "m.zarr")
    return np.asarray(image.read(0, *(slice(0, n) for n in image.shape[1:])), np.float64)


def misfit(image: Floats, light: Floats, true: Floats, found: TileLocations, scale: float) -> float:
    """Return the noise-free error of a mosaic around the corners of tiles, over the contrast.

    Where four tiles meet, each shows its corner.
    """
    shift = true.mean(axis=0) / scale - found.yx_px.mean(axis=0)
    errors, contrast = [], []
    middle = (SIZE - 1) / 2
    for y, x in found.yx_px[: len(true) // 2]:
        near = np.rint(np.mgrid[y + SIZE - 40 : y + SIZE + 8, x + SIZE - 40 : x + SIZE + 8])
        if near[1].max() > image.shape[1] - 4:
            continue
        # The mosaic's middle of a tile is the specimen's: its scale is about it.
        place = (near + (shift - middle + middle / scale)[:, None, None]) * scale
        truth = ndimage.map_coordinates(light, place, order=3)
        shown = image[tuple(near.astype(int))] - OFFSET
        errors.append(ndimage.gaussian_filter(shown - truth, 1.0))
        contrast.append(ndimage.gaussian_filter(truth, 1.0))
    return float(np.std(errors) / np.std(contrast))


def test_mosaics_are_free_of_distortion(tmp_path: Path) -> None:
    even, true, light = lens_tiles(51, 3, 3, 0.0)
    bent, _, _ = lens_tiles(51, 3, 3, CORNER_PX)
    misfits: dict[str, float] = {}
    for name, tiles, mode, over in (
        ("even", even, "auto", 1.0),
        ("bent", bent, "none", SCALE),
        ("freed", bent, "auto", SCALE),  # last: `found` is its own from here on
    ):
        found = placed(tiles, mode)
        image = mosaic_of(tmp_path / name, tiles, found, CPU)
        misfits[name] = misfit(image, light, true, found, over)
    # What noise and interpolation leave is in the mosaic without distortion too.
    left, gone = (misfits[name] ** 2 - misfits["even"] ** 2 for name in ("freed", "bent"))
    assert misfits["freed"] < 1.2 * misfits["even"]
    assert left < 0.2 * gone
    mosaic, plain = (open_mosaic(tmp_path / name / "m.zarr") for name in ("freed", "even"))
    assert mosaic.attributes["distortion_corner_px"] == pytest.approx(CORNER_PX, abs=0.1)
    assert "distortion_corner_px" not in plain.attributes
    path = tmp_path / "freed" / "distortion.json"
    lens, numbers = read_distortion(path), read_json(path)
    assert found.distortion is not None
    assert lens is not None
    np.testing.assert_allclose(lens.terms_px, found.distortion.distortion.terms_px, atol=1e-4)
    assert (lens.shape, numbers["overlaps"]) == ((SIZE, SIZE), 12)
    known, ignored = (
        compare_tiles(bent, found.positions, even_light(), 0, field).overlaps
        for field in (lens, None)
    )
    assert len(known) == len(ignored) == 12
    unlike = [1.0 - np.mean([o.agreement.ncc_here for o in some]) for some in (known, ignored)]
    assert unlike[0] < 0.75 * unlike[1]
    with pytest.raises(ProcessingError, match="lens distortion is of tiles of"):
        fused(tmp_path / "m.zarr", replace(bent, stack=bent.stack[:, :, 2:]), found, lens, CPU)
    checksum_path(path).unlink()
    for text in ("{}", "[1]", "not json", '{"used": true}'):
        path.write_text(text)
        with pytest.raises(ResultFileError, match="is no lens distortion"):
            read_distortion(path)


def test_another_device_agrees(tmp_path: Path, other: Backend) -> None:
    bent, _, _ = lens_tiles(53, 3, 3, CORNER_PX)
    expected, found = placed(bent), placed(bent, backend=other)
    assert used(expected)
    assert used(found)
    np.testing.assert_allclose(found.yx_px, expected.yx_px, atol=1e-3)
    images = [mosaic_of(tmp_path / n, bent, expected, b) for n, b in (("a", CPU), ("b", other))]
    np.testing.assert_allclose(images[1], images[0], atol=1.0)
