"""Opera Phenix and Operetta exports (Harmony): TIFFs listed by ``Index.idx.xml``."""

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any
from xml.etree import ElementTree

from tilewright.errors import RawDataError
from tilewright.io.formats.common import MOST_XML_MB, cycle_folders, raw_file_errors
from tilewright.io.formats.located_images import ListedPlane, LocatedImage, number_cycles, tiles
from tilewright.io.numbers import finite, positive
from tilewright.io.text_file import read_content
from tilewright.io.tiff.metadata import UM
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane, elements_named

#: Harmony's names of the index, and the folders that it puts it in.
_INDEX_NAMES = ("Index.idx.xml", "Index.xml")
_FOLDERS = ("", "/Images")
_S_TO_MS = 1e3
_Fields = dict[str, str]


def find_indices(raw_dir: str) -> list[tuple[int | None, str]]:
    """Return (cycle, path) of the index of ``raw_dir`` and of each of its cycle folders."""
    places = [f"{sub}/{name}" for sub in _FOLDERS for name in _INDEX_NAMES]
    return [
        (cycle, paths[0])
        for cycle, folder in cycle_folders(raw_dir)
        if (paths := [folder + place for place in places if Path(folder + place).is_file()])
    ]


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return the fields of every well as tiles; wells are regions.

    Raises
    ------
    RawDataError
        An index cannot be read, or a plane in it is incomplete.
    """
    return number_cycles(
        [(cycle, path, _read_index(Path(path))) for cycle, path in find_indices(raw_dir)]
    )


def _read_index(path: Path) -> list[OmeImage]:
    """Return the fields of an index, a tile each."""
    with raw_file_errors(f"{path}: the index"):
        root = ElementTree.fromstring(read_content(path, MOST_XML_MB))
        channels = {
            entry.get("ChannelID"): _fields(entry) for entry in elements_named(root, "Entry")
        }
        entries = [_fields(element) for element in elements_named(root, "Image")]
        # Entries without a URL only list the images of a well.
        planes = [{**channels.get(i["ChannelID"], {}), **i} for i in entries if "URL" in i]
        images = _tiles(planes) if planes else []
    if len({plane.get("TimepointID", "0") for plane in planes}) > 1:
        raise RawDataError(f"{path} holds several time points; export one index per cycle")
    return images


def _tiles(planes: list[_Fields]) -> list[OmeImage]:
    first, by_channel = planes[0], {plane["ChannelID"]: plane for plane in planes}
    # Of the whole index: a field may lack some.
    tokens = sorted(by_channel, key=int)
    depths = sorted({plane["PlaneID"] for plane in planes}, key=int)
    return tiles(
        (
            ListedPlane(
                f"r{int(plane['Row']):02}c{int(plane['Col']):02}",
                _field(plane),
                # Harmony's stage runs upwards in y, its images run downwards.
                None if (y_um := _um(plane, "PositionY")) is None else -y_um,
                _um(plane, "PositionX"),
                OmePlane(
                    tokens.index(plane["ChannelID"]),
                    depths.index(plane["PlaneID"]),
                    0,
                    plane["URL"],
                ),
            )
            for plane in planes
            if plane["URL"]
        ),
        OmeImage(
            [_channel(by_channel[token]) for token in tokens],
            pixel_um=positive(str(_um(first, "ImageResolutionX"))),
            pixel_y_um=positive(str(_um(first, "ImageResolutionY"))),
            z_step_um=_z_step_um(planes),
            numerical_aperture=_scaled(first, "ObjectiveNA", 1.0),
        ),
    )


def _z_step_um(planes: list[_Fields]) -> float | None:
    """Return the usual distance of neighbouring planes: channels have heights of their own."""
    stacks: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for plane in planes:
        height_um = _um(plane, "PositionZ")
        if height_um is not None:
            stacks[_field(plane), plane["ChannelID"]].append(height_um)
    steps = [b - a for heights in stacks.values() for a, b in pairwise(sorted(heights))]
    return round(median_low(steps), 6) or None if steps else None


def _field(plane: _Fields) -> tuple[int, ...]:
    parts = (plane[key] for key in ("Row", "Col", "FieldID"))
    return tuple(int(re.sub(r"\D", "", part) or 0) for part in parts)


def _channel(plane: _Fields) -> OmeChannel:
    return OmeChannel(
        plane.get("ChannelName"),
        _scaled(plane, "MainEmissionWavelength", 1.0),
        _scaled(plane, "ExposureTime", _S_TO_MS),
    )


def _scaled(plane: _Fields, key: str, scale: float) -> float | None:
    value = positive(plane.get(key))
    return round(value * scale, 9) if value else None


def _um(plane: _Fields, key: str) -> float | None:
    """Return a length in µm, None where it is absent or in an unknown unit."""
    value, scale = finite(plane.get(key)), UM.get(plane.get(f"{key}Unit") or "m")
    return None if value is None or scale is None else round(value * scale, 9)


def _fields(element: Any) -> _Fields:
    fields: _Fields = {}
    for child in element:
        name = child.tag.rpartition("}")[2]
        fields |= {name: (child.text or "").strip(), f"{name}Unit": child.get("Unit", "")}
    return fields
