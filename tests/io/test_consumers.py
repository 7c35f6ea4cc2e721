"""Final images are read by real libraries, as ``docs/export.md`` says."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.conftest import REPO
from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.ome_zarr import create_image
from tilewright.io.results.zarr_store import OmeZarrVersion
from tilewright.stages.register.assemble import write_markers

pytestmark = pytest.mark.long  # which installs the libraries

VIV = Path(sys.prefix) / "consumers/node_modules"

NAMES = ["DAPI_1", "CD3", "µ-opioid & co", "DAPI_2", "CD20", "Ki-67"]
PIXEL_UM = [0.5, 0.4]
SHAPE = (6, 1301, 1100)
VERSIONS: list[OmeZarrVersion] = ["0.4", "0.5"]
#: Where the page has the image of a sample.
HOME = "results/tonsil/registration"
# What every reader's code ends with: `names`, `um` and `levels` (c, y, x) of an image, as JSON.
TELL = """
import json, sys
import numpy as np
def tell(names, um, levels):
    pixels = [np.asarray(level[:, 100:102, 200:203]).tolist() for level in levels]
    shapes = [list(level.shape) for level in levels]
    print(json.dumps([[str(n) for n in names], [float(u) for u in um], shapes, pixels]))
"""


@dataclass(frozen=True)
class Images:
    """The registered image of one sample in every format, in a folder for each of VERSIONS."""

    folder: Path
    tiff: Path
    zarrs: list[Path]
    levels: list[Any]

    def told(self, levels: int | None = None) -> list[Any]:
        """Return what TELL prints where a consumer reads the image right."""
        kept = self.levels[:levels]
        pixels = [level[:, 100:102, 200:203].tolist() for level in kept]
        return [NAMES, PIXEL_UM, [list(level.shape) for level in kept], pixels]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    folder = tmp_path_factory.mktemp("results")
    pixels = np.random.default_rng(0).integers(0, 60000, SHAPE, dtype=np.uint16)
    zarrs = [folder / version / HOME / "tonsil.ome.zarr" for version in VERSIONS]
    for path, version in zip(zarrs, VERSIONS, strict=True):
        path.parent.mkdir(parents=True)
        how: dict[str, Any] = {"name": "tonsil", "ome_zarr_version": version}
        with create_image(path, SHAPE[1:], np.uint16, 256, (0.5, 0.4), NAMES, **how) as writer:
            for channel, plane in enumerate(pixels):
                writer.write(channel, 0, 0, plane)
    tiff = zarrs[0].with_name("tonsil.ome.tif")
    write_ome_tiff(zarrs[0], tiff)
    with tifffile.TiffFile(tiff) as file:
        levels = [level.asarray() for level in file.series[0].levels]
    np.testing.assert_array_equal(levels[0], pixels)
    return Images(folder, tiff, zarrs, levels)


def snippet(heading: str) -> str:
    """Return the last block of code below a heading of the page."""
    page = (REPO / "docs/export.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks: list[str] = re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)
    return blocks[-1]


def problem_from(library: str, code: str, *args: str, **environment: str) -> str:
    """Return what Python code prints that uses a library, which may warn as it likes."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make test LONG=1 installs it")
    return _said([sys.executable, "-W", "ignore", "-c", code, *args], environment)


def said_by_viv(*args: str) -> str:
    """Return what Viv's script prints, which finds Viv by its first argument."""
    if not (VIV / "@vivjs/loaders").exists():
        pytest.skip(f"@vivjs/loaders is not in {VIV}; make test LONG=1 installs it")
    script = REPO / "tests/support/read_with_viv.mjs"
    return _said(["node", str(script), str(VIV), *args], {})


def _said(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def lines(said: str) -> list[Any]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("[[")]


def test_bioio(images: Images) -> None:
    code = TELL + (
        "from bioio import BioImage\n"
        "for path in sys.argv[1:]:\n"
        "    image = BioImage(path)\n"
        "    levels, um = [], image.physical_pixel_sizes\n"
        "    for level in image.resolution_levels:\n"
        "        image.set_resolution_level(level)\n"
        "        levels.append(image.get_image_dask_data('CYX'))\n"
        "    tell(image.channel_names, [um.Y, um.X], levels)\n"
    )
    tiff, *zarrs = lines(
        problem_from("bioio_ome_zarr", code, str(images.tiff), *map(str, images.zarrs))
    )
    # bioio-ome-tiff knows no pyramids.
    assert tiff == images.told(levels=1)
    assert zarrs == [images.told()] * 2


def test_ome_zarr_py(images: Images) -> None:
    code = TELL + (
        "from ome_zarr.io import parse_url\n"
        "from ome_zarr.reader import Reader\n"
        "for path in sys.argv[1:]:\n"
        "    node, = Reader(parse_url(path))()\n"
        "    scale = node.metadata['coordinateTransformations'][0][0]['scale']\n"
        "    tell(node.metadata['channel_names'], scale[1:], node.data)\n"
    )
    assert lines(problem_from("ome_zarr", code, *map(str, images.zarrs))) == [images.told()] * 2


