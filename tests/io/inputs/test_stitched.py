"""Stitched images: which pages are read, what the file tells of them, and what is refused."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.support.stitched_files import (
    PIXEL_UM,
    Image,
    write_bigtiff,
    write_ome_pyramid,
    write_qptiff,
)
from tilewright.errors import RawDataError
from tilewright.io.formats import scan
from tilewright.io.formats.common import ScanOptions
from tilewright.io.formats.stitched import read_image
from tilewright.io.inputs.stitched_plane import opened
from tilewright.io.inputs.tiles import RawPage, Tiles
from tilewright.io.results.mosaic import open_mosaic
from tilewright.stages.stitch.stitched_plane import stitched_plane

NAMES = ["DAPI", "CD8", "Ki-67"]


def counts(shape: tuple[int, ...] = (3, 200, 330), dtype: Any = np.uint16) -> Any:
    return np.random.default_rng(4).integers(1, 250, shape).astype(dtype)


def write_imagej(path: Path, image: Image) -> None:
    metadata = {"axes": "CYX", "unit": "micron", "Labels": NAMES}
    pixel = (1 / PIXEL_UM, 1 / PIXEL_UM)
    tifffile.imwrite(path, image, imagej=True, resolution=pixel, metadata=metadata)


def write_levels_as_pages(path: Path, image: Image) -> None:
    how: dict[str, Any] = {"compression": "deflate", "rowsperstrip": 16, "metadata": None}
    how |= {"resolution": (25_400 / PIXEL_UM, 25_400 / PIXEL_UM), "resolutionunit": "INCH"}
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        for step in (1, 2, 4):
            for plane in image[:, ::step, ::step]:
                writer.write(np.ascontiguousarray(plane), subfiletype=int(step > 1), **how)


@pytest.mark.parametrize(
    ("name", "write", "told"),
    [
        ("a.ome.tif", lambda path, image: write_ome_pyramid(path, image, NAMES), NAMES),
        ("a.qptiff", lambda path, image: write_qptiff(path, image, NAMES), NAMES),
        ("a.btf", write_bigtiff, [None] * 3),
        ("a.tif", write_imagej, NAMES),
        ("b.tif", write_levels_as_pages, [None] * 3),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_every_layout_gives_its_full_resolution_by_region(
    tmp_path: Path, name: str, write: Callable[[Path, Image], None], told: list[Any], dtype: Any
) -> None:
    image = counts(dtype=dtype)
    write(tmp_path / name, image)
    planes = scan("stitched", tmp_path, ScanOptions(pixel_um=PIXEL_UM))
    assert [(p.cycle, p.channel, p.z) for p in planes] == [(1, str(k), 0) for k in (1, 2, 3)]
    found = read_image(str(tmp_path / name))
    assert [channel.name for channel in found.image.channels] == told
    assert found.header[2:5] == (200, 330, np.dtype(dtype).name)
    assert (found.image.pixel_um, found.image.pixel_y_um) == (PIXEL_UM, PIXEL_UM)
    for plane, expected in zip(planes, image, strict=True):
        source = of(plane.path, plane.page or 0, expected)
        with opened(source) as whole:
            part = slice(37, 161), slice(100, 330)
            assert np.array_equal(whole.read(*part), expected[part])
        stitched_plane(source, tmp_path / "out.zarr", voxel_um=(1, 0.5, 0.5), chunk_px=128)
        stored = open_mosaic(tmp_path / "out.zarr")
        assert stored.dtype == np.uint16
        assert np.array_equal(stored.read(0), expected)


def of(path: str, page: int, image: Any) -> Tiles:
    first = np.zeros(1, np.int64)
    where = np.array(["1"]), np.array([""]), first, first, np.zeros((1, 2))
    pages = [[RawPage(Path(path), page, Path(path).stat().st_size)]]
    return Tiles(*where, (1, *image.shape), image.dtype, pages)


def write(path: Path, image: Any, **options: Any) -> None:
    options = {"photometric": "minisblack", "metadata": None, **options}
    tifffile.imwrite(path, image, **options)


OME: dict[str, Any] = {"ome": True, "photometric": "minisblack"}
RGB: dict[str, Any] = {"photometric": "rgb"}
JPEG: dict[str, Any] = {"compression": "jpeg", "tile": (128, 128)}
COLOUR = "is a colour image (3 samples per pixel), as of brightfield slides"
DEEP = "holds 4 z-planes of a stitched image, of which one plane per channel is read"


@pytest.mark.parametrize(
    ("image", "options", "said"),
    [
        (counts((200, 330, 3), np.uint8), RGB, COLOUR),
        (counts((256, 256, 3), np.uint8), {**RGB, **JPEG}, COLOUR),
        (counts(dtype=np.float32), {}, "has pixels of type float32; counts are uint8 or uint16"),
        (counts(dtype=np.int16), {}, "has pixels of type int16"),
        (counts(), {"photometric": "miniswhite"}, "does not hold counts with black as 0"),
        (counts((2, 4, 90, 80)), {**OME, "metadata": {"axes": "CZYX"}}, DEEP),
        (counts((2, 4, 90, 80)), {**OME, "metadata": {"axes": "TCYX"}}, "holds 2 time points"),
    ],
)
def test_what_is_refused_in_one_sentence(
    tmp_path: Path, image: Any, options: dict[str, Any], said: str
) -> None:
    write(tmp_path / "a.tif", image, **options)
    with pytest.raises(RawDataError) as caught:
        scan("stitched", tmp_path, ScanOptions())
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "a.tif"))
    assert "\n" not in str(caught.value)


def problem(path: Path) -> str:
    try:
        read_image(str(path))
    except RawDataError as error:
        return str(error)
    return ""


def test_files_that_hold_two_images_end_early_or_come_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as writer:
        for _ in range(2):
            writer.write(counts(), photometric="minisblack", metadata={"axes": "CYX"})
    assert "holds 2 images of like size" in problem(path)
    write(path, counts())
    path.write_bytes(path.read_bytes()[:-5000])
    assert "is truncated" in problem(path)
    path.write_bytes(b"II*\0 no TIFF")
    assert "is truncated" in problem(path)
    monkeypatch.setattr("tilewright.io.formats.stitched._LARGEST_PIECE_MB", 0.1)
    write(path, counts(), compression="deflate", rowsperstrip=200)
    assert "is compressed in pieces of 0 MB" in problem(path)
    write(path, counts(), rowsperstrip=200)
    assert not problem(path)


def test_a_changed_or_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    write(path, counts(), compression="deflate", tile=(128, 128))
    plane = of(str(path), 1, counts()[1])
    with tifffile.TiffFile(path) as tiff:
        at = tiff.pages[1].dataoffsets[0]
    content = bytearray(path.read_bytes())
    content[at : at + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(RawDataError, match="page 1, cannot be read"), opened(plane) as damaged:
        damaged.read(slice(0, 200), slice(0, 330))
    path.write_bytes(bytes(content) + b"\0")
    with pytest.raises(RawDataError, match="has changed since the workflow"), opened(plane):
        pass


def test_a_plane_is_stored_in_bounded_memory(tmp_path: Path) -> None:
    image = np.zeros((4000, 6000), np.uint16)
    image[::3, ::5] = 700
    write(tmp_path / "a.tif", image, compression="zstd", tile=(512, 512))
    source = of(str(tmp_path / "a.tif"), 0, image)
    tracemalloc.start()
    try:
        stitched_plane(source, tmp_path / "out.zarr", voxel_um=(1, 0.5, 0.5), chunk_px=1024)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < image.nbytes / 2
    stored = open_mosaic(tmp_path / "out.zarr")
    assert stored.attributes["unseen_px"] == np.count_nonzero(image == 0)
    assert stored.attributes["saturation_counts"] == 65535
    assert np.array_equal(stored.read(0, slice(1000, 1100)), image[1000:1100])


def test_two_files_of_one_cycle_are_refused(tmp_path: Path) -> None:
    for name in ("cycle1_a.tif", "cycle1_b.tif", "cycle2.tif"):
        write(tmp_path / name, counts())
    with pytest.raises(RawDataError, match=r"_a\.tif is one of 2 images of cycle 1 .* in one file"):
        scan("stitched", tmp_path, ScanOptions())
    (tmp_path / "cycle1_b.tif").unlink()
    assert {plane.cycle for plane in scan("stitched", tmp_path, ScanOptions())} == {1, 2}
