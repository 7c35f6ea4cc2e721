"""What a user filled in stays when init writes a folder anew."""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tifffile
import yaml

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
from tilewright.config.checks import check_raw
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment, read_experiment
from tilewright.errors import ConfigError
from tilewright.init.add import add_cycles
from tilewright.init.folder import InitResult, create_experiment
from tilewright.init.tile_order import GridOptions
from tilewright.kernels.tile_positions.tile_order import tile_places


def write_cycle(
    raw: Path, cycle: int, layout: str = "snake_right_down", rows: int = 2, cols: int = 3
) -> None:
    tiles = specimen_tiles(rows, cols)
    folder = raw / f"cyc{cycle:03}_reg001"
    folder.mkdir(parents=True, exist_ok=True)
    for number, place in enumerate(tile_places(layout, rows, cols), start=1):
        for channel in (1, 2):
            tifffile.imwrite(folder / f"1_{number:05}_Z001_CH{channel}.tif", tiles[place])


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "tonsil"
    write_cycle(folder, 1)
    (folder / "channelnames.txt").write_text("DAPI\nCD3\nDAPI\nCD8\n")
    return folder


def test_a_tile_that_was_left_out_stays_out(raw: Path) -> None:
    result, _ = initiated(raw)
    text = result.tiles.read_text()
    result.tiles.write_text(text.replace("CH1.tif,1\n", "CH1.tif,0\n", 1))
    again, _ = initiated(raw, force=True)
    assert [row["tile"] for row in tile_rows(again) if row["use"] == "0"] == ["1"]
    assert again.tiles.read_text() == result.tiles.read_text()


def test_a_table_that_cannot_be_read_is_named(raw: Path) -> None:
    result, _ = initiated(raw)
    for path in (result.samples, result.markers, result.tiles):
        before = path.read_bytes()
        path.write_bytes(b"a,b\n\xff\n")
        with pytest.raises(ConfigError, match=path.name):
            initiated(raw, force=True)
        path.write_bytes(before)
    result.config.write_text("samples: [")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        initiated(raw, force=True)


# init --add


def completed(result: InitResult) -> None:
    """Fill in what init left open, and list a second cycle."""
    content = config(result)
    content["acquisition"]["pixel_um"] = 0.3
    content["results"] = "results"
    result.config.write_text(yaml.safe_dump(content))
    result.markers.write_text(
        "cycle,channel,marker,reference\n1,1,D1,TRUE\n1,2,CD3,\n2,1,D2,TRUE\n2,2,CD8,\n"
    )


@pytest.mark.parametrize("layout", ["snake_right_down", "raster_left_up"])
def test_a_new_cycle_gets_rows_and_the_others_stay_byte_for_byte(raw: Path, layout: str) -> None:
    result, _ = initiated(raw)
    completed(result)
    odd = result.tiles.read_text().replace("\n", "\r\n").encode() + b"\r\n"
    result.tiles.write_bytes(odd)
    write_cycle(raw, 2, layout)
    said = add_cycles(result.config, GridOptions())
    assert "tonsil: 6 rows of cycle 2" in said
    written = result.tiles.read_bytes()
    assert written.startswith(odd)
    rows = [row for row in tile_rows(result) if row["sample"]]
    assert list(grid_of(rows, 2).values()) == tile_places(layout, 2, 3)
    assert add_cycles(result.config, GridOptions()) == "no tile is new"
    assert result.tiles.read_bytes() == written


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
    add_cycles(result.config, GridOptions())
    rows = tile_rows(result)
    assert [row for row in rows if row["cycle"] == "1"] == first
    assert len(rows) == 12
    assert list(grid_of(rows, 2).values()) == tile_places("snake_right_down", 2, 3)
    assert [(r["cycle"], r["tile"]) for r in rows if r["use"] == "0"] == [("2", "2")]


# pieces, and positions imaged twice


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
        "2 pieces far apart, written as samples tonsil_1, tonsil_2" in w for w in result.warnings
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
    assert "tiles imaged twice have use 0 in the tiles table: 2 (as 1)" in result.warnings[0]
    filled_in(result)
    (table,) = result.config.parent.glob("tonsil/cycle1.csv")
    lines = table.read_text().splitlines()
    # Another tile lies there: nothing is left out of the image.
    assert not [line for line in lines if line.startswith(",")]


def test_names_of_no_form_are_read_by_a_pattern(tmp_path: Path) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    for cycle, layout in ((1, "snake_right_down"), (2, "raster_down_right")):
        tiles = specimen_tiles(2, 3)
        for number, place in enumerate(tile_places(layout, 2, 3), 1):
            for channel in (1, 2):
                name = f"Img-R{cycle}-{number:06}-C{channel}.tif"
                tifffile.imwrite(raw / name, tiles[place])
    pattern = "Img-R{cycle}-{tile}-C{channel}.tif"
    result, acquisition = initiated(raw, pattern=pattern)
    assert (acquisition["convention"], acquisition["pattern"]) == ("pattern", pattern)
    rows = tile_rows(result)
    assert list(grid_of(rows).values()) == tile_places("snake_right_down", 2, 3)
    assert list(grid_of(rows, 2).values()) == tile_places("raster_down_right", 2, 3)
    shutil.rmtree(result.config.parent)
    (raw / "notes.json").write_text(json.dumps({}))
    assert initiated(raw, pattern=pattern)[1] == acquisition
    # Written anew, its own pattern is used.
    assert initiated(raw, force=True)[1] == acquisition


