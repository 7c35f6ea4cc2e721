"""What ``init --add`` adds, and positions imaged twice, a folder moved."""

import csv
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tifffile
import yaml
from typer.testing import CliRunner

from tests.init.raw_folders import (
    SIZE,
    config,
    filled_in,
    grid_of,
    initiated,
    specimen_tiles,
    tile_rows,
)
from tests.support.runs import mark_references
from tests.support.tile_tables import tiles_text
from tilewright.cli import app
from tilewright.config.checks import check_raw
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment, read_experiment
from tilewright.errors import ConfigError
from tilewright.init.add import add_new
from tilewright.init.folder import InitResult
from tilewright.init.tile_set import GridOptions
from tilewright.kernels.tile_positions.tile_order import tile_places


def write_cycle(
    raw: Path,
    cycle: int,
    layout: str = "snake_right_down",
    rows: int = 2,
    cols: int = 3,
    planes: int = 1,
) -> None:
    tiles = specimen_tiles(rows, cols)
    folder = raw / f"cyc{cycle:03}_reg001"
    folder.mkdir(parents=True, exist_ok=True)
    for number, place in enumerate(tile_places(layout, rows, cols), start=1):
        for channel, z in itertools.product((1, 2), range(1, planes + 1)):
            name = f"1_{number:05}_Z{z:03}_CH{channel}.tif"
            tifffile.imwrite(folder / name, tiles[place])


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "tonsil"
    write_cycle(folder, 1)
    (folder / "channelnames.txt").write_text("DAPI\nCD3\nDAPI\nCD8\n")
    (folder / "experiment.json").write_text(json.dumps({"num_cycles": 2, "num_channels": 2}))
    return folder


def completed(result: InitResult) -> None:
    """Fill in what init left open."""
    content = config(result)
    content["acquisition"]["pixel_um"] = 0.3
    content["results"] = "results"
    result.config.write_text(yaml.safe_dump(content))


@pytest.mark.parametrize("layout", ["snake_right_down", "raster_left_up"])
def test_a_new_cycle_gets_rows_and_the_others_stay_byte_for_byte(raw: Path, layout: str) -> None:
    result, _ = initiated(raw)
    completed(result)
    odd = result.tiles.read_text().replace("\n", "\r\n").encode() + b"\r\n"
    result.tiles.write_bytes(odd)
    markers = result.markers.read_text()
    write_cycle(raw, 2, layout)
    said = add_new(result.config, GridOptions())
    assert "markers.csv: 2 rows of cycle 2" in said
    assert "tonsil: 6 rows of cycle 2" in said
    assert result.markers.read_text() == markers + "2,1,DAPI_2,TRUE,,\n2,2,CD8,,,\n"
    written = result.tiles.read_bytes()
    assert written.startswith(odd)
    rows = [row for row in tile_rows(result) if row["sample"]]
    assert list(grid_of(rows, 2).values()) == tile_places(layout, 2, 3)
    assert add_new(result.config, GridOptions()).startswith("every tile of the raw folders")
    assert result.tiles.read_bytes() == written


def test_a_new_cycle_of_stacks_has_the_emission_of_its_dyes_and_asks_for_the_others(
    tmp_path: Path,
) -> None:
    raw = tmp_path / "tonsil"
    write_cycle(raw, 1, planes=2)
    (raw / "channelnames.txt").write_text("DAPI\nCD3\nDAPI\nCD8\n")
    (raw / "experiment.json").write_text(json.dumps({"num_cycles": 2, "num_channels": 2}))
    result, _ = initiated(raw)
    completed(result)
    content = config(result)
    content["acquisition"]["z_step_um"] = 1.5
    content["optics"] = {"numerical_aperture": 0.75, "immersion_refractive_index": 1.0}
    result.config.write_text(yaml.safe_dump(content))
    result.markers.write_text(result.markers.read_text().replace("CD3,,,", "CD3,,519,"))
    write_cycle(raw, 2, planes=2)
    said = add_new(result.config, GridOptions())
    assert "2,1,DAPI_2,TRUE,461," in result.markers.read_text()
    assert "row 5: emission_nm of CD8" in said


