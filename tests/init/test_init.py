import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    initiated,
    specimen_tiles,
    two_fields,
)
from tests.support.microscope_files import write_phenix
from tilewright.config.load import load_experiment
from tilewright.errors import ConfigError, RawDataError
from tilewright.init.folder import create_experiment
from tilewright.init.recognise import infer_pattern, recognise
from tilewright.io.inputs.manifest import build_manifest
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


def grid(acquisition: dict[str, Any]) -> tuple[Any, ...]:
    return acquisition["rows"], acquisition["cols"], acquisition["layout"]


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
        **{"convention": "codex", "rows": 3, "cols": 2, "layout": "snake_right_down"},
        **{"overlap": OVERLAP, "pixel_um": 0.3774, "z_step_um": 1.5},
        "reference_cycle": 2,
    }
    assert config(result)["optics"] == {
        "numerical_aperture": 0.75,
        "immersion_refractive_index": 1.0,
        "sample_refractive_index": None,
    }
    assert [line.split(":")[0] for line in result.unknown] == ["optics.sample_refractive_index"]
    assert result.markers.read_text() == (
        "cycle,channel,marker,reference,emission_nm,exposure_ms\n1,1,DAPI_1,TRUE,461,10\n"
        "1,2,CD8,,668,500\n2,1,DAPI_2,TRUE,461,10\n2,2,Blank,,668,350\n"
    )
    assert any("excitation" in warning for warning in result.warnings)
    assert list(filled_in(result).samples) == ["spleen-A"]
    assert "fill in: of the mounting medium" in result.config.read_text()


@pytest.mark.parametrize("layout", ["snake_right_up", "raster_down_left", "snake_left_down"])
def test_the_layout_is_found_from_the_pixels(raw: Path, layout: str) -> None:
    write_codex(raw, layout, 3, 4)
    result, acquisition = initiated(raw)
    assert grid(acquisition) == (3, 4, layout)
    assert acquisition["overlap"] == pytest.approx(OVERLAP, abs=0.02)
    assert "cycle1_channel1" in result.markers.read_text()
    assert not result.warnings
    filled_in(result)


def test_metadata_that_disagree_are_warned_of(raw: Path) -> None:
    write_codex(raw, "snake_left_down", 3, 4)
    names = {"channelNames": {"channelNamesArray": ["a", "b"]}}
    for told, *warnings in (
        (
            {"regionHeight": 3, "regionWidth": 4, "tilingMode": "grid"},
            "layout raster_right_down in the metadata, but snake_left_down by the pixels",
        ),
        (
            {"regionHeight": 4, "regionWidth": 3, **names},
            "4 x 3 tiles in the metadata, but 3 x 4 by the pixels",
            "2 marker names for 1 cycles",
        ),
        (
            {"regionHeight": 5, "regionWidth": 3, "numCycles": 4},
            "5 x 3 tiles in the metadata, but 12 in the files",
            "4 cycles in the metadata, but 1 in the files",
        ),
    ):
        (raw / "experiment.json").write_text(json.dumps(told))
        result, acquisition = initiated(raw, force=True)
        assert grid(acquisition) == (3, 4, "snake_left_down")
        for said in warnings:
            assert any(str(said) in warning for warning in result.warnings), result.warnings


def test_without_structure_the_metadata_decide_or_the_grid_is_a_gap(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 2, 3, blank=True)
    result, acquisition = initiated(raw)
    assert grid(acquisition) == (None, None, None)
    assert any("2 x 3, 3 x 2, 1 x 6, 6 x 1" in warning for warning in result.warnings)
    keys = [line.split(":")[0] for line in result.unknown]
    assert keys[:3] == ["acquisition.rows", "acquisition.cols", "acquisition.layout"]
    told = {"regionHeight": 2, "regionWidth": 3, "tilingMode": "snake", "tileOverlapX": 32}
    (raw / "experiment.json").write_text(json.dumps(told))
    _, acquisition = initiated(raw, "told")
    assert grid(acquisition) == (2, 3, "snake_right_down")
    assert acquisition["overlap"] == 32 / SIZE


