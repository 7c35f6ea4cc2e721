"""Configurations and tables that cannot be right end in one sentence before any work starts."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import yaml
from scipy import ndimage

from tests.config.configs import refused, set_key
from tests.support.runs import Run
from tests.support.tile_tables import grid_places_px, write_tiles
from tilewright.config.checks import check_results, checked_experiment
from tilewright.config.config_file import read_config
from tilewright.config.experiment import Experiment
from tilewright.config.load import load_experiment
from tilewright.errors import ConfigError
from tilewright.init.write import FILES
from tilewright.installed import snakefile

NO_SHELL = "'~' and '$' are not expanded in a config file; write "


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("acquisition.pixel_um", 377, "is 377: input should be less than or equal to 20"),
        ("acquisition.patern", "a", "unknown key 'acquisition.patern'; did you mean 'pattern'?"),
        ("acquisition.reference_cycle", 7, "has the cycles 1, 2"),
        ("cycles", [1, 3], "cycles names cycle 3, but "),
        ("results", "~/x", NO_SHELL),
        ("results", "a{sample}", "cannot have braces"),
        ("results", "a\0b", "name a file or folder"),
        (
            "tiles",
            None,
            "the key 'tiles' is missing: it names the table of tile positions, which `t",
        ),
        ("samples", "nowhere.tsv", "the table of the key 'samples': nowhere.tsv cannot be read"),
        ("edf.method", "direct", "'edf.method' is 'direct': input should be 'auto', 'mult"),
        ("edf_method", "auto", "unknown key 'edf_method'; did you mean 'edf.method'?"),
        ("deconvolv", {}, "unknown key 'deconvolv'; did you mean 'deconvolve'?"),
        ("qc.thresholds", {"focus": {"wrn": 1}}, "did you mean 'warn'?"),
        ("qc.thresholds", {"focus": {"x": 1}}, "'qc.thresholds.focus.x'; known are warn, fail"),
        ("resources.stitch", {"x": 1}, "'resources.stitch.x'; known are cpus, mem_mb, "),
        ("qc.thresholds", {"focus": {"warn": float("nan")}}, "'qc.thresholds.focus.warn' is nan"),
        ("optics.numerical_aperture", 1.2, "must be smaller than"),
        ("optics", {"depth_um": 5.0}, "optics.sample_refractive_index"),
        ("registration.allow_unregistered", [1], "names cycle 1"),
        ("illumination.flat_file", "flat.tif", "used by method 'file' only"),
    ],
)
def test_keys(config: dict[str, Any], key: str, value: Any, message: str) -> None:
    said = str(refused(set_key(config, key, value)))
    assert message in said
    assert key in said


def test_a_plane_of_deconvolved_stacks_needs_them(config: dict[str, Any]) -> None:
    set_key(config, "edf.method", "sum_projection")
    assert load_experiment(config).settings.plane_of_deconvolved
    set_key(config, "deconvolve.method", "none")
    said = str(refused(config))
    assert re.search(r"edf.method is 'sum_projection'.*set edf.method: auto", said)


def test_the_multiplane_wiener_plane_needs_optics_and_no_deconvolution(
    config: dict[str, Any],
) -> None:
    set_key(config, "edf.method", "multiplane_wiener")
    settings = load_experiment(config).settings
    assert settings.needs_psf
    assert not settings.plane_of_deconvolved
    set_key(config, "deconvolve.method", "none")
    load_experiment(config)
    set_key(config, "optics.numerical_aperture", None)
    assert re.search(r"numerical_aperture.*and edf.method: auto", str(refused(config)))
    set_key(config, "edf.method", "auto")
    set_key(config, "acquisition.z_step_um", None)
    settings = load_experiment(config).settings
    assert settings.plane_method == "focus_weighted"
    assert not settings.needs_psf
    assert not settings.plane_of_deconvolved
    set_key(config, "deconvolve.method", "accelerated")
    assert re.search("z_step_um, optics.numerical_aperture", str(refused(config)))
    set_key(config, "acquisition.z_step_um", 1.5)
    set_key(config, "optics.numerical_aperture", 0.75)
    assert load_experiment(config).settings.plane_method == "multiplane_wiener"


HEAD = "cycle,channel,marker,emission_nm,reference\n"
GOOD = HEAD + "1,1,DAPI_1,461,TRUE\n1,2,CD3,525\n2,1,DAPI_2,461,true\n"
STAINS = (
    "cycle,channel,marker,emission_nm,exposure_ms,background,remove,reference\n"
    "1,1,DAPI_1,461,10,,,TRUE\n2,1,DAPI_2,461,10,,,TRUE\n"
)
REMOVED = STAINS.replace("DAPI_1,461,10,,,", "DAPI_1,461,10,,TRUE,")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cycle,channel,marker,marker\n1,1,a,b\n", "duplicate column 'marker'; remove one"),
        (GOOD + '2,2,"CD8,525\n2,3,CD4,525\n', "line 6: the line cannot be read"),
        (GOOD + "2,2,CD8,525,x\n", "row 5: reference 'x' must be TRUE, or empty"),
        (GOOD + "2,2,CD8,525,TRUE\n", "cycle 2 has several reference channels; write TRUE into"),
        (GOOD + "3,1,a,\n4,2,b,\n", "cycles 3, 4 have no reference channel; write TRUE into the"),
        (GOOD + '2,2,CD8,"525,5"\n', "row 5: emission_nm '525,5' must be from 200 to 2000, w"),
        (GOOD + "2,2,CD8,nan\n", "row 5: emission_nm 'nan' must"),
        (GOOD + "2,2,CD\x078,525\n", "line 5: 'CD\\x078' holds the character U+0007"),
        (GOOD + f"2,{'x' * 51},CD8,525\n", "must be letters, digits and '-', at most 50"),
        (GOOD + "2,2,,525\n", "row 5: marker '' must be a name"),
        (GOOD + "2,2,CD3,525\n", "duplicate marker 'CD3' (rows 3 and 5); rename one"),
        (GOOD + "2,1,CD8,525\n", "duplicate cycle '2' channel '1' (rows 4 and 5); remove one"),
        (HEAD, "the table has no rows"),
        ("", "the column 'cycle' is missing"),
        (STAINS + "1,2,CD3,525,200,Blank,\n2,2,Blank1,525,200,,\n", "did you mean 'Blank1'?"),
        (STAINS + "1,2,CD3,525,9,xyz,\n", "is 'xyz', which is not a marker of the table; know"),
        (STAINS + "1,2,CD3,525,,A,\n2,2,A,525,,,\n", "no exposure_ms of CD3 and A; fill it in"),
        (STAINS + "1,2,CD3,525,0,A,\n2,2,A,525,9,,\n", "exposure_ms '0' must be a positive num"),
        (
            STAINS + "1,2,CD3,525,9,,so\n",
            "row 4: remove 'so' must be TRUE, or empty",
        ),
        # the frame of the image
        (REMOVED, "'DAPI_1' is marked remove, but it is the reference"),
    ],
)
def test_markers(config: dict[str, Any], text: str, message: str) -> None:
    Path(config["markers"]).write_text(text, encoding="utf-8")
    said = str(refused(config))
    assert message in said
    assert str(config["markers"]) in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb:\n  c: 1\n  c: 2\n", "duplicate key 'c' (lines 3 and 4); remove one"),
        (b"a: \xe9\n", "is not UTF-8"),
        (b"[" * 20_000, "is nested too deeply"),
        (b"a: [\n", "is not YAML"),
        (b"- 1\n", "holds no keys"),
        (b'{"a": 1, "b": 2, "a": 3}', "duplicate key 'a' (lines 1 and 1)"),
        (b"", "holds no keys"),
        (None, "cannot be read: No such file"),
    ],
)
def test_config_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_config(tmp_path)


def wrong_everywhere(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with problems of keys, tables, limits, raw and named files."""
    set_key(raw, "optics.numerical_aperture", None)
    set_key(raw, "registration.allow_unregistered", [7])
    set_key(raw, "qc.thresholds", {"no_such_number": {"warn": 1}})
    set_key(raw, "illumination", {"method": "file", "flat_file": "no_{channel}.tif"})
    folder = Path(raw["samples"]).parent / "raw"
    next(folder.glob("Cyc1*/*CH1.tif")).unlink()
    return raw