def test_what_the_names_of_a_new_cycle_leave_open_is_asked_first(raw: Path) -> None:
    (raw / "channelnames.txt").unlink()
    result, _ = initiated(raw)
    completed(result)
    mark_references(result.markers)
    before = result.tiles.read_bytes()
    write_cycle(raw, 2)
    said = add_new(result.config, GridOptions())
    assert "markers.csv, rows 4 to 5: reference: TRUE for the channel of nuclei of cycle 2" in said
    assert result.tiles.read_bytes() == before
    mark_references(result.markers)
    assert "tonsil: 6 rows of cycle 2" in add_new(result.config, GridOptions())


def test_a_cycle_that_its_user_took_out_of_the_markers_stays_out(raw: Path) -> None:
    write_cycle(raw, 2)
    result, _ = initiated(raw)
    completed(result)
    lines = result.markers.read_text().splitlines(keepends=True)
    result.markers.write_text("".join(line for line in lines if not line.startswith("2,")))
    assert add_new(result.config, GridOptions()).startswith("every tile of the raw folders")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["RAW", "--add"], "leave out RAW_DIR"),
        (["--add", "--force", "--pattern", "a{tile}.tif"], "leave out --force, --pattern"),
        ([], "name the folder of raw tiles"),
        (["RAW", "--rows", "3"], "give --rows and --cols together"),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["init", "--output", "out", *words])
    assert said in str(result.exception)


def test_what_options_say_fills_in_rows_without_a_position(tmp_path: Path) -> None:
    raw = tmp_path / "tonsil"
    write_cycle(raw, 1)
    for path in raw.rglob("*.tif"):
        tifffile.imwrite(path, np.full((SIZE, SIZE), 100, np.uint16))
    (raw / "channelnames.txt").write_text("DAPI\nCD3\n")
    result, _ = initiated(raw)
    (asked,) = [line for line in result.notes.unknown if line.startswith("tiles.csv")]
    assert asked.startswith("tiles.csv, rows 2 to 7 (cycle 1): y and x: in which order 6 tiles lie")
    completed(result)
    rows = tile_rows(result)
    rows[3] |= {"y": "7", "x": "100", "source": "mine"}
    result.tiles.write_text(tiles_text(rows))
    add_new(result.config, GridOptions(2, 3, "snake_right_down", 0.25))
    found = {row["tile"]: row for row in tile_rows(result)}
    assert (found["4"]["x"], found["4"]["source"]) == ("100", "mine")
    # the others lie in the frame of the one that was written
    assert float(found["1"]["x"]) == pytest.approx(100 - 2 * 0.75 * SIZE)
    assert float(found["1"]["y"]) == pytest.approx(7 - 0.75 * SIZE)


def test_rows_of_a_cycle_that_was_not_complete_are_written_anew(raw: Path) -> None:
    write_cycle(raw, 2)
    late = [raw / f"cyc002_reg001/1_{n:05}_Z001_CH{c}.tif" for n in (5, 6) for c in (1, 2)]
    for path in late:
        path.rename(path.with_suffix(".later"))
    result, _ = initiated(raw)
    completed(result)
    first = [row for row in tile_rows(result) if row["cycle"] == "1"]
    text = result.tiles.read_text()
    left_out = "cyc002_reg001/1_00002_Z001_CH1.tif,1\n"
    assert left_out in text
    result.tiles.write_text(text.replace(left_out, left_out.replace(",1\n", ",0\n")))
    assert len(tile_rows(result)) == 6 + 4
    for path in late:
        path.with_suffix(".later").rename(path)
    add_new(result.config, GridOptions())
    rows = tile_rows(result)
    assert [row for row in rows if row["cycle"] == "1"] == first
    assert len(rows) == 12
    assert list(grid_of(rows, 2).values()) == tile_places("snake_right_down", 2, 3)
    assert [(r["cycle"], r["tile"]) for r in rows if r["use"] == "0"] == [("2", "2")]


# positions imaged twice, and samples of one scan


def write_ome(
    path: Path, positions_px: Sequence[tuple[float, float]], at: list[tuple[int, int]]
) -> None:
    tiles = specimen_tiles(2, 4)
    with tifffile.TiffWriter(path, ome=True) as writer:
        for (y, x), place in zip(positions_px, at, strict=True):
            plane = {"PositionX": [x * 0.5], "PositionY": [y * 0.5]}
            size = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
            channel = {"Channel": {"Name": ["DAPI"]}}
            metadata = {"axes": "YX", "Plane": plane, **size, **channel}
            writer.write(tiles[place], metadata=metadata, contiguous=False)


