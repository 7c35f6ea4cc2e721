"""MACSima tiles: one OME-TIFF per field, filter and exposure, described by its name.

Names are those of MACSima's software (``CYC-001_..._ST-S_R-01_W-A01_ROI-001_F-002_A-CD4_C-REA_
D-FITC_EXP-40.tif``) and of its first version (``001_AntigenCycle_CD4_..._FITC_16bit_..._R-1_W-2_
G-1_F-2_E-40.tif``). Stage positions, sizes and wavelengths are in the OME-XML of each field.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from tilewright.io.formats import tile_files
from tilewright.io.formats.common import RawPlane, ScanOptions, clean_token, walk_images
from tilewright.io.tiff.ome_xml import OmeImage

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


def scan(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes of every field, a tile each; racks, wells and ROIs are regions.

    Each scan (a stain, or a bleach before it) is a cycle, in the order of cycle and source. Of
    several exposures of a filter the longest is read.

    Raises
    ------
    RawDataError
        A field has no stage position.
    """
    files = sorted(file for path in walk_images(raw_dir) if (file := parse_name(path)))
    scans = sorted({file.scan for file in files})
    longest: dict[tuple[tuple[int, str], str], float] = {}
    for file in files:
        key = file.scan, file.filter
        longest[key] = max(longest.get(key, 0.0), file.exposure_ms)
    filters = {
        scan: sorted({f for s, f in longest if s == scan}, key=lambda f: (f != _NUCLEAR, f))
        for scan in scans
    }
    planes = [
        RawPlane(
            scans.index(file.scan) + 1,
            str(filters[file.scan].index(file.filter) + 1),
            None,
            file.path,
            tile=file.field,
            region=file.region,
        )
        for file in files
        if file.exposure_ms == longest[file.scan, file.filter]
    ]
    return tile_files.at_stage(planes, options, describe, needed=True)


def describe(path: str) -> OmeImage:
    """Return what OME-XML and name tell of a file."""
    image, file = tile_files.describe(path), parse_name(path)
    if file is None:
        return image
    channel = image.channels[0]._replace(name=file.marker, exposure_ms=file.exposure_ms or None)
    return replace(image, channels=[channel])