def test_all_problems_are_told_at_once(raw: dict[str, Any]) -> None:
    samples = Path(raw["samples"])
    empty = samples.with_name("empty")
    empty.mkdir()
    samples.write_text(samples.read_text() + f"second\t{empty}\n")
    said = str(refused(wrong_everywhere(raw), checked)).splitlines()
    parts = (
        "PSF cannot be computed without optics.numerical_aperture", "names cycle 7",
        "no_such_number", "sample 'tonsil': 1 problem with the raw data", "sample 'second': ",
        "illumination.flat_file is no_1.tif", "illumination.flat_file is no_2.tif",
    )  # fmt: skip
    assert said[0] == f"{len(parts)} problems:"
    assert [part for part in parts if sum(part in line for line in said) != 1] == []
    assert not Path("no_1.tif").exists()


EMPTY = dict.fromkeys(["acquisition.pixel_um", "optics.depth_um"])


@pytest.mark.parametrize(
    ("keys", "line", "problems"),
    [
        (EMPTY, "", ["'acquisition.pixel_um' is not filled in", "'optics.depth_um' is not fil"]),
        ({"acquisition.pixel_um": None}, "x,1,a,\n", ["'acquisition.pixel_um' is"]),
        ({"optics.numerical_aperture": None}, "x,1,a,\n", ["row 5: cycle 'x' must be a number"]),
        ({"optics.numerical_aperture": None}, "", ["without optics.numerical_aperture"]),
        ({"acquisition.z_step_um": None}, "", ["without acquisition.z_step_um; fill it in"]),
        ({"registration.max_rotation_deg": 60, "camera.offset_counts": None}, "",
         ["'camera.offset_counts' is not filled in; ", "'registration.max_rotation_deg' is 60"]),
        ({}, "3,1,CD8,525\n3,2,CD9,525\n",
         ["in the row of the one channel that shows nuclei (cycle 3 has 'CD8', 'CD9')"]),
        ({"illumination.method": "file"}, "x,1,a,\n",
         ["row 5"]),
    ],
)  # fmt: skip
def test_each_problem_is_told_once(
    config: dict[str, Any], keys: dict[str, Any], line: str, problems: list[str]
) -> None:
    for key, value in keys.items():
        set_key(config, key, value)
    Path(config["markers"]).write_text(GOOD + line)
    for part, said in zip(problems, sorted(refused(config).args), strict=True):
        assert part in said


