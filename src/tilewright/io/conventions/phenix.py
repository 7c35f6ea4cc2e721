"""Opera Phenix and Operetta exports (Harmony): TIFFs that ``Index.idx.xml`` places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tilewright.io.conventions.common import RawDataError, cycle_folders, positive
from tilewright.io.conventions.described import LocatedImage, number_cycles
from tilewright.io.conventions.ome_xml import OmeChannel, OmeImage, OmePlane, elements_named

#: Harmony's names of the index, and the folders that it puts it in.
INDEX_NAMES = ("Index.idx.xml", "Index.xml")
_FOLDERS = ("", "/Images")
_M_TO_UM, _S_TO_MS = 1e6, 1e3
_Fields = dict[str, str]


def find_indices(raw_dir: str) -> list[tuple[int | None, str]]:
    """Return (cycle, path) of the index of ``raw_dir`` and of each of its cycle folders."""
    found = []
    for cycle, folder in cycle_folders(raw_dir):
        paths = (f"{folder}{sub}/{name}" for sub in _FOLDERS for name in INDEX_NAMES)
        path = next((path for path in paths if Path(path).is_file()), None)
        if path:
            found.append((cycle, path))
    return found


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return the fields of every well as tiles; wells are regions.

    Raises
    ------
    RawDataError
        An index cannot be read, or lacks what tells a plane.
    """
    return number_cycles(
        [(cycle, path, list(parse_index(Path(path)))) for cycle, path in find_indices(raw_dir)]
    )


def parse_index(path: Path) -> Iterator[OmeImage]:
    """Yield the fields of an index, a tile each.

    Harmony's stage runs upwards in y, its images run downwards.
    """
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except ElementTree.ParseError as error:
        raise RawDataError(f"{path}: the index cannot be read ({error})") from error
    channels = {
        entry.get("ChannelID", ""): _fields(entry)
        for entry in elements_named(root, "Entry")
        if entry.get("ChannelID")
    }
    fields: dict[tuple[str, str, str], list[_Fields]] = {}
    for element in elements_named(root, "Image"):
        plane = _fields(element)
        if "URL" not in plane:
            continue  # the list of a well's images names them only
        try:
            plane = {**channels.get(plane["ChannelID"], {}), **plane}
            key = (plane["Row"], plane["Col"], plane["FieldID"])
            fields.setdefault(key, []).append(plane)
        except KeyError as error:
            raise RawDataError(f"{path}: an image has no {error}; export it again") from None
    everything = [plane for planes in fields.values() for plane in planes]
    if len({plane.get("TimepointID", "0") for plane in everything}) > 1:
        raise RawDataError(
            f"{path}: it holds several time points, but a time series is no cycle; export one "
            "index per cycle"
        )
    try:
        axes = _Axes(everything)
        for (row, col, _), planes in sorted(fields.items(), key=lambda item: _numbers(item[0])):
            yield _tile(planes, axes, f"r{int(row):02}c{int(col):02}")
    except (KeyError, ValueError) as error:
        raise RawDataError(
            f"{path}: a field cannot be read ({error!r}); export it again"
        ) from error


class _Axes:
    """Channels and planes of the whole index: a field may lack some."""

    def __init__(self, planes: list[_Fields]) -> None:
        described = {plane["ChannelID"]: plane for plane in planes}
        self.tokens = sorted(described, key=int)
        self.depths = sorted({plane["PlaneID"] for plane in planes}, key=int)
        self.channels = [_channel(described[token]) for token in self.tokens]


def _tile(planes: list[_Fields], axes: _Axes, region: str) -> OmeImage:
    first = planes[0]
    heights_m = sorted({float(plane["PositionZ"]) for plane in planes if plane.get("PositionZ")})
    step_um = (heights_m[1] - heights_m[0]) * _M_TO_UM if len(heights_m) > 1 else None
    pixel_um = _scaled(first, "ImageResolutionX", _M_TO_UM)
    return OmeImage(
        axes.channels,
        [
            OmePlane(
                axes.tokens.index(plane["ChannelID"]),
                axes.depths.index(plane["PlaneID"]),
                0,
                plane["URL"],
            )
            for plane in planes
            if plane["URL"]
        ],
        -float(first["PositionY"]) * _M_TO_UM,
        float(first["PositionX"]) * _M_TO_UM,
        position_in_px=False,
        pixel_um=pixel_um,
        pixel_y_um=_scaled(first, "ImageResolutionY", _M_TO_UM),
        z_step_um=round(step_um, 6) if step_um else None,
        numerical_aperture=_scaled(first, "ObjectiveNA", 1.0),
        immersion_refractive_index=None,
        region=region,
    )


def _channel(plane: _Fields) -> OmeChannel:
    return OmeChannel(
        plane.get("ChannelName"),
        _scaled(plane, "MainEmissionWavelength", 1.0),
        _scaled(plane, "ExposureTime", _S_TO_MS),
    )


def _scaled(plane: _Fields, key: str, scale: float) -> float | None:
    value = positive(plane.get(key))
    return round(value * scale, 9) if value else None


def _numbers(key: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(int(re.sub(r"\D", "", part) or 0) for part in key)


def _fields(element: Any) -> _Fields:
    return {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in element}
