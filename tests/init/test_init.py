import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tests.conftest import REPO
from tests.init.raw_folders import (
    OVERLAP,
    SIZE,
    STEP,
    config,
    filled_in,
    grid_of,
    initiated,
    specimen_tiles,
    tile_rows,
)
from tilewright.errors import ConfigError, RawDataError
from tilewright.init.folder import create_experiment
from tilewright.init.recognise import names_of, recognise
from tilewright.init.tile_set import GridOptions
from tilewright.io.inputs.tiles import read_plane
from tilewright.kernels.tile_positions.tile_order import tile_places


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return tmp_path / "raw"


def write_codex(
    raw: Path,
    layout: str = "snake_right_down",
    rows: int = 1,
    cols: int = 1,
    *,
    cycles: int = 1,
    channels: int = 1,
    region: int = 1,
    blank: bool = False,
) -> None:
    tiles = specimen_tiles(rows, cols)
    for cycle in range(1, cycles + 1):
        folder = raw / f"cyc{cycle:03}_reg{region:03}"
        folder.mkdir(parents=True)
        for number, place in enumerate(tile_places(layout, rows, cols), start=1):
            tile = np.full_like(tiles[place], 100) if blank else tiles[place]
            for channel, z in np.ndindex(channels, 2):
                name = f"{region}_{number:05}_Z{z + 1:03}_CH{channel + 1}.tif"
                tifffile.imwrite(folder / name, tile)


def laid(layout: str, rows: int, cols: int) -> dict[str, tuple[int, int]]:
    """Return (row, col) of tiles numbered from 1."""
    return {str(n): place for n, place in enumerate(tile_places(layout, rows, cols), start=1)}


def test_codex_with_all_its_metadata(tmp_path: Path) -> None:
    raw = tmp_path / "spleen A/data/raw"
    write_codex(raw, "snake_right_down", 3, 2, cycles=2, channels=2)
    metadata = {
        **{"numCycles": 2, "numZPlanes": 2, "numChannels": 2, "referenceCycle": 2},
        **{"regionHeight": 3, "regionWidth": 2, "tilingMode": "snake", "tileOverlapX": OVERLAP},
        **{"xyResolution": 377.4, "zPitch": 1500.0, "wavelengths": [358, 650]},
        **{"aperture": 0.75, "objectiveType": "air"},
    }
    (tmp_path / "spleen A/Experiment.json").write_text(json.dumps({"experiment": metadata}))
    (raw / "channelnames.txt").write_text("DAPI\nCD8\nDAPI\nBlank\n")
    (raw / "exposure_times.txt").write_text("Cycle,CH1,CH2\n1,10,500\n2,10,350\n")
    result, acquisition = initiated(tmp_path / "spleen A")
    assert acquisition == {
        **{"convention": "codex", "pixel_um": 0.3774, "z_step_um": 1.5, "reference_cycle": 2},
    }
    rows = tile_rows(result)
    assert [row["cycle"] for row in rows] == ["1"] * 6 + ["2"] * 6
    step = SIZE * (1 - OVERLAP)
    for row, place in zip(rows, 2 * tile_places("snake_right_down", 3, 2), strict=True):
        assert (float(row["y"]), float(row["x"])) == pytest.approx(np.multiply(place, step))
    assert {(row["unit"], row["source"], row["use"]) for row in rows} == {("px", "grid", "1")}
    assert rows[0]["file"] == "data/raw/cyc001_reg001/1_00001_Z001_CH1.tif"
    assert config(result)["optics"] == {
        "numerical_aperture": 0.75,
        "immersion_refractive_index": 1.0,
    }
    assert not result.notes.unknown
    assert result.markers.read_text() == (
        "cycle,channel,marker,reference,emission_nm,exposure_ms\n1,1,DAPI_1,TRUE,461,10\n"
        "1,2,CD8,,668,500\n2,1,DAPI_2,TRUE,461,10\n2,2,Blank,,668,350\n"
    )
    assert any("excitation" in warning for warning in result.notes.warnings)
    assert list(filled_in(result).samples) == ["spleen-A"]


@pytest.mark.parametrize("layout", ["snake_right_up", "raster_down_left", "snake_left_down"])
def test_the_layout_is_found_from_the_pixels(raw: Path, layout: str) -> None:
    write_codex(raw, layout, 3, 4)
    result, _ = initiated(raw)
    rows = tile_rows(result)
    assert grid_of(rows) == laid(layout, 3, 4)
    assert {row["source"] for row in rows} == {"pixels"}
    steps = np.ptp([float(row["x"]) for row in rows]) / 3
    assert steps == pytest.approx(SIZE * (1 - OVERLAP), abs=0.02 * SIZE)
    assert "cycle1_channel1" in result.markers.read_text()
    assert not result.notes.warnings
    filled_in(result)


