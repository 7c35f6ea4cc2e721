"""Leica LIF: tile scans with z, by the library liffile.

An image with a mosaic axis (M) is a region, its tiles are placed by ``TileScanInfo``. Images
without tiles (overviews, merged scans) are ignored where there are tile scans, as are sections
along z (xz) and time series.
"""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
from liffile import LifFile, LifImage
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats.common import clean_token
from tilewright.io.formats.located_images import known_channels
from tilewright.io.numbers import only, positive
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage

_AXES = {"M", "Z", "C", "Y", "X"}
_M_TO_UM, _S_TO_MS = 1e6, 1e3


class Lif:
    """An open LIF."""

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
        scans = [image for image in flat if "M" in image.sizes] or flat
        shapes = {(scan.sizes["Y"], scan.sizes["X"], str(scan.dtype)) for scan in scans}
        if len(shapes) > 1:
            raise RawDataError(
                f"{path} holds tile scans of different sizes or pixel types; save one file each"
            )
        self.height_px, self.width_px, self.dtype = shapes.pop() if shapes else (0, 0, "")
        self._places = [(scan, m) for scan in scans for m in range(scan.sizes.get("M", 1))]
        several = len(scans) > 1
        self.tiles = [
            (_image(scan, m, several=several), scan.sizes.get("Z", 1)) for scan, m in self._places
        ]

    def read(self, tile: int, channel: int, z: int) -> NDArray[Any]:
        """Return a plane (y, x)."""
        scan: Any
        scan, mosaic = self._places[tile]
        index = {"M": mosaic, "C": channel, "Z": z}
        return np.asarray(scan.frame(**{k: at for k, at in index.items() if k in scan.sizes}))


def _image(scan: Any, tile: int, *, several: bool) -> OmeImage:
    """Return one tile of a scan, of which a file holds ``several``, in OME's terms."""
    y_um, x_um = _position_um(scan, tile)
    return OmeImage(
        _channels(scan),
        y=y_um,
        x=x_um,
        pixel_um=_step_um(scan, "X"),
        pixel_y_um=_step_um(scan, "Y"),
        z_step_um=_step_um(scan, "Z"),
        numerical_aperture=_objective(scan, "NumericalAperture"),
        immersion_refractive_index=_objective(scan, "RefractionIndex"),
        region=clean_token(scan.name) if several and "M" in scan.sizes else "1",
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
    of_camera = [
        OmeChannel(
            item.get("UserDefName") or item.get("FluoCubeName") or None,
            positive(item.get("EmissionWavelength"), "nm"),
            positive(item.get("ExposureTime"), scale=_S_TO_MS),
        )
        for item in scan.xml_element.iter("WideFieldChannelInfo")
    ]
    tables = scan.xml_element.iter("ChannelDescription")
    of_tables = [OmeChannel(item.get("LUTName") or None) for item in tables]
    return known_channels(of_camera if len(of_camera) == count else of_tables, count)


def _objective(scan: Any, name: str) -> float | None:
    """Return a number of the hardware settings, None where elements differ or none has it."""
    return only(positive(element.get(name)) for element in scan.xml_element.iter())
