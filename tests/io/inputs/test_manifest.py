import csv
import io
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.support.tile_tables import grid_rows
from tilewright.errors import RawDataError
from tilewright.io.inputs import raw_headers
from tilewright.io.inputs.manifest import build_manifest
from tilewright.io.inputs.placed_planes import TilePlace, TileRows
from tilewright.io.inputs.plane_table import read_manifest
from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.tiff.headers import RawHeader
from tilewright.kernels.tile_positions.tile_order import tile_places

CHANNELS = {1: ["1", "2"], 2: ["1", "2"]}
LAYOUT = "snake_left_down"
#: Where the tiles of :func:`codex_raw` lie.
GRID = grid_rows(2, 3, 0.25, (24, 20), LAYOUT)


def changed(tile: int, **values: Any) -> TileRows:
    """Return the rows with other values of one tile."""
    name = str(tile)
    return TileRows([p._replace(**values) if p.tile == name else p for p in GRID.places])


def without(*tiles: int) -> TileRows:
    return TileRows([place for place in GRID.places if int(place.tile) not in tiles])


def codex_raw(raw: Path, dtype: str = "uint16") -> Path:
    """Write 2 cycles, 2 channels, 2 x 3 tiles, 2 planes."""
    stream = io.BytesIO()
    tifffile.imwrite(stream, np.zeros((24, 20), dtype))
    for cycle in (1, 2):
        folder = raw / f"Cyc{cycle}_reg1"
        folder.mkdir(parents=True)
        for channel, tile, z in product((1, 2), range(1, 7), (1, 2)):
            path = folder / f"1_{tile:05}_Z{z:03}_CH{channel}.tif"
            path.write_bytes(stream.getvalue())
    return raw


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return codex_raw(tmp_path / "raw")


def build(
    raw: Path,
    channels: dict[int, list[str]] | None = None,
    places: dict[int, TileRows] | None = None,
    **keys: Any,
) -> list[dict[str, str]]:
    """Build the manifests and return their lines; the rows of cycles are ``GRID`` by default."""
    channels = channels or CHANNELS
    manifests = {cycle: raw.parent / f"out/cycle{cycle}.csv" for cycle in channels}
    rows = {**dict.fromkeys(channels, GRID), **(places or {})}
    build_manifest(raw, {"convention": "codex", **keys}, channels, rows, manifests)
    lines = []
    for path in manifests.values():
        with path.open(newline="") as stream:
            lines += list(csv.DictReader(stream))
    return lines


def test_a_manifest_lists_every_plane_where_it_lies(raw: Path) -> None:
    lines = build(raw)
    assert len(lines) == 48
    assert "row" not in lines[0]
    places = tile_places(LAYOUT, 2, 3)
    keys = [(line["channel"], places[int(line["tile"]) - 1], int(line["z"])) for line in lines]
    assert keys == sorted(keys[:24]) + sorted(keys[24:])
    for line in lines:
        row, col = places[int(line["tile"]) - 1]
        assert f"_{int(line['tile']):05}_Z{int(line['z']) + 1:03}_" in line["path"]
        assert (float(line["y_px"]), float(line["x_px"])) == (row * 18.0, col * 15.0)
        assert (line["height_px"], line["width_px"], line["dtype"]) == ("24", "20", "uint16")
        status = (raw / line["path"]).stat()
        assert int(line["size_bytes"]) == status.st_size
        assert int(line["mtime_ns"]) == status.st_mtime_ns


