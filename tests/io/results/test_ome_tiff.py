import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import tifffile
import yaozarrs

from tilewright.io.results.ome_tiff import write_ome_tiff
from tilewright.io.results.ome_zarr import create_image, open_image
from tilewright.io.results.zarr_store import OmeZarrVersion

NAMES = ["DAPI", "CD3", "µ-opioid & co"]
OME = "{http://www.openmicroscopy.org/Schemas/OME/2016-06}"


def pixels(shape: tuple[int, ...] = (3, 611, 1101), seed: int = 0) -> Any:
    y, x = np.mgrid[: shape[1], : shape[2]]
    smooth = 3000 * (1 + np.sin(y / 17) * np.cos(x / 23))
    return np.random.default_rng(seed).poisson(smooth, shape).astype(np.uint16)


def save(path: Path, image: Any, names: list[str] = NAMES, **options: Any) -> None:
    with create_image(
        path, image.shape[1:], image.dtype, 256, (0.5, 0.25), names, name="s1", workers=2, **options
    ) as writer:
        for c, y in np.ndindex(len(image), -(-image.shape[1] // 256)):
            writer.write(c, 256 * y, 0, image[c, 256 * y : 256 * (y + 1)])


def reference_pyramid(image: Any) -> list[Any]:
    levels = [image.astype(np.float64)]
    while max(levels[-1].shape[1:]) > 512:
        odd = [(0, 0), *((0, n % 2) for n in levels[-1].shape[1:])]
        full = np.pad(levels[-1], odd, mode="edge")
        c, y, x = full.shape
        levels.append(np.floor(full.reshape(c, y // 2, 2, x // 2, 2).mean((2, 4)) + 0.5))
    return levels


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_image_round_trip(tmp_path: Path, version: OmeZarrVersion) -> None:
    image = pixels()
    save(tmp_path / "i.zarr", image, ome_zarr_version=version)
    stored = open_image(tmp_path / "i.zarr")
    assert stored.channel_names == tuple(NAMES)
    assert stored.pixel_um == (0.5, 0.25)
    expected = reference_pyramid(image)
    for level, reference in zip(stored.levels, expected, strict=True):
        np.testing.assert_array_equal(level[:], reference)
    document = tmp_path / "i.zarr" / (".zattrs" if version == "0.4" else "zarr.json")
    yaozarrs.validate_ome_json(document.read_text())
    content = json.loads(document.read_text())
    ome = content if version == "0.4" else content["attributes"]["ome"]
    second = ome["multiscales"][0]["datasets"][1]["coordinateTransformations"]
    assert second[0] == {"type": "scale", "scale": [1.0, 1.0, 0.5]}
    assert second[1] == {"type": "translation", "translation": [0.0, 0.25, 0.125]}
    window = ome["omero"]["channels"][0]["window"]
    assert 0 <= window["start"] < window["end"] <= window["max"] == 65535


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "i.zarr"
    save(path, pixels())
    return path


def test_tiff_holds_the_same_pyramid(stored: Path, tmp_path: Path) -> None:
    path = tmp_path / "s1.ome.tif"
    write_ome_tiff(stored, path, tile_px=256, workers=2)
    with tifffile.TiffFile(path) as tif:
        assert tif.is_bigtiff
        series = tif.series[0]
        assert series.axes == "CYX"
        expected = reference_pyramid(pixels())
        assert len(series.levels) == len(expected) == 3
        for level, reference in zip(series.levels, expected, strict=True):
            np.testing.assert_array_equal(level.asarray(), reference)
        page = series.pages[0]
        assert (page.tilewidth, page.tilelength) == (256, 256)
        assert page.predictor == 2
        assert page.photometric.name == "MINISBLACK"
        assert [len(p.subifds) for p in series.pages] == [2, 2, 2]
        assert "DateTime" not in page.tags
        assert page.tags["XResolution"].value[0] / page.tags["XResolution"].value[1] == 40000
        level = tif.pages[0].pages[0]
        assert level.tags["YResolution"].value[0] / level.tags["YResolution"].value[1] == 10000
        image = ElementTree.fromstring(tif.ome_metadata).find(f"{OME}Image/{OME}Pixels")
    assert image is not None
    channels = list(image.iter(f"{OME}Channel"))
    assert [c.get("Name") for c in channels] == NAMES
    assert [c.get("Color") for c in channels][:2] == ["65535", "16711935"]
    assert float(image.get("PhysicalSizeX", 0)) == 0.25
    assert float(image.get("PhysicalSizeY", 0)) == 0.5
    assert (image.get("SizeC"), image.get("SizeZ"), image.get("Type")) == ("3", "1", "uint16")


def test_same_image_same_bytes(stored: Path, tmp_path: Path) -> None:
    save(tmp_path / "i.zarr", pixels())
    tiffs = []
    for path in (stored, tmp_path / "i.zarr"):
        write_ome_tiff(path, tmp_path / "s1.ome.tif", workers=2)
        tiffs.append((tmp_path / "s1.ome.tif").read_bytes())
    assert tiffs[0] == tiffs[1]


@pytest.mark.parametrize("shape", [(1, 100, 70), (3, 40, 600), (4, 40, 600)])
def test_channels_are_not_taken_for_colours(tmp_path: Path, shape: tuple[int, ...]) -> None:
    image = pixels(shape)
    save(tmp_path / "i.zarr", image, [f"c{k}" for k in range(len(image))])
    write_ome_tiff(tmp_path / "i.zarr", tmp_path / "s.ome.tif", tile_px=128)
    with tifffile.TiffFile(tmp_path / "s.ome.tif") as tif:
        assert len(tif.pages) == len(image)
        assert len(tif.series[0].levels) == 1 + (max(shape) > 512)
        np.testing.assert_array_equal(tif.asarray().reshape(shape), image)
