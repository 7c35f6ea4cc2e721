"""Configurations and tables that cannot be right end in one sentence before any work starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import yaml

from tests.config.configs import set_key
from tests.support.runs import Run
from tilewright.config.checks import check_files, check_raw, check_results, checked_experiment
from tilewright.config.experiment import ConfigError, load_experiment, read_config
from tilewright.config.layout import Layout
from tilewright.init.write import SNAKEFILE
from tilewright.installed import snakefile


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("acquisition.pixel_um", 377, "is this 377 nm? then write 0.377"),
        ("acquisition.pixel_um", 0.000377, "is this 0.000377 mm? then write 0.377"),
        ("acquisition.pixel_um", 3.77e-7, "is this 3.77e-07 m? then write 0.377"),
        ("acquisition.pixel_um", 1e-300, "must be between 0.01 and 20 µm"),
        ("acquisition.pixel_um", -0.377, "must be between 0.01 and 20 µm"),
        ("acquisition.z_step_um", 1500, "is this 1500 nm? then write 1.5"),
        ("acquisition.z_step_um", 0.0015, "is this 0.0015 mm? then write 1.5"),
        ("acquisition.overlap", 10, "is this 10 %? then write 0.1"),
        ("acquisition.rows", 10**9, "'acquisition.rows' is 1000000000"),
        ("results", "~/x", "'~' and '$' mean nothing in a config file; write /"),
        ("results", "$HOME/x", "'~' and '$' mean nothing in a config file; write /"),
        ("results", "a{sample}", "cannot have braces"),
        ("results", "", "name a file or folder"),
        ("results", "a\0b", "name a file or folder"),
        ("markers", "~/m.csv", "'~' and '$' mean nothing"),
        ("deconvolve.psf_file", "$X/psf.tif", "'~' and '$' mean nothing"),
    ],
)
def test_keys(config: dict[str, Any], key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment(set_key(config, key, value))
    assert message in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize("pixel_um", [0.01, 0.065, 0.377, 3.45, 20])
def test_pixels_that_microscopes_have(config: dict[str, Any], pixel_um: float) -> None:
    assert (
        load_experiment(set_key(config, "acquisition.pixel_um", pixel_um)).voxel_um[1] == pixel_um
    )


def test_a_plane_of_deconvolved_stacks_needs_them(config: dict[str, Any]) -> None:
    set_key(config, "edf.method", "psf_mean")
    assert load_experiment(config).settings.plane_of_deconvolved
    set_key(config, "deconvolve.method", "none")
    with pytest.raises(ConfigError, match=r"edf.method is 'psf_mean'.*set edf.method: auto"):
        load_experiment(config)


def test_the_direct_plane_needs_optics_and_no_deconvolution(config: dict[str, Any]) -> None:
    set_key(config, "edf.method", "direct")
    settings = load_experiment(config).settings
    assert settings.needs_psf
    assert not settings.plane_of_deconvolved
    set_key(config, "deconvolve.method", "none")
    load_experiment(config)
    set_key(config, "optics.numerical_aperture", None)
    with pytest.raises(ConfigError, match=r"numerical_aperture.*and edf.method: auto"):
        load_experiment(config)
    set_key(config, "edf.method", "auto")
    settings = load_experiment(config).settings
    assert settings.plane_method == "soft_focus"
    assert not settings.needs_psf
    assert not settings.plane_of_deconvolved
    set_key(config, "deconvolve.method", "accelerated")
    with pytest.raises(ConfigError, match=r"numerical_aperture"):
        load_experiment(config)
    set_key(config, "optics.numerical_aperture", 0.75)
    assert load_experiment(config).settings.plane_method == "direct"


HEAD = "cycle,channel,marker,emission_nm\n"
GOOD = HEAD + "1,1,DAPI_1,461\n1,2,CD3,525\n2,1,DAPI_2,461\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cycle,channel,marker,marker\n1,1,a,b\n", "the column 'marker' is there twice"),
        (GOOD + '2,2,"CD8,525\n2,3,CD4,525\n', "line 6: the line cannot be read"),
        (GOOD + '2,2,"CD8,525\n2,3,CD4",525\n', "a quote is not closed"),
        (GOOD + "2,2,CD8,525,5\n", "line 5: 5 cells for 4 columns"),
        (GOOD + '2,2,CD8,"525,5"\n', "line 5: emission_nm is '525,5'; give a positive number with"),
        (GOOD + "2,2,CD8,0.525\n", "is this 0.525 µm? then write 525"),
        (GOOD + "2,2,CD8,525000\n", "is this 525000 pm? then write 525"),
        (GOOD + "2,2,CD\x078,525\n", "line 5: 'CD\\x078' holds the character U+0007"),
        (GOOD + "2,2,CD\x008,525\n", "U+0000"),
        (GOOD + "2,2,CD\ufffe8,525\n", "U+FFFE"),
        (GOOD + "2,2,CD\u200b8,525\n", "U+200B"),
        (GOOD + "²,2,CD8,525\n", "line 5: cycle '²' is not a number"),
        (GOOD + "9999999,2,CD8,525\n", "cycle '9999999' is not a number"),
        (GOOD + f"2,2,{'x' * 101},525\n", "a name of over 100 characters"),
        (GOOD + f"2,2,{'x' * 200_000},525\n", "line 5: the line cannot be read (field larger"),
        (GOOD + f"2,{'x' * 51},CD8,525\n", "must be letters and digits, at most 50"),
        (HEAD, "the table has no rows"),
        ("", "the column 'cycle' is missing"),
    ],
)
def test_markers(config: dict[str, Any], text: str, message: str) -> None:
    Path(config["markers"]).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    assert message in str(caught.value)
    assert str(config["markers"]) in str(caught.value)


BACKGROUND = (
    "cycle,channel,marker,emission_nm,exposure_ms,background,remove\n"
    "1,1,DAPI_1,461,10,,\n2,1,DAPI_2,461,10,,\n"
)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("1,2,CD3,525,200,Blank,\n2,2,Blank1,525,200,,\n", "did you mean 'Blank1'?"),
        ("1,2,CD3,525,200,xyz,\n", "is 'xyz', which is no marker of the table; markers: DAPI_1,"),
        ("1,2,CD3,525,200,CD3,\n", "the background of 'CD3' is 'CD3' itself"),
        ("1,2,CD3,525,9,CD8,\n2,2,CD8,525,9,CD3,\n", "which has the background 'CD3' itself"),
        ("1,2,CD3,525,9,A,\n2,2,A,525,9,B,\n2,3,B,525,9,,\n", "has the background 'B' itself"),
        ("1,2,CD3,525,,A,\n2,2,A,525,9,,\n", "no exposure_ms of CD3; fill it in, or set subtract"),
        ("1,2,CD3,525,,A,\n2,2,A,525,,,\n", "no exposure_ms of CD3 and A; fill it in"),
        ("1,2,CD3,525,0,A,\n2,2,A,525,9,,\n", "exposure_ms is '0'; give a positive number"),
        ("1,2,CD3,525,9,,yes\n", "line 4: remove is 'yes'; write TRUE, or nothing"),
    ],
)
def test_backgrounds(config: dict[str, Any], lines: str, message: str) -> None:
    Path(config["markers"]).write_text(BACKGROUND + lines, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    assert message in str(caught.value)
    assert str(config["markers"]) in str(caught.value)


def test_the_frame_of_the_image_stays_in_it(config: dict[str, Any]) -> None:
    text = BACKGROUND.replace("DAPI_1,461,10,,", "DAPI_1,461,10,,TRUE")
    Path(config["markers"]).write_text(text)
    with pytest.raises(ConfigError, match="'DAPI_1' is marked remove, but it is the reference"):
        load_experiment(config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD.encode("utf-16"), "line 1: the text is not UTF-8"),
        (GOOD.replace("CD3", "µ").encode("latin-1"), "line 3: the text is not UTF-8"),
        (b"PK\x03\x04 a workbook", "is a workbook of a spreadsheet program"),
        (b"\xd0\xcf\x11\xe0 an old workbook", "is a workbook of a spreadsheet program"),
    ],
)
@pytest.mark.parametrize("table", ["markers", "samples"])
def test_tables_that_are_no_text(
    config: dict[str, Any], table: str, content: bytes, message: str
) -> None:
    Path(config[table]).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    assert message in str(caught.value)


def test_a_table_that_is_a_folder(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        load_experiment(set_key(config, "markers", str(tmp_path)))


def test_tables_as_spreadsheets_write_them(config: dict[str, Any]) -> None:
    """A byte order mark, CRLF, quotes, spaces, empty lines and trailing separators are right."""
    text = GOOD.replace("CD3", '" CD3, bright"').replace("461\n", "461,\n").replace("\n", "\r\n")
    Path(config["markers"]).write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n,,,\r\n")
    markers = [channel.marker for channel in load_experiment(config).channels]
    assert markers == ["DAPI_1", "CD3, bright", "DAPI_2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb:\n  c: 1\n  c: 2\n", "the key 'c' is there twice (lines 3 and 4)"),
        (b"a: 1\na: 2\n", "the key 'a' is there twice (lines 1 and 2)"),
        (b"a: \xe9\n", "is not UTF-8"),
        (b"[" * 20_000, "is nested too deeply"),
        (b"a: [\n", "is not YAML"),
        (b"- 1\n", "holds no keys"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' is there twice"),
        (b"", "holds no keys"),
    ],
)
def test_config_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_config_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_config(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["~/raw", "$HOME/raw", "x" * 5000, "raw/../nothing"])
def test_raw_folders(config: dict[str, Any], name: str) -> None:
    Path(config["samples"]).write_text(f"sample\traw_dir\ntonsil\t{name}\n")
    with pytest.raises(ConfigError, match=r"line 2: the raw_dir '.* is not a folder"):
        load_experiment(config)


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
    with pytest.raises(ConfigError) as caught:
        checked_experiment(wrong_everywhere(raw), ["registration"])
    said = str(caught.value).splitlines()
    parts = (
        "PSF cannot be computed without optics.numerical_aperture", "names cycle 7",
        "no_such_number", "sample 'tonsil': 1 problem with the raw data", "sample 'second': ",
        "illumination.flat_file is no_1.tif", "illumination.flat_file is no_2.tif",
    )  # fmt: skip
    assert said[0] == f"{len(parts)} problems:"
    assert [part for part in parts if sum(part in line for line in said) != 1] == []
    assert not Path("no_1.tif").exists()


def test_what_is_not_filled_in_is_told_with_the_rest(config: dict[str, Any]) -> None:
    set_key(config, "acquisition.pixel_um", None)
    set_key(config, "acquisition.overlap", None)
    set_key(config, "optics.numerical_aperture", None)
    Path(config["markers"]).write_text(GOOD + "x,1,a,\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    overlap, pixel, line = sorted(caught.value.args)[:3]
    assert "'acquisition.overlap' is not filled in" in overlap
    assert "'acquisition.pixel_um' is not filled in" in pixel
    assert "line 5: cycle 'x' is not a number" in line
    Path(config["markers"]).write_text(GOOD)
    with pytest.raises(ConfigError, match=r"without optics\.numerical_aperture"):
        load_experiment(config)
    set_key(config, "acquisition.reference_channel", None)
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    assert len(caught.value.args) == 3
    assert all("is not filled in" in sentence for sentence in caught.value.args)


@pytest.mark.parametrize(
    "key", ["cycles", "edf", "edf.method", "camera.offset_counts", "tile_positions.sigma_px"]
)
def test_an_empty_key_is_told_once_by_its_name(config: dict[str, Any], key: str) -> None:
    set_key(config, key, None)
    set_key(config, "optics.numerical_aperture", None)
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    empty, optics = caught.value.args
    assert empty.startswith(f"'{key}' is not filled in; ")
    assert "without optics.numerical_aperture" in optics


def test_a_wrong_number_that_may_be_auto_is_told_once(config: dict[str, Any]) -> None:
    set_key(config, "tile_positions.sigma_px", 60)
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    key = "'tile_positions.sigma_px'"
    assert caught.value.args == (f"{key} is 60: input should be less than or equal to 50",)


def test_a_reference_channel_that_cycles_lack_is_told_once(config: dict[str, Any]) -> None:
    set_key(config, "acquisition.reference_channel", 2)
    Path(config["markers"]).write_text(GOOD + "3,1,CD8,525\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    (said,) = caught.value.args
    assert "lacks in cycles 2, 3; cycle 2 has the channels 1; name one" in said


def test_a_bad_line_hides_no_problem_of_keys(config: dict[str, Any]) -> None:
    Path(config["markers"]).write_text(GOOD + "x,1,a,\n")
    set_key(config, "illumination.method", "file")
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    line, key = caught.value.args
    assert "line 5" in line
    assert "illumination.flat_file is not set" in key


def test_all_lines_of_both_tables_are_told_at_once(config: dict[str, Any]) -> None:
    Path(config["markers"]).write_text(GOOD + "x,1,a,\n3,1,DAPI_1,\n")
    Path(config["samples"]).write_text("sample\traw_dir\na b\t.\nc\tnowhere\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    assert [re.findall(r"line (\d)", sentence) for sentence in caught.value.args] == [
        ["5"], ["6"], ["2"], ["3"],
    ]  # fmt: skip


@pytest.mark.workflow
def test_snakemake_says_all_without_a_place_in_the_workflow(raw: dict[str, Any]) -> None:
    folder = Path(raw["samples"]).parent
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(wrong_everywhere(raw)))
    run = Run(folder, path)
    said = run.snakemake("registration", "-n", ok=False).stdout
    assert "Error: 6 problems:\n  - registration.allow_unregistered" in said
    module = folder / "Snakefile"
    module.write_text(
        f"configfile: 'config.yaml'\nmodule tilewright:\n    snakefile: '{snakefile()}'\n"
        "    config: config\nuse rule * from tilewright\n"
    )
    within = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n"],
        cwd=folder, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    assert "Error: 6 problems:\n  - registration.allow_unregistered" in within
    assert "common.smk" not in said + within


@pytest.mark.workflow
@pytest.mark.parametrize("text", ["samples: [a\nmarkers: b\n", "camera:\n\tgain: 1\n"])
def test_the_snakefile_of_init_says_where_a_config_breaks(tmp_path: Path, text: str) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "config.yaml").write_text(text)
    said = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode
    assert "Error: config.yaml is not YAML: " in said.stdout + said.stderr
    assert "line 2" in said.stdout + said.stderr
    assert "in file" not in said.stdout + said.stderr


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("qc: {on_fail: stop}\nqc: {on_fail: continue}\n", "the key 'qc' is there twice (lines"),
        ("results: samples.tsv\n", "results is samples.tsv, which is no folder"),
        ("illumination: {method: file, flat_file: samples.tsv}\n", "cannot be read"),
    ],
)
def test_snakemake_says_it_in_a_dry_run(raw: dict[str, Any], change: str, message: str) -> None:
    folder = Path(raw["samples"]).parent
    key = change.partition(":")[0]
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in raw.items() if k != key}) + change)
    done = Run(folder, path).snakemake("registration", "qc", "-n", ok=False)
    said = done.stdout + done.stderr
    assert message in said
    assert "Traceback" not in said
    assert len(said.splitlines()) < 10


def test_json_is_read_with_its_tabs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n\t"a": 1,\n\t"b": {"a": [2]}\n}\n')
    assert read_config(path) == {"a": 1, "b": {"a": [2]}}


def test_equal_values_are_no_equal_keys(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: {x: 1}\nb: {x: 1}\nc: &c {y: 2}\nd: {<<: *c}\n")
    assert read_config(path) == {"a": {"x": 1}, "b": {"x": 1}, "c": {"y": 2}, "d": {"y": 2}}


def test_results(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, message in [
        ("file", "which is no folder; name another"),
        ("dangling", "which is a link to nothing"),
        ("file/below", "cannot be written to (Not a directory)"),
        ("x" * 300, "cannot be written to (File name too long)"),
    ]:
        set_key(config, "results", str(tmp_path / name))
        with pytest.raises(ConfigError) as caught:
            check_results(load_experiment(config))
        assert message in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be written to"):
        check_results(load_experiment(set_key(config, "results", "/proc/results")))
    check_results(load_experiment(set_key(config, "results", str(tmp_path / "new/results"))))
    assert list((tmp_path / "new/results").iterdir()) == []


SHAPE = (72, 80)


@pytest.fixture
def raw(config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The configuration with four tiles of two planes per channel."""
    rng = np.random.default_rng(0)
    blobs = np.kron(rng.integers(0, 2, (9, 10)), np.ones((8, 8))) * 500
    for cycle, channel in ((1, 1), (1, 2), (2, 1)):
        folder = tmp_path / f"raw/Cyc{cycle}_reg1"
        folder.mkdir(exist_ok=True)
        for tile in range(1, 5):
            for z in (1, 2):
                plane = rng.poisson(100 + blobs).astype(np.uint16)
                tifffile.imwrite(folder / f"1_{tile:05}_Z{z:03}_CH{channel}.tif", plane)
    return set_key(config, "results", str(tmp_path / "results"))


