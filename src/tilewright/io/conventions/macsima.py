"""MACSima tiles: one OME-TIFF per field, filter and exposure, described by its name.

Names are those of MACSima's software (``CYC-001_..._ST-S_R-01_W-A01_ROI-001_F-002_A-CD4_C-REA_
D-FITC_EXP-40.tif``) and of its first version (``001_AntigenCycle_CD4_..._FITC_16bit_..._R-1_W-2_
G-1_F-2_E-40.tif``). Stage positions, sizes and wavelengths are in the OME-XML of each field.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.conventions.common import clean_token, walk_images
from tilewright.io.conventions.described import LocatedImage
from tilewright.io.conventions.ome_tiff import ome_xml
from tilewright.io.conventions.ome_xml import OmeChannel, OmeImage, OmePlane, parse_ome_xml

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
    """What the name of a file tells; ``scan`` is (cycle, source), such as a stain or a bleach."""

    scan: tuple[int, str]
    region: str
    field: int
    filter: str
    marker: str
    exposure_ms: float
    path: str


def parse_name(path: str) -> _File | None:
    """Return what a path tells, None where its name is another's."""
    name = path.rsplit("/", 1)[-1]
    match = next((found for form in _NAMES if (found := form.match(name))), None)
    if match is None:
        return None
    told = match.groupdict()
    colour = clean_token(told["filter"])
    marker = _NUCLEAR if colour == _NUCLEAR else told["marker"]
    return _File(
        (int(told["cycle"]), told["source"]),
        f"R{int(told['rack'])}-{clean_token(told['well'])}-ROI{int(told['roi'])}",
        int(told["field"]),
        colour,
        marker,
        float(told["exposure"] or 0),
        path,
    )


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return the fields of every scan as tiles; racks, wells and ROIs are regions.

    Each scan (a stain, or a bleach before it) is a cycle, in the order of cycle and source. Of
    several exposures of a filter the longest counts.

    Raises
    ------
    RawDataError
        A field has no stage position.
    """
    files = [found for path in walk_images(raw_dir) if (found := parse_name(path))]
    scans = sorted({file.scan for file in files})
    tiles: dict[tuple[tuple[int, str], str, int], list[_File]] = defaultdict(list)
    for file in files:
        tiles[file.scan, file.region, file.field].append(file)
    kept = {scan: _channels(file for file in files if file.scan == scan) for scan in scans}
    described = {scan: [_described(file) for file in kept[scan].values()] for scan in scans}
    located = []
    for (scan, region, _), members in sorted(tiles.items()):
        path = min(file.path for file in members)
        image = replace(
            _place(path),
            channels=described[scan],
            planes=_planes(members, kept[scan]),
            region=region,
        )
        located.append(LocatedImage(scans.index(scan) + 1, path, image))
    return located


def _channels(files: Iterable[_File]) -> dict[str, _File]:
    """Return a file of the longest exposure of every filter, the nuclear one first."""
    found: dict[str, _File] = {}
    for file in sorted(files, key=lambda file: (file.filter != _NUCLEAR, file.filter)):
        best = found.get(file.filter)
        if best is None or file.exposure_ms > best.exposure_ms:
            found[file.filter] = file
    return found


def _place(path: str) -> OmeImage:
    """Return what a file tells of its field: where it lies and how large its pixels are."""
    xml = ome_xml(path)
    told = parse_ome_xml(xml, path)[0] if xml else None
    if told is None or told.y is None:
        raise RawDataError(
            f"{path}: its OME-XML has no StageLabel, which tells where the field lies; export "
            "the raw tiles again, or use the convention pattern"
        )
    return told


def _planes(members: list[_File], channels: dict[str, _File]) -> list[OmePlane]:
    order = list(channels)
    return [
        OmePlane(order.index(file.filter), 0, 0, file.path.rsplit("/", 1)[-1])
        for file in sorted(members)
        if file.exposure_ms == channels[file.filter].exposure_ms
    ]


def _described(file: _File) -> OmeChannel:
    xml = ome_xml(file.path)
    told = parse_ome_xml(xml, file.path)[0].channels[0] if xml else None
    return OmeChannel(file.marker, told and told.emission_nm, file.exposure_ms or None)
