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
from tilewright.io.formats.located_images import known_channels
from tilewright.io.numbers import only, positive
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage

_DTYPES = {"gray8": "uint8", "gray16": "uint16"}
_M_TO_UM, _NS_TO_MS = 1e6, 1e-6


class Czi:
    """An open CZI."""

    def __init__(self, path: str) -> None:
        stream = Path(path).open("rb")  # noqa: SIM115
        weakref.finalize(self, stream.close)
        self._file = CziFile(stream)
        if self._file.pixel_type not in _DTYPES:
            raise RawDataError(
                f"{path} has pixels of type {self._file.pixel_type}; raw counts are Gray8 or Gray16"
            )
        self.dtype = _DTYPES[self._file.pixel_type]
        dims = self._file.get_dims_shape()
        times, channels, depth = (max(part.get(k, (0, 1))[1] for part in dims) for k in "TCZ")
        if times > 1:
            raise RawDataError(f"{path} is a time series; save one file per cycle")
        boxes = self._boxes()
        sizes = {(box.h, box.w) for box in boxes.values()}
        if len(sizes) != 1:
            raise RawDataError(
                f"{path} holds tiles of {len(sizes)} sizes; save the tiles as they were taken "
                "(ZEN: without stitching or cropping)"
            )
        ((self.height_px, self.width_px),) = sizes
        self._places = sorted(boxes)
        shared = _metadata(self._file.meta, channels)
        self.tiles = []
        for scene, mosaic in self._places:
            y, x = float(boxes[scene, mosaic].y), float(boxes[scene, mosaic].x)
            region = str(scene + 1 if self._file.is_mosaic() else 1)
            self.tiles.append((replace(shared, y=y, x=x, region=region), depth))

    def read(self, tile: int, channel: int, z: int) -> NDArray[Any]:
        """Return a plane (y, x)."""
        scene, mosaic = self._places[tile]
        index = {"S": scene, "M": mosaic, "C": channel, "Z": z}
        index = {axis: at for axis, at in index.items() if axis in self._file.dims}
        plane, _ = self._file.read_image(**index)
        return np.asarray(plane).reshape(plane.shape[-2:])

    def _boxes(self) -> dict[tuple[int, int], Any]:
        """Return the bounding box of every tile by scene and number."""
        first = {axis: 0 for axis in "CZ" if axis in self._file.dims}
        if self._file.is_mosaic():
            boxes = self._file.get_all_mosaic_tile_bounding_boxes(**first)
        else:
            boxes = self._file.get_all_tile_bounding_boxes(**first)
        places = {tile: tile.dimension_coordinates for tile in boxes}
        return {(at.get("S", 0), at.get("M", 0)): boxes[tile] for tile, at in places.items()}


def _metadata(root: ElementTree.Element, channels: int) -> OmeImage:
    """Return the metadata that all tiles of a CZI share, in OME's terms."""
    size_um = {
        item.get("Id"): positive(item.findtext("Value"), scale=_M_TO_UM)
        for item in root.iterfind(".//Scaling//Distance")
    }
    lenses = root.iterfind(".//Instrument/Objectives/Objective/LensNA")
    elements = root.findall(".//Information/Image/Dimensions/Channels/Channel")
    return OmeImage(
        known_channels(map(_channel, elements), channels),
        position_in_px=True,
        pixel_um=size_um.get("X"),
        pixel_y_um=size_um.get("Y"),
        z_step_um=size_um.get("Z"),
        numerical_aperture=only(positive(lens.text) for lens in lenses),
        immersion_refractive_index=positive(
            root.findtext(".//Information/Image/ObjectiveSettings/RefractiveIndex")
        ),
    )


def _channel(element: ElementTree.Element) -> OmeChannel:
    return OmeChannel(
        element.get("Name"),
        positive(element.findtext("EmissionWavelength")),
        positive(element.findtext("ExposureTime"), scale=_NS_TO_MS),
    )