def dry_run(folder: Path) -> str:
    """Return what Snakemake says of a folder with a Snakefile of its own."""
    command = [sys.executable, "-m", "snakemake", "-n"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode
    return done.stdout + done.stderr


@pytest.mark.workflow
def test_snakemake_says_all_without_a_place_in_the_workflow(raw: dict[str, Any]) -> None:
    folder = Path(raw["samples"]).parent
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(wrong_everywhere(raw)))
    (folder / "Snakefile").write_text(
        f"configfile: 'config.yaml'\nmodule tilewright:\n    snakefile: '{snakefile()}'\n"
        "    config: config\nuse rule * from tilewright\n"
    )
    within = dry_run(folder)
    assert "Error: 6 problems:\n  - registration.allow_unregistered" in within
    # Snakemake's own reading lets the last of two keys win.
    path.write_text(yaml.safe_dump(raw) + "results: elsewhere\n")
    done = Run(folder, path).snakemake("registration", "qc", "-n", ok=False)
    said = done.stdout + done.stderr
    assert "Error: " in said
    assert "duplicate key 'results' (lines" in said
    assert len(said.splitlines()) < 10
    for text in (said, within):
        assert "common.smk" not in text
        assert "Traceback" not in text


@pytest.mark.workflow
def test_the_snakefile_of_init_says_where_a_config_breaks(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text((FILES / "Snakefile").read_text())
    (tmp_path / "config.yaml").write_text("camera:\n\tgain: 1\n")
    said = dry_run(tmp_path)
    assert "Error: config.yaml is not YAML: " in said
    assert "line 2" in said
    assert "in file" not in said


def test_results(raw: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, message in [
        (tmp_path / "file", "cannot be written to (File exists)"),
        (tmp_path / "dangling", "cannot be written to (File exists)"),
        (tmp_path / "file/below", "cannot be written to (Not a directory)"),
        (tmp_path / ("x" * 300), "cannot be written to (File name too long)"),
        (Path("/proc/results"), "cannot be written to"),
    ]:
        set_key(raw, "results", str(name))
        error = refused(raw, lambda config: check_results(load_experiment(config)))
        assert message in str(error)
        assert str(error) in refused(raw, checked).args
    check_results(load_experiment(set_key(raw, "results", str(tmp_path / "new/results"))))
    assert list((tmp_path / "new/results").iterdir()) == []


SHAPE = (72, 80)


@pytest.fixture
def raw(config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The configuration with four tiles of two planes per channel."""
    rng = np.random.default_rng(0)
    light = ndimage.gaussian_filter(rng.random((128, 144)), 3)
    light = 100 + 500 * (light - light.min()) / np.ptp(light)
    corners = [(round(y), round(x)) for _, y, x in grid_places_px(2, 2, 0.3, SHAPE)]
    for cycle, channel in ((1, 1), (1, 2), (2, 1)):
        folder = tmp_path / f"raw/Cyc{cycle}_reg1"
        folder.mkdir(exist_ok=True)
        for tile, (y, x) in enumerate(corners, 1):
            for z in (1, 2):
                plane = rng.poisson(light[y : y + SHAPE[0], x : x + SHAPE[1]]).astype(np.uint16)
                tifffile.imwrite(folder / f"1_{tile:05}_Z{z:03}_CH{channel}.tif", plane)
    return set_key(config, "results", str(tmp_path / "results"))


def checked(config: dict[str, Any]) -> Experiment:
    return checked_experiment(config, ["registration"])


ONES = np.ones(SHAPE, np.float32)
BEAD = np.zeros((5, 9, 9), np.float32)
BEAD[2, 4, 4] = 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"flat": ONES, "dark": ONES}, None),
        ({"flat": ONES[:, :72]}, "is (72, 72) and tiles are (72, 80) pixels"),
        ({"flat": np.stack([ONES] * 2)}, "must hold one plane"),
        ({"flat": ONES * 0}, "holds values of 0 or less"),
        ({"flat": ONES, "dark": ONES * np.nan}, "finite values"),
        ({"flat": ONES, "dark": -ONES}, "median of -1 counts"),
        ({"flat": b"no TIFF"}, "is no TIFF; copy it again"),
        ({"psf": BEAD}, None),
        ({"psf": BEAD * 0}, "the PSF image is empty"),
        ({"psf": BEAD[2]}, "give a stack (z, y, x) of a bead"),
    ],
)
def test_flat_dark_and_psf_files(
    raw: dict[str, Any], tmp_path: Path, files: dict[str, Any], message: str | None
) -> None:
    for name, content in files.items():
        path = str(tmp_path / ("psf.tif" if name == "psf" else f"{name}_{{channel}}.tif"))
        set_key(raw, f"{'deconvolve' if name == 'psf' else 'illumination'}.{name}_file", path)
        for channel in (1, 2):
            named = Path(path.format(channel=channel))
            if isinstance(content, bytes):
                named.write_bytes(content)
            else:
                tifffile.imwrite(named, content, photometric="minisblack")
    if "flat" in files:
        set_key(raw, "illumination.method", "file")
    if message is None:
        checked(raw)
        return
    said = str(refused(raw, checked))
    assert message in said
    assert all(str(tmp_path / f"{name}{'_1' * (name != 'psf')}.tif") in said for name in files)
    assert said.count("deconvolve.psf_file") == ("psf" in files)


def test_named_files_must_exist(raw: dict[str, Any], tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "psf_1.tif", BEAD, photometric="minisblack")
    set_key(raw, "deconvolve.psf_file", str(tmp_path / "psf_{channel}.tif"))
    said = str(refused(raw, checked))
    assert re.search(r"deconvolve.psf_file is .*psf_2.tif, which does not", said)
    set_key(raw, "deconvolve.psf_file", str(tmp_path / "psf_{chanel}.tif"))
    assert "fields are {sample}, {cycle} and {channel}" in str(refused(raw, checked))


@pytest.mark.parametrize("side", [16, 63])
def test_tiles_of_a_few_pixels(raw: dict[str, Any], side: int) -> None:
    for path in Path(raw["samples"]).parent.glob("raw/*/*.tif"):
        tifffile.imwrite(path, tifffile.imread(path)[:side, :side])
    write_tiles(Path(raw["tiles"]), ["tonsil"], (1, 2), 2, 2, 0.1, side)
    assert f"tiles are {side} x {side} px" in str(refused(raw, checked))
