"""ImageXpress (MetaXpress): ``plate_A01_s3_w2.tif``, z-planes in folders ``ZStep_n``.

MetaXpress's TIFFs also hold stage position, sizes, wavelength, exposure and optics (MetaMorph's
PlaneInfo); TIFFs of these names that other programs wrote do not.
"""

import re
from collections.abc import Sequence
from typing import Any

from tilewright.io.formats.common import RawPlane, ScanOptions, cycle_number, rebase_z
from tilewright.io.formats.names import planes_by_name
from tilewright.io.formats.tile_files import at_stage
from tilewright.io.formats.tile_files import describe as describe_tiff
from tilewright.io.numbers import finite, positive
from tilewright.io.tiff.metadata import of_tiff
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage

PATH = re.compile(
    r"(?i)(?:.*?/)??(?:TimePoint_(?P<cycle>\d+)/)?(?:ZStep_(?P<z>\d+)/)?"
    r"[^/]*?(?:_(?P<region>[A-P]\d{2}))?(?=_[sw]\d)(?:_s(?P<tile>\d+))?(?:_w(?P<channel>\d+))?"
    r"(?:[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12})?\.tiff?"
)


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
    planes = [_of_folder(plane, raw_dir) for plane in planes_by_name(raw_dir, PATH)]
    stepped = {plane: "/zstep_" in plane.path.lower() for plane in planes}
    if any(stepped.values()):
        # z counts from 0 again where ZStep_0, of the projections, is there.
        planes = [p for p in planes if not re.search("(?i)/zstep_0+/", p.path)]
        stacks = {(p.cycle, p.region, p.tile, p.channel) for p in planes if stepped.get(p)}
        planes = [
            plane if stepped.get(plane) else plane._replace(z=0)
            for plane in planes
            # A wavelength that has one plane where others have stacks is none of them.
            if stepped.get(plane)
            or (plane.cycle, plane.region, plane.tile, plane.channel) not in stacks
        ]
        planes = rebase_z(planes)
    return at_stage(planes, options, describe, needed=False)


def _of_folder(plane: RawPlane, raw_dir: str) -> RawPlane:
    """Return a plane of the cycle that a folder of its path names."""
    cycles = map(cycle_number, plane.path[len(raw_dir) :].split("/")[:-1])
    return plane._replace(cycle=next((n for n in cycles if n is not None), plane.cycle))


def describe(path: str) -> OmeImage:
    """Return what MetaXpress tells of a file, else what any TIFF does."""
    info = _plane_info(path)
    if info.get("spatial-calibration-state") != "True":
        return describe_tiff(path)
    y_um, x_um = (finite(info.get(f"stage-position-{axis}")) for axis in "yx")
    pixel_y_um, pixel_um = (positive(info.get(f"spatial-calibration-{axis}")) for axis in "yx")
    if info.get("spatial-calibration-units") != "um" or not (pixel_um and pixel_y_um):
        return describe_tiff(path)
    channel = OmeChannel(
        info.get("_IllumSetting_") or None,
        positive(info.get("wavelength")),
        positive(info.get("Exposure Time"), "ms"),
    )
    return OmeImage(
        [channel],
        y=y_um,
        x=x_um,
        pixel_um=pixel_um,
        pixel_y_um=pixel_y_um,
        numerical_aperture=positive(info.get("_MagNA_")),
        immersion_refractive_index=positive(info.get("_MagRI_")),
    )


def z_step_um(planes: Sequence[RawPlane]) -> float | None:
    """Return the distance of z-steps, from the first and last plane of the first stack."""
    stack = {
        plane.z: plane.path for plane in planes
        if plane[:2] == planes[0][:2] and plane.region == planes[0].region
        and plane.tile == planes[0].tile and plane.z is not None
    }  # fmt: skip
    if len(stack) < 2:
        return None
    first, last = min(stack), max(stack)
    ends = [finite(_plane_info(stack[z]).get("z-position")) for z in (first, last)]
    if ends[0] is None or ends[1] is None:
        return None
    return round(abs(ends[1] - ends[0]) / (last - first), 3) or None


def _plane_info(path: str) -> dict[str, str]:
    def read(tiff: Any) -> dict[str, Any]:
        return dict((tiff.metaseries_metadata or {}).get("PlaneInfo", {}))

    return {key: str(value) for key, value in of_tiff(path, read, {}).items()}
