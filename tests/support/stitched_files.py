"""Stitched images of cycles as slide scanners and others deliver them, cut from known tissue."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.io.results.ome_zarr import halve
from tilewright.phantom.make import Phantom, PhantomDesign

PIXEL_UM = 0.5
TILE_PX = 128
Image = NDArray[np.uint16]
Light = NDArray[np.float32]
#: As the arguments of tifffile.
RESOLUTION: dict[str, Any] = {"resolution": (1e4 / PIXEL_UM,) * 2, "resolutionunit": "CENTIMETER"}


def tissue(channels: int = 2) -> list[Light]:
    """Return electrons of a section of about 800 x 800 px, in focus: nuclei first."""
    design: dict[str, Any] = {"cycles": 1, "rows": 2, "cols": 2, "planes": 1, "tile_px": 384}
    phantom = Phantom(PhantomDesign(seed=11, channels=channels, empty_tile=False, **design))
    return [specimen.in_focus() for specimen in phantom.specimens()]


def cycle_image(
    planes: Sequence[Light], shift_px: tuple[float, float], shape: tuple[int, int], seed: int
) -> Image:
    """Return counts (c, y, x) of a cycle in which the tissue lies ``shift_px`` (y, x) further on.

    What it does not reach, and a border of 8 px, is 0, as where a scanner saw nothing.
    """
    rng = np.random.default_rng(seed)
    found = np.zeros((len(planes), *shape), np.uint16)
    for out, plane in zip(found, planes, strict=True):
        light = np.maximum(ndimage.shift(plane, shift_px, order=3), 0)
        rows, cols = (min(a, b) - 8 for a, b in zip(light.shape, shape, strict=True))
        offset = rng.normal(100, 2, (rows - 8, cols - 8))
        seen = rng.poisson(light[8:rows, 8:cols] + 10) * 2 + offset
        out[8:rows, 8:cols] = np.clip(np.rint(seen), 0, 65535)
    return found


def _half(image: Image) -> Image:
    return np.stack([halve(plane) for plane in image])


def write_ome_pyramid(path: Path, image: Image, names: Sequence[str]) -> None:
    """Write a tiled OME-TIFF with levels in SubIFDs, and a macro image in colour behind it."""
    options = {"tile": (TILE_PX, TILE_PX), "compression": "zlib", "photometric": "minisblack"}
    size = {"PhysicalSizeX": PIXEL_UM, "PhysicalSizeY": PIXEL_UM}
    metadata = {"axes": "CYX", "Channel": {"Name": list(names)}, **size}
    with tifffile.TiffWriter(path, bigtiff=True, ome=True) as writer:
        writer.write(image, subifds=1, metadata=metadata, **options)
        writer.write(_half(image), subfiletype=1, **options)
        macro = np.zeros((40, 60, 3), np.uint8)
        writer.write(macro, photometric="rgb", metadata={"axes": "YXS", "Name": "macro"})


def _qpi_xml(kind: str, name: str, biomarker: str) -> str:
    return (
        '<?xml version="1.0" encoding="utf-16"?>\n<PerkinElmer-QPI-ImageDescription>'
        "<DescriptionVersion>2</DescriptionVersion><AcquisitionSoftware>none</AcquisitionSoftware>"
        f"<ImageType>{kind}</ImageType><Name>{name}</Name><Biomarker>{biomarker}</Biomarker>"
        "<ExposureTime>20000</ExposureTime></PerkinElmer-QPI-ImageDescription>"
    )


def write_qptiff(path: Path, image: Image, names: Sequence[str]) -> None:
    """Write what PerkinElmer's QPTIFF specification lays down.

    A page per channel, a thumbnail in colour, the pages of each further level, label and macro.
    """
    options: dict[str, Any] = {"metadata": None, "software": "PerkinElmer-QPI", **RESOLUTION}
    tiled = {"tile": (TILE_PX, TILE_PX), "compression": "lzw", "photometric": "minisblack"}

    def pages(level: NDArray[Any], kind: str, writer: tifffile.TiffWriter) -> None:
        for k, (plane, name) in enumerate(zip(level, names, strict=True)):
            xml = _qpi_xml(kind, f"Filter {k}", name)
            reduced = int(kind != "FullResolution")
            writer.write(plane, description=xml, subfiletype=reduced, **tiled, **options)

    with tifffile.TiffWriter(path) as writer:
        pages(image, "FullResolution", writer)
        for kind, shape in (("Thumbnail", (50, 50, 3)), ("Overview", (60, 90, 3))):
            if kind == "Overview":
                pages(_half(image), "ReducedResolution", writer)
            small = np.zeros(shape, np.uint8)
            xml = _qpi_xml(kind, "", "")
            writer.write(small, photometric="rgb", description=xml, subfiletype=1, **options)


def write_bigtiff(path: Path, image: Image) -> None:
    """Write a BigTIFF of plain pages, uncompressed in strips, that names nothing."""
    how = {"bigtiff": True, "metadata": None, "photometric": "minisblack"}
    tifffile.imwrite(path, image, **how, **RESOLUTION)