STEP = round(SIZE * 0.85)


def test_pieces_far_apart_become_samples(tmp_path: Path) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    at = [(row, col) for col in range(4) for row in range(2)]
    far = [(row * STEP, col * STEP + 3000 * (col > 1)) for row, col in at]
    for cycle in (1, 2):
        write_ome(raw / f"cycle{cycle}.ome.tif", [(y + 9 * cycle, x) for y, x in far], at)
    result, _ = initiated(raw)
    rows = tile_rows(result)
    of_sample = {
        name: [r["tile"] for r in rows if (r["sample"], r["cycle"]) == (name, "2")]
        for name in ("tonsil_1", "tonsil_2")
    }
    assert of_sample == {"tonsil_1": ["1", "2", "3", "4"], "tonsil_2": ["5", "6", "7", "8"]}
    assert any(
        "2 distant pieces in every cycle, written as samples tonsil_1" in w
        for w in result.notes.warnings
    )
    assert filled_in(result).samples.keys() == {"tonsil_1", "tonsil_2"}
    tables = [result.config.parent / f"{name}/cycle1.csv" for name in of_sample]
    assert [len(table.read_text().splitlines()) for table in tables] == [5, 5]


def test_fields_that_were_searched_for_stay_one_sample(tmp_path: Path) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    at = [(0, 0), (0, 1), (1, 3)]
    write_ome(raw / "cycle1.ome.tif", [(0, 0), (0, STEP), (5000, 9000)], at)
    result, _ = initiated(raw)
    assert {row["sample"] for row in tile_rows(result)} == {"tonsil"}


@pytest.mark.parametrize("off_px", [0.0, 0.4, 4.0])
def test_a_position_imaged_twice_is_used_once(tmp_path: Path, off_px: float) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    at = [(0, 0), (0, 0), (0, 1), (1, 0), (1, 1)]
    positions = [(row * STEP + off_px * (n == 1), col * STEP) for n, (row, col) in enumerate(at)]
    write_ome(raw / "cycle1.ome.tif", positions, at)
    result, _ = initiated(raw)
    assert [row["use"] for row in tile_rows(result)] == ["1", "0", "1", "1", "1"]
    assert "tiles imaged twice have use 0 in the tiles table: 2 (as 1)" in result.notes.warnings[0]
    filled_in(result)
    (table,) = result.config.parent.glob("tonsil/cycle1.csv")
    lines = table.read_text().splitlines()
    # Another tile lies there: nothing is left out of the image.
    assert not [line for line in lines if line.startswith(",")]


def test_tiles_that_were_all_imaged_twice_are_asked_for(tmp_path: Path) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    at = [*np.ndindex(2, 2)] * 2
    write_ome(raw / "cycle1.ome.tif", [(row * STEP, col * STEP) for row, col in at], at)
    result, _ = initiated(raw)
    (asked,) = [line for line in result.notes.unknown if line.startswith("tiles.csv")]
    assert "y and x: 4 of 8 tiles lie where others do, 5 (as 1)" in asked
    assert {row["y"] for row in tile_rows(result)} == {""}


@pytest.mark.parametrize("lost", [False, True])
def test_new_tiles_of_a_scan_are_of_the_samples_that_their_user_made(
    tmp_path: Path, lost: bool
) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    at = [(row, col) for col in range(4) for row in range(2)]
    places = [(row * STEP, col * STEP + 3000 * (col > 1)) for row, col in at]
    write_ome(raw / "cycle1.ome.tif", places, at)
    result, _ = initiated(raw)
    result.samples.write_text("sample\traw_dir\ntumour\t../tonsil\ncontrol\t../tonsil\n")
    names = ["tumour"] * 4 + ["control"] * 4
    named = zip(tile_rows(result), names, strict=True)
    result.tiles.write_text(tiles_text([row | {"sample": name} for row, name in named]))
    write_ome(raw / "cycle2.ome.tif", places[lost:], at[lost:])
    with result.markers.open("a") as table:
        table.write("2,1,DAPI_2,TRUE,,\n")
    if lost:
        with pytest.raises(ConfigError, match=r"tumour, control share .* same 7 tiles as cycle 2"):
            add_new(result.config, GridOptions())
        return
    add_new(result.config, GridOptions())
    assert [row["sample"] for row in tile_rows(result)] == names * 2


