"""ZEISS CZI: mosaics with z, by libCZI (aicspylibczi).

The file format is described in ZEISS' *CZI (Carl Zeiss Image) file format*; libCZI is its
reference implementation. Tiles (dimension M) are placed by the pixel at which ZEN put them, and
scenes (S) are regions. Without M, each scene is a tile of one region.
"""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from aicspylibczi import CziFile
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats.containers import Contents
from tilewright.io.numbers import positive
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane

_DTYPES = {"gray8": "uint8", "gray16": "uint16"}
_M_TO_UM, _NS_TO_MS = 1e6, 1e-6


class Czi:
    """An open CZI; page = (place * channels + channel) * planes + z."""

    def __init__(self, path: str) -> None:
        stream = Path(path).open("rb")  # noqa: SIM115
        weakref.finalize(self, stream.close)
        self._file = CziFile(stream)
        if self._file.pixel_type not in _DTYPES:
            raise RawDataError(
                f"{path} has pixels of type {self._file.pixel_type}; raw counts are Gray8 or Gray16"
            )
        dims = self._file.get_dims_shape()
        if max(part.get("T", (0, 1))[1] for part in dims) > 1:
            raise RawDataError(f"{path} is a time series; save one file per cycle")
        self._channels = max(part.get("C", (0, 1))[1] for part in dims)
        self._planes = max(part.get("Z", (0, 1))[1] for part in dims)
        self._mosaic = bool(self._file.is_mosaic())
        self._boxes = self._places()
        self.contents = self._contents(path)

    def read(self, page: int) -> NDArray[Any]:
        """Return a plane (y, x)."""
        place, z = divmod(page, self._planes)
        place, channel = divmod(place, self._channels)
        scene, mosaic, _, _, _, _ = self._boxes[place]
        index = {"S": scene, "M": mosaic, "C": channel, "Z": z}
        index = {axis: at for axis, at in index.items() if axis in self._file.dims}
        plane, _ = self._file.read_image(**index)
        return np.asarray(plane).reshape(plane.shape[-2:])

    def _places(self) -> list[tuple[int, int, int, int, int, int]]:
        """Return (scene, tile, y, x, height, width) of every place, in that order."""
        first = {axis: 0 for axis in "CZ" if axis in self._file.dims}
        boxes = (
            self._file.get_all_mosaic_tile_bounding_boxes(**first)
            if self._mosaic
            else self._file.get_all_tile_bounding_boxes(**first)
        )
        places = []
        for tile, box in boxes.items():
            at = tile.dimension_coordinates
            places.append((at.get("S", 0), at.get("M", 0), box.y, box.x, box.h, box.w))
        return sorted(places)

    def _contents(self, path: str) -> Contents:
        sizes = {(height, width) for _, _, _, _, height, width in self._boxes}
        if len(sizes) != 1:
            raise RawDataError(
                f"{path} holds tiles of {len(sizes)} sizes; save the tiles as they were taken "
                "(ZEN: without stitching or cropping)"
            )
        ((height, width),) = sizes
        template = _metadata(self._file.meta, self._channels)
        images = []
        for number, (scene, _, y, x, _, _) in enumerate(self._boxes):
            first = number * self._channels
            planes = [
                OmePlane(channel, z, (first + channel) * self._planes + z, None)
                for channel in range(self._channels)
                for z in range(self._planes)
            ]
            region = str(scene + 1) if self._mosaic else "1"
            images.append(replace(template, planes=planes, y=float(y), x=float(x), region=region))
        return Contents(images, height, width, _DTYPES[self._file.pixel_type])


def _metadata(root: ElementTree.Element, channels: int) -> OmeImage:
    """Return the metadata that all tiles of a CZI share, in OME's terms."""
    metres = {
        item.get("Id"): positive(item.findtext("Value"))
        for item in root.iterfind(".//Scaling//Distance")
    }
    x_um, y_um, z_um = (round((metres.get(axis) or 0) * _M_TO_UM, 9) or None for axis in "XYZ")
    elements = root.findall(".//Information/Image/Dimensions/Channels/Channel")
    first_channels = [_channel(element) for element in elements[:channels]]
    return OmeImage(
        first_channels + [OmeChannel()] * (channels - len(first_channels)),
        position_in_px=True,
        pixel_um=x_um,
        pixel_y_um=y_um,
        z_step_um=z_um,
        numerical_aperture=positive(root.findtext(".//Instrument/Objectives/Objective/LensNA")),
        immersion_refractive_index=positive(
            root.findtext(".//Information/Image/ObjectiveSettings/RefractiveIndex")
        ),
    )


def _channel(element: ElementTree.Element) -> OmeChannel:
    exposure_ns = positive(element.findtext("ExposureTime"))
    return OmeChannel(
        element.get("Name"),
        positive(element.findtext("EmissionWavelength")),
        exposure_ns * _NS_TO_MS if exposure_ns else None,
    )
