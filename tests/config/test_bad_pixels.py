"""Pixels that cannot be used are named as raw files before any work starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from tests.config.configs import refused
from tests.support.convention_raw import Tiles, make_tiles, write_as
from tilewright.config.checks import check_raw
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment
from tilewright.errors import RawDataError
from tilewright.io.inputs.raw_pixels import grain_trend, structure
from tilewright.io.inputs.tiles import open_tiles, truncated_fraction
from tilewright.kernels.tile_positions.tile_order import LAYOUTS
from tilewright.phantom.make import Phantom, PhantomDesign

Made = tuple[PhantomDesign, dict[tuple[int, int], Tiles]]


@pytest.fixture(scope="module")
def made() -> Made:
    return make_tiles(cols=3, cycles=2, channels=2)


HEAD = "cycle,channel,marker,reference"
ONE_CHANNEL = f"{HEAD}\n1,1,a,TRUE\n2,1,b,TRUE\n"


def experiment(
    folder: Path, made: Made, convention: str = "codex", **acquisition: Any
) -> dict[str, Any]:
    design, tiles = made
    write_as(convention, folder / "raw", tiles, round(design.step_px))
    (folder / "samples.tsv").write_text(f"sample\traw_dir\ns\t{folder / 'raw'}\n")
    lines = [f"{y},{c},m{y}{c},{c == 1}" for y in (1, 2) for c in (1, 2)]
    (folder / "markers.csv").write_text("\n".join([HEAD, *lines]) + "\n")
    return {
        "samples": str(folder / "samples.tsv"),
        "markers": str(folder / "markers.csv"),
        "results": str(folder / "results"),
        "acquisition": {
            **{"convention": convention, "rows": design.rows, "cols": design.cols},
            **{"overlap": design.overlap, "pixel_um": design.pixel_um},
            **acquisition,
        },
        "deconvolve": {"method": "none"},
    }


def check(config: dict[str, Any]) -> Layout:
    loaded = load_experiment(config)
    layout = Layout(loaded.settings.results)
    check_raw(loaded, layout)
    return layout


Change = Callable[[NDArray[Any]], NDArray[Any]]


def raw_refused(config: dict[str, Any]) -> str:
    said = str(refused(config, check))
    assert not list(Path(config["results"]).rglob("cycle*.csv"))
    return said


def change(config: dict[str, Any], files: str, what: Change, **how: Any) -> None:
    paths = list(Path(config["samples"]).parent.glob(f"raw/{files}"))
    assert paths
    for path in paths:
        tifffile.imwrite(path, what(tifffile.imread(path)), **{"photometric": "minisblack", **how})


def noise(plane: NDArray[Any]) -> NDArray[Any]:
    rng = np.random.default_rng(int(plane.sum()) % 1000)
    return rng.poisson(150, plane.shape).astype(np.uint16)


def saturated(plane: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.arange(plane.size).reshape(plane.shape) % 3, 65535, plane)


@pytest.mark.parametrize(
    ("files", "what", "message"),
    [
        ("Cyc2*/*CH2.tif", lambda p: p * 0, "cycle 2, channel 2: every tile is constant"),
        ("Cyc1*/*CH2.tif", lambda p: p * 0 + 7, "(7 everywhere)"),
        ("Cyc1*/*CH2.tif", lambda p: p * 0 + 65535, "channel 2: every tile is constant"),
        ("Cyc1*/*CH2.tif", saturated, "cycle 1, channel 2: every tile is saturated"),
        ("Cyc2*/*CH1.tif", lambda p: p * 0, "(the reference channel): every tile is constant"),
        ("Cyc2*/*CH1.tif", noise, "(the reference channel): every tile is noise without structure"),
        ("Cyc*/*CH1.tif", lambda p: 65535 - p, "the images look inverted"),
        ("Cyc*/*CH1.tif", lambda p: 4095 - np.minimum(p, 4095), "the images look inverted"),
    ],
)
def test_channels_that_show_nothing(
    tmp_path: Path, made: Made, files: str, what: Any, message: str
) -> None:
    config = experiment(tmp_path, made)
    change(config, files, lambda plane: what(plane).astype(np.uint16))
    said = raw_refused(config)
    assert message in said
    assert "/raw/Cyc" in said


def test_what_is_no_damage(tmp_path: Path, made: Made) -> None:
    """A blank channel beside the reference, one empty reference tile, a subtracted background."""
    config = experiment(tmp_path, made)
    change(config, "Cyc2*/*CH2.tif", noise)
    change(config, "Cyc2*/1_00001*CH1.tif", noise)
    change(config, "Cyc1*/*CH*.tif", lambda p: np.maximum(p, 160) - 160)
    check(config)


@pytest.mark.parametrize(
    ("key", "right", "wrong"), [("offset_counts", 100, 3000), ("saturation_counts", 65535, 20)]
)
def test_a_camera_that_the_counts_contradict(
    tmp_path: Path, made: Made, key: str, right: int, wrong: int
) -> None:
    config = experiment(tmp_path, made)
    check({**config, "camera": {key: right}})
    # The camera counts though no raw file is new.
    said = str(refused({**config, "camera": {key: wrong}}, check))
    assert f"camera.{key} is {wrong}, but half the pixels of" in said


@pytest.mark.parametrize(
    ("tag", "value", "message"),
    [
        ("PhotometricInterpretation", 0, "a negative, with white as 0 (TIFF tag 262 is 0)"),
        ("PhotometricInterpretation", 3, "a palette's"),
        ("Compression", 999, "(TIFF tag 259 is 999)"),
    ],
)
def test_files_that_hold_no_counts(
    tmp_path: Path, made: Made, tag: str, value: int, message: str
) -> None:
    config = experiment(tmp_path, made)
    path = tmp_path / "raw/Cyc1_reg1/1_00002_Z001_CH1.tif"
    with tifffile.TiffFile(path, mode="r+b") as tiff:
        tiff.pages[0].tags[tag].overwrite(value)
    said = raw_refused(config)
    assert message in said
    assert str(path) in said


def test_a_corrupt_plane_is_named(tmp_path: Path, made: Made) -> None:
    config = experiment(tmp_path, made)
    change(config, "Cyc1*/*CH1.tif", lambda p: p, compression="zlib")
    for path in tmp_path.glob("raw/Cyc1*/*CH1.tif"):
        with tifffile.TiffFile(path) as tiff:
            start = tiff.pages[0].dataoffsets[0]
        content = bytearray(path.read_bytes())
        content[start : start + 40] = b"\0" * 40
        path.write_bytes(content)
    assert "CH1.tif, page 0, cannot be read" in raw_refused(config)


def test_half_a_plane_of_zeros(tmp_path: Path, made: Made) -> None:
    """Not every plane is read before the work; the job that meets one names it."""
    layout = check(experiment(tmp_path, made))
    path = tmp_path / "raw/Cyc1_reg1/1_00003_Z001_CH2.tif"
    whole = tifffile.imread(path)
    tiles = open_tiles(layout.manifest.format(sample="s", cycle=1), "2")
    (tile,) = np.flatnonzero(tiles.number == 3)
    for part in (np.s_[96:], np.s_[:96], np.s_[:, 100:], np.s_[180:]):
        plane = whole.copy()
        plane[part] = 0
        tifffile.imwrite(path, plane)
        with pytest.raises(
            RawDataError, match=r"_00003_Z001_CH2.tif, page 0, is truncated: \d+% of"
        ):
            tiles.read(int(tile), 0)


def test_zeros_that_are_no_damage() -> None:
    rng = np.random.default_rng(0)
    plane = rng.poisson(2.0, (64, 64)).astype(np.uint16)  # no offset, dark
    plane[:20] = 0
    assert truncated_fraction(plane) == 0
    assert truncated_fraction(plane * 0) == 0
    assert truncated_fraction(plane + 100) == 0
    masked = np.zeros((64, 64), np.uint16)
    masked[10:50, 10:50] = 300
    assert truncated_fraction(masked) == 0
    dead_row = rng.poisson(100, (64, 64)).astype(np.uint16)
    dead_row[-1] = 0
    assert truncated_fraction(dead_row) == 0


@pytest.mark.parametrize("seed", [21, 22])
def test_dim_tissue_shows_structure_and_is_no_negative(seed: int) -> None:
    phantom = Phantom(PhantomDesign(seed=seed, cycles=1, channels=1, rows=1, cols=2, planes=1))
    light = phantom.light(next(iter(phantom.specimens())), 1, 1, 0)[0]
    for electrons in (5, 60, 2000):
        rng = np.random.default_rng(seed)
        counts = 100 + rng.normal(0, 2, light.shape)
        counts += rng.poisson(light * (electrons / np.percentile(light, 99)))
        plane = np.rint(counts).astype(np.uint16)
        trend, negative = grain_trend(plane), grain_trend(65535 - plane)
        assert structure(plane) > 0.1
        assert trend is not None
        assert negative is not None
        assert negative < 0.05 < trend


@pytest.mark.parametrize("px", [192, 512])
@pytest.mark.parametrize("kind", ["read", "shot", "uneven light", "stripes", "hot"])
def test_cameras_without_tissue_show_no_structure(kind: str, px: int) -> None:
    rng = np.random.default_rng(px)
    y, x = np.mgrid[:px, :px] / px - 0.5
    plane = {
        "read": rng.normal(100, 2, (px, px)),
        "shot": 100.0 + rng.poisson(200, (px, px)),
        "uneven light": 100 + rng.poisson(200 * (1 - 0.5 * (x**2 + y**2))),
        "stripes": rng.normal(100, 2, (px, px)) + rng.normal(0, 3, px),
        "hot": rng.normal(100, 2, (px, px)) + (rng.random((px, px)) < 0.001) * 3000,
    }[kind]
    assert structure(np.rint(plane).astype(np.uint16)) < 0.03


@pytest.mark.parametrize("layout", sorted({*LAYOUTS} - {"snake_right_down"}))
def test_a_layout_that_the_pixels_contradict(tmp_path: Path, made: Made, layout: str) -> None:
    said = raw_refused(experiment(tmp_path, made, layout=layout))
    assert "the borders of the tiles fit snake_right_down" in said
    assert "set acquisition.layout: snake_right_down" in said


def test_rows_and_columns_that_the_pixels_contradict(tmp_path: Path, made: Made) -> None:
    said = raw_refused(experiment(tmp_path, made, rows=3, cols=2))
    assert "the borders of the tiles fit 2 rows x 3 columns (snake_right_down" in said
    assert "correct acquisition.rows, cols and layout" in said


@pytest.mark.parametrize("convention", ["fiji", "pattern", "ome_tiff"])
def test_a_stage_that_runs_the_other_way(tmp_path: Path, made: Made, convention: str) -> None:
    pattern = "cycle{cycle}/tile_r{row}_c{col}_ch{channel}.tif" if convention == "pattern" else None
    if convention == "ome_tiff":
        made = made[0], {(cycle, 1): made[1][cycle, 1] for cycle in (1, 2)}
    config = experiment(tmp_path, made, convention, pattern=pattern)
    if convention == "ome_tiff":
        Path(config["markers"]).write_text(ONE_CHANNEL)
    for flips in (["flip_y"], ["flip_x"], ["flip_y", "flip_x"]):
        turned = {**config["acquisition"], **dict.fromkeys(flips, True)}
        said = raw_refused({**config, "acquisition": turned})
        assert "turned round (score 0." in said
        keys = " and ".join(f"acquisition.{flip}" for flip in flips)
        assert said.endswith(
            f"; change {keys}\nCopy such files again from the microscope, correct the config where "
            "it is named, or take the cycle or channel out of the markers table."
        )
    check(config)


@pytest.mark.parametrize("seed", [31, 32, 33])
def test_two_by_two_tiles_are_enough(tmp_path: Path, seed: int) -> None:
    design, tiles = make_tiles(seed=seed)
    made = design, dict.fromkeys([(1, 1), (1, 2), (2, 1), (2, 2)], tiles[1, 1])
    config = experiment(tmp_path, made, layout="raster_right_down")
    assert "set acquisition.layout: snake_right_down" in raw_refused(config)
    config["acquisition"]["layout"] = "snake_right_down"
    check(config)


def test_tiles_without_tissue_tell_no_layout(tmp_path: Path, made: Made) -> None:
    config = experiment(tmp_path, made, layout="raster_left_up")
    change(config, "Cyc*/1_0000[2-6]*.tif", noise)
    check(config)


def test_positions_in_another_unit(tmp_path: Path, made: Made) -> None:
    config = experiment(tmp_path, made, "fiji")
    for path in tmp_path.glob("raw/*/TileConfiguration.txt"):
        path.write_text(path.read_text().replace(", ", "000, ").replace(")", "000)"))
    assert "6 tiles are spread over" in raw_refused(config)


def test_pages_that_are_channels(tmp_path: Path, made: Made) -> None:
    design, tiles = made
    raw = tmp_path / "raw"
    config = experiment(tmp_path, made, "pattern", pattern="cycle{cycle}/t_r{row}_c{col}.tif")
    Path(config["markers"]).write_text(ONE_CHANNEL)
    for cycle in (1, 2):
        for row, col in np.ndindex(design.rows, design.cols):
            planes = np.stack([tiles[cycle, channel][row, col] for channel in (1, 2)])
            path = raw / f"cycle{cycle}/t_r{row}_c{col}.tif"
            tifffile.imwrite(path, planes, ome=True, metadata={"axes": "CYX"})
    said = raw_refused(config)
    assert "t_r0_c0.tif: by its metadata its pages are 2 channels" in said
    for path in raw.glob("cycle*/t_*.tif"):
        tifffile.imwrite(path, tifffile.imread(path), ome=True, metadata={"axes": "ZYX"})
    check(config)
