"""Yokogawa CellVoyager (CV7000, CV8000): TIFFs listed by ``MeasurementData.mlf``.

``MeasurementDetail.mrf`` next to it holds the pixel size and names the ``.mes`` file, which holds
z-step, exposure and filters.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from tilewright.errors import RawDataError
from tilewright.io.formats.common import (
    MOST_XML_MB,
    cycle_number,
    find_in_or_below,
    list_folder,
    raw_file_errors,
)
from tilewright.io.formats.located_images import ListedPlane, LocatedImage, number_cycles, tiles
from tilewright.io.numbers import positive, whole
from tilewright.io.text_file import read_content
from tilewright.io.tiff.ome_xml import MOST_PLANES, OmeChannel, OmeImage, OmePlane, elements_named

INDEX_NAME = "MeasurementData.mlf"
_DETAIL_NAME = "MeasurementDetail.mrf"
#: A band-pass filter, by centre and width in nm.
_BAND = re.compile(r"BP(\d+)/\d+")
_Fields = dict[str, str]


def find_measurements(raw_dir: str) -> list[str]:
    """Return the folders of measurements: ``raw_dir`` itself, or folders in it, by name."""
    return find_in_or_below(raw_dir, lambda at: at if (Path(at) / INDEX_NAME).is_file() else None)


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return the fields of every measurement as tiles; wells are regions.

    Each measurement is a cycle, by the name of its folder or in their order. Wells
    without any file are ignored.

    Raises
    ------
    RawDataError
        A measurement cannot be read, has several time points or none of its files.
    """
    files = []
    for folder in find_measurements(raw_dir):
        index = f"{folder}/{INDEX_NAME}"
        with raw_file_errors(f"{index}, {_DETAIL_NAME} or the settings that it names"):
            images = _tiles(Path(folder))
        if not images:
            raise RawDataError(
                f"{index}: none of the planes that it lists is in the folder; copy the TIFFs "
                "next to it (projections are not read)"
            )
        files.append((cycle_number(Path(folder).name), index, images))
    return number_cycles(files)


def _tiles(folder: Path) -> list[OmeImage]:
    """Return the fields of a measurement; its stage runs upwards in y, its images downwards."""
    names = set(list_folder(str(folder))[1])
    wells: dict[str, list[_Fields]] = defaultdict(list)
    for record in _elements(folder / INDEX_NAME, "MeasurementRecord"):
        # Other records are failed autofocus; projections are computed from the planes.
        if record["Type"] == "IMG" and "ZImageProcessing" not in record:
            wells[
                f"{_letters(whole(record['Row'], 32, 1))}{whole(record['Column'], 48):02}"
            ].append(record)
    wells = {
        well: records
        for well, records in wells.items()
        if not names.isdisjoint(record["text"] for record in records)
    }
    for records in wells.values():
        # Time points are counted in each time line, of which wells have one of their own.
        if len({record["TimePoint"] for record in records}) > 1:
            raise RawDataError(
                f"{folder / INDEX_NAME}: row {records[0]['Row']}, column {records[0]['Column']} "
                "has several time points; save one measurement per cycle"
            )
    template, channels = _settings(folder)
    planes = [
        ListedPlane(
            well,
            (whole(record["FieldIndex"], MOST_PLANES),),
            -float(record["Y"]),
            float(record["X"]),
            OmePlane(_index(record, "Ch"), _index(record, "ZIndex"), 0, record["text"]),
        )
        for well, records in wells.items()
        for record in records
    ]
    count = max((plane.plane.channel for plane in planes), default=0) + 1
    all_channels = [channels.get(number + 1, OmeChannel()) for number in range(count)]
    return tiles(planes, replace(template, channels=all_channels))


def _index(record: _Fields, key: str) -> int:
    """Return a channel or z-plane, counted from 0."""
    return whole(record[key], 1000, 1) - 1


def _letters(row: int) -> str:
    """Return the name of a row of wells; plates of 1536 wells go on to AF."""
    return "A" * ((row - 1) // 26) + chr(ord("A") + (row - 1) % 26)


def _settings(folder: Path) -> tuple[OmeImage, dict[int, OmeChannel]]:
    """Return sizes, and channels by number, of the settings files next to the index."""
    # The index holds heights too, but rounded to 0.1 µm.
    sizes, detail = OmeImage([]), folder / _DETAIL_NAME
    if not detail.is_file():
        return sizes, {}
    for channel in _elements(detail, "MeasurementChannel"):
        x_um, y_um = (channel.get(f"{axis}PixelDimension") for axis in ("Horizontal", "Vertical"))
        sizes = OmeImage([], pixel_um=positive(x_um), pixel_y_um=positive(y_um))
    (measurement,) = _elements(detail, "MeasurementDetail")
    settings = folder / Path(measurement.get("MeasurementSettingFileName", "")).name
    if settings.suffix != ".mes" or not settings.is_file():
        return sizes, {}
    steps = {
        positive(action.get("SliceLength")) for action in _elements(settings, "ActionAcquire3D")
    }
    channels = {_index(item, "Ch") + 1: _channel(item) for item in _elements(settings, "Channel")}
    return replace(sizes, z_step_um=steps.pop() if len(steps) == 1 else None), channels


def _channel(fields: _Fields) -> OmeChannel:
    band = _BAND.fullmatch(fields.get("Acquisition", ""))
    return OmeChannel(
        fields.get("Fluorophore") or fields.get("Acquisition") or None,
        float(band[1]) if band else None,
        positive(fields.get("ExposureTime")),
    )


def _elements(path: Path, name: str) -> Iterator[_Fields]:
    """Yield the attributes, without namespaces, and the text of elements by name."""
    with raw_file_errors(str(path)):
        root = ElementTree.fromstring(read_content(path, MOST_XML_MB))
    for element in elements_named(root, name):
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        yield {**attributes, "text": (element.text or "").strip()}