def test_missing_and_damaged_tiles_are_named(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 2, 3)
    bad = raw / "cyc001_reg001/1_00003_Z002_CH1.tif"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:100])
    (said,) = initiated(raw, "damaged")[0].warnings
    assert said.startswith(f"{bad} is missing, cannot be read, or is of another size")
    bad.write_bytes(whole)
    for path in raw.rglob("1_00004_*"):
        path.unlink()
    assert any("tiles 4 are missing" in warning for warning in initiated(raw)[0].warnings)


def test_regions_become_samples_with_their_own_grids(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 2, 3, region=1)
    write_codex(raw, "snake_right_down", 3, 3, region=2)
    result, _ = initiated(raw)
    head, *lines = [line.split("\t") for line in result.samples.read_text().splitlines()]
    assert head[:4] == ["sample", "raw_dir", "region", "rows"]
    assert [(line[0][-2:], *line[2:4]) for line in lines] == [("_1", "1", "2"), ("_2", "2", "3")]
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
    assert acquisition["flip_y"] is True
    assert "flip_x" not in acquisition
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
    assert acquisition.get("flip_y", False) is flip_y
    assert (acquisition["rows"], acquisition["cols"]) == (2, 3)
    assert acquisition["overlap"] == pytest.approx(OVERLAP, abs=0.01)
    assert acquisition["pixel_um"] == 0.5
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
    assert grid(acquisition) == (2, 3, "raster_right_down")
    assert "time point" not in result.summary()
    write_plate(raw, "p", 2)
    assert (
        "cycles are the time points, from TimePoint_1 to TimePoint_2; "
        "if they repeat one cycle, choose one: cycles: [1] in config.yaml"
    ) in initiated(raw, "two")[0].summary()


def test_an_experiment_beside_the_one_taken_is_named(raw: Path) -> None:
    write_plate(raw / "cycle1", "p")
    write_plate(raw / "other", "p")
    write_codex(raw / "third/B")
    (said,) = initiated(raw)[0].warnings
    assert said == (
        f"the files are read from {raw}/cycle1/TimePoint_1, and none from other (6), third (2); "
        f"for each that is an experiment of its own: tilewright init {raw}/other, "
        f"tilewright init {raw}/third"
    )


def test_two_experiments_in_one_folder_are_told_apart(raw: Path) -> None:
    for name in ("A", "B"):
        write_codex(raw / "codex" / name)
        write_plate(raw / "plates", name)
    with pytest.raises(RawDataError, match=r"2 CODEX experiments \(A, B\)"):
        initiated(raw / "codex")
    (said,) = initiated(raw / "plates")[0].warnings
    assert "TimePoint_1/A_B02_s1_w1.tif and " in said
    assert "B_B02_s1_w1.tif are the same tile of one cycle by their names and" in said


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
    result = create_experiment(tmp_path, tmp_path / "out")
    assert result.convention == convention
    assert "1 cycle, 3 channels, 2 z-planes" in result.findings[0]
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


def test_nothing_is_overwritten_without_force(raw: Path) -> None:
    write_codex(raw)
    markers = raw.parent / "out/markers.csv"
    markers.parent.mkdir()
    markers.write_text("mine")
    with pytest.raises(ConfigError, match=r"markers.csv exist already; give --force"):
        initiated(raw)
    assert list(markers.parent.iterdir()) == [markers]
    assert markers.read_text() == "mine"
    initiated(raw, force=True)
    assert markers.read_text() != "mine"


def test_a_folder_to_run_in_is_written_and_what_is_the_users_stays(raw: Path) -> None:
    write_codex(raw, "snake_right_down", 2, 2)
    result, _ = initiated(raw)
    out = result.config.parent
    assert "use rule * from tilewright" in (out / "Snakefile").read_text()
    for name in ("default/config.yaml", "slurm/config.yaml", "slurm/site.yaml"):
        assert (out / "profiles" / name).read_text() == (REPO / "profiles" / name).read_text()
    told = (out / "README.md").read_text()
    assert "1 cycle, 1 channel, 2 z-planes" in told
    assert all(key in told for key in result.unknown)
    assert not result.unchanged
    written = [path.read_bytes() for path in (result.config, result.samples, result.markers)]
    own = ("Snakefile", "profiles/slurm/site.yaml")
    for name in own:
        (out / name).write_text("mine")
    (out / "profiles/default/config.yaml").unlink()
    again, _ = initiated(raw, force=True)
    assert [(out / name).read_text() for name in own] == ["mine", "mine"]
    assert (out / "profiles/default/config.yaml").is_file()
    assert f"unchanged: {out / 'Snakefile'}" in again.summary()
    # The same folder gives the same files.
    assert [path.read_bytes() for path in (again.config, again.samples, again.markers)] == written


