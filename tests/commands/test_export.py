"""Exports are read by the real libraries of those for whom they are."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile
import yaml
from typer.testing import CliRunner

from tests.support.consumers import said_by
from tests.support.runs import TINY, Run, make_run
from tilewright.cli import app
from tilewright.config.experiment import Experiment, load_experiment, read_config
from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.ome_zarr import create_image

MARKERS = ["DAPI_1", "CD3", "DAPI_2", "CD20"]


def processed(folder: Path, raw: Path, version: str = "0.4") -> Run:
    """An experiment with a registered image and verdicts, as a run leaves them."""
    run = make_run(folder, raw, **TINY)
    table = (run.folder / "markers.csv").read_text().splitlines()
    rows = [line.split(",") for line in table[1:]]
    lines = [f"{c},{ch},{name},{nm},50" for (c, ch, _, nm), name in zip(rows, MARKERS, strict=True)]
    (run.folder / "markers.csv").write_text("\n".join([f"{table[0]},exposure_ms", *lines]) + "\n")
    home = run.sample / "registration"
    home.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 60000, (4, 700, 600), dtype=np.uint16)
    with create_image(
        home / "tonsil.ome.zarr", (700, 600), np.uint16, 256, (0.5, 0.4), MARKERS, name="tonsil",
        ome_zarr_version=version,  # type: ignore[arg-type]
    ) as writer:  # fmt: skip
        for channel, plane in enumerate(pixels):
            writer.write(channel, 0, 0, plane)
    write_ome_tiff(home / "tonsil.ome.zarr", home / "tonsil.ome.tif")
    (run.results / "trusted_markers.csv").write_text(
        "sample,cycle,channel,marker,verdict,reasons\n"
        "tonsil,1,1,DAPI_1,pass,\ntonsil,1,2,CD3,warn,seam\ntonsil,2,2,CD20,fail,no_signal\n"
    )
    return run


def exported(run: Run, to: str, monkeypatch: pytest.MonkeyPatch, *more: str) -> Path:
    monkeypatch.chdir(run.folder)
    args = ["export", "--configfile", "config.yaml", "--to", to, "-o", "out", *more]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    return run.folder / "out"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_mcmicro_gets_its_table_and_a_link(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = processed(tmp_path, tiny_raw)
    table = run.folder / "markers.csv"
    table.write_text(table.read_text().replace(",519.0,", ",519.4,"))
    home = exported(run, "mcmicro", monkeypatch) / "tonsil"
    rows = rows_of(home / "markers.csv")
    assert [row["marker_name"] for row in rows] == MARKERS
    assert [row["cycle_number"] for row in rows] == ["1", "1", "2", "2"]
    assert [row["channel_number"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[1]["emission_wavelength"] == "519"
    assert rows[1]["exposure"] == "50"
    assert {"filter", "excitation_wavelength", "background", "remove"} <= rows[0].keys()
    assert yaml.safe_load((home / "qc/params.yml").read_text())["workflow"]["tma"] is False
    link = home / "registration/tonsil.ome.tif"
    assert not link.readlink().is_absolute()
    assert tifffile.imread(link).shape == (4, 700, 600)
    exported(run, "mcmicro", monkeypatch)  # once more is no error


def test_a_background_is_handed_on_only_where_it_is_still_there(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = processed(tmp_path, tiny_raw)
    table = (run.folder / "markers.csv").read_text().splitlines()
    backgrounds = ["background", "", "CD20", "", ""]
    lines = [f"{line},{name}" for line, name in zip(table, backgrounds, strict=True)]
    (run.folder / "markers.csv").write_text("\n".join(lines) + "\n")
    handed_on = []
    for method in ("exposure", "none"):
        run.edit(subtract={"method": method})
        shutil.rmtree(run.folder / "out", ignore_errors=True)
        rows = rows_of(exported(run, "mcmicro", monkeypatch) / "tonsil/markers.csv")
        handed_on.append([row["background"] for row in rows])
        assert {row["remove"] for row in rows} == {""}
    assert handed_on == [[""] * 4, ["", "CD20", "", ""]]


def test_a_removed_channel_is_not_in_the_image(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = processed(tmp_path, tiny_raw)
    table = (run.folder / "markers.csv").read_text().splitlines()
    lines = [f"{table[0]},remove", *(f"{line}," for line in table[1:]), "2,3,Blank,578,50,TRUE"]
    (run.folder / "markers.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("tilewright.commands.export.read_experiment", experiment_of)
    rows = rows_of(exported(run, "mcmicro", monkeypatch) / "tonsil/markers.csv")
    assert [row["marker_name"] for row in rows] == MARKERS


def experiment_of(configfile: Path) -> Experiment:
    """Read the configuration without its raw files, which lack the removed channel."""
    return load_experiment(read_config(configfile))


def test_offsets_are_where_the_channels_lie(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = exported(processed(tmp_path, tiny_raw), "htan", monkeypatch) / "tonsil"
    offsets = json.loads((home / "tonsil.offsets.json").read_text())
    with tifffile.TiffFile(home / "tonsil.ome.tif") as file:
        assert offsets == [page.offset for page in file.series[0].levels[0].pages]


def test_hubmap_is_told_quality_and_one_channel_of_each_kind(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = processed(tmp_path, tiny_raw)
    home = exported(run, "hubmap", monkeypatch, "--cells", "CD3") / "tonsil/lab_processed/images"
    rows = rows_of(home / "tonsil.ome-tiff.channels.csv")
    columns = ["channel id", "is channel used for nuclei segmentation",
               "is channel used for cell segmentation", "is antibody",
               "channel quality"]  # fmt: skip
    assert list(rows[0])[:5] == columns
    nuclei, cells, antibody, quality = ([row[key] for row in rows] for key in columns[1:])
    with tifffile.TiffFile(home / "tonsil.ome.tiff") as file:
        assert all(row["channel id"] in str(file.ome_metadata) for row in rows)
    assert nuclei == ["Yes", "No", "No", "No"]
    assert cells == ["No", "Yes", "No", "No"]
    assert antibody == ["No", "Yes", "No", "Yes"]
    assert quality == ["good", "fair", "", "poor"]


def test_htan_is_told_what_passed(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = exported(processed(tmp_path, tiny_raw), "htan", monkeypatch) / "tonsil"
    rows = rows_of(home / "tonsil_channel_metadata.csv")
    assert ",".join(rows[0]) == (
        "Channel ID,Channel Name,Channel Passed QC,Cycle Number,Sub Cycle Number,Target Name,"
        "Antibody Name,Antibody Role,RRID identifier,Fluorophore,Clone,Lot,Vendor,Catalog Number,"
        "Excitation Wavelength,Emission Wavelength,Excitation Bandwidth,Emission Bandwidth,"
        "Metal Isotope Element,Metal Isotope Mass,Oligo Barcode Upper Strand,"
        "Oligo Barcode Lower Strand,Dilution,Concentration"
    )
    assert [row["Channel Passed QC"] for row in rows] == ["Yes", "Yes", "", "No"]


@pytest.mark.long
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_spatialdata_reads_pixels_names_and_scale(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    folder = exported(processed(tmp_path, tiny_raw, version), "spatialdata", monkeypatch)
    code = (
        "import spatialdata, json\n"
        "from spatialdata.transformations import get_transformation\n"
        f"image = spatialdata.read_zarr({str(folder / 'tonsil.zarr')!r}).images['tonsil']\n"
        "level = image['scale0']['image'].values\n"
        "scale = get_transformation(image, 'micrometer').scale\n"
        "print(json.dumps([list(map(str, spatialdata.models.get_channel_names(image))),\n"
        "                  level.shape, int(level.astype(int).sum()), list(scale), len(image)]))\n"
    )
    names, shape, total, scale, levels = json.loads(said_by("spatialdata", code))
    assert names == MARKERS
    assert shape == [4, 700, 600]
    assert scale == [1.0, 0.5, 0.4]
    assert levels == 2
    image = tmp_path / "results/tonsil/registration/tonsil.ome.tif"
    assert total == int(tifffile.imread(image).astype(int).sum())


@pytest.mark.long
def test_the_reader_of_mcmicro_folders_reads_ours(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(processed(tmp_path, tiny_raw), "mcmicro", monkeypatch) / "tonsil"
    code = (
        "import spatialdata_io\n"
        f"image = spatialdata_io.mcmicro({str(folder)!r}).images['tonsil_image']\n"
        "print(*image.c.values, *image.shape)\n"
    )
    assert said_by("spatialdata_io", code).split() == [*MARKERS, "4", "700", "600"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--to", "napari"], "give one of mcmicro"),
        (["--to", "hubmap", "--cells", "CD99"], "the markers are DAPI_1"),
        (["--to", "htan", "--cells", "CD3"], "for hubmap alone"),
        (["--to", "mcmicro", "-o", "results/x"], "in the results"),
        (["--to", "htan", "-o", "config.yaml"], "config.yaml"),
    ],
)
def test_what_cannot_be_is_said(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
) -> None:
    run = processed(tmp_path, tiny_raw)
    monkeypatch.chdir(run.folder)
    done = CliRunner().invoke(app, ["export", "--configfile", "config.yaml", "-o", "out", *args])
    assert done.exit_code == 2
    assert words in done.output
    assert not (run.folder / "out").exists()
    assert not (run.results / "x").exists()


def test_files_of_others_are_left_alone(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = processed(tmp_path, tiny_raw)
    other = run.folder / "out/tonsil/tonsil.ome.tif"
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    monkeypatch.chdir(run.folder)
    args = ["export", "--configfile", "config.yaml", "--to", "htan", "-o", "out"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2
    assert "is no link" in done.output
    assert other.read_text() == "mine"


def test_what_somebody_filled_stays(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = processed(tmp_path, tiny_raw)
    out = exported(run, "htan", monkeypatch)
    exported(run, "spatialdata", monkeypatch)
    exported(run, "spatialdata", monkeypatch)  # once more is no error
    table = out / "tonsil/tonsil_channel_metadata.csv"
    table.write_text(table.read_text().replace(",CD3,", ",CD3 (OKT3),"))
    labels = out / "tonsil.zarr/labels/cells"
    labels.mkdir(parents=True)
    for to, words in (("htan", "says something else"), ("spatialdata", "holds more")):
        args = ["export", "--configfile", "config.yaml", "--to", to, "-o", "out"]
        done = CliRunner().invoke(app, args)
        assert done.exit_code == 2
        assert words in done.output.replace("\n", " ")
    assert labels.is_dir()
    assert "OKT3" in table.read_text()


def test_an_image_that_is_not_what_the_tables_say_is_refused(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = processed(tmp_path, tiny_raw)
    monkeypatch.chdir(run.folder)
    args = ["export", "--configfile", "config.yaml", "--to", "htan", "-o", "out"]
    image = run.sample / "registration/tonsil.ome.tif"
    image.write_bytes(image.read_bytes()[:4000])
    done = CliRunner().invoke(app, args)
    assert (done.exit_code, "no whole TIFF" in done.output) == (2, True), done.output
    table = run.folder / "markers.csv"
    table.write_text(table.read_text().replace("CD20", "CD4"))
    done = CliRunner().invoke(app, args)
    assert (done.exit_code, "registration` again" in done.output) == (2, True), done.output


def test_without_an_image_there_is_nothing_to_export(
    tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, tiny_raw, **TINY)
    monkeypatch.chdir(run.folder)
    args = ["export", "--configfile", "config.yaml", "--to", "htan", "-o", "out"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2
    assert "run `snakemake registration` first" in done.output
