"""OME-XML as far as tiles need it: planes, positions, sizes, channels, optics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.numbers import LARGEST, finite
from tilewright.io.tiff.metadata import UM

if TYPE_CHECKING:
    from xml.etree import ElementTree

#: ms per unit of time.
_MS = {"s": 1e3, "ms": 1.0, "µs": 1e-3, "μs": 1e-3, "ns": 1e-6, "min": 6e4}
_ORDERS = {f"XY{''.join(axes)}" for axes in permutations("ZCT")}
#: By OME's and CODEX's names in small letters; that of glycerol depends on its share of water.
_REFRACTIVE_INDICES = {"air": 1.0, "dry": 1.0, "water": 1.333, "waterdipping": 1.333, "oil": 1.515}
#: No tile has more: 100 channels of 1,000 z-planes.
MOST_PLANES = 100_000


class OmeChannel(NamedTuple):
    """A channel as the microscope describes it."""

    name: str | None = None
    emission_nm: float | None = None
    exposure_ms: float | None = None


class OmePlane(NamedTuple):
    """Where one plane is stored; ``file`` None is the file of the XML itself."""

    channel: int
    z: int
    page: int
    file: str | None


@dataclass(frozen=True)
class OmeImage:
    """One Image of an OME-XML: a tile with its channels and z-planes.

    Positions are those of its first plane, or of its StageLabel: in µm, or in pixels when
    ``position_in_px``; None when the file gives none. ``region`` is the piece of tissue (a scene,
    a well) that the tile belongs to. Other formats are described in the same terms.
    """

    channels: list[OmeChannel]
    planes: list[OmePlane] = field(default_factory=list)
    y: float | None = None
    x: float | None = None
    position_in_px: bool = False
    pixel_um: float | None = None
    pixel_y_um: float | None = None
    z_step_um: float | None = None
    numerical_aperture: float | None = None
    immersion_refractive_index: float | None = None
    region: str = "1"


def parse_ome_xml(xml: str | bytes, source: str) -> list[OmeImage]:
    """Return the images of an OME-XML text; ``source`` names the file in errors.

    Raises
    ------
    RawDataError
        The XML is broken, holds several time points, an invalid number, or lacks or repeats planes.
    """
    with _xml_errors(source):
        return list(_images(_root(xml)))


def describe_image(xml: str, source: str, index: int) -> OmeImage:
    """Return channels and sizes of the image number ``index``, wherever its planes are.

    Raises
    ------
    RawDataError
        The XML is broken or has no such image; ``source`` names the file.
    """
    with _xml_errors(source):
        pixels = list(elements_named(_root(xml), "Pixels"))[index]
        return _described(pixels, _integer(pixels, "SizeC", 1, least=1))


def _described(pixels: ElementTree.Element, channels: int) -> OmeImage:
    """Return channels and sizes of an image."""
    return OmeImage(
        _channels(pixels, channels),
        pixel_um=_positive(_length(pixels, "PhysicalSizeX")),
        pixel_y_um=_positive(_length(pixels, "PhysicalSizeY")),
        z_step_um=_positive(_length(pixels, "PhysicalSizeZ")),
    )


def _root(xml: str | bytes) -> ElementTree.Element:
    from xml.etree import ElementTree

    return ElementTree.fromstring(xml)


@contextmanager
def _xml_errors(source: str) -> Iterator[None]:
    """Name the file in errors; a ParseError is a SyntaxError."""
    try:
        yield
    except (SyntaxError, IndexError) as error:
        raise RawDataError(f"{source}: the OME-XML cannot be read ({error})") from error
    except _BadXmlError as error:
        raise RawDataError(f"{source}: in the OME-XML {error}") from None


class _BadXmlError(ValueError):
    """What is wrong, in words that follow "in the OME-XML"."""


def _images(root: ElementTree.Element) -> Iterator[OmeImage]:
    lenses = list(elements_named(root, "Objective"))
    for number, image in enumerate(elements_named(root, "Image")):
        pixels = next(elements_named(image, "Pixels"), None)
        if pixels is None:
            continue
        try:
            yield _image(image, pixels, lenses)
        except _BadXmlError as error:
            raise _BadXmlError(
                f"image {number} ({image.get('Name', '')[:80]!r}): {error}"
            ) from None


def _sizes(pixels: ElementTree.Element) -> dict[str, int]:
    sizes = {axis: _integer(pixels, f"Size{axis}", 1, least=1) for axis in "ZCT"}
    if (planes := math.prod(sizes.values())) > MOST_PLANES:
        raise _BadXmlError(f"SizeZ x SizeC x SizeT is {planes}, which no image has")
    return sizes


def check_sizes(xml: str, source: str) -> None:
    """Refuse sizes that no image has, for which readers take memory; RawDataError."""
    with _xml_errors(source):
        for pixels in elements_named(_root(xml), "Pixels"):
            _sizes(pixels)


def _image(
    image: ElementTree.Element, pixels: ElementTree.Element, lenses: list[ElementTree.Element]
) -> OmeImage:
    sizes = _sizes(pixels)
    if sizes["T"] > 1:
        raise _BadXmlError(f"SizeT is {sizes['T']}: a time series; save one file per cycle")
    position, key = next(elements_named(pixels, "Plane"), None), "Position{}"
    if position is None or position.get("PositionX") is None:
        position, key = next(elements_named(image, "StageLabel"), None), "{}"
    keys = key.format("Y"), key.format("X")
    in_px = position is not None and all(position.get(f"{k}Unit") == "pixel" for k in keys)
    y, x = (_number(position, k) if in_px else _length(position, k) for k in keys)
    aperture, index = _optics(image, lenses)
    return replace(
        _described(pixels, sizes["C"]),
        planes=_planes(pixels, sizes),
        y=y,
        x=x,
        position_in_px=in_px,
        numerical_aperture=aperture,
        immersion_refractive_index=index,
    )


def _optics(
    image: ElementTree.Element, lenses: list[ElementTree.Element]
) -> tuple[float | None, float | None]:
    """Return aperture and immersion's index of the objective in use: of several, the one named."""
    used = next(elements_named(image, "ObjectiveSettings"), None)
    if used is not None and len(lenses) > 1:
        lenses = [lens for lens in lenses if lens.get("ID") == used.get("ID")]
    lens = lenses[0] if len(lenses) == 1 else None
    index = _positive(_number(used, "RefractiveIndex"))
    immersion = lens.get("Immersion") if lens is not None else None
    aperture = _positive(_number(lens, "LensNA"))
    return aperture, index or immersion_refractive_index(immersion)


