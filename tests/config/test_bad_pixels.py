"""Pixels that cannot be used, or contradict the tiles table, are named before any work starts."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from tests.config.configs import refused
from tests.support.convention_raw import Tiles, make_tiles, write_as
from tests.support.tile_tables import grid_places_px, tiles_text
from tilewright.config.checks import check_raw
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment
from tilewright.errors import RawDataError
from tilewright.io.inputs.raw_pixels import structure
from tilewright.io.inputs.tiles import open_tiles, truncated_fraction
from tilewright.kernels.tile_positions.tile_order import tile_places
from tilewright.phantom.make import PhantomDesign

Made = tuple[PhantomDesign, dict[tuple[int, int], Tiles]]
#: A stage whose errors are small beside a side of 192 px, and no tile without tissue.
STEADY: dict[str, Any] = {"jitter_px": 1.0, "backlash_px": 1.0, "empty_tile": False}
#: (tile, y, x)
Places = list[tuple[str, float, float]]


@pytest.fixture(scope="module")
def made() -> Made:
    return make_tiles(cols=3, cycles=2, channels=2, **STEADY)


@pytest.fixture(scope="module")
def wide() -> Made:
    design, tiles = make_tiles(rows=4, cols=4, overlap=0.15, seed=8, **STEADY)
    return design, dict.fromkeys([(1, 1), (2, 1)], tiles[1, 1])


HEAD = "cycle,channel,marker,reference"
ONE_CHANNEL = f"{HEAD}\n1,1,a,TRUE\n2,1,b,TRUE\n"


def experiment(
    folder: Path, made: Made, convention: str = "codex", **acquisition: Any
) -> dict[str, Any]:
    """Write raw tiles and right tables; return the configuration."""
    design, tiles = made
    write_as(convention, folder / "raw", tiles, round(design.step_px))
    right = places_of(design, by_row="{row" in acquisition.get("pattern", ""))
    write_places(folder / "tiles.csv", {1: right, 2: right})
    (folder / "samples.tsv").write_text(f"sample\traw_dir\ns\t{folder / 'raw'}\n")
    lines = [f"{y},{c},m{y}{c},{c == 1}" for y, c in sorted(tiles)]
    (folder / "markers.csv").write_text("\n".join([HEAD, *lines]) + "\n")
    return {
        "samples": str(folder / "samples.tsv"),
        "tiles": str(folder / "tiles.csv"),
        "markers": str(folder / "markers.csv"),
        "results": str(folder / "results"),
        "acquisition": {"convention": convention, "pixel_um": design.pixel_um, **acquisition},
        "deconvolve": {"method": "none"},
    }


def places_of(design: PhantomDesign, *, by_row: bool = False) -> Places:
    """Return the right place of each tile."""
    places = grid_places_px(*design.grid)
    order = tile_places("snake_right_down", design.rows, design.cols)
    if by_row:
        return [(f"r{r}c{c}", y, x) for (r, c), (_, y, x) in zip(order, places, strict=True)]
    return places


def write_places(path: Path, cycles: dict[int, Places], *, sample: str = "s") -> None:
    """Write the rows of a sample."""
    rows = [
        {"sample": sample, "cycle": cycle, "tile": tile, "y": y, "x": x, "unit": "px",
         "source": "stage", "use": 1}
        for cycle, places in cycles.items()
        for tile, y, x in places
    ]  # fmt: skip
    path.write_text(tiles_text(rows))


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
        ("Cyc1*/*CH2.tif", saturated, "cycle 1, channel 2: every tile is saturated"),
        ("Cyc2*/*CH1.tif", lambda p: p * 0, "(the reference channel): every tile is constant"),
        ("Cyc2*/*CH1.tif", noise, "(the reference channel): every tile is noise without structure"),
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


def test_half_a_plane_of_zeros(tmp_path: Path, made: Made) -> None:
    """Not every plane is read before the work; the job that meets one names it."""
    layout = check(experiment(tmp_path, made))
    path = tmp_path / "raw/Cyc1_reg1/1_00003_Z001_CH2.tif"
    whole = tifffile.imread(path)
    tiles = open_tiles(layout.manifest.format(sample="s", cycle=1), "2")
    (tile,) = np.flatnonzero(tiles.name == "3")
    for part in (np.s_[96:], np.s_[:96], np.s_[:, 100:], np.s_[180:]):
        plane = whole.copy()
        plane[part] = 0
        tifffile.imwrite(path, plane)
        with pytest.raises(
            RawDataError, match=r"_00003_Z001_CH2.tif, page 0, is truncated: \d+ % of"
        ):
            tiles.read(int(tile), 0)


def test_padding_of_many_tiles_is_read(tmp_path: Path, made: Made) -> None:
    """Software that shifts tiles leaves zeros at a side of most of them; a transfer of one."""
    layout = check(experiment(tmp_path, made))
    planes = {path: tifffile.imread(path) for path in tmp_path.glob("raw/Cyc1_reg1/*_CH2.tif")}
    for side in (np.s_[180:], np.s_[:12], np.s_[:, 180:], np.s_[:, :12]):
        for path, plane in planes.items():
            padded = plane.copy()
            padded[side] = 0
            tifffile.imwrite(path, padded)
        tiles = open_tiles(layout.manifest.format(sample="s", cycle=1), "2")
        for tile, z in np.ndindex(len(tiles.name), tiles.shape[0]):
            assert not tiles.read(tile, z)[side].any()


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


def scaled(places: Places, y_by: float, x_by: float) -> Places:
    return [(tile, y * y_by, x * x_by) for tile, y, x in places]


def turned(places: Places, degrees: float) -> Places:
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return [(tile, cos * y - sin * x, sin * y + cos * x) for tile, y, x in places]


INIT = (
    "; correct y and x of the tiles table, or empty them and give `tilewright init --add` what is "
    "known of the grid"
)
NEIGHBOURS = re.compile(
    r"cycle (\d): (\d+) of (\d+) overlaps show neighbours at \((-?\d+), (-?\d+)\) px \(y, x\) "
    r"instead of \((-?\d+), (-?\d+)\) px(.*)"
)


@pytest.mark.parametrize(
    ("change_places", "what", "cycles"),
    [
        (lambda p: scaled([(tile, x, y) for tile, y, x in p], 1, -1),
         ": the axes of the stage are swapped, ", (2,)),
        (lambda p: scaled(p, 1, 0.75), "", (2,)),
        (lambda p: turned(p, 4), ": the camera is turned by ", (1, 2)),
    ],
    ids=["axes and x", "pixels of x", "turned"],
)  # fmt: skip
def test_positions_that_the_overlaps_contradict(
    tmp_path: Path,
    made: Made,
    change_places: Callable[[Places], Places],
    what: str,
    cycles: tuple[int, ...],
) -> None:
    config, side = experiment(tmp_path, made), made[0].tile_px
    right = places_of(made[0])
    wrong = change_places(right)
    write_places(
        Path(config["tiles"]), {cycle: wrong if cycle in cycles else right for cycle in (1, 2)}
    )
    said = raw_refused(config)
    found = [match.groups() for match in NEIGHBOURS.finditer(said)]
    assert [int(cycle) for cycle, *_ in found] == [*cycles]
    for _, matched, compared, y, x, stated_y, stated_x, end in found:
        assert 4 <= int(matched) <= int(compared) == 7
        stated, shown = np.array([stated_y, stated_x], float), np.array([y, x], float)
        assert np.abs(stated - shown).max() > 0.03 * side
        assert end.startswith(what)
        assert end.endswith(INIT)


def test_a_cycle_may_have_another_grid(tmp_path: Path, made: Made, wide: Made) -> None:
    """The second of 4 x 4 tiles at another overlap; mirrored it is refused."""
    both = {(1, 1): made[1][1, 1], (2, 1): wide[1][1, 1]}
    config = experiment(tmp_path, (made[0], both))
    right = {1: places_of(made[0]), 2: places_of(wide[0])}
    write_places(Path(config["tiles"]), right)
    layout = check(config)
    sizes = [
        len(open_tiles(layout.manifest.format(sample="s", cycle=cycle), "1").name)
        for cycle in (1, 2)
    ]
    assert sizes == [6, 16]
    write_places(Path(config["tiles"]), {**right, 2: scaled(right[2], 1, -1)})
    assert "cycle 2: " in str(refused(config, check))


def test_two_samples_may_share_a_region_by_rows(tmp_path: Path, made: Made) -> None:
    """A row of the grid each; what neither has is named in both."""
    config = experiment(tmp_path, made)
    Path(config["samples"]).write_text(
        f"sample\traw_dir\nup\t{tmp_path / 'raw'}\ndown\t{tmp_path / 'raw'}\n"
    )
    right = places_of(made[0])

    def share(upper: Places, lower: Places) -> None:
        text = ""
        for sample, part in (("up", upper), ("down", lower)):
            write_places(Path(config["tiles"]), {1: part, 2: part}, sample=sample)
            written = Path(config["tiles"]).read_text()
            text += written if not text else written.partition("\n")[2]
        Path(config["tiles"]).write_text(text)

    share(right[:3], right[3:])
    (tmp_path / "raw/Cyc2_reg1/1_00006_Z001_CH2.tif").rename(tmp_path / "away.tif")
    said = str(refused(config, check))
    assert "sample 'down': 1 problem " in said
    assert "cycle 2, tile 6 lacks all planes of channel 2" in said
    assert "sample 'up'" not in said
    (tmp_path / "away.tif").rename(tmp_path / "raw/Cyc2_reg1/1_00006_Z001_CH2.tif")
    layout = check(config)
    for sample, names in (("up", "123"), ("down", "456")):
        tiles = open_tiles(layout.manifest.format(sample=sample, cycle=2), "2")
        assert {*tiles.name.tolist()} == {*names}
        assert tiles.nominal_px.min() == 0.0
    share(right[:3], right[3:5])
    assert str(refused(config, check)).count("tile 6 (") == 4
    # one tile may be of both
    share(right[:3], right[2:])
    layout = check(config)
    both = [open_tiles(layout.manifest.format(sample=s, cycle=1), "1") for s in ("up", "down")]
    assert [{*tiles.name.tolist()} for tiles in both] == [{*"123"}, {*"3456"}]


@pytest.mark.parametrize("cycle", [1, 2])
def test_positions_in_another_unit(tmp_path: Path, made: Made, cycle: int) -> None:
    config = experiment(tmp_path, made)
    right = places_of(made[0])
    write_places(Path(config["tiles"]), {1: right, 2: right, cycle: scaled(right, 1000, 1000)})
    said = raw_refused(config)
    assert f"6 tiles of cycle {cycle} are spread over " in said
    assert "correct acquisition.pixel_um, or y, x and unit in the tiles table" in said


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
    check(config)
    for path in raw.glob("cycle*/t_*.tif"):
        tifffile.imwrite(path, tifffile.imread(path), ome=True, metadata={"axes": "ZYX"})
    check(config)