def test_files_are_opened_and_the_table_is_rewritten_only_when_raw_data_change(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read = raw_headers._read

    def spy(path: str, status: os.stat_result) -> RawHeader:
        opened.append(Path(path).name)
        return read(path, status)

    monkeypatch.setattr(raw_headers, "_read", spy)
    build(raw)
    assert len(opened) == 48
    opened.clear()
    first, second = raw.parent / "out/cycle1.csv", raw.parent / "out/cycle2.csv"
    before = (first.stat().st_mtime_ns, second.stat().st_mtime_ns)
    build(raw)
    assert (first.stat().st_mtime_ns, second.stat().st_mtime_ns) == before
    os.utime(raw / "Cyc2_reg1/1_00003_Z001_CH1.tif")
    whole = build(raw)
    assert first.stat().st_mtime_ns == before[0]
    assert second.stat().st_mtime_ns > before[1]
    assert opened == ["1_00003_Z001_CH1.tif"]
    names = sorted(path.name for path in first.parent.glob("[!.]*"))
    assert names == ["cycle1.csv", "cycle2.csv", "raw_dir.txt"]
    # A damaged table is no obstacle: its files are opened again.
    text = first.read_bytes()
    for damaged in (text[: len(text) // 2], b"\xff\xfe\x00" + text, text.replace(b",24,", b",x,")):
        first.write_bytes(damaged)
        assert build(raw) == whole
    opened.clear()
    first.write_text("half a ta")
    build(raw)
    assert len(opened) == 24


def test_pages_that_an_earlier_reading_left_out_are_not_forgotten(tmp_path: Path) -> None:
    """An OME-TIFF of three planes, one of them of the channel in use, is read as a stack then."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for tile in (1, 2):
        position = {"PositionX": [9.0 * tile] * 3, "PositionY": [0.0] * 3}
        tifffile.imwrite(
            raw / f"t{tile}_c2_z1.ome.tif", np.ones((3, 24, 20), np.uint16),
            photometric="minisblack",
            metadata={"axes": "CYX", "Plane": position},
        )  # fmt: skip
    rows = {1: TileRows([TilePlace("1", 0.0, 0.0), TilePlace("2", 0.0, 15.0)])}
    channels = {1: ["1"]}
    assert len(build(raw, channels, rows, convention="ome_tiff")) == 2
    channels = {1: ["2"]}
    with pytest.raises(RawDataError, match="has 3 pages, but its name says one z-plane"):
        build(raw, channels, rows, convention="pattern", pattern="t{tile}_c{channel}_z{z}.ome.tif")
    for _ in range(2):
        found = build(
            raw, channels, rows, convention="pattern", pattern="t{tile}_c{channel}_z1.ome.tif"
        )
        assert sorted({line["z"] for line in found}) == ["0", "1", "2"]


def write_stack(path: Path, planes: int) -> None:
    tifffile.imwrite(path, np.zeros((planes, 8, 8), np.uint16), photometric="minisblack")


def wrong(raw: Path, places: dict[int, TileRows] | None = None, **keys: Any) -> str:
    with pytest.raises(RawDataError) as caught:
        build(raw, places=places, **keys)
    assert not (raw.parent / "out").exists()
    return str(caught.value)


def removed(*patterns: str) -> Callable[[Path], None]:
    def remove(raw: Path) -> None:
        for path in [path for pattern in patterns for path in raw.glob(pattern)]:
            path.unlink()

    return remove


def shortened(raw: Path) -> None:
    for path in raw.rglob("*_Z001_CH1.tif"):
        path.write_bytes(b"II")


def twice(raw: Path) -> None:
    (raw / "cyc001_reg001_again").mkdir()
    shutil.copy(raw / "Cyc1_reg1/1_00002_Z001_CH1.tif", raw / "cyc001_reg001_again")


NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
NO_FILE = "cycle 2, channel 2: no files, but the markers table lists it"
FIRST = "Cyc1_reg1/1_0000{}_Z00{}_CH1.tif"


@pytest.mark.parametrize(
    ("damage", "places", "keys", "parts"),
    [
        (
            removed("Cyc2_reg1/1_00005_Z002_CH1.tif"), {}, {},
            ["1 problem with the raw data", "tiles.csv, row 5: cycle 2, tile 5 lacks z-plane 2 of "
             "2 of channel 1; copy them, or set use to 0 to leave the tile out"],
        ),
        (
            removed("*/1_00004_*", "Cyc1_reg1/1_00006_Z001*"), {}, {},
            ["3 problems", "row 4: cycle 1, tile 4 lacks all planes of channel 1; all planes of "
             "channel 2; copy", "row 4: cycle 2, tile 4 lacks all planes of channel 1; all pla",
             "row 6: cycle 1, tile 6 lacks z-plane 1 of 2 of channel 1; z-plane 1 of 2 of channel"],
        ),
        (removed("Cyc2_reg1/*CH2.tif"), {}, {}, ["1 problem", NO_FILE]),
        (removed("Cyc2_reg1/*"), {}, {}, ["2 problems", NO_FILE]),
        (
            twice, {}, {},
            ["1 problem", "cycle 1, channel 1, tile 2, duplicate z 0: ",
             "/raw/cyc001_reg001_again/1_00002_Z001_CH1.tif",
             "/raw/Cyc1_reg1/1_00002_Z001_CH1.tif"],
        ),
        (
            removed(), {2: without(3, 6)}, {},
            ["2 problems", "cycle 2: tile 3 (", "cycle 2: tile 6 (",
             ".tif) is not in the tiles table; add a row, with use 0 to leave it out"],
        ),
        (removed(), {2: TileRows(())}, {},
         ["1 problem", "cycle 2: the tiles table has no row of it; `tilewright init --add"]),
        (removed(), {1: TileRows([place._replace(use=False) for place in GRID.places])}, {},
         ["1 problem", "cycle 1: the tiles table uses none of its tiles; set use to 1"]),
        (removed(), {}, {"convention": "imagexpress"},
         ["holds no file ", "convention 'imagexpress'"]),
        (shortened, {}, {}, ["12 problems", "... and 2 more"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    raw: Path,
    damage: Callable[[Path], None],
    places: dict[int, TileRows],
    keys: dict[str, Any],
    parts: list[str],
) -> None:
    damage(raw)
    message = wrong(raw, places, **keys)
    assert [part for part in parts if part not in message] == []
    assert message.count("\n  - ") <= 10
    assert ("12 problems" in parts) == (message.count("\n  - ") == 10)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (0.0, "is empty (0 bytes)"),
        (0.05, "is truncated"),
        (0.999, "is truncated"),
        (b"<html>quota exceeded</html>", "is no TIFF"),
        (np.zeros((24, 20), np.float32), "is 24 x 20 float32, where most are 24 x 20 uint16"),
        (np.zeros((24, 20), np.int16), "pixels of type int16"),
        (np.zeros((24, 21), np.uint16), "is 24 x 21 uint16, where most are 24 x 20 uint16"),
        (np.zeros((24, 20), np.uint8), "is 24 x 20 uint8, where most are 24 x 20 uint16"),
        (np.zeros((24, 20, 3), np.uint8), "is a colour image (3 samples per pixel)"),
        (np.zeros((2, 24, 20), np.uint16), "has 2 pages, but its name says one z-plane"),
        pytest.param(None, "cannot be read (Permission denied)", marks=NOT_ROOT),
    ],
)
def test_a_file_unlike_the_rest_is_named(raw: Path, content: Any, said: str) -> None:
    path = raw / "Cyc1_reg1/1_00002_Z001_CH1.tif"
    if content is None:
        path.chmod(0)
    elif isinstance(content, float):  # the share of it that was copied
        path.write_bytes(path.read_bytes()[: int(content * path.stat().st_size)])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        rgb = content.shape[-1] == 3
        tifffile.imwrite(path, content, photometric="rgb" if rgb else "minisblack")
    message = wrong(raw)
    assert "1 problem " in message
    assert str(path) in message
    assert said in message


def test_float_pixels_need_a_scale(tmp_path: Path) -> None:
    raw = codex_raw(tmp_path / "raw", "float32")
    for path in raw.rglob("*.tif"):
        tifffile.imwrite(path, np.linspace(0.01, 1.1, 480, dtype=np.float32).reshape(24, 20))
    assert "pixels are of type float32" in wrong(raw)
    assert {line["dtype"] for line in build(raw, counts_per_unit=65535)} == {"float32*65535"}
    tiles = open_tiles(tmp_path / "out/cycle1.csv", "1")
    assert tiles.dtype == np.uint16
    expected = np.clip(np.rint(np.linspace(0.01, 1.1, 480) * 65535), 0, 65535)
    assert np.abs(tiles.read(0, 0).ravel() - expected).max() <= 1
    assert build(raw, counts_per_unit=65535) == build(raw, counts_per_unit=65535)
    broken = np.full((24, 20), np.nan, np.float32)
    tifffile.imwrite(raw / "Cyc1_reg1/1_00003_Z001_CH1.tif", broken)
    build(raw, counts_per_unit=65535)
    tiles = open_tiles(tmp_path / "out/cycle1.csv", "1")
    with pytest.raises(RawDataError, match="NaN"):
        tiles.read(int(np.flatnonzero(tiles.name == "3")[0]), 0)


def test_tiles_that_the_table_does_not_use_are_neither_read_nor_checked(raw: Path) -> None:
    """In its cycle alone; where one has no file at all, its row is as good."""
    (raw / "Cyc1_reg1/1_00002_Z002_CH2.tif").unlink()
    (raw / "Cyc1_reg1/1_00002_Z001_CH2.tif").write_bytes(b"no TIFF")
    shutil.copy(raw / "Cyc1_reg1/1_00002_Z001_CH1.tif", raw / "Cyc1_reg1/1_2_Z001_CH1.tif")
    for path in (raw / "Cyc2_reg1").glob("1_00006_*"):
        path.unlink()
    places = {1: changed(2, use=False), 2: changed(6, use=False)}
    lines = build(raw, places=places)
    assert len(lines) == 48 - 2 * 4 + 2
    for cycle, left_out in ((1, "2"), (2, "6")):
        path = raw.parent / f"out/cycle{cycle}.csv"
        for channel in ("1", "2"):
            assert {*open_tiles(path, channel).name.tolist()} == {*"123456"} - {left_out}
        assert read_manifest(path).excluded == [left_out]
    before = path.stat().st_mtime_ns
    assert build(raw, places=places) == lines
    assert path.stat().st_mtime_ns == before
    with pytest.raises(RawDataError, match=r"1_00002_Z001_CH2.tif is no TIFF"):
        build(raw, places={2: places[2]})


def test_a_tile_taken_again_is_no_gap(raw: Path) -> None:
    """The first of two at one place is left out: the mosaic lacks nothing there."""
    for path in (raw / "Cyc1_reg1").glob("1_00002_*"):
        shutil.copy(path, path.with_name(path.name.replace("_00002_", "_00007_")))
    left_out = changed(2, use=False)
    (place,) = (place for place in GRID.places if place.tile == "2")
    for off_px, gaps in ((3.0, []), (13.0, ["2"])):
        again = place._replace(tile="7", x_px=place.x_px + off_px)
        build(raw, places={1: TileRows([*left_out.places, again])})
        path = raw.parent / "out/cycle1.csv"
        assert read_manifest(path).excluded == gaps
        assert {*open_tiles(path, "1").name.tolist()} == {*"134567"}


def test_rows_and_columns_in_names_are_tiles(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for row, col in np.ndindex(2, 2):
        write_stack(raw / f"r{row + 1}_c{col + 1}.tif", 3)
    keys = {"convention": "pattern", "pattern": "r{row}_c{col}.tif"}
    every = [
        TilePlace(f"r{row + 1}c{col + 1}", 6.0 * row, 6.0 * col, row=f"row {row}{col}")
        for row, col in np.ndindex(2, 2)
    ]
    lines = build(raw, {1: ["1"]}, {1: TileRows(every)}, **keys)
    assert [line["tile"] for line in lines[::3]] == ["r1c1", "r1c2", "r2c1", "r2c2"]
    assert [(line["z"], line["page"]) for line in lines[:3]] == [("0", "0"), ("1", "1"), ("2", "2")]
    (raw / "r2_c2.tif").unlink()
    assert len(build(raw, {1: ["1"]}, {1: TileRows(every[:3])}, **keys)) == 9
    with pytest.raises(RawDataError, match=r"row 11: cycle 1, tile r2c2 lacks all planes of chan"):
        build(raw, {1: ["1"]}, {1: TileRows(every)}, **keys)
    with pytest.raises(RawDataError, match=r"tile r1c1 \(.*r1_c1.tif\) is not in the tiles table"):
        build(raw, {1: ["1"]}, {1: TileRows(every[1:3])}, **keys)


def test_a_stack_of_fewer_pages_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for tile in range(1, 5):
        write_stack(raw / f"t{tile}.tif", 3 - (tile == 3))
    keys = {"convention": "pattern", "pattern": "t{tile}.tif"}
    rows = {1: grid_rows(2, 2, 0.25, 8)}
    message = r"tiles.csv, row 3: cycle 1, tile 3 lacks z-plane 3 of 3 of channel 1; copy them"
    with pytest.raises(RawDataError, match=message) as caught:
        build(raw, {1: ["1"]}, rows, **keys)
    assert "1 problem " in str(caught.value)
    content = (raw / "t1.tif").read_bytes()
    (raw / "t3.tif").write_bytes(content[: len(content) // 2])
    with pytest.raises(RawDataError, match="is truncated") as caught:
        build(raw, {1: ["1"]}, rows, **keys)
    assert "1 problem " in str(caught.value)
