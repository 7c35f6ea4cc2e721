"""Exports are read by the real libraries of those for whom they are."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import yaml
from typer.testing import CliRunner, Result

from tests.support.consumers import said_by
from tests.support.runs import TINY, Run, make_run
from tilewright.cli import app
from tilewright.config.experiment import load_experiment, read_config
from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.ome_zarr import create_image

MARKERS = ["DAPI_1", "CD3", "DAPI_2", "CD20"]


@pytest.fixture
def run(tmp_path: Path, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """An experiment with a registered image and verdicts, as a run leaves them."""
    run = make_run(tmp_path, tiny_raw, **TINY)
    table = (run.folder / "markers.csv").read_text().splitlines()
    rows = [line.split(",") for line in table[1:]]
    lines = [f"{c},{ch},{name},{nm},50" for (c, ch, _, nm), name in zip(rows, MARKERS, strict=True)]
    (run.folder / "markers.csv").write_text("\n".join([f"{table[0]},exposure_ms", *lines]) + "\n")
    write_image(run, "0.4")
    (run.results / "trusted_markers.csv").write_text(
        "sample,cycle,channel,marker,verdict,reasons\n"
        "tonsil,1,1,DAPI_1,pass,\ntonsil,1,2,CD3,warn,seam\ntonsil,2,2,CD20,fail,no_signal\n"
    )
    monkeypatch.chdir(tmp_path)
    return run


def write_image(run: Run, version: Any) -> None:
    home = run.sample / "registration"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 60000, (4, 700, 600), dtype=np.uint16)
    with create_image(
        home / "tonsil.ome.zarr", (700, 600), np.uint16, 256, (0.5, 0.4), MARKERS, name="tonsil",
        ome_zarr_version=version,
    ) as writer:  # fmt: skip
        for channel, plane in enumerate(pixels):
            writer.write(channel, 0, 0, plane)
    write_ome_tiff(home / "tonsil.ome.zarr", home / "tonsil.ome.tif")


def export(to: str, *more: str) -> Result:
    args = ["export", "--configfile", "config.yaml", "--to", to, "-o", "out", *more]
    return CliRunner().invoke(app, args)


def exported(to: str, *more: str) -> Path:
    done = export(to, *more)
    assert done.exit_code == 0, done.output
    return Path("out").absolute()


def refused(to: str, words: str, *more: str) -> None:
    done = export(to, *more)
    assert done.exit_code == 2
    assert words in done.output.replace("\n", " ")


def add_column(run: Run, name: str, values: Sequence[str], *lines: str) -> None:
    """Add a column to the table of markers, and lines that have it."""
    table = (run.folder / "markers.csv").read_text().splitlines()
    lines = (
        tuple(f"{line},{text}" for line, text in zip(table, [name, *values], strict=True)) + lines
    )
    (run.folder / "markers.csv").write_text("\n".join(lines) + "\n")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_mcmicro_gets_its_table_and_a_link(run: Run) -> None:
    table = run.folder / "markers.csv"
    table.write_text(table.read_text().replace(",519.0,", ",519.4,"))
    home = exported("mcmicro") / "tonsil"
    rows = rows_of(home / "markers.csv")
    assert [row["marker_name"] for row in rows] == MARKERS
    assert [row["cycle_number"] for row in rows] == ["1", "1", "2", "2"]
    assert [row["channel_number"] for row in rows] == ["1", "2", "3", "4"]
    assert (rows[1]["emission_wavelength"], rows[1]["exposure"]) == ("519", "50")
    assert {"filter", "excitation_wavelength", "background", "remove"} <= rows[0].keys()
    assert yaml.safe_load((home / "qc/params.yml").read_text())["workflow"]["tma"] is False
    link = home / "registration/tonsil.ome.tif"
    assert not link.readlink().is_absolute()
    assert tifffile.imread(link).shape == (4, 700, 600)
    exported("mcmicro")  # once more is no error


def test_a_background_is_handed_on_only_where_it_is_still_there(run: Run) -> None:
    add_column(run, "background", ["", "CD20", "", ""])
    for method, backgrounds in (("exposure", [""] * 4), ("none", ["", "CD20", "", ""])):
        run.edit(subtract={"method": method})
        shutil.rmtree(run.folder / "out", ignore_errors=True)
        rows = rows_of(exported("mcmicro") / "tonsil/markers.csv")
        assert [row["background"] for row in rows] == backgrounds
        assert {row["remove"] for row in rows} == {""}


def test_a_removed_channel_is_not_in_the_image(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is read without its raw files, which lack the removed channel."""
    add_column(run, "remove", [""] * 4, "2,3,Blank,578,50,TRUE")
    read = "tilewright.commands.export.read_experiment"
    monkeypatch.setattr(read, lambda path: load_experiment(read_config(path)))
    rows = rows_of(exported("mcmicro") / "tonsil/markers.csv")
    assert [row["marker_name"] for row in rows] == MARKERS