def immersion_refractive_index(immersion: str | None) -> float | None:
    """Return the refractive index of an immersion by its name; None where it varies.

    >>> immersion_refractive_index("Air"), immersion_refractive_index("Glycerol")
    (1.0, None)
    """
    return _REFRACTIVE_INDICES.get((immersion or "").lower())


def elements_named(element: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """Yield descendants by name, whatever year's namespace the file is in."""
    for child in element.iter():
        if child.tag.rpartition("}")[2] == name:
            yield child


def _number(element: ElementTree.Element | None, key: str) -> float | None:
    text = element.get(key) if element is not None else None
    if not text:
        return None
    value = finite(text)
    if value is None:
        raise _BadXmlError(f"{key} is {text[:40]!r}, which is no number")
    return value


def _integer(element: ElementTree.Element, key: str, default: int, *, least: int) -> int:
    text = element.get(key)
    if text is None:
        return default
    value = int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None
    if value is None or value < least:
        raise _BadXmlError(f"{key} is {text[:40]!r}; it must be a whole number from {least} on")
    return value


def _length(element: ElementTree.Element | None, key: str, unit: str = "µm") -> float | None:
    """Return a length in µm, None where it is in no unit of length; ``unit`` is the default."""
    value = _number(element, key)
    if value is None or element is None:
        return None
    scale = UM.get(element.get(f"{key}Unit", unit))
    return value * scale if scale else None


def _nm(element: ElementTree.Element | None, key: str) -> float | None:
    """Return a wavelength in nm, its default unit; None where it is unknown."""
    value_um = _positive(_length(element, key, "nm"))
    return round(value_um * 1000, 6) if value_um else None


def _positive(value: float | None) -> float | None:
    """Return a number above 0; 0, and what is below, is "not known"."""
    return value if value is not None and value > 1 / LARGEST else None


def _channels(pixels: ElementTree.Element, count: int) -> list[OmeChannel]:
    exposures: dict[int, float] = {}
    for plane in elements_named(pixels, "Plane"):
        exposure = _number(plane, "ExposureTime")
        scale = _MS.get(plane.get("ExposureTimeUnit", "s"))
        if exposure is not None and scale:
            exposures.setdefault(_integer(plane, "TheC", 0, least=0), exposure * scale)
    channel_elements = list(elements_named(pixels, "Channel"))
    # If their number differs it is unknown which is which.
    elements = channel_elements if len(channel_elements) == count else [None] * count
    return [
        OmeChannel(
            name=channel.get("Name") if channel is not None else None,
            emission_nm=_nm(channel, "EmissionWavelength"),
            exposure_ms=exposures.get(index),
        )
        for index, channel in enumerate(elements)
    ]


def _planes(pixels: ElementTree.Element, sizes: dict[str, int]) -> list[OmePlane]:
    """Return the planes in the order in which TiffData elements store them: each one once."""
    order = pixels.get("DimensionOrder", "XYCZT")
    if order not in _ORDERS:
        raise _BadXmlError(f"DimensionOrder is {order[:40]!r}; known are {', '.join(_ORDERS)}")
    axes = order[:1:-1]
    # The first axis of the order runs fastest, product's last one does.
    places = list(product(*(range(sizes[axis]) for axis in axes)))
    index = {place: number for number, place in enumerate(places)}
    c, z = axes.index("C"), axes.index("Z")
    planes: list[OmePlane] = []
    for data in elements_named(pixels, "TiffData"):
        first = tuple(_integer(data, f"First{axis}", 0, least=0) for axis in axes)
        if first not in index:
            raise _BadXmlError(f"a TiffData begins at {axes} {first}, where the image has {sizes}")
        start = index[first]
        rest = 1 if "IFD" in data.attrib else len(places) - start
        count = _integer(data, "PlaneCount", rest, least=0)
        if count > len(places) - start:
            raise _BadXmlError(
                f"a TiffData has {count} planes from {axes} {first} on, where the image has {sizes}"
            )
        page, file = _integer(data, "IFD", 0, least=0), _file(data)
        planes += [
            OmePlane(place[c], place[z], page + offset, file)
            for offset, place in enumerate(places[start : start + count])
        ]
    pages, indices = {plane[2:] for plane in planes}, {plane[:2] for plane in planes}
    if len(pages) < len(planes):
        raise _BadXmlError("two planes are stored in the same page of the file")
    if len(indices) < len(planes):
        raise _BadXmlError(
            f"{len(indices)} planes are stored by {len(planes)} entries; save the file again"
        )
    return planes  # fewer than its sizes say of an acquisition that was stopped


def _file(data: ElementTree.Element) -> str | None:
    """Return the name of the file that a TiffData names."""
    uuid = next(elements_named(data, "UUID"), None)
    return (uuid.get("FileName") if uuid is not None else None) or None
