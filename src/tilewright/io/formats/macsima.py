"""MACSima tiles: one OME-TIFF per field, filter and exposure, described by its name.

Names are those of MACSima's software (``CYC-001_..._ST-S_R-01_W-A01_ROI-001_F-002_A-CD4_C-REA_
D-FITC_EXP-40.tif``) and of its first version (``001_AntigenCycle_CD4_..._FITC_16bit_..._R-1_W-2_
G-1_F-2_E-40.tif``). Stage positions, sizes and wavelengths are in the OME-XML of each field.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.formats.common import clean_token, walk_images
from tilewright.io.formats.located_images import LocatedImage
from tilewright.io.formats.ome_tiff import ome_xml
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane, parse_ome_xml

_NAMES = (
    re.compile(
        r"CYC-(?P<cycle>\d+)_.*?ST-(?P<source>[^_]+)_R-(?P<rack>\d+)_W-(?P<well>[^_]+)_"
        r"ROI-(?P<roi>\d+)_F-(?P<field>\d+)_A-(?P<marker>.*?)_C-.*?_D-(?P<filter>[^_]+)"
        r"(?:_EXP-(?P<exposure>[\d.]+?))?\.(?:ome\.)?tiff?$"
    ),
    re.compile(
        r"(?P<cycle>\d+)_(?P<source>[^_]*?)Cycle_(?P<marker>[^_]+)_.*?(?P<filter>[^_]+)_\d+bit_"
        r".*?R-(?P<rack>\d+)_W-(?P<well>\d+)_G-(?P<roi>\d+)_F-(?P<field>\d+)"
        r"_E-(?P<exposure>[\d.]+?)\.(?:ome\.)?tiff?$"
    ),
)
#: The nuclear filter comes first, as channel 1 of every cycle.
_NUCLEAR = "DAPI"


class _File(NamedTuple):
    """The fields of a file name; ``scan`` is (cycle, source), such as a stain or a bleach."""

    scan: tuple[int, str]
    region: str
    field: int
    filter: str
    marker: str
    exposure_ms: float
    path: str


def parse_name(path: str) -> _File | None:
    """Return the fields of a file name, None where it is not MACSima's."""
    name = path.rsplit("/", 1)[-1]
    match = next((match for form in _NAMES if (match := form.match(name))), None)
    if match is None:
        return None
    fields = match.groupdict()
    filter_name = clean_token(fields["filter"])
    marker = _NUCLEAR if filter_name == _NUCLEAR else fields["marker"]
    return _File(
        (int(fields["cycle"]), fields["source"]),
        f"R{int(fields['rack'])}-{clean_token(fields['well'])}-ROI{int(fields['roi'])}",
        int(fields["field"]),
        filter_name,
        marker,
        float(fields["exposure"] or 0),
        path,
    )


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return the fields of every scan as tiles; racks, wells and ROIs are regions.

    Each scan (a stain, or a bleach before it) is a cycle, in the order of cycle and source. Of
    several exposures of a filter the longest is read.

    Raises
    ------
    RawDataError
        A field has no stage position.
    """
    files = [file for path in walk_images(raw_dir) if (file := parse_name(path))]
    scans = sorted({file.scan for file in files})
    tiles: dict[tuple[tuple[int, str], str, int], list[_File]] = defaultdict(list)
    for file in files:
        tiles[file.scan, file.region, file.field].append(file)
    files_of = {scan: _channels(file for file in files if file.scan == scan) for scan in scans}
    channels = {scan: [_channel(file) for file in files_of[scan].values()] for scan in scans}
    located = []
    for (scan, region, _), members in sorted(tiles.items()):
        path = min(file.path for file in members)
        image = replace(
            _field_image(path),
            channels=channels[scan],
            planes=_planes(members, files_of[scan]),
            region=region,
        )
        located.append(LocatedImage(scans.index(scan) + 1, path, image))
    return located


def _channels(files: Iterable[_File]) -> dict[str, _File]:
    """Return a file of the longest exposure of every filter, the nuclear one first."""
    longest: dict[str, _File] = {}
    for file in sorted(files, key=lambda file: (file.filter != _NUCLEAR, file.filter)):
        best = longest.get(file.filter)
        if best is None or file.exposure_ms > best.exposure_ms:
            longest[file.filter] = file
    return longest


def _field_image(path: str) -> OmeImage:
    """Return stage position and pixel size of a field."""
    xml = ome_xml(path)
    image = parse_ome_xml(xml, path)[0] if xml else None
    if image is None or image.y is None:
        raise RawDataError(
            f"{path}: its OME-XML has no StageLabel with the position of the field; export the "
            "raw tiles again, or use acquisition.convention 'pattern'"
        )
    return image


def _planes(members: list[_File], channels: dict[str, _File]) -> list[OmePlane]:
    order = list(channels)
    return [
        OmePlane(order.index(file.filter), 0, 0, file.path.rsplit("/", 1)[-1])
        for file in sorted(members)
        if file.exposure_ms == channels[file.filter].exposure_ms
    ]


def _channel(file: _File) -> OmeChannel:
    xml = ome_xml(file.path)
    channel = parse_ome_xml(xml, file.path)[0].channels[0] if xml else None
    return OmeChannel(file.marker, channel and channel.emission_nm, file.exposure_ms or None)
