"""Yokogawa CellVoyager (CV7000, CV8000): TIFFs listed by ``MeasurementData.mlf``.

``MeasurementDetail.mrf`` next to it holds the pixel size, and a ``.mes`` file z-step, exposure and
filters.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from tilewright.errors import RawDataError
from tilewright.io.formats.common import MOST_XML_MB, list_folder, raw_file_errors
from tilewright.io.formats.located_images import ListedPlane, tiles
from tilewright.io.numbers import only, positive, whole
from tilewright.io.text_file import read_content
from tilewright.io.tiff.ome_xml import MOST_PLANES, OmeChannel, OmeImage, elements_named

NAMES = ("/MeasurementData.mlf",)
#: A band-pass filter, by centre and width in nm.
_BAND = re.compile(r"BP(\d+)/\d+")
#: More channels and z-planes than any measurement has.
_MOST = 1000
_Fields = dict[str, str]


def read_images(path: str) -> list[OmeImage]:
    """Return the fields of a measurement as tiles; wells are regions.

    Wells without any file are ignored. The stage runs upwards in y, images run downwards.

    Raises
    ------
    RawDataError
        The measurement cannot be read, has several time points or none of its files.
    """
    folder = Path(path).parent
    names = set(list_folder(str(folder))[1])
    records = [
        (_well(record), record)
        for record in _elements(path, "MeasurementRecord")
        # Other records are failed autofocus; projections are computed from the planes.
        if record["Type"] == "IMG" and "ZImageProcessing" not in record
    ]
    wells = {well for well, record in records if record["text"] in names}
    records = [(well, record) for well, record in records if well in wells]
    if not records:
        raise RawDataError(
            f"{path}: none of the planes that it lists is in the folder; copy the TIFFs next to "
            "it (projections are not read)"
        )
    # Time points are counted in each time line, of which wells have one of their own.
    times = {(well, record["TimePoint"]) for well, record in records}
    if len(times) > len(wells):
        raise RawDataError(
            f"{path}: a well has several time points ({len(times)} in {len(wells)} wells); save "
            "one measurement per cycle"
        )
    planes = [
        ListedPlane(
            well,
            (whole(record["FieldIndex"], MOST_PLANES),),
            whole(record["Ch"], _MOST, 1),
            whole(record["ZIndex"], _MOST, 1),
            -float(record["Y"]),
            float(record["X"]),
            record["text"],
        )
        for well, record in records
    ]
    shared, known = _settings(folder)
    last = max(plane.channel for plane in planes)
    channels = {number: known.get(str(number), OmeChannel()) for number in range(1, last + 1)}
    return tiles(planes, channels, shared)


def _well(record: _Fields) -> str:
    """Return the name of a well; rows of plates of 1536 wells go on to AF."""
    row, column = whole(record["Row"], 32, 1) - 1, whole(record["Column"], 48)
    return f"{'A' * (row // 26)}{chr(ord('A') + row % 26)}{column:02}"


def _settings(folder: Path) -> tuple[OmeImage, dict[str | None, OmeChannel]]:
    """Return sizes, and channels by number, of the settings files next to the index."""
    details, settings = (sorted(folder.glob(f"*.{suffix}")) for suffix in ("mrf", "mes"))
    if len(settings) > 1:
        settings = []  # of several it is unknown which was used
    camera = [item for path in details for item in _elements(path, "MeasurementChannel")]
    stacks = [item for path in settings for item in _elements(path, "ActionAcquire3D")]
    channels = [item for path in settings for item in _elements(path, "Channel")]
    # The index holds heights too, but rounded to 0.1 µm.
    sizes = OmeImage(
        [],
        pixel_um=only(positive(item.get("HorizontalPixelDimension")) for item in camera),
        pixel_y_um=only(positive(item.get("VerticalPixelDimension")) for item in camera),
        z_step_um=only(positive(item.get("SliceLength")) for item in stacks),
    )
    return sizes, {item.get("Ch"): _channel(item) for item in channels}


def _channel(fields: _Fields) -> OmeChannel:
    band = _BAND.fullmatch(fields.get("Acquisition", ""))
    return OmeChannel(
        fields.get("Fluorophore") or fields.get("Acquisition") or None,
        float(band[1]) if band else None,
        positive(fields.get("ExposureTime")),
    )


def _elements(path: str | Path, name: str) -> Iterator[_Fields]:
    """Yield the attributes, without namespaces, and the text of elements by name."""
    with raw_file_errors(str(path)):
        root = ElementTree.fromstring(read_content(path, MOST_XML_MB))
    for element in elements_named(root, name):
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        yield {**attributes, "text": (element.text or "").strip()}