def test_rows_are_added_in_the_order_of_the_columns(raw: Path) -> None:
    result, _ = initiated(raw)
    completed(result)
    order = ("tile", "use", "x", "y", "unit", "cycle", "sample")
    rows = tile_rows(result)
    with result.tiles.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, order, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    before = result.tiles.read_bytes()
    write_cycle(raw, 2)
    add_new(result.config, GridOptions())
    assert result.tiles.read_bytes().startswith(before)
    rows = tile_rows(result)
    assert list(grid_of(rows, 2).values()) == tile_places("snake_right_down", 2, 3)


@pytest.mark.parametrize("turn", ["mirrored", "swapped"])
def test_a_dim_cycle_lies_as_the_stage_of_the_others_does(tmp_path: Path, turn: str) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    at = list(np.ndindex(2, 4))
    stage = [(-row * STEP, col * STEP) if turn == "mirrored" else (col * STEP, row * STEP)
             for row, col in at]  # fmt: skip
    write_ome(raw / "cycle1.ome.tif", stage, at)
    rng = np.random.default_rng(0)
    with tifffile.TiffWriter(raw / "cycle2.ome.tif", ome=True) as writer:
        for y, x in stage:
            size = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
            plane = {"PositionX": [x * 0.5], "PositionY": [y * 0.5]}
            noise = rng.normal(300, 9, (SIZE, SIZE))
            metadata = {"axes": "YX", "Plane": plane, **size, "Channel": {"Name": ["DAPI"]}}
            writer.write(noise.astype(np.uint16), metadata=metadata, contiguous=False)
    result, _ = initiated(raw)
    rows = tile_rows(result)
    assert list(grid_of(rows).values()) == at
    assert list(grid_of(rows, 2).values()) == at
    assert any("cycle 2: positions are not confirmed" in said for said in result.notes.warnings)
    (raw / "cycle3.ome.tif").write_bytes((raw / "cycle2.ome.tif").read_bytes())
    with result.markers.open("a") as table:
        table.write("3,1,DAPI_3,TRUE,,\n")
    add_new(result.config, GridOptions())
    assert list(grid_of(tile_rows(result), 3).values()) == at


@pytest.mark.parametrize(
    ("tile", "x_px", "said"), [(6, 2 * STEP + 30, "tile 7 "), (7, 9000, "with tile 8,")]
)
def test_the_check_names_a_tile_that_is_off_and_one_that_lies_alone(
    tmp_path: Path, tile: int, x_px: int, said: str
) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    at = list(np.ndindex(2, 4))
    stage = [(row * STEP, col * STEP) for row, col in at]
    stage[tile] = stage[tile][0], x_px
    write_ome(raw / "cycle1.ome.tif", stage, at)
    result, _ = initiated(raw)
    assert {row["source"] for row in tile_rows(result)} == {"stage"}
    experiment = load_experiment(config(result) | {"results": str(tmp_path / "results")})
    with pytest.raises(ConfigError, match=f"cycle 1: .*{said}"):
        check_raw(experiment, Layout(experiment.settings.results))


def test_a_folder_may_be_moved_with_its_raw_data(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = initiated(raw)
    content = yaml.safe_load(result.config.read_text())
    places = [content[key] for key in ("samples", "tiles", "markers", "results")]
    assert places == ["samples.tsv", "tiles.csv", "markers.csv", "results"]
    assert "\t../tonsil\n" in result.samples.read_text()
    place = tmp_path / "place"
    place.mkdir()
    for name in ("tonsil", "out"):
        (tmp_path / name).rename(place / name)
    folder = place / "out"
    content["acquisition"]["pixel_um"] = 0.5
    content |= {"deconvolve": {"method": "none"}, "edf": {"method": "focus_weighted"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    for where, results in ((folder, "results"), (tmp_path, str(folder / "results"))):
        monkeypatch.chdir(where)
        experiment = read_experiment(folder / "config.yaml")
        assert experiment.settings.results == results
        (sample,) = experiment.samples.values()
        assert sample.raw_dir.resolve() == place / "tonsil"
