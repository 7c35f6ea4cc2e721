"""What others wrote is data: read, or refused in a sentence, soon and without much memory."""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from snakemake_scheduler_plugin_tilewright.report.runs import Row, as_csv
from tests.init.raw_folders import two_fields
from tests.support.microscope_files import (
    write_companion,
    write_cv8000,
    write_ndtiff,
    write_phenix,
)
from tilewright.config.consistency import check_separate
from tilewright.config.tables import read_markers
from tilewright.errors import BrokenTiffError, ConfigError, RawDataError, TilewrightError
from tilewright.init.folder import create_experiment
from tilewright.io.tiff.headers import headers_of

FIELDS = {
    "phenix": (write_phenix, "Index.idx.xml"),
    "cv8000": (write_cv8000, "MeasurementData.mlf"),
    "ndtiff": (write_ndtiff, "NDTiff.index"),
    "ome_tiff": (write_companion, "*.companion.ome"),
}


def image(path: Path, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, np.full((64, 64), 100, np.uint16), **options)


def refused(work: Callable[[], object], kind: type[TilewrightError] = RawDataError) -> str:
    """Return what is said; within 2 s of CPU time, and on one line."""
    start = time.process_time()
    with pytest.raises(kind) as caught:
        work()
    assert time.process_time() - start < 2
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 1500
    return said


def changed(raw: Path, convention: str, old: bytes, new: bytes) -> str:
    """Return what is said of an index in which a text is replaced."""
    write, name = FIELDS[convention]
    write(raw, 1, two_fields())
    (index,) = raw.rglob(name)
    content = index.read_bytes()
    assert old in content
    index.write_bytes(content.replace(old, new, 1))
    said = refused(lambda: create_experiment(raw, raw.with_name("out")))
    assert index.name in said
    return said


@pytest.mark.parametrize("place", ["../../x", "/etc/x", "a/../../x"])
@pytest.mark.parametrize(
    ("convention", "before"),
    [("phenix", "<URL>"), ("cv8000", ">plate"), ("ome_tiff", 'FileName="')],
)
def test_files_elsewhere(tmp_path: Path, convention: str, before: str, place: str) -> None:
    new = before.replace("plate", "") + place
    assert "must be in" in changed(tmp_path / "raw", convention, before.encode(), new.encode())


def test_files_elsewhere_in_other_indices(tmp_path: Path) -> None:
    old, new = b"cycle1_NDTiffStack.tif", b"../../x_NDTiffStak.tif"
    assert "must be in" in changed(tmp_path / "nd/raw", "ndtiff", old, new)
    image(tmp_path / "x.tif")
    for name in ("../x.tif", f"{tmp_path}/x.tif", "a\0.tif"):
        image(tmp_path / "raw/b.tif")
        text = f"dim = 2\n{name}; ; (0, 0)\nb.tif; ; (50, 0)\n"
        (tmp_path / "raw/TileConfiguration.txt").write_text(text)
        said = refused(lambda: create_experiment(tmp_path / "raw", tmp_path / "out"))
        assert "TileConfiguration.txt names the file" in said


