"""OME-XML as far as tiles need it: planes, positions, sizes, channels, optics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from tilewright.io.conventions.common import RawDataError

if TYPE_CHECKING:
    from xml.etree import ElementTree

#: µm per unit. "reference frame" is the schema's default and µm by custom.
_UM = {
    "µm": 1.0,
    "μm": 1.0,
    "um": 1.0,
    "micron": 1.0,
    "microns": 1.0,
    "reference frame": 1.0,
    "nm": 1e-3,
    "mm": 1e3,
    "cm": 1e4,
    "m": 1e6,
}


class OmeChannel(NamedTuple):
    """A channel as the microscope describes it."""

    name: str | None
    emission_nm: float | None
    exposure_ms: float | None


class OmePlane(NamedTuple):
    """Where one plane is stored; ``file`` None is the file of the XML itself."""

    channel: int
    z: int
    page: int
    file: str | None


@dataclass(frozen=True)
class OmeImage:
    """One Image of an OME-XML: a tile with its channels and z-planes.

    Positions are those of its first plane: in µm, or in pixels when
    ``position_in_px``; None when the file gives none.
    """

    channels: list[OmeChannel]
    planes: list[OmePlane]
    y: float | None
    x: float | None
    position_in_px: bool
    pixel_um: float | None
    z_step_um: float | None
    numerical_aperture: float | None
    immersion_refractive_index: float | None


def parse_ome_xml(xml: str, source: str) -> list[OmeImage]:
    """Return the images of an OME-XML text; ``source`` names the file in errors.

    Raises
    ------
    RawDataError
        The XML is broken, or holds several time points.
    """
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise RawDataError(f"{source}: the OME-XML cannot be read ({error})") from error
    lens = next(_all(root, "Objective"), None)
    medium = next(_all(root, "ObjectiveSettings"), None)
    images = []
    for image in _all(root, "Image"):
        pixels = next(_all(image, "Pixels"), None)
        if pixels is None:
            continue
        if int(pixels.get("SizeT", "1")) > 1:
            raise RawDataError(
                f"{source}: SizeT is {pixels.get('SizeT')}, but a time series is no cycle; "
                "save one file per cycle"
            )
        plane = next(_all(pixels, "Plane"), None)
        unit = plane.get("PositionXUnit", "µm") if plane is not None else "µm"
        images.append(
            OmeImage(
                channels=_channels(pixels),
                planes=list(_planes(pixels)),
                y=_length(plane, "PositionY"),
                x=_length(plane, "PositionX"),
                position_in_px=unit == "pixel",
                pixel_um=_length(pixels, "PhysicalSizeX"),
                z_step_um=_length(pixels, "PhysicalSizeZ"),
                numerical_aperture=_number(lens, "LensNA"),
                immersion_refractive_index=_number(medium, "RefractiveIndex"),
            )
        )
    return images


def _all(element: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """Yield descendants by name, whatever year's namespace the file is in."""
    for child in element.iter():
        if child.tag.rpartition("}")[2] == name:
            yield child


def _number(element: ElementTree.Element | None, key: str) -> float | None:
    value = element.get(key) if element is not None else None
    return float(value) if value else None


def _length(element: ElementTree.Element | None, key: str) -> float | None:
    """Return a length in µm, or in pixels where its unit is ``pixel``."""
    value = _number(element, key)
    if value is None or element is None:
        return None
    unit = element.get(f"{key}Unit", "µm")
    return value if unit == "pixel" else value * _UM.get(unit, 1.0)


def _channels(pixels: ElementTree.Element) -> list[OmeChannel]:
    exposures: dict[int, float] = {}
    for plane in _all(pixels, "Plane"):
        exposure = _number(plane, "ExposureTime")
        if exposure is not None:
            # Seconds are the schema's default.
            scale = 1.0 if plane.get("ExposureTimeUnit") == "ms" else 1000.0
            exposures.setdefault(int(plane.get("TheC", "0")), exposure * scale)
    described = list(_all(pixels, "Channel"))
    channels = []
    for index in range(int(pixels.get("SizeC", "1"))):
        channel = described[index] if index < len(described) else None
        channels.append(
            OmeChannel(
                name=channel.get("Name") if channel is not None else None,
                emission_nm=_number(channel, "EmissionWavelength"),
                exposure_ms=exposures.get(index),
            )
        )
    return channels


def _planes(pixels: ElementTree.Element) -> Iterator[OmePlane]:
    """Yield the planes in the order in which TiffData elements store them."""
    sizes = {axis: int(pixels.get(f"Size{axis}", "1")) for axis in "ZCT"}
    order = pixels.get("DimensionOrder", "XYCZT")[2:]
    # The first axis of the order runs fastest, product's last one does.
    places = [
        dict(zip(reversed(order), indices, strict=True))
        for indices in product(*(range(sizes[axis]) for axis in reversed(order)))
    ]
    for data in _all(pixels, "TiffData"):
        first = {axis: int(data.get(f"First{axis}", "0")) for axis in "ZCT"}
        count = int(data.get("PlaneCount", "1" if "IFD" in data.attrib else str(len(places))))
        uuid = next(_all(data, "UUID"), None)
        start = places.index(first)
        for offset, place in enumerate(places[start : start + count]):
            yield OmePlane(
                channel=place["C"],
                z=place["Z"],
                page=int(data.get("IFD", "0")) + offset,
                file=uuid.get("FileName") if uuid is not None else None,
            )