def checked(config: dict[str, Any]) -> None:
    experiment = load_experiment(config)
    layout = Layout(experiment.settings.results)
    check_raw(experiment, layout)
    check_files(experiment, layout)


ONES = np.ones(SHAPE, np.float32)


@pytest.mark.parametrize(
    ("flat", "dark", "message"),
    [
        (ONES, ONES, None),
        (np.ones((72, 72), np.float32), None, "is (72, 72) and tiles are (72, 80) pixels"),
        (np.ones((2, *SHAPE), np.float32), None, "must hold one plane"),
        (ONES * 0, None, "holds values of 0 or less"),
        (-ONES, None, "holds values of 0 or less"),
        (ONES * np.nan, None, "finite values"),
        (ONES, ONES * np.nan, "finite values"),
        (ONES, -ONES, "median of -1 counts"),
        (ONES, np.ones((9, 9), np.float32), "is (9, 9) and tiles are"),
        (b"no TIFF", None, "cannot be read"),
    ],
)
def test_flat_and_dark_files(
    raw: dict[str, Any], tmp_path: Path, flat: Any, dark: Any, message: str | None
) -> None:
    section: dict[str, Any] = {"method": "file"}
    for key, content in (("flat_file", flat), ("dark_file", dark)):
        if content is not None:
            path = tmp_path / f"{key}_1.tif"
            path.write_bytes(content) if isinstance(content, bytes) else tifffile.imwrite(
                path, content, photometric="minisblack"
            )
            (tmp_path / f"{key}_2.tif").write_bytes(path.read_bytes())
            section[key] = str(tmp_path / f"{key}_{{channel}}.tif")
    raw["illumination"] = section
    if message is None:
        checked(raw)
        return
    with pytest.raises(ConfigError) as caught:
        checked(raw)
    assert message in str(caught.value)
    assert "_file_1.tif" in str(caught.value)


