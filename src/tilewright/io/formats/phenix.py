"""Opera Phenix and Operetta exports (Harmony): TIFFs listed by ``Index.idx.xml``."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import median_low
from typing import Any
from xml.etree import ElementTree

from tilewright.errors import RawDataError
from tilewright.io.formats.common import MOST_XML_MB
from tilewright.io.formats.located_images import ListedPlane, tiles
from tilewright.io.numbers import finite, positive
from tilewright.io.text_file import read_content
from tilewright.io.tiff.metadata import UM
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, elements_named

#: Harmony's names of the index, which is in a folder ``Images``.
NAMES = ("/Index.idx.xml", "/Index.xml")
_Fields = dict[str, str]


def read_images(path: str) -> list[OmeImage]:
    """Return the fields of every well in an index as tiles; wells are regions.

    Raises
    ------
    RawDataError
        The index has several time points, or cannot be read.
    """
    root = ElementTree.fromstring(read_content(path, MOST_XML_MB))
    channels = {entry.get("ChannelID"): _fields(entry) for entry in elements_named(root, "Entry")}
    images = map(_fields, elements_named(root, "Image"))
    # Entries without a URL only list the images of a well.
    planes = [{**channels.get(i["ChannelID"], {}), **i} for i in images if i.get("URL")]
    if len({plane.get("TimepointID", "0") for plane in planes}) > 1:
        raise RawDataError(f"{path} holds several time points; export one index per cycle")
    return _tiles(planes) if planes else []


def _tiles(planes: list[_Fields]) -> list[OmeImage]:
    by_channel = {plane["ChannelID"]: plane for plane in planes}
    channels = {
        token: OmeChannel(
            by_channel[token].get("ChannelName"),
            _number(by_channel[token], "MainEmissionWavelength", {"nm": 1.0}),
            _number(by_channel[token], "ExposureTime", {"s": 1e3, "ms": 1.0}),
        )
        for token in sorted(by_channel, key=int)
    }
    listed = []
    heights_um: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for plane in planes:
        y_um, x_um, z_um = (_number(plane, f"Position{axis}", UM, finite) for axis in "YXZ")
        # Harmony's stage runs upwards in y, its images run downwards.
        at_um = None if y_um is None else -y_um, x_um
        well = f"r{int(plane['Row']):02}c{int(plane['Col']):02}"
        stack = well, (int(plane["FieldID"]),), plane["ChannelID"]
        listed.append(ListedPlane(*stack, int(plane["PlaneID"]), *at_um, plane["URL"]))
        if z_um is not None:
            heights_um[stack].append(z_um)
    # The usual distance of neighbours: channels have heights of their own.
    steps_um = [b - a for heights in heights_um.values() for a, b in pairwise(sorted(heights))]
    shared = OmeImage(
        [],
        pixel_um=_number(planes[0], "ImageResolutionX", UM),
        pixel_y_um=_number(planes[0], "ImageResolutionY", UM),
        z_step_um=round(median_low(steps_um), 6) or None if steps_um else None,
        numerical_aperture=_number(planes[0], "ObjectiveNA", {"": 1.0}),
    )
    return tiles(listed, channels, shared)


def _number(
    plane: _Fields,
    key: str,
    units: Mapping[str, float],
    read: Callable[[str | None], float | None] = positive,
) -> float | None:
    """Return a number times the scale of its unit; None where it is absent or of another unit."""
    value, scale = read(plane.get(key)), units.get(plane.get(f"{key}Unit", ""))
    return None if value is None or scale is None else round(value * scale, 9)


def _fields(element: Any) -> _Fields:
    fields: _Fields = {}
    for child in element:
        name = child.tag.rpartition("}")[2]
        fields |= {name: (child.text or "").strip(), f"{name}Unit": child.get("Unit", "")}
    return fields