def tiff(width: int, height: int, pieces: int = 1, offset: int = 8) -> bytes:
    tags = [(256, 1, width), (257, 1, height), (258, 1, 16), (259, 1, 1), (262, 1, 1),
            (273, pieces, offset), (277, 1, 1), (278, 1, height), (279, pieces, 8192)]  # fmt: skip
    packed = b"".join(struct.pack("<HHII", tag, 4, count, value) for tag, count, value in tags)
    head = struct.pack("<I", 9000) + bytes(8992) + struct.pack("<H", len(tags))
    return b"II*\0" + head + packed + bytes(4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tiff(10**9, 10**9), "declares 1000000000 x 1000000000 px"),
        (tiff(65_000, 65_000), "declares 65000 x 65000 px"),
        (tiff(64, 64, offset=4_000_000_000), "its header declares 4000008192"),
        (tiff(64, 64, pieces=4_000_000_000), "a page without size or data"),
        (tiff(0, 64), "a page without size"),
    ],
)
def test_a_tiff_of_more_than_it_holds(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "right.tif").write_bytes(tiff(64, 64))
    assert len(headers_of(tmp_path / "right.tif")) == 1
    for tile in range(1, 5):
        image(tmp_path / f"raw/Cyc1_reg1/1_{tile:05}_Z001_CH1.tif")
        (tmp_path / f"raw/Cyc1_reg1/1_{tile:05}_Z001_CH1.tif").write_bytes(content)
    with pytest.raises(BrokenTiffError, match=said):
        headers_of(tmp_path / "raw/Cyc1_reg1/1_00001_Z001_CH1.tif")
    (tmp_path / "plain").mkdir()
    for tile in range(1, 5):
        (tmp_path / f"plain/t_{tile}.tif").write_bytes(content)
    for raw in ("raw", "plain"):
        result = create_experiment(tmp_path / raw, tmp_path / f"out_{raw}")
        assert "cannot be read, so nothing shows them" in " ".join(result.notes.unknown)


@pytest.mark.parametrize(
    "name",
    ["t_2.tif", "a.qptiff", "a.lif", "a.companion.ome", "Cyc1_reg1/1_00001_Z001_CH1.tif",
     "Cyc1_reg1/experiment.json", "Cyc1_reg1/channelnames.txt"],
)  # fmt: skip
def test_pipes(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "raw"
    image(raw / (name.partition("/")[0] if "/" in name else ".") / "1_00002_Z001_CH1.tif")
    os.mkfifo(raw / name.replace("Cyc1_reg1/e", "e").replace("Cyc1_reg1/c", "c"))
    assert Path(name).name in refused(lambda: create_experiment(raw, tmp_path / "out"))


@pytest.mark.parametrize("name", ["=1+1", "+CD3", "@x", "-CD3"])
def test_names_that_spreadsheets_compute(tmp_path: Path, name: str) -> None:
    table = tmp_path / "markers.csv"
    table.write_text(f"cycle,channel,marker,reference\n1,1,{name},TRUE\n")
    said = refused(lambda: read_markers(table), ConfigError)
    assert f"row 2: marker '{name}' is computed by spreadsheet programs; write it without" in said
    table.write_text("cycle,channel,marker,reference\n1,1,-5,TRUE\n")
    assert read_markers(table)[0].marker == "-5"
    image(tmp_path / "raw/Cyc1_reg1/1_00001_Z001_CH1.tif")
    (tmp_path / "raw/channelnames.txt").write_text(f"{name}\n")
    result = create_experiment(tmp_path / "raw", tmp_path / "out")
    assert result.markers.read_text().splitlines()[1].startswith("1,1,,TRUE")
    assert "markers.csv, row 2: marker of cycle 1 channel 1" in result.notes.unknown
    image(tmp_path / f"plain/{name}_tile_1.tif")
    image(tmp_path / f"plain/{name}_tile_2.tif")
    result = create_experiment(tmp_path / "plain", tmp_path / "plain_out")
    assert result.tiles.read_text().count(f",{name}") == 0
    row = Row(name, "gpu", 1, 0.5, "edf", 1, 0.5, None, 0, "")
    assert as_csv([row]).splitlines()[1].startswith(f"'{name},gpu,1,0.5,")


def test_results_and_raw_data_are_apart(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    image(raw / "Cyc1_reg1/1_00001_Z001_CH1.tif")
    (tmp_path / "link").symlink_to(raw)
    for results in (raw, raw / "results", tmp_path, tmp_path / "link/x"):
        assert str(raw) in refused(lambda r=results: check_separate(r, raw), ConfigError)  # type: ignore[misc]
    check_separate(tmp_path / "raw2", raw)
    assert "beside it" in refused(lambda: create_experiment(raw, raw / "out"), ConfigError)
    assert not (raw / "out").exists()