def test_metadata_that_disagree_are_warned_of(raw: Path) -> None:
    write_codex(raw, "snake_left_down", 3, 4)
    names = {"channelNames": {"channelNamesArray": ["a", "b"]}}
    for stated, *warnings in (
        (
            {"regionHeight": 3, "regionWidth": 4, "tilingMode": "grid"},
            "3 x 4 raster_right_down is given, but 3 x 4 snake_left_down (17 of 17) fits",
        ),
        (
            {"regionHeight": 4, "regionWidth": 3, **names},
            "4 x 3 is given, but 3 x 4 snake_left_down (17 of 17) fits the overlaps, which",
            "2 marker names for 1 cycles",
        ),
        (
            {"regionHeight": 5, "regionWidth": 2, "numCycles": 4},
            "5 x 2 tiles are given, but the files number 12",
            "4 cycles of 1 channels in the metadata, but the files are of cycle 1 and 1 channels",
        ),
    ):
        (raw / "experiment.json").write_text(json.dumps(stated))
        result, _ = initiated(raw, force=True)
        assert grid_of(tile_rows(result)) == laid("snake_left_down", 3, 4)
        for text in warnings:
            told = result.notes.warnings
            assert any(str(text) in warning for warning in told), told


def test_without_structure_the_metadata_decide_or_positions_are_gaps(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 2, 3, blank=True)
    result, _ = initiated(raw)
    assert {(row["y"], row["x"]) for row in tile_rows(result)} == {("", "")}
    (gap,) = [
        line for line in result.notes.unknown if line.startswith("tiles.csv, rows 2 to 7 (cycle 1)")
    ]
    assert "in which order 6 tiles lie is not sure, as overlaps show too little" in gap
    with pytest.raises(
        RawDataError, match=r"tiles.csv, row 2 and 5 more rows: y or x is not filled in"
    ):
        filled_in(result)
    stated = {"regionHeight": 2, "regionWidth": 3, "tilingMode": "snake", "tileOverlapX": 32}
    (raw / "experiment.json").write_text(json.dumps(stated))
    result, _ = initiated(raw, "stated")
    rows = tile_rows(result)
    assert grid_of(rows) == laid("snake_right_down", 2, 3)
    assert max(float(row["x"]) for row in rows) == 2 * (SIZE - 32)
    assert any("positions are not confirmed" in line for line in result.notes.warnings)


def test_options_say_what_neither_files_nor_pixels_do(raw: Path) -> None:
    write_codex(raw, "raster_up_right", 2, 3, blank=True)
    options = GridOptions(2, 3, "raster_up_right", 0.25)
    rows = tile_rows(initiated(raw, grid=options)[0])
    assert grid_of(rows) == laid("raster_up_right", 2, 3)
    assert max(float(row["x"]) for row in rows) == 2 * 0.75 * SIZE
    assert {row["source"] for row in rows} == {"grid"}


@pytest.mark.parametrize("layout", ["snake_right_down", "raster_right_down"])
@pytest.mark.parametrize("gone", [[4], [3, 9], [1, 2], [12], [11, 12]])
def test_tiles_that_are_not_there_leave_gaps(raw: Path, layout: str, gone: list[int]) -> None:
    write_codex(raw, layout, 3, 4)
    for number in gone:
        for path in raw.rglob(f"1_{number:05}_*"):
            path.unlink()
    result, _ = initiated(raw)
    expected = {tile: at for tile, at in laid(layout, 3, 4).items() if int(tile) not in gone}
    if 12 in gone:  # the scan was stopped
        assert grid_of(tile_rows(result)) == expected
    else:
        assert {row["y"] for row in tile_rows(result)} == {""}
        missing = f"tiles {', '.join(map(str, gone))} are missing"
        assert any(missing in question for question in result.notes.unknown)
    result, _ = initiated(raw, force=True, grid=GridOptions(3, 4))
    rows = tile_rows(result)
    least = np.min(list(expected.values()), axis=0)
    assert grid_of(rows) == {tile: tuple(at - least) for tile, at in expected.items()}
    filled_in(result)


