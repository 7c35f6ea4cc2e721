"""Yokogawa CellVoyager (CV7000, CV8000): TIFFs that ``MeasurementData.mlf`` places.

``MeasurementDetail.mrf`` beside it tells the size of a pixel and names the ``.mes`` file, which
tells z-step, exposure and filters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tilewright.io.conventions.common import RawDataError, cycle_number, list_folder, positive
from tilewright.io.conventions.described import LocatedImage, number_cycles
from tilewright.io.conventions.ome_xml import OmeChannel, OmeImage, OmePlane, elements_named

INDEX_NAME = "MeasurementData.mlf"
_DETAIL_NAME = "MeasurementDetail.mrf"
#: A band-pass filter, by centre and width in nm.
_BAND = re.compile(r"BP(\d+)/\d+")
_Fields = dict[str, str]


def find_measurements(raw_dir: str) -> list[str]:
    """Return the folders of measurements: ``raw_dir`` itself, or folders in it, by name."""
    if (Path(raw_dir) / INDEX_NAME).is_file():
        return [raw_dir]
    folders = (f"{raw_dir}/{name}" for name in list_folder(raw_dir)[0])
    return [folder for folder in folders if (Path(folder) / INDEX_NAME).is_file()]


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return the fields of every measurement as tiles; wells are regions.

    Each measurement is a cycle, by the name of its folder or in their order. Wells of which no
    file is there are passed over.

    Raises
    ------
    RawDataError
        A measurement cannot be read, has several time points or none of its files.
    """
    described = []
    for folder in find_measurements(raw_dir):
        index = f"{folder}/{INDEX_NAME}"
        try:
            images = list(_fields_of(Path(folder)))
        except RawDataError:
            raise
        except (KeyError, ValueError, ElementTree.ParseError) as error:
            said = f"{index}: it, or the file of settings that it goes with, cannot be read"
            raise RawDataError(f"{said} ({error!r}); copy both again") from error
        if not images:
            raise RawDataError(
                f"{index}: none of the planes that it lists is in the folder; copy the TIFFs "
                "beside it (projections are not read)"
            )
        described.append((cycle_number(Path(folder).name), index, images))
    return number_cycles(described)


def _fields_of(folder: Path) -> Iterator[OmeImage]:
    """Yield the fields of a measurement; its stage runs upwards in y, its images downwards."""
    wells: dict[tuple[int, int], list[_Fields]] = defaultdict(list)
    for record in _elements(folder / INDEX_NAME, "MeasurementRecord"):
        # Others tell where the focus was not found; projections are made of the planes.
        if record["Type"] == "IMG" and "ZImageProcessing" not in record:
            wells[int(record["Row"]), int(record["Column"])].append(record)
    told = _Settings.read(folder)
    there = set(list_folder(str(folder))[1])
    for (row, column), records in sorted(wells.items()):
        if there.isdisjoint(record["text"] for record in records):
            continue
        # Time points are counted in each time line, of which wells have one of their own.
        if len({record["TimePoint"] for record in records}) > 1:
            raise RawDataError(
                f"{folder / INDEX_NAME}: row {row}, column {column} has several time points, but a "
                "time series is no cycle; save one measurement per cycle"
            )
        fields: dict[int, list[_Fields]] = defaultdict(list)
        for record in records:
            fields[int(record["FieldIndex"])].append(record)
        for _, planes in sorted(fields.items()):
            yield _tile(planes, told, f"{_letters(row)}{column:02}")


def _letters(row: int) -> str:
    """Return the name of a row of wells; plates of 1536 wells go on to AF."""
    return "A" * ((row - 1) // 26) + chr(ord("A") + (row - 1) % 26)


@dataclass
class _Settings:
    """What the files beside the index tell; None or nothing where they are not there.

    The index tells heights too, but rounded to 0.1 µm.
    """

    pixel_um: float | None = None
    pixel_y_um: float | None = None
    z_step_um: float | None = None
    channels: dict[int, OmeChannel] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> _Settings:
        told = cls()
        detail = folder / _DETAIL_NAME
        if not detail.is_file():
            return told
        for channel in _elements(detail, "MeasurementChannel"):
            told.pixel_um = positive(channel.get("HorizontalPixelDimension"))
            told.pixel_y_um = positive(channel.get("VerticalPixelDimension"))
        (measurement,) = _elements(detail, "MeasurementDetail")
        settings = folder / Path(measurement.get("MeasurementSettingFileName", "")).name
        if settings.suffix != ".mes" or not settings.is_file():
            return told
        steps = {
            positive(action.get("SliceLength")) for action in _elements(settings, "ActionAcquire3D")
        }
        told.z_step_um = steps.pop() if len(steps) == 1 else None
        told.channels = {
            int(channel["Ch"]): _channel(channel) for channel in _elements(settings, "Channel")
        }
        return told


def _channel(told: _Fields) -> OmeChannel:
    band = _BAND.fullmatch(told.get("Acquisition", ""))
    return OmeChannel(
        told.get("Fluorophore") or told.get("Acquisition") or None,
        float(band[1]) if band else None,
        positive(told.get("ExposureTime")),
    )


def _tile(records: list[_Fields], told: _Settings, region: str) -> OmeImage:
    first = records[0]
    count = max(int(record["Ch"]) for record in records)
    unknown = OmeChannel(None, None, None)
    return OmeImage(
        [told.channels.get(number, unknown) for number in range(1, count + 1)],
        [
            OmePlane(int(record["Ch"]) - 1, int(record["ZIndex"]) - 1, 0, record["text"])
            for record in records
        ],
        -float(first["Y"]),
        float(first["X"]),
        position_in_px=False,
        pixel_um=told.pixel_um,
        pixel_y_um=told.pixel_y_um,
        z_step_um=told.z_step_um,
        numerical_aperture=None,
        immersion_refractive_index=None,
        region=region,
    )


def _elements(path: Path, name: str) -> Iterator[_Fields]:
    """Yield the attributes, without namespaces, and the text of elements by name."""
    for element in elements_named(ElementTree.fromstring(path.read_bytes()), name):
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        yield {**attributes, "text": (element.text or "").strip()}
