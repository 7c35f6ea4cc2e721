"""ImageXpress (MetaXpress): ``plate_A01_s3_w2.tif``, z-planes in folders ``ZStep_n``."""

from __future__ import annotations

import re

from tilewright.io.conventions.common import (
    RawPlane,
    ScanOptions,
    cycle_number,
    list_folder,
    rebase_z,
)

_FILE = re.compile(
    r"(?i)^.*?(?:_(?P<well>[A-P]\d{2}))?"
    r"(?=_[sw]\d)(?:_s(?P<site>\d+))?(?:_w(?P<wavelength>\d+))?"
    r"(?:[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12})?\.tiff?$"
)
_Z = re.compile(r"(?i)^ZStep_(\d+)$")
_TIME = re.compile(r"(?i)^TimePoint_(\d+)$")


def scan(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes below ``raw_dir``; sites are tiles, wells are regions.

    A cycle is a folder named so (``cycle2``) or else the time point. ``ZStep_0`` beside
    other z-steps is MetaXpress's projection and left out, and so are thumbnails.
    """
    planes: list[RawPlane] = []
    _descend(raw_dir, 1, None, planes)
    if any(plane.z for plane in planes):
        planes = [plane for plane in planes if plane.z != 0]
    return rebase_z(planes)


def _descend(folder: str, cycle: int, z: int | None, planes: list[RawPlane]) -> None:
    folders, images = list_folder(folder)
    for name in images:
        match = _FILE.match(name)
        if match is None:
            continue
        planes.append(
            RawPlane(
                cycle=cycle,
                channel=match["wavelength"] or "1",
                z=z,
                path=f"{folder}/{name}",
                tile=int(match["site"] or 1),
                region=match["well"] or "1",
            )
        )
    for name in folders:
        step, time, named = _Z.match(name), _TIME.match(name), cycle_number(name)
        if step:
            _descend(f"{folder}/{name}", cycle, int(step[1]), planes)
        elif named is not None:
            _descend(f"{folder}/{name}", named, z, planes)
        elif time:
            # Below a cycle's folder the time point is always 1 and says nothing.
            inside = cycle_number(folder.rsplit("/", 1)[-1]) is not None
            _descend(f"{folder}/{name}", cycle if inside else int(time[1]), z, planes)
