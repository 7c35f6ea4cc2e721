from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.support.convention_raw import CODEX
from tilewright.io.conventions.common import RawDataError
from tilewright.io.inputs.manifest import build_manifest
from tilewright.io.inputs.tiles import left_out_tiles, open_tiles
from tilewright.io.tiff.raw_header import RawHeader
from tilewright.kernels.tile_positions.tile_order import tile_places

CHANNELS = {1: ["1", "2"], 2: ["1", "2"]}


def codex_raw(raw: Path, dtype: str = "uint16") -> Path:
    """Write 2 cycles, 2 channels, 2 x 3 tiles, 2 planes."""
    stream = io.BytesIO()
    tifffile.imwrite(stream, np.zeros((12, 20), dtype))
    for cycle in (1, 2):
        folder = raw / f"Cyc{cycle}_reg1"
        folder.mkdir(parents=True)
        for channel in (1, 2):
            for tile in range(1, 7):
                for z in (1, 2):
                    path = folder / f"1_{tile:05}_Z{z:03}_CH{channel}.tif"
                    path.write_bytes(stream.getvalue())
    return raw


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return codex_raw(tmp_path / "raw")


def build(
    raw: Path, channels: dict[int, list[str]] | None = None, **keys: Any
) -> list[dict[str, str]]:
    channels = channels or CHANNELS
    manifests = {cycle: raw.parent / f"out/cycle{cycle}.csv" for cycle in channels}
    build_manifest(raw, {**CODEX, **keys}, channels, manifests)
    lines = []
    for path in manifests.values():
        with path.open(newline="") as stream:
            lines += list(csv.DictReader(stream))
    return lines


def test_a_manifest_lists_every_plane_where_it_lies(raw: Path) -> None:
    lines = build(raw)
    assert len(lines) == 48
    keys = [
        (line["channel"], int(line["row"]), int(line["col"]), int(line["z"])) for line in lines[:24]
    ]
    assert keys == sorted(keys)
    places = tile_places("snake_left_down", 2, 3)
    for line in lines:
        assert (int(line["row"]), int(line["col"])) == places[int(line["tile"]) - 1]
        assert f"_{int(line['tile']):05}_Z{int(line['z']) + 1:03}_" in line["path"]
        assert (float(line["y_px"]), float(line["x_px"])) == (
            int(line["row"]) * 9.0,
            int(line["col"]) * 15.0,
        )
        assert (line["height_px"], line["width_px"], line["dtype"]) == ("12", "20", "uint16")
        status = (raw / line["path"]).stat()
        assert (int(line["size_bytes"]), int(line["mtime_ns"])) == (
            status.st_size,
            status.st_mtime_ns,
        )


def test_the_table_is_rewritten_only_when_raw_data_change(raw: Path) -> None:
    build(raw)
    first, second = raw.parent / "out/cycle1.csv", raw.parent / "out/cycle2.csv"
    before = (first.stat().st_mtime_ns, second.stat().st_mtime_ns)
    build(raw)
    assert (first.stat().st_mtime_ns, second.stat().st_mtime_ns) == before
    os.utime(raw / "Cyc2_reg1/1_00003_Z001_CH1.tif")
    build(raw)
    assert first.stat().st_mtime_ns == before[0]
    assert second.stat().st_mtime_ns > before[1]
    assert sorted(path.name for path in first.parent.iterdir()) == [
        "cycle1.csv",
        "cycle2.csv",
        "raw_dir.txt",
    ]


