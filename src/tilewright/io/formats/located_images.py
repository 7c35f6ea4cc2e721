"""Images whose metadata hold planes, stage positions, sizes and channels."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.formats.common import RawPlane, ScanOptions, clean_token, inside, natural_key
from tilewright.io.numbers import LARGEST
from tilewright.io.tiff.ome_xml import OmeImage, OmePlane

_logger = logging.getLogger("tilewright")
#: Relative difference up to which sizes are equal: files round theirs.
_SIZE_TOLERANCE = 0.02
#: Positions in one or neighbouring cells of so many µm, or px, are those of one tile: stages are
#: read anew for each channel.
_SAME_POSITION = 1.0


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
        Some files of several images have a cycle in their name, and others do not; or a plane is
        in a file elsewhere.
    """
    sets = [(cycle, path) for cycle, path, images in files if len(images) > 1]
    unnumbered = sorted((path for cycle, path in sets if cycle is None), key=natural_key)
    numbers = {path: number for number, path in enumerate(unnumbered, 1)}
    if 0 < len(unnumbered) < len(sets):
        raise RawDataError(
            f"{unnumbered[0]} has no cycle in its name, but other files do; rename it (cycle3) or "
            "move it away"
        )
    located_planes: set[tuple[str, int]] = set()
    located = []
    for cycle, path, images in files:
        number = numbers.get(path, 1) if cycle is None else cycle
        for image in images:
            # Each file of a multi-file set describes the whole set.
            planes = {
                (
                    str(inside(Path(path).parent, plane.file, path)) if plane.file else path,
                    plane.page,
                )
                for plane in image.planes
            }
            if not planes & located_planes:
                located_planes |= planes
                located.append(LocatedImage(number, path, image))
    return located


def raw_planes(located: Sequence[LocatedImage], options: ScanOptions) -> list[RawPlane]:
    """Return the planes of every image, at the stage position of the image.

    Channels are numbered from 1 as in the files; where each file holds one channel,
    they are called by their names. Tiles are numbered in the natural order of their files; an
    image at the position of an earlier one is the same tile if it has other channels, else a tile
    of its own.

    Raises
    ------
    RawDataError
        A tile has no position, or a z-step in the files differs from one that nobody gave.
    """
    if options.cycles is not None:
        located = [one for one in located if one.cycle in options.cycles]
    compare_sizes(located, options)
    by_name = _channels_are_named(located)
    per_cycle = [cycle for cycle, _, _ in located]
    planes = []
    numbers: dict[tuple[int, str], int] = defaultdict(int)
    channels_of: dict[tuple[Any, ...], dict[int, set[str]]] = defaultdict(dict)
    for cycle, path, image in sorted(located, key=lambda one: natural_key(one.path)):
        y, x = _position(image, path, alone=per_cycle.count(cycle) == 1)
        names = [
            clean_token(channel.name) if by_name and channel.name else str(number)
            for number, channel in enumerate(image.channels, 1)
        ]
        cell = round(y / _SAME_POSITION), round(x / _SAME_POSITION)
        near = [
            found
            for dy in (-1, 0, 1)
            for dx in (-1, 0, 1)
            for found in channels_of[cycle, image.region, cell[0] + dy, cell[1] + dx].items()
        ]
        tile = next((n for n, channels in near if channels.isdisjoint(names)), 0)
        if not tile:
            numbers[cycle, image.region] += 1
            tile = numbers[cycle, image.region]
        channels_of[cycle, image.region, *cell].setdefault(tile, set()).update(names)
        unit = "px" if image.position_in_px else "um"
        for channel, z, page, file in image.planes:
            planes.append(
                RawPlane(
                    *(cycle, names[channel], z, _plane_path(path, file), page),
                    tile=tile,
                    y=y,
                    x=x,
                    region=image.region,
                    unit=unit,
                )
            )
    return planes


def compare_sizes(located: Sequence[LocatedImage], options: ScanOptions) -> None:
    """Log one sentence for each option that files contradict; refuse a z-step that nobody gave."""
    told: set[str] = set()
    for _, path, image in located:
        deep = any(plane.z for plane in image.planes)
        for what, size_um, key, option_um in (
            ("a pixel along x", image.pixel_um, "acquisition.pixel_um", options.pixel_um),
            ("a pixel along y", image.pixel_y_um, "acquisition.pixel_um", options.pixel_um),
            ("a z-step", deep and image.z_step_um, "acquisition.z_step_um", options.z_step_um),
        ):
            if not size_um or not option_um or key in told:
                continue
            if abs(size_um - option_um) <= _SIZE_TOLERANCE * option_um:
                continue
            text = f"{path}: its metadata give {what} of {size_um:g} µm, but {key} is {option_um:g}"
            if key == "acquisition.z_step_um" and not options.z_step_given:
                raise RawDataError(f"{text}, its default; set {key}")
            told.add(key)
            _log_once(f"{text}, which is used for every file and cycle")


@cache
def _log_once(text: str) -> None:
    """Log a warning; raw folders are scanned again and again while an acquisition goes on."""
    _logger.warning(text)


def _plane_path(path: str, file: str | None) -> str:
    return path if file is None else str(Path(path).parent / file)


def _channels_are_named(located: Sequence[LocatedImage]) -> bool:
    names: dict[int, set[str | None]] = {}
    for cycle, _, image in located:
        if len(image.channels) > 1:
            return False
        names.setdefault(cycle, set()).add(image.channels[0].name)
    return any(len(cycle_names) > 1 for cycle_names in names.values())


def _position(image: OmeImage, path: str, *, alone: bool) -> tuple[float, float]:
    y, x = image.y, image.x
    if y is not None and x is not None and abs(y) + abs(x) < LARGEST:
        return y, x
    if alone:
        return 0.0, 0.0
    raise RawDataError(
        f"{path}: a tile has no PositionX and PositionY in a unit of length in its metadata; "
        "use acquisition.convention 'pattern' with a tile number or row and col"
    )
