"""Single damages of a finished folder: each is named by who reads the file, and by `verify`."""

import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.runs import Run
from tilewright.cli import app
from tilewright.commands.verify import check_result_files
from tilewright.errors import ResultFileError
from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.ome_zarr import join_images
from tilewright.io.results.positions import read_edges, read_positions
from tilewright.io.results.registration import read_subtraction, read_transform
from tilewright.quality.evaluate import read_qc
from tilewright.quality.summary import write_trusted_markers

#: Of no rule: records of runs, each line of which counts by itself, and what Snakemake writes.
RECORDS = ("logs", "benchmarks", "placement", ".provenance")


@contextmanager
def damaged(path: Path, *, absent: bool = False) -> Iterator[None]:
    """Flip a bit of a file for a while, or take it away; others that share its bytes keep them."""
    content, times = path.read_bytes(), path.stat()
    path.unlink()
    if not absent:
        middle = len(content) // 2
        flipped = bytes([content[middle] ^ 1])
        path.write_bytes(content[:middle] + flipped + content[middle + 1 :])
    try:
        yield
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, tiny_run: Run) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "results"
    shutil.copytree(tiny_run.results, folder)
    return folder


def files_of(folder: Path) -> list[Path]:
    """Return what rules wrote."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if path.name != ".snakemake_timestamp"]


def kinds(results: Path) -> dict[str, Path]:
    """Return one file of each kind: names differ by more than numbers."""
    own = [p for p in files_of(results) if p.relative_to(results).parts[0] not in RECORDS]
    return {re.sub(r"\d+", "#", str(path.relative_to(results))): path for path in own}


def test_verify_names_every_damage(results: Path) -> None:
    assert [one.state for one in check_result_files(results)] == ["ok"]
    found = kinds(results)
    assert len(found) > 60, sorted(found)
    for kind, path in found.items():
        for absent in (False, True):
            with damaged(path, absent=absent):
                bad = [one for one in check_result_files(results) if one.state != "ok"]
            said = " ".join(one.text for one in bad)
            image = next((p for p in path.parents if p.suffix == ".zarr"), None)
            assert bad, (kind, absent)
            if absent and path.suffix == ".sfv":
                assert bad[0].text.startswith("no checksums of 1 output")
            else:
                assert str(path) in said, (kind, absent, said)
            assert all("; " in one.text for one in bad)
            assert image is None or absent or f"; delete {image} " in bad[0].text


def test_the_command_says_what_it_found(results: Path, tmp_path: Path) -> None:
    def verified(folder: Path) -> tuple[int, list[str]]:
        done = CliRunner().invoke(app, ["verify", str(folder)])
        return done.exit_code, done.stdout.splitlines()

    status, (well,) = verified(results)
    assert (status, re.sub(r"\d+", "N", well, count=1)) == (
        0,
        f"ok: N outputs in {results} as written",
    )
    with damaged(results / "qc.csv"), damaged(results / ".qc.json.sfv", absent=True):
        status, lines = verified(results)
    assert (status, [line.partition(":")[0] for line in lines]) == (1, ["problem", "warning", "ok"])
    assert lines[0].startswith(f"problem: {results}/qc.csv is not what was written; delete")
    assert verified(tmp_path)[0] == 1  # holds none
    assert CliRunner().invoke(app, ["verify", str(tmp_path / "none")]).exit_code == 2


READERS: dict[str, Callable[[Path], object]] = {
    "raw/cycle1.csv": lambda path: open_tiles(path, "1"),
    "tile_positions/cycle1/positions.csv": read_positions,
    "tile_positions/cycle1/edges.csv": read_edges,
    "edf/cycle1_channel1.zarr/0/0/0/0": lambda path: open_mosaic(path.parents[3]).read(0),
    "edf/cycle1_channel1.zarr/.zattrs": lambda path: open_mosaic(path.parent),
    "edf/cycle1_channel1.zarr/checksums.sfv": lambda path: open_mosaic(path.parent),
    "register/cycle2.npz": read_transform,
    "registration/cycle2.zarr/0/0/0/0": lambda path: _join(path.parents[3]),
    "registration/tonsil.ome.zarr/0/0/0/0": lambda path: write_ome_tiff(
        path.parents[3], path.parents[5] / "again.ome.tif"
    ),
    "registration/subtraction_cycle1.npz": lambda path: read_subtraction(path, 1, "2"),
    "qc/stitch_cycle1.json": read_qc,
    "../qc.json": lambda path: write_trusted_markers(path, [], path.with_name("again.csv")),
}


def _join(image: Path) -> object:
    return join_images([image], image.with_name("again.zarr"))


@pytest.mark.parametrize("name", READERS)
def test_readers_name_every_damage(results: Path, name: str) -> None:
    path = (results / "tonsil" / name).resolve()
    READERS[name](path)
    image = next((p for p in path.parents if p.suffix == ".zarr"), None)
    for absent in (False, True):
        if absent and path.suffix == ".sfv":
            continue  # there is no image then, where the list lies in it
        with damaged(path, absent=absent), pytest.raises(ResultFileError) as caught:
            READERS[name](path)
        said = str(caught.value)
        assert str(path) in said, absent
        assert "run snakemake with this path" in said
        assert f"delete {image or path} and" in said or absent


def test_checksums_are_those_of_other_programs(results: Path) -> None:
    """Lines of SFV: a name and the CRC-32 that zlib and unzip know; comments begin with ';'."""
    line = (results / ".qc.csv.sfv").read_text().splitlines()
    assert line[0][0] == ";"
    assert line[1:] == [f"qc.csv {zlib.crc32((results / 'qc.csv').read_bytes()):08x}"]
    image = results / "tonsil/registration/tonsil.ome.zarr"
    listed = dict(row.split() for row in (image / "checksums.sfv").read_text().splitlines()[1:])
    files = {str(path.relative_to(image)) for path in files_of(image)}
    assert files == {*listed, "checksums.sfv"}
    for name, crc in listed.items():
        assert f"{zlib.crc32((image / name).read_bytes()):08x}" == crc