BEAD = np.zeros((5, 9, 9), np.float32)
BEAD[2, 4, 4] = 1


@pytest.mark.parametrize(
    ("psf", "message"),
    [
        (BEAD, None),
        (BEAD * 0, "the PSF image is empty"),
        (-BEAD, "the PSF image is empty"),
        (BEAD * np.nan, "NaN or infinite"),
        (BEAD[2], "give a stack (z, y, x) of a bead"),
        (b"no TIFF", "cannot be read"),
    ],
)
def test_psf_files(raw: dict[str, Any], tmp_path: Path, psf: Any, message: str | None) -> None:
    path = tmp_path / "psf.tif"
    if isinstance(psf, bytes):
        path.write_bytes(psf)
    else:
        tifffile.imwrite(path, psf, photometric="minisblack")
    set_key(raw, "deconvolve.psf_file", str(path))
    if message is None:
        checked(raw)
        return
    with pytest.raises(ConfigError) as caught:
        checked(raw)
    assert message in str(caught.value)
    assert "psf.tif" in str(caught.value)
    assert str(caught.value).count("deconvolve.psf_file") == 1


def test_named_files_must_exist(raw: dict[str, Any], tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "psf_1.tif", BEAD, photometric="minisblack")
    set_key(raw, "deconvolve.psf_file", str(tmp_path / "psf_{channel}.tif"))
    with pytest.raises(ConfigError, match=r"deconvolve.psf_file is .*psf_2.tif, which does not"):
        checked(raw)
    set_key(raw, "deconvolve.psf_file", str(tmp_path / "psf_{chanel}.tif"))
    with pytest.raises(ConfigError, match="the field 'chanel'; known are"):
        checked(raw)


def test_a_block_larger_than_the_mosaic(raw: dict[str, Any]) -> None:
    set_key(raw, "registration.block_px", 1200)
    with pytest.raises(ConfigError, match=r"the mosaic is 136 x 152 px, smaller than a block"):
        checked(raw)


@pytest.mark.parametrize("side", [1, 16, 63])
def test_tiles_of_a_few_pixels(raw: dict[str, Any], side: int) -> None:
    for path in Path(raw["samples"]).parent.glob("raw/*/*.tif"):
        tifffile.imwrite(path, tifffile.imread(path)[:side, :side])
    set_key(raw, "registration.block_px", 48)
    with pytest.raises(ConfigError, match=rf"tiles are {side} x {side} px"):
        checked(raw)


def test_yaml_dumps_what_it_reads(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert load_experiment(read_config(tmp_path / "config.yaml")) == load_experiment(config)
