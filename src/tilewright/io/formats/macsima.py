"""MACSima tiles: one OME-TIFF per field, filter and exposure, described by its name.

Names are those of MACSima's software (``CYC-001_..._ST-S_R-01_W-A01_ROI-001_F-002_A-CD4_C-REA_
D-FITC_EXP-40.tif``) and of its first version (``001_AntigenCycle_CD4_..._FITC_16bit_..._R-1_W-2_
G-1_F-2_E-40.tif``). Stage positions, sizes and wavelengths are in the OME-XML of each field.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from tilewright.io.formats import tile_files
from tilewright.io.formats.common import RawPlane, ScanOptions, clean_token, walk_images
from tilewright.io.numbers import positive
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


def parse_name(path: str) -> dict[str, str] | None:
    """Return the fields of a file name, None where it is not MACSima's."""
    name = path.rsplit("/", 1)[-1]
    match = next((match for form in _NAMES if (match := form.match(name))), None)
    return {key: value or "0" for key, value in match.groupdict().items()} if match else None


def scan(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes of every field, a tile each; racks, wells and ROIs are regions.

    Each scan (a stain, or a bleach before it) is a cycle, in the order of cycle and source. Of
    several exposures of a filter the longest is read.

    Raises
    ------
    RawDataError
        A field has no stage position.
    """
    files = {path: fields for path in walk_images(raw_dir) if (fields := parse_name(path))}
    longest: dict[tuple[int, str, str], float] = {}
    for fields in files.values():
        key = _channel(fields)
        longest[key] = max(longest.get(key, 0.0), float(fields["exposure"]))
    cycles: dict[tuple[int, str], int] = {}
    channels: dict[tuple[int, str, str], int] = {}
    for key in sorted(longest, key=lambda key: (*key[:2], key[2] != _NUCLEAR, key[2])):
        cycles.setdefault(key[:2], len(cycles) + 1)
        channels[key] = 1 + sum(other[:2] == key[:2] for other in channels)
    planes = []
    for path, fields in files.items():
        key = _channel(fields)
        well = f"{int(fields['rack'])}-{clean_token(fields['well'])}-ROI{int(fields['roi'])}"
        plane = RawPlane(cycles[key[:2]], str(channels[key]), None, path, region=f"R{well}")
        if float(fields["exposure"]) == longest[key]:
            planes.append(plane._replace(tile=int(fields["field"])))
    return tile_files.at_stage(planes, options, describe, needed=True)


def _channel(fields: Mapping[str, str]) -> tuple[int, str, str]:
    """Return cycle, source and filter of a file."""
    return int(fields["cycle"]), fields["source"], clean_token(fields["filter"])


def describe(path: str) -> OmeImage:
    """Return what OME-XML and name tell of a file."""
    image, fields = tile_files.describe(path), parse_name(path)
    if fields is None:
        return image
    marker = _NUCLEAR if _channel(fields)[2] == _NUCLEAR else fields["marker"]
    exposure_ms = positive(fields["exposure"])
    channel = image.channels[0]._replace(name=marker, exposure_ms=exposure_ms)
    return replace(image, channels=[channel])