def test_napari(images: Images, tmp_path: Path) -> None:
    code = TELL + (
        "from napari.components import ViewerModel\n"
        "from npe2 import PluginManager\n"
        "PluginManager.instance().discover()\n"
        "for path in sys.argv[1:]:\n"
        "    plugin = 'napari-tiff' if path.endswith('.tif') else 'napari-ome-zarr'\n"
        "    layers = ViewerModel().open(path, plugin=plugin)\n"
        "    names = [layer.name.removeprefix('tonsil: ') for layer in layers]\n"
        "    (um,) = {tuple(layer.scale) for layer in layers}\n"
        "    (units,) = {tuple(map(str, layer.units)) for layer in layers}\n"
        "    assert units == ('micrometer', 'micrometer'), units\n"
        "    levels = [np.stack(level) for level in zip(*(layer.data for layer in layers))]\n"
        "    tell(names, um, levels)\n"
        "    print(json.dumps([[layer.visible for layer in layers]]))\n"
    )
    paths = map(str, [images.tiff, *images.zarrs])
    config = {"NAPARI_CONFIG": str(tmp_path / "settings.yaml"), "QT_QPA_PLATFORM": "offscreen"}
    said = lines(problem_from("napari", code, *paths, **config))
    assert said[::2] == [images.told()] * 3
    # Dozens of markers at once would be a white mess: OME-Zarr says which are shown at first.
    assert said[3::2] == [[[True] * 4 + [False] * 2]] * 2


def test_spatialdata(images: Images) -> None:
    code = TELL + (
        "import os\n"
        "os.chdir(sys.argv[1])\n"
        f"{snippet('SpatialData')}"
        "from spatialdata.models import get_channel_names\n"
        "from spatialdata.transformations import get_transformation\n"
        "image = data['tonsil']\n"
        "levels = [image[name]['image'].values for name in image]\n"
        "tell(get_channel_names(image), get_transformation(image, 'micrometer').scale, levels)\n"
    )
    for version in VERSIONS:
        (said,) = lines(problem_from("spatialdata", code, str(images.folder / version)))
        # The coarse levels are SpatialData's own.
        names, um, shapes, pixels = images.told(levels=1)
        assert said[:2] == [names, um]
        assert (said[2][0], said[3][0]) == (shapes[0], pixels[0])
        assert said[2][1:] == [[6, 650, 550], [6, 325, 275]]


def test_the_reader_of_mcmicro_folders(images: Images, tmp_path: Path) -> None:
    shutil.copytree(images.tiff.parent, tmp_path / HOME)
    write_markers([(k // 3, name) for k, name in enumerate(NAMES)], tmp_path / HOME / "markers.csv")
    subprocess.run(["bash", "-ec", snippet("MCMICRO")], cwd=tmp_path, check=True)
    code = TELL + (
        "import spatialdata_io\n"
        "image = spatialdata_io.mcmicro(sys.argv[1]).images['tonsil_image']\n"
        "tell(image.c.values, [], [image.values])\n"
    )
    (said,) = lines(problem_from("spatialdata_io", code, str(tmp_path / "mcmicro")))
    names, _, *pixels = images.told(levels=1)
    assert said == [names, [], *pixels]


def offsets(images: Images) -> Path:
    """Return the file that the page makes for readers over HTTP."""
    code = f"import os, sys\nos.chdir(sys.argv[1])\n{snippet('Viv, Avivator, Vitessce')}"
    problem_from("tifffile", code, str(images.tiff.parents[3]))
    return images.tiff.with_name("tonsil.offsets.json")


def test_viv(images: Images) -> None:
    paths = [str(path.relative_to(images.folder)) for path in (images.tiff, *images.zarrs)]
    known = str(offsets(images))
    tiff, *zarrs = lines(said_by_viv(f"{images.folder}/", known, *paths))
    # Viv halves an odd number of rows downwards: one row of a coarse level is not drawn.
    names, um, shapes, pixels = images.told()
    floored = [[n, SHAPE[1] >> k, SHAPE[2] >> k] for k, (n, _, _) in enumerate(shapes)]
    assert tiff == [names, um, floored, pixels]
    assert zarrs == [images.told()] * 2


def test_the_ome_xml_keeps_to_its_schema(tmp_path: Path) -> None:
    path = tmp_path / "i.zarr"
    for count, dtype in ((6, np.uint16), (1, np.uint8), (3, np.float32)):
        um = (0.5, 1 / 3)
        with create_image(path, (600, 70), dtype, 64, um, NAMES[:count], name="a <b> & c"):
            pass
        write_ome_tiff(path, tmp_path / f"{count}.ome.tif")
    code = (
        "import sys, tifffile\n"
        "from ome_types import validate_xml\n"
        "for path in sys.argv[1:]:\n"
        "    xml = tifffile.TiffFile(path).ome_metadata\n"
        "    validate_xml(xml)\n"
        "    try:\n"
        "        validate_xml(xml.replace('SizeC=', 'SizeQ='))\n"
        "    except Exception as error:\n"
        "        print('SizeQ' in str(error))\n"
    )
    paths = map(str, tmp_path.glob("*.ome.tif"))
    assert problem_from("ome_types", code, *paths).split() == ["True"] * 3