def test_hubmap_is_told_quality_and_one_channel_of_each_kind(run: Run) -> None:
    home = exported("hubmap", "--cells", "CD3") / "tonsil/lab_processed/images"
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


def test_htan_is_told_what_passed_and_where_the_channels_lie(run: Run) -> None:
    home = exported("htan") / "tonsil"
    rows = rows_of(home / "tonsil_channel_metadata.csv")
    assert ",".join(rows[0]) == (
        "Channel ID,Channel Name,Channel Passed QC,Cycle Number,Sub Cycle Number,Target Name,"
        "Antibody Name,Antibody Role,RRID identifier,Fluorophore,Clone,Lot,Vendor,Catalog Number,"
        "Excitation Wavelength,Emission Wavelength,Excitation Bandwidth,Emission Bandwidth,"
        "Metal Isotope Element,Metal Isotope Mass,Oligo Barcode Upper Strand,"
        "Oligo Barcode Lower Strand,Dilution,Concentration"
    )
    assert [row["Channel Passed QC"] for row in rows] == ["Yes", "Yes", "", "No"]
    offsets = json.loads((home / "tonsil.offsets.json").read_text())
    with tifffile.TiffFile(home / "tonsil.ome.tif") as file:
        assert offsets == [page.offset for page in file.series[0].levels[0].pages]


@pytest.mark.long
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_spatialdata_reads_pixels_names_and_scale(run: Run, version: str) -> None:
    write_image(run, version)
    path = exported("spatialdata") / "tonsil.zarr"
    code = (
        "import spatialdata, json\n"
        "from spatialdata.transformations import get_transformation\n"
        f"image = spatialdata.read_zarr({str(path)!r}).images['tonsil']\n"
        "level = image['scale0']['image'].values\n"
        "scale = get_transformation(image, 'micrometer').scale\n"
        "print(json.dumps([list(map(str, spatialdata.models.get_channel_names(image))),\n"
        "                  level.shape, int(level.astype(int).sum()), list(scale), len(image)]))\n"
    )
    total = int(tifffile.imread(run.sample / "registration/tonsil.ome.tif").astype(int).sum())
    read = json.loads(said_by("spatialdata", code))
    assert read == [MARKERS, [4, 700, 600], total, [1.0, 0.5, 0.4], 2]


@pytest.mark.long
def test_the_reader_of_mcmicro_folders_reads_ours(run: Run) -> None:
    code = (
        "import spatialdata_io\n"
        f"image = spatialdata_io.mcmicro({str(exported('mcmicro') / 'tonsil')!r})"
        ".images['tonsil_image']\n"
        "print(*image.c.values, *image.shape)\n"
    )
    assert said_by("spatialdata_io", code).split() == [*MARKERS, "4", "700", "600"]


def test_what_cannot_be_is_said(run: Run) -> None:
    refused("napari", "give one of mcmicro")
    refused("hubmap", "the markers are DAPI_1", "--cells", "CD99")
    refused("htan", "for hubmap alone", "--cells", "CD3")
    refused("mcmicro", "in the results", "-o", "results/x")
    refused("htan", "config.yaml", "-o", "config.yaml")
    assert not (run.folder / "out").exists()
    assert not (run.results / "x").exists()


def test_files_of_others_and_what_somebody_filled_are_left_alone(run: Run) -> None:
    other = run.folder / "out/tonsil/tonsil.ome.tif"
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    refused("htan", "is no link")
    assert other.read_text() == "mine"
    other.unlink()
    out = exported("htan")
    exported("spatialdata")
    exported("spatialdata")  # once more is no error
    table = out / "tonsil/tonsil_channel_metadata.csv"
    table.write_text(table.read_text().replace(",CD3,", ",CD3 (OKT3),"))
    labels = out / "tonsil.zarr/labels/cells"
    labels.mkdir(parents=True)
    refused("htan", "says something else")
    refused("spatialdata", "holds more")
    assert labels.is_dir()
    assert "OKT3" in table.read_text()


def test_an_image_that_is_not_what_the_tables_say_is_refused(run: Run) -> None:
    image = run.sample / "registration/tonsil.ome.tif"
    image.write_bytes(image.read_bytes()[:4000])
    refused("htan", "no whole TIFF")
    table = run.folder / "markers.csv"
    table.write_text(table.read_text().replace("CD20", "CD4"))
    refused("htan", "registration` again")
    shutil.rmtree(image.parent)
    refused("htan", "run `snakemake registration` first")