def side_by_side(raw: Path, cycle: int, jitter_px: float) -> None:
    """Write two pieces of 2 x 2 tiles beside each other, the first one higher or lower."""
    at = [(row, col) for col in range(4) for row in range(2)]
    places = [
        (row * STEP + jitter_px * (col < 2), col * STEP + 3000 * (col > 1)) for row, col in at
    ]
    write_ome(raw / f"cycle{cycle}.ome.tif", places, at)


def samples_of(result: InitResult, cycle: int) -> dict[str, str]:
    rows = tile_rows(result)
    return {row["tile"]: row["sample"] for row in rows if row["cycle"] == str(cycle)}


def test_pieces_are_the_same_in_all_cycles_and_keep_the_names_of_their_user(tmp_path: Path) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    for cycle, jitter_px in ((1, 2.0), (2, -2.0)):
        side_by_side(raw, cycle, jitter_px)
    result, _ = initiated(raw)
    first = samples_of(result, 1)
    assert samples_of(result, 2) == first
    assert len(set(first.values())) == 2
    # The user renames them and sorts the table.
    named = {"tonsil_1": "tumour", "tonsil_2": "control"}
    for path in (result.samples, result.tiles):
        text = path.read_text()
        for before, after in named.items():
            text = text.replace(before, after)
        path.write_text(text)
    head, *lines = result.samples.read_text().splitlines(True)
    result.samples.write_text(head + "".join(sorted(lines)))
    renamed = {tile: named[sample] for tile, sample in first.items()}
    side_by_side(raw, 3, -2.0)
    result.markers.write_text(
        "cycle,channel,marker,reference\n1,1,D1,TRUE\n2,1,D2,TRUE\n3,1,D3,TRUE\n"
    )
    add_cycles(result.config, GridOptions())
    assert [samples_of(result, cycle) for cycle in (1, 2, 3)] == [renamed] * 3
    again, _ = initiated(raw, force=True)
    assert [samples_of(again, cycle) for cycle in (1, 2, 3)] == [renamed] * 3


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
    add_cycles(result.config, GridOptions())
    assert result.tiles.read_bytes().startswith(before)
    rows = tile_rows(result)
    assert list(grid_of(rows, 2).values()) == tile_places("snake_right_down", 2, 3)


def test_positions_that_were_filled_in_stay(tmp_path: Path) -> None:
    raw = tmp_path / "tonsil"
    write_cycle(raw, 1)
    for path in raw.rglob("*.tif"):
        tifffile.imwrite(path, np.full((SIZE, SIZE), 100, np.uint16))
    (raw / "channelnames.txt").write_text("DAPI\nCD3\nDAPI\nCD8\n")
    result, _ = initiated(raw)
    completed(result)
    rows = tile_rows(result)
    for number, row in enumerate(rows[:4]):
        row |= {"y": "7", "x": str(100 * number), "source": "mine"}
    result.tiles.write_text(tiles_text(rows))
    filled = result.tiles.read_text().splitlines()[1:5]
    add_cycles(result.config, GridOptions())
    assert result.tiles.read_text().splitlines()[1:5] == filled
    again, _ = initiated(raw, force=True)
    assert [row["x"] for row in tile_rows(again)] == ["0", "100", "200", "300", "", ""]
    assert [row["source"] for row in tile_rows(again)][:4] == ["mine"] * 4


def test_samples_of_other_folders_stay(tmp_path: Path) -> None:
    raw, other = tmp_path / "tonsil", tmp_path / "spleen"
    write_cycle(raw, 1)
    write_cycle(other, 1, "raster_up_left")
    result, _ = initiated(raw)
    with result.samples.open("a") as table:
        table.write(f"spleen\t{other}\n")
    mine = "spleen,1,1,5,6,px,mine,,1\n"
    result.tiles.write_text(result.tiles.read_text() + mine)
    again, _ = initiated(raw, force=True)
    assert again.tiles.read_text().splitlines(True)[-1] == mine
    assert len(tile_rows(again)) == 7


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
    assert any("could not be compared" in said for said in result.warnings)


def test_a_tile_that_is_off_and_one_that_lies_alone(tmp_path: Path) -> None:
    raw = tmp_path / "tonsil"
    raw.mkdir()
    at = list(np.ndindex(2, 4))
    stage = [(row * STEP, col * STEP + 30 * ((row, col) == (1, 2))) for row, col in at]
    write_ome(raw / "cycle1.ome.tif", stage, at)
    result, _ = initiated(raw)
    (said,) = result.warnings
    assert "overlaps show tile 7 (0, -3" in said
    row = tile_rows(result)[6]
    assert float(row["x"]) == pytest.approx(2 * STEP, abs=3)
    rows = [
        row | {"y": "900", "x": "0"} if row["tile"] == "8" else row for row in tile_rows(result)
    ]
    result.tiles.write_text(tiles_text(rows))
    content = config(result) | {"results": str(tmp_path / "results")}
    experiment = load_experiment(content)
    with pytest.raises(ConfigError, match=r"cycle 1: .*tile 8"):
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
    content["acquisition"]["z_step_um"] = 1.0
    content |= {"deconvolve": {"method": "none"}, "edf": {"method": "focus_weighted"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    markers = (folder / "markers.csv").read_text()
    (folder / "markers.csv").write_text(
        markers.replace("1,1,,", "1,1,A,").replace("1,2,,", "1,2,B,")
    )
    mark_references(folder / "markers.csv")
    for where, results in ((folder, "results"), (tmp_path, str(folder / "results"))):
        monkeypatch.chdir(where)
        experiment = read_experiment(folder / "config.yaml")
        assert experiment.settings.results == results
        (sample,) = experiment.samples.values()
        assert sample.raw_dir.resolve() == place / "tonsil"
    create_experiment(place / "tonsil", folder, force=True)
    assert read_experiment(folder / "config.yaml").samples.keys() == experiment.samples.keys()
