"""ImageXpress (MetaXpress): ``plate_A01_s3_w2.tif``, z-planes in folders ``ZStep_n``.

MetaXpress's TIFFs also hold stage position, sizes, wavelength, exposure and optics (MetaMorph's
PlaneInfo); TIFFs of these names that other programs wrote do not.
"""

import re
from collections.abc import Sequence
from typing import Any

from tilewright.io.formats.common import RawPlane, ScanOptions, folder_cycle
from tilewright.io.formats.names import planes_by_name
from tilewright.io.formats.tile_files import at_stage
from tilewright.io.formats.tile_files import describe as describe_tiff
from tilewright.io.numbers import finite, positive
from tilewright.io.tiff.metadata import of_tiff
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage

PATH = re.compile(
    r"(?i)(?:.*?/)??(?:TimePoint_(?P<cycle>\d+)/)?(?:ZStep_(?:0+|(?P<z>\d+))/)?"
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
    planes = []
    for plane in planes_by_name(raw_dir, PATH):
        cycle = folder_cycle(raw_dir, plane.path)
        planes.append(plane if cycle is None else plane._replace(cycle=cycle))
    stacks = {_stack(plane) for plane in planes if plane.z is not None}
    if stacks:
        planes = [
            # A wavelength that has one plane where others have stacks is none of them.
            plane._replace(z=plane.z or 0)
            for plane in planes
            if plane.z is not None or _stack(plane) not in stacks
        ]
    return at_stage(planes, options, describe, needed=False)


def _stack(plane: RawPlane) -> tuple[int, str, str, int | None]:
    return plane.cycle, plane.channel, plane.region, plane.tile


def describe(path: str) -> OmeImage:
    """Return what MetaXpress tells of a file, else what any TIFF does."""
    info = _plane_info(path)
    y_um, x_um = (finite(info.get(f"stage-position-{axis}")) for axis in "yx")
    pixel_y_um, pixel_um = (positive(info.get(f"spatial-calibration-{axis}")) for axis in "yx")
    states = info.get("spatial-calibration-state"), info.get("spatial-calibration-units")
    if states != ("True", "um") or not (pixel_um and pixel_y_um):
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
    paths = {plane.z: plane.path for plane in planes if _stack(plane) == _stack(planes[0])}
    depths = [z for z in paths if z is not None]
    if len(depths) < 2:
        return None
    first, last = min(depths), max(depths)
    ends = [finite(_plane_info(paths[z]).get("z-position")) for z in (first, last)]
    if ends[0] is None or ends[1] is None:
        return None
    return round(abs(ends[1] - ends[0]) / (last - first), 3) or None


def _plane_info(path: str) -> dict[str, str]:
    def read(tiff: Any) -> dict[str, Any]:
        return dict((tiff.metaseries_metadata or {}).get("PlaneInfo", {}))

    return {key: str(value) for key, value in of_tiff(path, read, {}).items()}
