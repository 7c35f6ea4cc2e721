"""Leica LIF: tile scans with z, by the library liffile.

An image with a mosaic axis (M) is a region, its tiles are placed by ``TileScanInfo``. Images
without tiles (overviews, merged scans) are ignored where there are tile scans, as are sections
along z (xz) and time series.
"""

import weakref
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from liffile import LifFile, LifImage
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats.common import clean_token
from tilewright.io.formats.containers import Contents
from tilewright.io.numbers import positive
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane

_AXES = {"M", "Z", "C", "Y", "X"}
_M_TO_UM = 1e6


class Lif:
    """An open LIF; pages count the frames of its tile scans, one scan after the other."""

    def __init__(self, path: str) -> None:
        stream = Path(path).open("rb")  # noqa: SIM115
        weakref.finalize(self, stream.close)
        self._file = LifFile(stream)
        images = [image for image in self._file.images if isinstance(image, LifImage)]
        flat = [
            image
            for image in images
            if set(image.sizes) <= _AXES and tuple(image.sizes)[-2:] == ("Y", "X")
        ]
        if images and not flat:
            kinds = ", ".join(
                f"{image.name!r} of {' x '.join(image.sizes)}" for image in images[:5]
            )
            raise RawDataError(
                f"{path} holds no tiles: its images are {kinds}, but only scans along X and Y, in "
                "one plane or several (Z), are tiles, and no sections along Z, time series (T) or "
                "colours (S); name a file that was scanned in LAS X's mode xyz"
            )
        self._scans = [image for image in flat if "M" in image.sizes] or flat
        self._frames = [(scan, at) for scan in self._scans for at in _frames(scan.sizes)]
        shapes = {(scan.sizes["Y"], scan.sizes["X"], str(scan.dtype)) for scan in self._scans}
        if len(shapes) > 1:
            raise RawDataError(
                f"{path} holds tile scans of different sizes or pixel types; save one file each"
            )
        height, width, dtype = shapes.pop() if shapes else (0, 0, "")
        self.contents = Contents(self._images(), height, width, dtype)

    def read(self, page: int) -> NDArray[Any]:
        """Return a plane (y, x)."""
        scan: Any
        scan, at = self._frames[page]
        return np.asarray(scan.frame(**at))

    def _images(self) -> list[OmeImage]:
        images, page = [], 0
        for scan in self._scans:
            tiles: list[list[OmePlane]] = [[] for _ in range(scan.sizes.get("M", 1))]
            for at in _frames(scan.sizes):
                tiles[at.get("M", 0)].append(OmePlane(at.get("C", 0), at.get("Z", 0), page, None))
                page += 1
            region = clean_token(scan.name) if len(self._scans) > 1 and "M" in scan.sizes else "1"
            images += [_image(scan, number, planes, region) for number, planes in enumerate(tiles)]
        return images


def _frames(sizes: dict[str, int]) -> list[dict[str, int]]:
    """Return the indices of every frame, the last axis running fastest."""
    axes = [axis for axis in sizes if axis not in "YX"]
    places = np.ndindex(*(sizes[axis] for axis in axes))
    return [dict(zip(axes, place, strict=True)) for place in places]


def _image(scan: Any, tile: int, planes: list[OmePlane], region: str) -> OmeImage:
    """Return one tile of a scan in OME's terms."""
    y_um, x_um = _position_um(scan, tile)
    return OmeImage(
        _channels(scan),
        planes,
        y_um,
        x_um,
        pixel_um=_step_um(scan, "X"),
        pixel_y_um=_step_um(scan, "Y"),
        z_step_um=_step_um(scan, "Z"),
        numerical_aperture=_objective(scan, "NumericalAperture"),
        immersion_refractive_index=_objective(scan, "RefractionIndex"),
        region=region,
    )


def _position_um(scan: Any, tile: int) -> tuple[float | None, float | None]:
    """Return the stage position (y, x) of a tile along the axes of its pixels."""
    info = scan.tilescan
    if info is None:
        return None, None
    y_um, x_um = (float(info.tiles[axis][tile]) * _M_TO_UM for axis in ("pos_y", "pos_x"))
    if info.swap_xy:
        y_um, x_um = x_um, y_um
    return (-y_um if info.flip_y else y_um), (-x_um if info.flip_x else x_um)


def _step_um(scan: Any, axis: str) -> float | None:
    places = scan.coords.get(axis)
    if places is None or len(places) < 2:
        return None
    return abs(float(places[1] - places[0])) * _M_TO_UM or None


def _channels(scan: Any) -> list[OmeChannel]:
    """Return the camera's list of channels, or the names of the colour tables."""
    count = scan.sizes.get("C", 1)
    elements = list(scan.xml_element.iter("WideFieldChannelInfo"))
    if len(elements) == count:
        return [_camera_channel(item) for item in elements]
    names = [item.get("LUTName") or None for item in scan.xml_element.iter("ChannelDescription")]
    return [OmeChannel(name) for name in (names + [None] * count)[:count]]


def _camera_channel(element: ElementTree.Element) -> OmeChannel:
    name = element.get("UserDefName") or element.get("FluoCubeName") or None
    exposure_s = positive(element.get("ExposureTime"))
    return OmeChannel(
        name,
        positive(element.get("EmissionWavelength"), "nm"),
        exposure_s * 1000 if exposure_s else None,
    )


def _objective(scan: Any, name: str) -> float | None:
    """Return a number of the hardware settings, None where no element has it."""
    values = (positive(element.get(name)) for element in scan.xml_element.iter())
    return next((value for value in values if value), None)
