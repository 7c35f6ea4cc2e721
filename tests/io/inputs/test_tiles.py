from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from tests.support.tile_tables import grid_rows
from tilewright.errors import RawDataError
from tilewright.io.inputs.manifest import build_manifest
from tilewright.io.inputs.tiles import Tiles, open_scan, open_tiles

RNG_SHAPE = (2, 6, 3, 14, 18)  # channel, tile, z, y, x
Stacks = NDArray[np.uint16]


@pytest.fixture
def stacks(tmp_path: Path) -> Stacks:
    """Tiles on disk, by channel, number of the tile, z, y, x."""
    stacks = np.random.default_rng(0).integers(0, 65535, RNG_SHAPE).astype(np.uint16)
    folder = tmp_path / "raw/cyc001_reg001"
    folder.mkdir(parents=True)
    for channel, tile, z in np.ndindex(RNG_SHAPE[:3]):
        tifffile.imwrite(
            folder / f"1_{tile + 1:05}_Z{z + 1:03}_CH{channel + 1}.tif",
            stacks[channel, tile, z],
            compression="zlib" if tile % 2 else None,
        )
    return stacks


def tiles_of(tmp_path: Path, channel: str) -> Tiles:
    table = tmp_path / "cycle1.csv"
    rows = grid_rows(2, 3, 0.25, (14, 18), "snake_left_down")
    codex = {"convention": "codex"}
    build_manifest(tmp_path / "raw", codex, {1: ["1", "2"]}, {1: rows}, {1: table})
    return open_tiles(table, channel)


def test_tiles_are_ordered_by_row_and_col_and_read_right(tmp_path: Path, stacks: Stacks) -> None:
    tiles = tiles_of(tmp_path, "2")
    assert tiles.row.tolist() == [0, 0, 0, 1, 1, 1]
    assert tiles.col.tolist() == [0, 1, 2, 0, 1, 2]
    assert tiles.name.tolist() == ["3", "2", "1", "4", "5", "6"]
    assert tiles.row.dtype == tiles.col.dtype == np.int64
    assert tiles.nominal_px.dtype == np.float64
    assert tiles.nominal_px[4].tolist() == [14 * 0.75, 18 * 0.75]
    assert tiles.shape == (3, 14, 18)
    assert tiles.dtype == np.uint16
    # snake_left_down: 3 2 1 in the first row, 4 5 6 in the second
    for tile, number in enumerate([3, 2, 1, 4, 5, 6]):
        read = np.stack([tiles.read(tile, z) for z in range(tiles.shape[0])])
        np.testing.assert_array_equal(read, stacks[1, number - 1])
    keys = list(np.ndindex(6, 3)) * 5
    with ThreadPoolExecutor(8) as pool:
        planes = list(pool.map(lambda key: tiles.read(*key), keys))
    for key, plane in zip(keys, planes, strict=True):
        np.testing.assert_array_equal(plane, tiles.read(*key))


def test_samples_of_one_scan_are_islands_of_one_mosaic(tmp_path: Path, stacks: Stacks) -> None:
    tiles, table = tiles_of(tmp_path, "2"), tmp_path / "cycle1.csv"
    scan = open_scan(dict.fromkeys("abc", table), "2")
    assert scan.shape == tiles.shape
    assert scan.name.tolist() == 3 * tiles.name.tolist()
    assert "".join(scan.sample) == "aaaaaabbbbbbcccccc"
    for k in range(18):
        assert np.array_equal(scan.read(k, 2), tiles.read(k % 6, 2))
    apart_px = np.abs(scan.nominal_px[:6, None] - scan.nominal_px[None, 6:]).max(axis=2)
    assert apart_px.min() > max(tiles.shape[1:])
    assert len(set(zip(scan.row.tolist(), scan.col.tolist(), strict=True))) == 18
    other = table.with_name("other.csv")
    other.write_text(table.read_text().replace(",14,18,", ",14,20,"))
    with pytest.raises(RawDataError, match="14 x 18 px of uint16, 14 x 20 px of uint16, which sha"):
        open_scan({"a": table, "b": other}, "2")


@pytest.mark.usefixtures("stacks")
def test_a_file_that_changed_since_and_a_channel_that_is_not_there_are_named(
    tmp_path: Path,
) -> None:
    tiles = tiles_of(tmp_path, "1")
    path = tmp_path / "raw/cyc001_reg001/1_00003_Z001_CH1.tif"
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    with pytest.raises(RawDataError, match=r"1_00003_Z001_CH1.tif has \d+ bytes, but had"):
        tiles.read(0, 0)
    path.unlink()
    with pytest.raises(RawDataError, match=r"1_00003_Z001_CH1.tif, page 0, cannot be read"):
        tiles.read(0, 0)
    path.write_bytes(b"?" * len(content))
    with pytest.raises(RawDataError, match=r"1_00003_Z001_CH1.tif, page 0, cannot be read"):
        tiles.read(0, 0)
    path.write_bytes(content)
    with pytest.raises(RawDataError, match="no channel '3'"):
        tiles_of(tmp_path, "3")