def test_a_stated_grid_that_explains_few_overlaps_is_not_believed(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 3, 4)
    for rows, cols in ((1, 12), (2, 6), (4, 3)):
        result, _ = initiated(raw, f"out{rows}", grid=GridOptions(rows, cols))
        assert grid_of(tile_rows(result)) == laid("snake_right_down", 3, 4)
        told = result.notes.warnings
        assert any(f"{rows} x {cols} is given, but 3 x 4" in warning for warning in told)


def test_cycles_may_have_other_grids(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 2, 3)
    write_codex(raw / "more", "raster_down_right", 3, 4)
    (raw / "more/cyc001_reg001").rename(raw / "cyc002_reg001")
    result, _ = initiated(raw)
    rows = tile_rows(result)
    assert grid_of(rows) == laid("snake_right_down", 2, 3)
    assert grid_of(rows, 2) == laid("raster_down_right", 3, 4)
    assert not result.notes.warnings
    filled_in(result)


def test_a_gap_in_one_cycle_is_where_the_grid_of_another_has_it(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 3, 4, cycles=2)
    for path in (raw / "cyc002_reg001").glob("1_00006_*"):
        path.unlink()
    result, _ = initiated(raw)
    expected = laid("snake_right_down", 3, 4)
    assert grid_of(tile_rows(result)) == expected
    del expected["6"]
    assert grid_of(tile_rows(result), 2) == expected


def test_regions_become_samples_with_their_own_grids(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 2, 3, region=1)
    write_codex(raw, "snake_right_down", 3, 3, region=2)
    result, _ = initiated(raw)
    head, *lines = [line.split("\t") for line in result.samples.read_text().splitlines()]
    assert head == ["sample", "raw_dir", "region"]
    assert [(line[0][-2:], line[2]) for line in lines] == [("_1", "1"), ("_2", "2")]
    counts = Counter(row["sample"][-2:] for row in tile_rows(result))
    assert counts == {"_1": 6, "_2": 9}
    assert len(filled_in(result).samples) == 2


def write_grid(raw: Path, name: Callable[[int, int], str], rows: int = 3, cols: int = 3) -> None:
    tiles = specimen_tiles(rows, cols)
    for row, col in np.ndindex(rows, cols):
        path = raw / name(row, col)
        path.parent.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(path, tiles[row, col])


def test_rows_that_count_upwards_are_flipped(raw: Path) -> None:
    write_grid(raw, lambda row, col: f"tile_r{3 - row}_c{col}.tif")
    result, acquisition = initiated(raw)
    assert acquisition["pattern"] == "tile_r{row}_c{col}.tif"
    (said,) = result.notes.warnings
    assert "y mirrored" in said
    filled_in(result)
    (table,) = raw.parent.glob("out/*/cycle1.csv")
    assert "tile_r3_c0.tif" in table.read_text().splitlines()[1]


