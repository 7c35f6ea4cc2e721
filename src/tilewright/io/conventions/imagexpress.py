"""ImageXpress (MetaXpress): ``plate_A01_s3_w2.tif``, z-planes in folders ``ZStep_n``.

MetaXpress's TIFFs also hold stage position, sizes, wavelength, exposure and optics (MetaMorph's
PlaneInfo); TIFFs of these names that other programs wrote do not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.conventions.common import (
    RawPlane,
    ScanOptions,
    cycle_number,
    finite,
    list_folder,
    positive,
    rebase_z,
)
from tilewright.io.conventions.described import LocatedImage, place
from tilewright.io.conventions.ome_xml import OmeChannel, OmeImage, OmePlane
from tilewright.io.tiff.metadata import of_tiff

_FILE = re.compile(
    r"(?i)^.*?(?:_(?P<well>[A-P]\d{2}))?"
    r"(?=_[sw]\d)(?:_s(?P<site>\d+))?(?:_w(?P<wavelength>\d+))?"
    r"(?:[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12})?\.tiff?$"
)
_Z = re.compile(r"(?i)^ZStep_(\d+)$")
_TIME = re.compile(r"(?i)^TimePoint_(\d+)$")


_Site = tuple[int, str, int]


def scan(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes below ``raw_dir``; sites are tiles, wells are regions.

    A cycle is a folder named so (``cycle2``) or else the time point. What lies beside z-steps,
    as ``ZStep_0`` or in no such folder, is MetaXpress's projection and left out, and so are
    thumbnails. Sites are placed by their stage position where the files tell it, else they
    are known by their number.

    Raises
    ------
    RawDataError
        Some sites tell no position, or sizes are not those of the options.
    """
    planes = _named(raw_dir)
    # A plate has a hundred wells, and each sample is scanned by itself.
    mine = [plane for plane in planes if options.region in (None, plane.region)] or planes
    images = _images(mine)
    return place(images, options) if images else planes


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return what MetaXpress tells of every site; nothing where other programs wrote the files.

    Raises
    ------
    RawDataError
        Some sites tell no position.
    """
    return _images(_named(raw_dir))


def tells_positions(raw_dir: str) -> bool:
    """Return whether the files tell where the sites lie."""
    return any(_told(plane.path) for plane in _named(raw_dir)[:1])


def _named(raw_dir: str) -> list[RawPlane]:
    planes: list[RawPlane] = []
    _descend(raw_dir, None, None, planes)
    stacks = {_stack(plane) for plane in planes if plane.z}
    if stacks:
        planes = [plane for plane in planes if plane.z or _stack(plane) not in stacks]
        # A wavelength that has one plane where others have stacks.
        planes = [plane if plane.z else plane._replace(z=1) for plane in planes]
    return rebase_z(planes)


def _stack(plane: RawPlane) -> tuple[_Site, str]:
    return _site(plane), plane.channel


def _site(plane: RawPlane) -> _Site:
    return plane.cycle, plane.region, plane.tile or 0


def _descend(folder: str, cycle: int | None, z: int | None, planes: list[RawPlane]) -> None:
    folders, images = list_folder(folder)
    for name in images:
        match = _FILE.match(name)
        if match is None:
            continue
        planes.append(
            RawPlane(
                cycle=1 if cycle is None else cycle,
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
            _descend(f"{folder}/{name}", int(time[1]) if cycle is None else cycle, z, planes)
        elif len(folders) == 1 and not images:
            # MetaXpress stores a plate below its name, the date and a number.
            _descend(f"{folder}/{name}", cycle, z, planes)


def _images(planes: list[RawPlane]) -> list[LocatedImage]:
    """Return the sites by the metadata of one file each, and of one per channel."""
    if not planes or not _told(planes[0].path):
        return []
    sites: dict[_Site, list[RawPlane]] = defaultdict(list)
    for plane in planes:
        sites[_site(plane)].append(plane)
    channels = {
        cycle: _channels(plane for plane in planes if plane.cycle == cycle)
        for cycle in {plane.cycle for plane in planes}
    }
    step_um = _z_step_um(planes)
    located = []
    for (cycle, region, _), members in sorted(sites.items()):
        path = members[0].path
        told = _told(path)
        if told is None:
            raise RawDataError(
                f"{path} tells no stage position and pixel size, where {planes[0].path} does; "
                "copy it again from the microscope, or move it away"
            )
        image = replace(
            told.image,
            channels=channels[cycle],
            planes=[stored for plane in members for stored in _stored(plane, told.pages)],
            z_step_um=step_um,
            region=region,
        )
        located.append(LocatedImage(cycle, path, image))
    return located


def _stored(plane: RawPlane, pages: int) -> list[OmePlane]:
    channel = int(plane.channel) - 1
    if plane.z is not None:
        return [OmePlane(channel, plane.z, 0, plane.path)]
    return [OmePlane(channel, page, page, plane.path) for page in range(pages)]


def _channels(planes: Iterable[RawPlane]) -> list[OmeChannel]:
    """Return what the first file of each wavelength tells, by the number in its name."""
    first: dict[int, str] = {}
    for plane in planes:
        first.setdefault(int(plane.channel), plane.path)
    channels = [OmeChannel()] * max(first)
    for number, path in first.items():
        if told := _told(path):
            channels[number - 1] = told.image.channels[0]
    return channels


def _z_step_um(planes: list[RawPlane]) -> float | None:
    """Return the distance of z-steps, from the first and last plane of the first stack."""
    stack = {plane.z: plane.path for plane in planes if _stack(plane) == _stack(planes[0])}
    depths = sorted(z for z in stack if z is not None)
    ends = [told.z_um for z in (depths[:1] + depths[-1:]) if (told := _told(stack[z]))]
    heights_um = [z_um for z_um in ends if z_um is not None]
    if len(depths) < 2 or len(heights_um) < 2:
        return None
    return round(abs(heights_um[1] - heights_um[0]) / (depths[-1] - depths[0]), 3) or None


class _Told(NamedTuple):
    """What MetaXpress says in a file: a tile of one channel, without its planes."""

    image: OmeImage
    z_um: float | None
    pages: int


def _told(path: str) -> _Told | None:
    """Return what a file tells; None where position or pixel size are not told."""

    def read(tiff: Any) -> tuple[dict[str, Any], int]:
        return (tiff.metaseries_metadata or {}).get("PlaneInfo", {}), len(tiff.pages)

    info, pages = of_tiff(path, read, None) or ({}, 0)
    texts = {key: str(value) for key, value in info.items()}
    if info.get("spatial-calibration-state") is not True:
        return None
    y_um, x_um = (finite(texts.get(f"stage-position-{axis}")) for axis in "yx")
    pixel_y_um, pixel_um = (positive(texts.get(f"spatial-calibration-{axis}")) for axis in "yx")
    if texts.get("spatial-calibration-units") != "um" or not (pixel_um and pixel_y_um):
        return None
    if y_um is None or x_um is None:
        return None
    channel = OmeChannel(
        texts.get("_IllumSetting_") or None,
        positive(texts.get("wavelength")),
        positive(texts.get("Exposure Time"), "ms"),
    )
    image = OmeImage(
        [channel],
        y=y_um,
        x=x_um,
        pixel_um=pixel_um,
        pixel_y_um=pixel_y_um,
        numerical_aperture=positive(texts.get("_MagNA_")),
        immersion_refractive_index=positive(texts.get("_MagRI_")),
    )
    return _Told(image, finite(texts.get("z-position")), pages)