def test_known_files_are_not_opened_again_and_changed_ones_are(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    from tilewright.io.inputs import raw_headers

    read = raw_headers._read

    def spy(path: str, status: os.stat_result) -> RawHeader:
        opened.append(Path(path).name)
        return read(path, status)

    monkeypatch.setattr(raw_headers, "_read", spy)
    build(raw)
    assert len(opened) == 48
    opened.clear()
    os.utime(raw / "Cyc2_reg1/1_00003_Z001_CH1.tif")
    build(raw)
    assert opened == ["1_00003_Z001_CH1.tif"]
    opened.clear()
    (raw.parent / "out/cycle1.csv").write_text("half a ta")
    build(raw)
    assert len(opened) == 24


def test_a_damaged_table_is_no_obstacle(raw: Path) -> None:
    whole = build(raw)
    table = raw.parent / "out/cycle1.csv"
    text = table.read_bytes()
    for damaged in (text[: len(text) // 2], b"\xff\xfe\x00" + text, text.replace(b",12,", b",x,")):
        table.write_bytes(damaged)
        assert build(raw) == whole


def test_channels_that_the_markers_leave_out_are_passed_over(raw: Path) -> None:
    (raw / "Cyc2_reg1/1_00003_Z001_CH2.tif").unlink()
    lines = build(raw, {1: ["2", "1"], 2: ["1"]})
    assert len(lines) == 36
    assert [line["channel"] for line in lines[:24:12]] == ["2", "1"]


def write_stack(path: Path, planes: int) -> None:
    tifffile.imwrite(path, np.zeros((planes, 8, 8), np.uint16), photometric="minisblack")


def wrong(raw: Path, **keys: Any) -> str:
    with pytest.raises(RawDataError) as caught:
        build(raw, **keys)
    assert not (raw.parent / "out").exists()
    return str(caught.value)


def test_a_missing_plane_is_named(raw: Path) -> None:
    (raw / "Cyc2_reg1/1_00005_Z002_CH1.tif").unlink()
    message = wrong(raw)
    assert message.startswith("1 problem with the raw data")
    assert "cycle 2, channel 1, tile 5 (row 1, col 1): z-plane 2 of 2 missing beside" in message
    assert "1_00005_Z001_CH1.tif" in message


@pytest.mark.parametrize("tile", [1, 4, 6])
def test_a_missing_tile_is_named_once_per_channel(raw: Path, tile: int) -> None:
    for path in raw.rglob(f"1_{tile:05}_*"):
        path.unlink()
    message = wrong(raw)
    if tile == 4:
        assert "4 problems" in message
        assert f"tile {tile} (row 1, col 0): all planes missing" in message
    else:
        # Numbers without a gap: a smaller grid as well as a missing tile.
        assert "2 x 3 = 6 tiles, but the files number 5" in message


def test_float_pixels_need_a_scale(tmp_path: Path) -> None:
    raw = codex_raw(tmp_path / "raw", "float32")
    for path in raw.rglob("*.tif"):
        tifffile.imwrite(path, np.linspace(0.01, 1.1, 240, dtype=np.float32).reshape(12, 20))
    assert "pixels are of type float32" in wrong(raw)
    assert {line["dtype"] for line in build(raw, counts_per_unit=65535)} == {"float32*65535"}
    tiles = open_tiles(tmp_path / "out/cycle1.csv", "1")
    assert tiles.dtype == np.uint16
    expected = np.clip(np.rint(np.linspace(0.01, 1.1, 240) * 65535), 0, 65535)
    assert np.abs(tiles.read(0, 0).ravel() - expected).max() <= 1
    assert build(raw, counts_per_unit=65535) == build(raw, counts_per_unit=65535)
    broken = np.full((12, 20), np.nan, np.float32)
    tifffile.imwrite(raw / "Cyc1_reg1/1_00003_Z001_CH1.tif", broken)
    build(raw, counts_per_unit=65535)
    tiles = open_tiles(tmp_path / "out/cycle1.csv", "1")
    with pytest.raises(RawDataError, match="NaN"):
        tiles.read(int(np.flatnonzero(tiles.number == 3)[0]), 0)


def test_incomplete_tiles_are_left_out_of_their_cycle(raw: Path) -> None:
    (raw / "Cyc1_reg1/1_00002_Z002_CH2.tif").unlink()
    for path in (raw / "Cyc2_reg1").glob("1_00006_*"):
        path.unlink()
    places = dict(enumerate(tile_places(CODEX["layout"], 2, 3), start=1))
    lines = build(raw, missing="fill")
    assert len(lines) == 48 - 2 * 4 + 2
    whole = {1: set(places.values()) - {places[2]}, 2: set(places.values()) - {places[6]}}
    for cycle, seen in whole.items():
        path = raw.parent / f"out/cycle{cycle}.csv"
        for channel in ("1", "2"):
            tiles = open_tiles(path, channel)
            assert set(zip(tiles.row.tolist(), tiles.col.tolist(), strict=True)) == seen
        assert left_out_tiles(path) == [places[2 if cycle == 1 else 6]]
    before = path.stat().st_mtime_ns
    assert build(raw, missing="fill") == lines
    assert path.stat().st_mtime_ns == before


def test_a_channel_without_files_is_no_missing_tile(raw: Path) -> None:
    for path in raw.glob("Cyc2_reg1/*CH2.tif"):
        path.unlink()
    with pytest.raises(RawDataError, match="cycle 2, channel 2: no file of it is there"):
        build(raw, missing="fill")


def test_a_channel_without_files_is_named(raw: Path) -> None:
    for path in raw.rglob("Cyc2_reg1/*_CH2.tif"):
        path.unlink()
    assert "cycle 2, channel 2: no file of it is there" in wrong(raw)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.999])
def test_a_truncated_file_is_named(raw: Path, share: float) -> None:
    path = raw / "Cyc1_reg1/1_00002_Z001_CH1.tif"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    message = wrong(raw)
    assert "1 problem " in message
    assert str(path) in message
    assert ("is truncated" if share else "is empty (0 bytes)") in message


def test_a_file_that_is_no_tiff_is_named(raw: Path) -> None:
    path = raw / "Cyc1_reg1/1_00002_Z001_CH1.tif"
    path.write_text("<html>quota exceeded</html>")
    assert f"{path} is no TIFF" in wrong(raw)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(raw: Path) -> None:
    path = raw / "Cyc1_reg1/1_00002_Z001_CH1.tif"
    path.chmod(0)
    assert f"{path} cannot be read (Permission denied)" in wrong(raw)


@pytest.mark.parametrize(
    ("plane", "said"),
    [
        (np.zeros((12, 20), np.float32), "is 12 x 20 float32, where most are 12 x 20 uint16"),
        (np.zeros((12, 20), np.int16), "pixels of type int16"),
        (np.zeros((12, 21), np.uint16), "is 12 x 21 uint16, where most are 12 x 20 uint16"),
        (np.zeros((12, 20), np.uint8), "is 12 x 20 uint8, where most are 12 x 20 uint16"),
        (np.zeros((12, 20, 3), np.uint8), "is a colour image (3 samples per pixel)"),
        (np.zeros((2, 12, 20), np.uint16), "has 2 pages, but its name tells one z-plane"),
    ],
)
def test_a_file_unlike_the_rest_is_named(raw: Path, plane: Any, said: str) -> None:
    path = raw / "Cyc1_reg1/1_00002_Z001_CH1.tif"
    rgb = plane.shape[-1] == 3
    tifffile.imwrite(path, plane, photometric="rgb" if rgb else "minisblack")
    message = wrong(raw)
    assert "1 problem " in message
    assert str(path) in message
    assert said in message


def test_a_plane_that_is_there_twice_is_named(raw: Path) -> None:
    again = raw / "cyc001_reg001_again"
    again.mkdir()
    twin = raw / "Cyc1_reg1/1_00002_Z001_CH1.tif"
    (again / twin.name).write_bytes(twin.read_bytes())
    message = wrong(raw)
    assert "tile 2 (row 0, col 1), z 0 is there twice" in message
    assert str(again / twin.name) in message
    assert str(twin) in message


@pytest.mark.parametrize(
    ("rows", "cols", "said"),
    [
        (3, 3, "the grid is 3 x 3 = 9 tiles, but the files number 6 (1 to 6)"),
        (1, 5, "the grid is 1 x 5 = 5 tiles, but the files number 6 (1 to 6)"),
        (None, None, "set acquisition.rows and cols"),
    ],
)
def test_a_wrong_grid_says_which_are_possible(raw: Path, rows: Any, cols: Any, said: str) -> None:
    message = wrong(raw, rows=rows, cols=cols)
    assert said in message
    assert "2 x 3, 3 x 2, 1 x 6, 6 x 1" in message


def test_an_unknown_layout_names_the_known_ones(raw: Path) -> None:
    assert "choose one of snake_right_down" in wrong(raw, layout="snake_right_left")


def test_many_problems_are_counted_and_ten_listed(raw: Path) -> None:
    for path in raw.rglob("*_Z001_CH1.tif"):
        path.write_bytes(b"II")
    message = wrong(raw)
    assert "12 problems" in message
    assert message.count("\n  - ") == 10
    assert "... and 2 more" in message


def test_a_folder_without_planes_says_what_to_correct(raw: Path) -> None:
    with pytest.raises(RawDataError, match=r"holds no file .* convention 'imagexpress'"):
        build(raw, convention="imagexpress")


def test_rows_and_columns_in_names_make_the_grid(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for row, col in np.ndindex(2, 2):
        write_stack(raw / f"r{row + 1}_c{col + 1}.tif", 3)
    keys = {"convention": "pattern", "pattern": "r{row}_c{col}.tif", "rows": None, "cols": None}
    lines = build(raw, {1: ["1"]}, **keys)
    assert [(line["row"], line["col"], line["tile"]) for line in lines[::3]] == [
        ("0", "0", "0"),
        ("0", "1", "1"),
        ("1", "0", "2"),
        ("1", "1", "3"),
    ]
    assert [(line["z"], line["page"]) for line in lines[:3]] == [("0", "0"), ("1", "1"), ("2", "2")]
    flipped = build(raw, {1: ["1"]}, **keys, flip_y=True)
    assert [Path(line["path"]).name for line in flipped[::3]] == [
        f"r{row}_c{col}.tif" for row in (2, 1) for col in (1, 2)
    ]
    (raw / "r2_c2.tif").unlink()
    assert len(build(raw, {1: ["1"]}, **keys)) == 9  # a tissue need not be a rectangle
    with pytest.raises(RawDataError, match=r"tile 3 \(row 1, col 1\): all planes missing"):
        build(raw, {1: ["1"]}, **{**keys, "rows": 2, "cols": 2})
    with pytest.raises(RawDataError, match="the files hold 2 rows and 2 columns"):
        build(raw, {1: ["1"]}, **{**keys, "rows": 1, "cols": 2})


def test_a_stack_of_fewer_pages_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for tile in range(4):
        write_stack(raw / f"t{tile}.tif", 3 - (tile == 2))
    keys = {"convention": "pattern", "pattern": "t{tile}.tif", "rows": 2, "cols": 2}
    message = r"tile 2 \(row 1, col 0\): z-plane 3 of 3 missing"
    with pytest.raises(RawDataError, match=message) as caught:
        build(raw, {1: ["1"]}, **keys)
    assert "1 problem " in str(caught.value)
    content = (raw / "t0.tif").read_bytes()
    (raw / "t2.tif").write_bytes(content[: len(content) // 2])
    with pytest.raises(RawDataError, match="is truncated") as caught:
        build(raw, {1: ["1"]}, **keys)
    assert "1 problem " in str(caught.value)


def test_positions_place_tiles_of_each_cycle(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for cycle, offset in ((1, 0.0), (2, 5000.25)):
        folder = raw / f"cycle{cycle}"
        folder.mkdir(parents=True)
        text = "dim = 2\n"
        for name, y, x in (("a", 0, 18), ("b", 1, 0), ("c", 18, 0)):
            tifffile.imwrite(folder / f"{name}.tif", np.zeros((20, 20), np.uint16))
            text += f"{name}.tif; ; ({x + offset}, {y - offset})\n"
        (folder / "TileConfiguration.txt").write_text(text)
    keys = {"convention": "fiji", "rows": None, "cols": None}
    lines = build(raw, {1: ["1"], 2: ["1"]}, **keys)
    found = [(line["row"], line["col"], line["y_px"], line["x_px"]) for line in lines]
    assert found[:3] == [
        ("0", "0", "1.0", "0.0"),
        ("0", "1", "0.0", "18.0"),
        ("1", "0", "18.0", "0.0"),
    ]
    assert found[3:] == found[:3]
    (raw / "cycle2/b.tif").unlink()
    with pytest.raises(RawDataError, match=r"b.tif cannot be read \(No such file or directory\)"):
        build(raw, {1: ["1"], 2: ["1"]}, **keys)


def test_nothing_heavy_is_imported_while_the_snakefile_is_read() -> None:
    code = (
        "import sys, tilewright.io.inputs.manifest; "
        "print([m for m in ('numpy', 'tifffile', 'pandas', 'zarr') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.shared
def test_codex_layout(shared: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.symlink_to(shared / "data/codex-layout")
    lines = build(raw, rows=None, cols=None)
    assert len(lines) == 12
    assert {line["dtype"] for line in lines} == {"uint8"}