@pytest.mark.parametrize("flip_y", [False, True])
def test_ome_positions_and_metadata(raw: Path, flip_y: bool) -> None:
    raw.mkdir()
    tiles = specimen_tiles(2, 3)
    for row, col in np.ndindex(2, 3):
        y_um, x_um = (-row if flip_y else row) * STEP * 0.5, col * STEP * 0.5
        metadata = {
            **{"axes": "CYX", "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5},
            "Channel": {"Name": ["AF750", "Hoechst"]},
            "Plane": {"PositionX": [x_um] * 2, "PositionY": [y_um] * 2},
        }
        planes = np.stack([tiles[row, col]] * 2)
        path = raw / f"t{row}{col}.ome.tif"
        tifffile.imwrite(path, planes, photometric="minisblack", metadata=metadata)
    result, acquisition = initiated(raw)
    assert acquisition["convention"] == "ome_tiff"
    assert acquisition["pixel_um"] == 0.5
    rows = tile_rows(result)
    assert list(grid_of(rows).values()) == list(np.ndindex(2, 3))
    assert [(row["unit"], row["source"]) for row in rows] == 6 * [
        ("px", "pixels") if flip_y else ("um", "stage")
    ]
    assert any("y mirrored" in warning for warning in result.notes.warnings) is flip_y
    assert "1,1,AF750,,,\n1,2,Hoechst,TRUE," in result.markers.read_text()
    filled_in(result)


def write_plate(raw: Path, plate: str, time: int = 1) -> None:
    places = tile_places("raster_right_down", 2, 3)
    name = f"TimePoint_{time}/{plate}_B02_s{{}}_w1.tif".format
    write_grid(raw, lambda row, col: name(places.index((row, col)) + 1), 2, 3)


def test_time_points_that_become_cycles_are_said(raw: Path) -> None:
    write_plate(raw, "p")
    result, acquisition = initiated(raw, "one")
    assert acquisition["convention"] == "imagexpress"
    assert grid_of(tile_rows(result)) == laid("raster_right_down", 2, 3)
    assert "time point" not in result.summary()
    write_plate(raw, "p", 2)
    assert (
        "cycles are the time points, from TimePoint_1 to TimePoint_2; "
        "if they repeat one cycle, choose one: cycles: [1] in config.yaml"
    ) in initiated(raw, "two")[0].summary()


def test_experiments_beside_each_other_are_told_apart(raw: Path) -> None:
    for name in ("A", "B"):
        write_codex(raw / "codex" / name)
        write_plate(raw / "plates", name)
        write_plate(raw / "folders" / name, "p")
    with pytest.raises(RawDataError, match=r"several experiments, name .* words A, B"):
        initiated(raw / "codex")
    for folder, said in (("plates", "TimePoint_1/A_B02_s1_w1.tif"), ("folders", "A/TimePoint_1/")):
        result, _ = initiated(raw / folder, f"{folder}-out")
        with pytest.raises(RawDataError, match=f"tile 1, duplicate z 0: .*{said}"):
            filled_in(result)


def test_no_file_that_is_named_like_the_others_is_left_out(raw: Path) -> None:
    write_codex(raw)
    (raw / "old").mkdir()
    shutil.copy(raw / "cyc001_reg001/1_00001_Z001_CH1.tif", raw / "old/1_00002_Z001_CH1.tif")
    with pytest.raises(RawDataError, match=r"1 file such as .*old/1_00002_Z001_CH1.tif would not"):
        initiated(raw)


@pytest.mark.parametrize("convention", ["pattern", "fiji"])
def test_hyperstacks_are_channels_and_planes(tmp_path: Path, convention: str) -> None:
    rng = np.random.default_rng(2)
    stacks = rng.integers(90, 999, (4, 2, 3, 64, 64)).astype(np.uint16)
    for tile, stack in enumerate(stacks, start=1):
        path = tmp_path / f"t{tile}.tif"
        tifffile.imwrite(path, stack, imagej=True, metadata={"axes": "ZCYX"})
    if convention == "fiji":
        lines = [f"t{n + 1}.tif; ; ({50 * (n % 2)}, {50 * (n // 2)})" for n in range(4)]
        (tmp_path / "TileConfiguration.txt").write_text("dim = 2\n" + "\n".join(lines))
    result = create_experiment(tmp_path, tmp_path.with_name(f"{tmp_path.name}_out"))
    assert result.convention == convention
    assert "1 cycle, 3 channels, 2 z-planes" in result.notes.findings[0]
    for plane in recognise(tmp_path).planes:
        assert plane.page is not None
        truth = stacks[int(Path(plane.path).stem[1:]) - 1, plane.z, int(plane.channel) - 1]
        assert np.array_equal(read_plane(plane.path, plane.page), truth)


def test_a_hyperstack_of_time_points_is_refused(raw: Path) -> None:
    raw.mkdir()
    for tile in (1, 2):
        stack = np.zeros((2, 3, 8, 8), np.uint16)
        tifffile.imwrite(raw / f"t{tile}.tif", stack, imagej=True, metadata={"axes": "TCYX"})
    with pytest.raises(RawDataError, match="hyperstack of 2 time points"):
        initiated(raw)


def test_dyes_in_names_give_the_emission_of_stacks(raw: Path) -> None:
    raw.mkdir()
    for channel in ("DAPI", "CD3-AF647", "CD8"):
        tifffile.imwrite(raw / f"t1_{channel}.tif", np.zeros((2, 64, 64), np.uint8))
    result, _ = initiated(raw)
    lines = result.markers.read_text().splitlines()[1:]
    assert sorted(line.split(",")[4] for line in lines) == ["", "461", "668"]
    (asked,) = [line for line in result.notes.unknown if "emission_nm" in line]
    assert "line 12: z_step_um; config.yaml, line 16: numerical_aperture; config" in asked
    assert "row 3: emission_nm of CD8; or set deconvolve.method: none, which needs no PSF" in asked
    assert any("emission_nm of CD3-AF647, DAPI" in line for line in result.notes.findings)
    assert any("single tile; if they are stitched" in line for line in result.notes.warnings)


def test_nothing_is_overwritten_without_force(raw: Path) -> None:
    write_codex(raw)
    markers = raw.parent / "out/markers.csv"
    markers.parent.mkdir()
    markers.write_text("mine")
    with pytest.raises(ConfigError, match=r"markers.csv exist already; give --add"):
        initiated(raw)
    assert list(markers.parent.iterdir()) == [markers]
    assert markers.read_text() == "mine"


def test_a_folder_to_run_in_is_written_and_what_is_the_users_stays(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 2, 2)
    result, _ = initiated(raw)
    out = result.config.parent
    assert "use rule * from tilewright" in (out / "Snakefile").read_text()
    for name in ("default/config.yaml", "slurm/config.yaml"):
        assert (out / "profiles" / name).read_text() == (REPO / "profiles" / name).read_text()
    told = (out / "README.md").read_text()
    assert "1 cycle, 1 channel, 2 z-planes" in told
    assert all(key in told for key in result.notes.unknown)
    paths = [result.config, result.samples, result.tiles, result.markers]
    written = [path.read_bytes() for path in paths]
    result.markers.write_text("mine")
    own = ("Snakefile", "profiles/slurm/config.yaml")
    for name in own:
        (out / name).write_text("mine")
    (out / "profiles/default/config.yaml").unlink()
    again, _ = initiated(raw, force=True)
    assert [(out / name).read_text() for name in own] == ["mine", "mine"]
    assert (out / "profiles/default/config.yaml").is_file()
    # The same folder gives the same files, and what was there is kept beside them.
    assert [path.read_bytes() for path in paths] == written
    assert again.markers.with_name("markers.csv~").read_text() == "mine"


def test_a_folder_of_no_convention_says_what_was_looked_for(raw: Path) -> None:
    for names, said in (
        (None, "is not a folder"),
        ([], "only nothing"),
        (["notes.docx"], r"no such image, only notes.docx"),
        (["left.tif", "right.tif"], r"named like left.tif, right.tif. .*Their names like"),
    ):
        if names is not None:
            raw.mkdir(exist_ok=True)
        for name in names or []:
            (raw / name).touch()
        with pytest.raises(RawDataError, match=said):
            initiated(raw)
    assert not (raw.parent / "out").exists()


def test_broken_metadata_are_named(raw: Path) -> None:
    write_codex(raw)
    (raw / "experiment.json").write_text("{")
    with pytest.raises(RawDataError, match=r"experiment.json is not JSON"):
        initiated(raw)


@pytest.mark.parametrize(
    ("paths", "pattern"),
    [
        ([f"a_r{r}_c{c}_z{z}_ch2.tif" for r in (1, 2) for c in (1, 2) for z in (1, 2)],
         "a_r{row}_c{col}_z{z}_ch{channel}.tif"),
        ([f"20240101_{a}_{b}.tif" for a in (1, 2) for b in (1, 2)], None),
        ([f"r{r}.tif" for r in (1, 2)], None),
        (["a{1}.tif", "a{2}.tif"], None),
        ([], None),
    ],
)  # fmt: skip
def test_patterns_are_read_from_names(paths: list[str], pattern: str | None) -> None:
    assert names_of(paths).pattern == pattern


@pytest.mark.shared
def test_brain_tiles_by_number_lie_as_tile_configuration_says(shared: Path, raw: Path) -> None:
    raw.mkdir()
    for path in (shared / "data/brain-tiles").glob("*.tif"):
        (raw / path.name).symlink_to(path)
    numbered, acquisition = initiated(raw, "numbered")
    assert acquisition["pattern"] == "C3-BrainSection{tile}.tif"
    assert not numbered.notes.warnings
    fiji = create_experiment(shared / "data/brain-tiles", raw.parent / "fiji")
    assert config(fiji)["acquisition"]["convention"] == "fiji"
    (asked,) = fiji.notes.unknown
    assert asked.startswith("9 files ignored: C3-")
    assert "TileConfiguration.txt does not list them: add them to it or move" in asked
    # TileConfiguration.txt places 54 of the 63 tiles.
    of_fiji, of_numbers = (
        {Path(row["file"]).name: (float(row["y"]), float(row["x"])) for row in tile_rows(result)}
        for result in (fiji, numbered)
    )
    assert (len(of_fiji), len(of_numbers)) == (54, 63)
    apart = np.array([np.subtract(of_numbers[name], of_fiji[name]) for name in of_fiji])
    # Numbers give no stage: the grid of the pixels is within 2 % of a tile of it.
    assert np.abs(apart - np.median(apart, axis=0)).max() < 0.08 * 512
