"""Images whose metadata hold planes, stage positions, sizes and channels."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.formats.common import RawPlane, ScanOptions, clean_token, natural_key
from tilewright.io.tiff.ome_xml import OmeImage, OmePlane

#: Relative difference up to which sizes are equal: files round theirs.
_SIZE_TOLERANCE = 0.02


class LocatedImage(NamedTuple):
    """An image with its cycle and the file that describes it."""

    cycle: int
    path: str
    image: OmeImage


class ListedPlane(NamedTuple):
    """A plane in an index: its tile by region and field, and the tile's position in µm."""

    region: str
    field: tuple[Any, ...]
    y_um: float | None
    x_um: float | None
    plane: OmePlane


def tiles(planes: Iterable[ListedPlane], template: OmeImage) -> list[OmeImage]:
    """Return the tiles of an index, ordered by region and field.

    Each is at the position of its first plane; ``template`` holds what all tiles share.
    """
    images: dict[tuple[Any, ...], OmeImage] = {}
    for region, field, y_um, x_um, plane in planes:
        new = replace(template, planes=[], y=y_um, x=x_um, region=region)
        images.setdefault((region, field), new).planes.append(plane)
    return [images[tile] for tile in sorted(images)]


def number_cycles(
    files: Sequence[tuple[int | None, str, Sequence[OmeImage]]],
) -> list[LocatedImage]:
    """Return every image once, with its cycle, from (cycle, file, images of the file).

    Where neither folder nor file name holds the cycle, each file of several images is a cycle, in
    the order of their names (one file per cycle is what ASHLAR reads), and files of one image each
    are tiles of cycle 1.

    Raises
    ------
    RawDataError
        Some files of several images have a cycle in their name, and others do not.
    """
    sets = [(cycle, path) for cycle, path, images in files if len(images) > 1]
    unnumbered = sorted((path for cycle, path in sets if cycle is None), key=natural_key)
    if 0 < len(unnumbered) < len(sets):
        raise RawDataError(
            f"{unnumbered[0]} has no cycle in its name, but other files do; rename it (cycle3) or "
            "move it away"
        )
    located_planes: set[tuple[str, int]] = set()
    located = []
    for cycle, path, images in files:
        number = cycle
        if number is None:
            number = unnumbered.index(path) + 1 if path in unnumbered else 1
        for image in images:
            # Each file of a multi-file set describes the whole set.
            planes = {(_plane_path(path, plane.file), plane.page) for plane in image.planes}
            if not planes & located_planes:
                located_planes |= planes
                located.append(LocatedImage(number, path, image))
    return located


def raw_planes(located: Sequence[LocatedImage], options: ScanOptions) -> list[RawPlane]:
    """Return the planes of every image, at the stage position of the image.

    Channels are numbered from 1 as in the files; where each file holds one channel,
    they are called by their names.

    Raises
    ------
    RawDataError
        A tile has no position, positions are in µm and the pixel size is unknown, or sizes in the
        files differ from the options.
    """
    if options.cycles is not None:
        located = [one for one in located if one.cycle in options.cycles]
    for cycle, path, image in located:
        _check_sizes(cycle, path, image, options)
    by_name = _channels_are_named(located)
    per_cycle = [cycle for cycle, _, _ in located]
    planes = []
    for cycle, path, image in located:
        y_px, x_px = _position_px(image, path, options, alone=per_cycle.count(cycle) == 1)
        for channel, z, page, file in image.planes:
            name = image.channels[channel].name
            planes.append(
                RawPlane(
                    cycle,
                    clean_token(name) if by_name and name else str(channel + 1),
                    z,
                    _plane_path(path, file),
                    page,
                    y_px=y_px,
                    x_px=x_px,
                    region=image.region,
                )
            )
    return planes


def _check_sizes(cycle: int, path: str, image: OmeImage, options: ScanOptions) -> None:
    """Refuse an image whose sizes differ from the options."""
    deep = any(plane.z for plane in image.planes)
    for what, size_um, key, option_um in (
        ("a pixel along x", image.pixel_um, "acquisition.pixel_um", options.pixel_um),
        ("a pixel along y", image.pixel_y_um, "acquisition.pixel_um", options.pixel_um),
        ("a z-step", deep and image.z_step_um, "acquisition.z_step_um", options.z_step_um),
    ):
        if size_um and option_um and abs(size_um - option_um) > _SIZE_TOLERANCE * option_um:
            raise RawDataError(
                f"{path}: its metadata give {what} of {size_um:g} µm, but {key} is {option_um:g}; "
                "correct the one that is wrong. Cycles must share a pixel size and z-step: else "
                f"take cycle {cycle} out of the markers table"
            )


def _plane_path(path: str, file: str | None) -> str:
    return path if file is None else str(Path(path).parent / file)


def _channels_are_named(located: Sequence[LocatedImage]) -> bool:
    names: dict[int, set[str | None]] = {}
    for cycle, _, image in located:
        if len(image.channels) > 1:
            return False
        names.setdefault(cycle, set()).add(image.channels[0].name)
    return any(len(cycle_names) > 1 for cycle_names in names.values())


def _position_px(
    image: OmeImage, path: str, options: ScanOptions, *, alone: bool
) -> tuple[float, float]:
    if image.y is None or image.x is None:
        if alone:
            return 0.0, 0.0
        raise RawDataError(
            f"{path}: a tile has no PositionX and PositionY in its metadata; "
            "use acquisition.convention 'pattern' with a tile number or row and col"
        )
    pixel_um = image.pixel_um or options.pixel_um
    if image.position_in_px:
        pixel_um = 1.0
    elif not pixel_um:
        raise RawDataError(
            f"{path}: positions are in µm, but the file gives no pixel size (PhysicalSizeX); "
            "set acquisition.pixel_um"
        )
    y_px, x_px = image.y / pixel_um, image.x / pixel_um
    return (-y_px if options.flip_y else y_px), (-x_px if options.flip_x else x_px)
