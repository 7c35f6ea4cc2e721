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

from tests.support.convention_raw import CODEX
from tilewright.errors import RawDataError
from tilewright.io.inputs import raw_headers
from tilewright.io.inputs.manifest import build_manifest
from tilewright.io.inputs.tiles import excluded_tiles, open_tiles
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
        for channel, tile, z in product((1, 2), range(1, 7), (1, 2)):
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
    keys = [(line["channel"], *map(int, (line["row"], line["col"], line["z"]))) for line in lines]
    assert keys == sorted(keys[:24]) + sorted(keys[24:])
    places = tile_places("snake_left_down", 2, 3)
    for line in lines:
        row, col = int(line["row"]), int(line["col"])
        assert (row, col) == places[int(line["tile"]) - 1]
        assert f"_{int(line['tile']):05}_Z{int(line['z']) + 1:03}_" in line["path"]
        assert (float(line["y_px"]), float(line["x_px"])) == (row * 9.0, col * 15.0)
        assert (line["height_px"], line["width_px"], line["dtype"]) == ("12", "20", "uint16")
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
    names = sorted(path.name for path in first.parent.iterdir())
    assert names == ["cycle1.csv", "cycle2.csv", "raw_dir.txt"]
    # A damaged table is no obstacle: its files are opened again.
    text = first.read_bytes()
    for damaged in (text[: len(text) // 2], b"\xff\xfe\x00" + text, text.replace(b",12,", b",x,")):
        first.write_bytes(damaged)
        assert build(raw) == whole
    opened.clear()
    first.write_text("half a ta")
    build(raw)
    assert len(opened) == 24


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


POSSIBLE = ["tiles, but the files number 6 (1 to 6)", "2 x 3, 3 x 2, 1 x 6, 6 x 1"]
NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
#: Numbers without a gap: a smaller grid as well as a missing tile.
SMALLER = "2 x 3 = 6 tiles, but the files number 5"
NO_FILE = "cycle 2, channel 2: no files"


@pytest.mark.parametrize(
    ("damage", "keys", "parts"),
    [
        (
            removed("Cyc2_reg1/1_00005_Z002_CH1.tif"), {},
            ["1 problem with the raw data", "cycle 2, channel 1, tile 5 (row 1, col 1): z-plane 2 "
             "of 2 missing next to", "1_00005_Z001_CH1.tif"],
        ),
        (removed("*/1_00001_*"), {}, [SMALLER]),
        (removed("*/1_00006_*"), {}, [SMALLER]),
        (removed("*/1_00004_*"), {}, ["4 problems", "tile 4 (row 1, col 0): all planes missing"]),
        (removed("Cyc2_reg1/*CH2.tif"), {}, [NO_FILE]),
        (removed("Cyc2_reg1/*CH2.tif"), {"missing": "fill"}, [NO_FILE]),
        (
            twice, {},
            ["tile 2 (row 0, col 1), duplicate z 0",
             "/raw/cyc001_reg001_again/1_00002_Z001_CH1.tif",
             "/raw/Cyc1_reg1/1_00002_Z001_CH1.tif"],
        ),
        (removed(), {"rows": 3, "cols": 3}, ["the grid is 3 x 3 = 9 tiles, but", *POSSIBLE]),
        (removed(), {"rows": 1, "cols": 5}, ["the grid is 1 x 5 = 5 tiles, but", *POSSIBLE]),
        (removed(), {"rows": None, "cols": None}, ["set acquisition.rows and cols", POSSIBLE[1]]),
        (removed(), {"layout": "snake_right_left"}, ["choose one of snake_right_down"]),
        (removed(), {"convention": "imagexpress"}, ["holds no file ", "convention 'imagexpress'"]),
        (shortened, {}, ["12 problems", "... and 2 more"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    raw: Path, damage: Callable[[Path], None], keys: dict[str, Any], parts: list[str]
) -> None:
    damage(raw)
    message = wrong(raw, **keys)
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
        (np.zeros((12, 20), np.float32), "is 12 x 20 float32, where most are 12 x 20 uint16"),
        (np.zeros((12, 20), np.int16), "pixels of type int16"),
        (np.zeros((12, 21), np.uint16), "is 12 x 21 uint16, where most are 12 x 20 uint16"),
        (np.zeros((12, 20), np.uint8), "is 12 x 20 uint8, where most are 12 x 20 uint16"),
        (np.zeros((12, 20, 3), np.uint8), "is a colour image (3 samples per pixel)"),
        (np.zeros((2, 12, 20), np.uint16), "has 2 pages, but its name says one z-plane"),
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
        assert excluded_tiles(path) == [places[2 if cycle == 1 else 6]]
    before = path.stat().st_mtime_ns
    assert build(raw, missing="fill") == lines
    assert path.stat().st_mtime_ns == before


def test_rows_and_columns_in_names_make_the_grid(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for row, col in np.ndindex(2, 2):
        write_stack(raw / f"r{row + 1}_c{col + 1}.tif", 3)
    keys = {"convention": "pattern", "pattern": "r{row}_c{col}.tif", "rows": None, "cols": None}
    lines = build(raw, {1: ["1"]}, **keys)
    placed = ["".join([line["row"], line["col"], line["tile"]]) for line in lines[::3]]
    assert placed == ["000", "011", "102", "113"]
    assert [(line["z"], line["page"]) for line in lines[:3]] == [("0", "0"), ("1", "1"), ("2", "2")]
    flipped = [Path(line["path"]).stem for line in build(raw, {1: ["1"]}, **keys, flip_y=True)]
    assert flipped[::3] == ["r2_c1", "r2_c2", "r1_c1", "r1_c2"]
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
    places = [("0", "0", "1.0", "0.0"), ("0", "1", "0.0", "18.0"), ("1", "0", "18.0", "0.0")]
    assert found == places * 2
    (raw / "cycle2/b.tif").unlink()
    with pytest.raises(RawDataError, match=r"b.tif cannot be read \(No such file or directory\)"):
        build(raw, {1: ["1"], 2: ["1"]}, **keys)


@pytest.mark.shared
def test_codex_layout(shared: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.symlink_to(shared / "data/codex-layout")
    lines = build(raw, rows=None, cols=None)
    assert len(lines) == 12
    assert {line["dtype"] for line in lines} == {"uint8"}
