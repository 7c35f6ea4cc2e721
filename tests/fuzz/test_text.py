"""Damaged texts of others: read, or refused in words of ours, soon."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import yaml

from tests.fuzz.damage import Reader, Words, check
from tests.init.raw_folders import two_fields
from tests.support.microscope_files import (
    write_companion,
    write_cv8000,
    write_imagexpress,
    write_macsima,
    write_ndtiff,
    write_phenix,
)
from tests.support.tile_tables import write_tiles
from tilewright.config.config_file import read_config
from tilewright.config.load import load_experiment
from tilewright.config.tables import read_tiles
from tilewright.errors import ConfigError, TilewrightError
from tilewright.init.folder import create_experiment

Make = Callable[[Path], Reader]
MARKERS = b"cycle,channel,marker,reference,emission_nm,exposure_ms,background,remove\n"
MARKERS += b"1,1,DAPI,TRUE,461,20,,\n1,2,CD3,,525,1.5,,false\n2,1,DAPI_2,true,461,,,\n"
MARKERS += b"2,3,CD8,,670,,,TRUE\n"
TILES = b"sample,cycle,tile,y,x,unit,source,file,use\na,1,r1c1,0,-7.5,um,,a.tif,1\n"
TILES += b"a,1,2,0,70,px,,,false\n"
YAML = b"a: &x [1, 2026-01-01]\nb: {c: *x}\n'd': !!float 1\n<<: {e: 0x1f}\n"
IMAGEJ = b"ImageJ=1.11a\nimages=2\nchannels=2\nslices=1\nunit=um\nspacing=0.5\n"
QPTIFF = b"<PerkinElmer-QPI-ImageDescription><ImageType>FullResolution</ImageType><Name>DAPI</Name>"
QPTIFF += b"<ExposureTime>200</ExposureTime></PerkinElmer-QPI-ImageDescription>"
OME_XML = b"""<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">
<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SizeX="64"
SizeY="64" SizeZ="1" SizeC="2" SizeT="1" PhysicalSizeX="500" PhysicalSizeXUnit="nm">
<Channel Name="DAPI"/><Channel/><TiffData IFD="0" PlaneCount="2"/><Plane TheC="0" TheZ="0" TheT="0"
PositionX="1" PositionY="2" ExposureTime="5"/></Pixels></Image></OME>"""
CODEX = {
    "numCycles": 1, "numChannels": 2, "wavelengths": [358, 488], "per_pixel_XY_resolution": 377,
    "aperture": 0.75, "tilingMode": "snake", "regionWidth": 2, "tileOverlapX": 0.3,
    "objectiveType": "air", "channelNames": {"channelNamesArray": ["DAPI", "CD3"]},
    "exposureTimes": {"exposureTimesArray": [["Cycle", "CH1", "CH2"], [1, 10, 20]]},
}  # fmt: skip


def file(
    name: str,
    sample: bytes,
    read: Callable[[Path], object],
    errors: Any = ConfigError,
) -> Make:
    """Return what makes a reader of one file."""

    def make(folder: Path) -> Reader:
        def use(data: bytes) -> None:
            (folder / name).write_bytes(data)
            read(folder / name)

        return Reader([sample], use, errors, name, 80)

    return make


def configuration(name: str) -> Make:
    """Return what makes a reader of an experiment of which one file is damaged."""

    def make(folder: Path) -> Reader:
        (folder / "raw").mkdir()
        (folder / "markers.csv").write_bytes(MARKERS)
        (folder / "samples.tsv").write_text(f"sample\traw_dir\tscan\na\t{folder}/raw\t1\n")
        write_tiles(folder / "tiles.csv", "a", (1, 2), 2, 2, 0.3, (72, 80))
        keys = {
            **{one.split(".")[0]: f"{folder}/{one}" for one in ("tiles.csv", *TABLES[1:])},
            "acquisition": {"convention": "codex", "pixel_um": 0.377, "z_step_um": 1.5},
            "optics": {"numerical_aperture": 0.75, "immersion_refractive_index": 1.0,
                       "sample_refractive_index": 1.44},
            "results": f"{folder}/results", "registration": {"allow_unregistered": [2]},
        }  # fmt: skip
        (folder / "config.yaml").write_text(yaml.safe_dump(keys))
        (path,) = folder.rglob(name)

        def use(data: bytes) -> None:
            path.write_bytes(data)
            load_experiment(read_config(folder / "config.yaml"))

        return Reader([path.read_bytes()], use, ConfigError, "", 40)

    return make


def raw(
    name: str,
    write: Callable[[Path], object],
    sample: bytes | None = None,
    examples: int = 25,
    **how: Any,
) -> Make:
    """Return what makes a reader of raw data of which one file, or its description, is damaged."""

    def make(folder: Path) -> Reader:
        write(folder / "raw")
        path, text = sorted((folder / "raw").rglob(name))[0], sample
        if path.suffix == ".tif":
            with tifffile.TiffFile(path) as tiff:
                text = sample or tiff.pages[0].description.encode()
            pixels = tifffile.imread(path)

        def use(data: bytes) -> None:
            if path.suffix == ".tif":
                tifffile.imwrite(path, pixels, description=data, metadata=None, **how)
            else:
                path.write_bytes(data)
            initiate(folder / "raw")

        named = "" if path.suffix == ".mes" else path.name  # where it breaks no XML
        return Reader([text or path.read_bytes()], use, TilewrightError, named, examples)

    return make


def initiate(raw: Path) -> None:
    """Write the files of an experiment, and read them again."""
    shutil.rmtree(raw.with_name("out"), ignore_errors=True)
    result = create_experiment(raw, raw.with_name("out"))
    try:
        assert read_config(result.config)
    except TilewrightError as error:
        raise AssertionError from error


def fields(write: Callable[..., None]) -> Callable[[Path], None]:
    return lambda folder: write(folder, 1, two_fields())


def images(*names: str, **beside: str) -> Callable[[Path], None]:
    """Return what writes images of some names, and files beside them."""

    def write(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(folder / name, np.full((2, 64, 64), 100, np.uint16), metadata=None)
        for name, text in beside.items():
            (folder / name.replace("__", ".")).write_text(text)

    return write


CYCLE = [f"Cyc1_reg1/1_00001_Z001_CH{c}.tif" for c in (1, 2)]


TABLES = ("config.yaml", "markers.csv", "samples.tsv")
NAMES, TIMES = "DAPI\nCD3\n", "Cycle,CH1,CH2\n1,10,20.5\n"
PLACES = "dim = 2\n# x\nC1-a.tif; ; (0.0, 1e1)\nC1-b.tif; ; (50, -1)\n"
READERS: dict[str, Make] = {
    "config": file("config.yaml", YAML, read_config),
    "tiles": file("tiles.csv", TILES, lambda path: read_tiles(path, ["a"], 0.5)),
    **{f"experiment {name}": configuration(name) for name in TABLES},
    "codex": raw("experiment.json", images(*CYCLE, experiment__json=json.dumps(CODEX))),
    "codex names": raw("channelnames.txt", images(*CYCLE, channelnames__txt=NAMES)),
    "codex times": raw("exposure_times.txt", images(*CYCLE, exposure_times__txt=TIMES)),
    "fiji": raw("Tile*.txt", images("C1-a.tif", "C1-b.tif", TileConfiguration__txt=PLACES)),
    "phenix": raw("Index.idx.xml", fields(write_phenix)),
    **{f"cv8000 {name}": raw(name, fields(write_cv8000)) for name in ("*.mlf", "*.mrf", "*.mes")},
    "ndtiff": raw("NDTiff.index", fields(write_ndtiff)),
    "companion": raw("*.companion.ome", fields(write_companion)),
    "ome": raw("*.ome.tif", images("a.ome.tif"), OME_XML),
    "macsima": raw("*.tif", fields(write_macsima)),
    "imagexpress": raw("*.tif", fields(write_imagexpress), examples=10, software="MetaSeries"),
    "imagej": raw("*.tif", images("t_1.tif"), IMAGEJ),
    "qptiff": raw("*.tif", images("cycle1.tif"), QPTIFF, software="PerkinElmer-QPI"),
}
#: What took the place of words of a sample, or of all of it, when a reader did otherwise.
FOUND: dict[str, list[Words]] = {
    "config": [(b"[1,", b"[" * 1000), (b"2026-01-01", b"!!timestamp x")],
    "experiment markers.csv": [(b"CD3", b"=1+1")],
    "companion": [(b"", b""), (b'PositionX="0.0"', b'PositionX="-1e308"')],
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_text_is_read_or_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(READERS[name](tmp_path), FOUND.get(name, ()), lambda: "".join(capsys.readouterr()))
