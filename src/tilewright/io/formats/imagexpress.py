"""ImageXpress (MetaXpress): ``plate_A01_s3_w2.tif``, z-planes in folders ``ZStep_n``.

MetaXpress's TIFFs also hold stage position, sizes, wavelength, exposure and optics (MetaMorph's
PlaneInfo); TIFFs of these names that other programs wrote do not.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.formats.common import RawPlane, ScanOptions, cycle_number, list_folder, rebase_z
from tilewright.io.formats.located_images import LocatedImage, raw_planes
from tilewright.io.numbers import finite, positive
from tilewright.io.tiff.metadata import of_tiff
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane

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

    A cycle is a folder named so (``cycle2``) or else the time point. Files next to z-steps,
    in ``ZStep_0`` or in no such folder, are MetaXpress's projections and ignored, as are
    thumbnails. Sites have their stage position where the files hold it, else their number.

    Raises
    ------
    RawDataError
        Some sites have no position.
    """
    planes = _planes_by_name(raw_dir)
    # A plate has a hundred wells, and each sample is scanned by itself.
    of_region = [plane for plane in planes if options.region in (None, plane.region)] or planes
    images = _images(of_region)
    return raw_planes(images, options) if images else planes


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return every site by MetaXpress's metadata; nothing where other programs wrote the files.

    Raises
    ------
    RawDataError
        Some sites have no position.
    """
    return _images(_planes_by_name(raw_dir))


def _planes_by_name(raw_dir: str) -> list[RawPlane]:
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
        step, time, number = _Z.match(name), _TIME.match(name), cycle_number(name)
        if step:
            _descend(f"{folder}/{name}", cycle, int(step[1]), planes)
        elif number is not None:
            _descend(f"{folder}/{name}", number, z, planes)
        elif time:
            # Below a cycle's folder the time point is always 1.
            _descend(f"{folder}/{name}", int(time[1]) if cycle is None else cycle, z, planes)
        elif len(folders) == 1 and not images:
            # MetaXpress stores a plate below its name, the date and a number.
            _descend(f"{folder}/{name}", cycle, z, planes)


def _images(planes: list[RawPlane]) -> list[LocatedImage]:
    """Return the sites by the metadata of one file each, and of one per channel."""
    if not planes or not _metadata(planes[0].path):
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
        metadata = _metadata(path)
        if metadata is None:
            raise RawDataError(
                f"{path} has no stage position and pixel size, but {planes[0].path} has; "
                "copy it again from the microscope, or move it away"
            )
        image = replace(
            metadata.image,
            channels=channels[cycle],
            planes=[page for plane in members for page in _pages(plane, metadata.pages)],
            z_step_um=step_um,
            region=region,
        )
        located.append(LocatedImage(cycle, path, image))
    return located


def _pages(plane: RawPlane, pages: int) -> list[OmePlane]:
    channel = int(plane.channel) - 1
    if plane.z is not None:
        return [OmePlane(channel, plane.z, 0, plane.path)]
    return [OmePlane(channel, page, page, plane.path) for page in range(pages)]


def _channels(planes: Iterable[RawPlane]) -> list[OmeChannel]:
    """Return the channel of the first file of each wavelength, by the number in its name."""
    first: dict[int, str] = {}
    for plane in planes:
        first.setdefault(int(plane.channel), plane.path)
    channels = [OmeChannel()] * max(first)
    for number, path in first.items():
        if metadata := _metadata(path):
            channels[number - 1] = metadata.image.channels[0]
    return channels


def _z_step_um(planes: list[RawPlane]) -> float | None:
    """Return the distance of z-steps, from the first and last plane of the first stack."""
    stack = {plane.z: plane.path for plane in planes if _stack(plane) == _stack(planes[0])}
    depths = sorted(z for z in stack if z is not None)
    ends = [file.z_um for z in (depths[:1] + depths[-1:]) if (file := _metadata(stack[z]))]
    heights_um = [z_um for z_um in ends if z_um is not None]
    if len(depths) < 2 or len(heights_um) < 2:
        return None
    return round(abs(heights_um[1] - heights_um[0]) / (depths[-1] - depths[0]), 3) or None


class _Metadata(NamedTuple):
    """MetaXpress's metadata of a file: a tile of one channel, without its planes."""

    image: OmeImage
    z_um: float | None
    pages: int


def _metadata(path: str) -> _Metadata | None:
    """Return the metadata of a file; None where position or pixel size are absent."""

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
    return _Metadata(image, finite(texts.get("z-position")), pages)