def test_files_that_only_the_metadata_name_are_said_to_be_missing(raw: Path) -> None:
    write_phenix(raw, 1, two_fields())
    gone = sorted(raw.rglob("*.tiff"))[-2:]
    for path in gone:
        path.unlink()
    (said,) = [line for line in initiated(raw)[0].warnings if "in the metadata" in line]
    assert said.startswith("2 files in the metadata are missing: ")
    assert all(path.name in said for path in gone)


def test_a_folder_of_no_convention_says_what_was_looked_for(raw: Path) -> None:
    for names, said in (
        (None, "is not a folder"),
        ([], "it is empty"),
        (["notes.docx"], r"no such image, only notes.docx"),
        (["left.tif", "right.tif"], r"Cyc1_reg1.*named like left.tif, right.tif"),
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
        ([f"cycle{c}/img_{t:03}_ch{n}.tif" for c in (1, 2) for t in range(3) for n in (1, 2)],
         "cycle{cycle}/img_{tile}_ch{channel}.tif"),
        ([f"a_r{r}_c{c}_z{z}_ch2.tif" for r in (1, 2) for c in (1, 2) for z in (1, 2)],
         "a_r{row}_c{col}_z{z}_ch{channel}.tif"),
        ([f"t{t}_c{c}.tif" for t in (1, 2) for c in (1, 2)], "t{tile}_c{channel}.tif"),
        (["C3-a1.tif", "C3-a2.tif", "C3-a3.tif", "overview.tif"], "C3-a{tile}.tif"),
        ([f"20240101_{a}_{b}.tif" for a in (1, 2) for b in (1, 2)], None),
        ([f"r{r}.tif" for r in (1, 2)], None),
        (["a{1}.tif", "a{2}.tif"], None),
        ([], None),
    ],
)  # fmt: skip
def test_patterns_are_read_from_names(paths: list[str], pattern: str | None) -> None:
    assert infer_pattern(paths) == pattern


@pytest.mark.shared
def test_brain_tiles_by_number_lie_as_tile_configuration_says(shared: Path, raw: Path) -> None:
    raw.mkdir()
    for path in (shared / "data/brain-tiles").glob("*.tif"):
        (raw / path.name).symlink_to(path)
    numbered, acquisition = initiated(raw, "numbered")
    assert acquisition["pattern"] == "C3-BrainSection{tile}.tif"
    assert (acquisition["rows"], acquisition["cols"]) == (7, 9)
    assert not numbered.warnings
    fiji = create_experiment(shared / "data/brain-tiles", raw.parent / "fiji")
    acquisition = config(fiji)["acquisition"]
    assert acquisition["convention"] == "fiji"
    # TileConfiguration.txt places 54 of the 63 tiles.
    assert (acquisition["rows"], acquisition["cols"]) == (6, 9)
    assert acquisition["overlap"] == pytest.approx(52 / 512, abs=0.001)
    assert any(warning.startswith("9 files are ignored") for warning in fiji.warnings)
    assert not fiji.unknown
    places = []
    for result in (numbered, fiji):
        experiment = load_experiment(config(result))
        (sample,) = experiment.samples.values()
        table = result.config.with_name("cycle1.csv")
        channels = {1: [experiment.reference_channels[1]]}
        build_manifest(sample.raw_dir, sample.acquisition.model_dump(), channels, {1: table})
        lines = [line.split(",") for line in table.read_text().splitlines()[1:]]
        places.append({Path(line[5]).name: (line[1], line[2]) for line in lines})
    assert len(places[1]) == 54
    assert {name: places[0][name] for name in places[1]} == places[1]
