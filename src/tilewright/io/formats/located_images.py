"""Images whose metadata hold planes, stage positions, sizes and channels."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.formats.common import (
    MOST_XML_MB,
    RawPlane,
    ScanOptions,
    clean_token,
    inside,
    natural_key,
    number_files,
)
from tilewright.io.numbers import LARGEST
from tilewright.io.text_file import read_content
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane, parse_ome_xml

_logger = logging.getLogger("tilewright")
#: Relative difference up to which sizes are equal: files round theirs.
_SIZE_TOLERANCE = 0.02
#: Positions that differ by at most so many µm, or px, are those of one tile: stages are read again
#: for each channel.
_SAME_POSITION = 1.0


#: The OME-XML of a set of TIFFs in a file of its own.
COMPANION = (".companion.ome",)


class LocatedImage(NamedTuple):
    """An image with its cycle and the file that describes it."""

    cycle: int
    path: str
    image: OmeImage


class ListedPlane(NamedTuple):
    """A plane in an index: its tile by region and field, and the tile's position in µm.

    ``channel`` and ``z`` are as the index counts or names them.
    """

    region: str
    field: tuple[Any, ...]
    channel: Any
    z: int
    y_um: float | None
    x_um: float | None
    file: str
    page: int = 0


class _Tile(NamedTuple):
    """A tile of a cycle: its position, and the channels of the images that are there."""

    y: float
    x: float
    channels: set[str]


def read_ome_tiff(path: str) -> list[OmeImage]:
    """Return all images of an OME-TIFF, or of a companion file (``name.companion.ome``).

    A companion describes the TIFFs next to it, whose OME-XML only points to it.
    """
    import tifffile

    if path.endswith(COMPANION):
        return parse_ome_xml(read_content(path, MOST_XML_MB), path)
    with tifffile.TiffFile(path) as tiff:
        return parse_ome_xml(tiff.ome_metadata, path) if tiff.ome_metadata else []


def tiles(
    planes: Sequence[ListedPlane], channels: Mapping[Any, OmeChannel], template: OmeImage
) -> list[OmeImage]:
    """Return the tiles of an index, ordered by region and field.

    Each is at the position of its first plane; ``template`` holds what all tiles share. Planes are
    counted over the whole index: a field may lack some.
    """
    number_of = {channel: number for number, channel in enumerate(channels)}
    z_of = {z: number for number, z in enumerate(sorted({plane.z for plane in planes}))}
    images: dict[tuple[Any, ...], OmeImage] = {}
    for region, field, channel, z, y_um, x_um, file, page in planes:
        if (region, field) not in images:
            images[region, field] = replace(
                template, channels=[*channels.values()], planes=[], y=y_um, x=x_um, region=region
            )
        plane = OmePlane(number_of[channel], z_of[z], page, file)
        images[region, field].planes.append(plane)
    return [images[tile] for tile in sorted(images)]


def known_channels(channels: Iterable[OmeChannel], count: int) -> list[OmeChannel]:
    """Return the channels of metadata; where they are not ``count``, it is unknown which is which.

    >>> known_channels([OmeChannel("DAPI")], 1)[0].name, known_channels([], 1)[0].name
    ('DAPI', None)
    """
    found = list(channels)
    return found if len(found) == count else [OmeChannel()] * count


def number_cycles(
    files: Sequence[tuple[int | None, str, Sequence[OmeImage]]], *, whole: bool = False
) -> list[LocatedImage]:
    """Return every image once, with its cycle, from (cycle, file, images of the file).

    Where neither folder nor file name holds the cycle and a file holds several images, or each is a
    ``whole`` cycle, files are cycles in the order of their names (one file per cycle is what ASHLAR
    reads); files of one image each are tiles of cycle 1. Planes name the files that hold them.

    Raises
    ------
    RawDataError
        Some files have a cycle in their name, and others do not; or a plane is in a file elsewhere.
    """
    numbers = number_files([(cycle, path) for cycle, path, images in files if images])
    in_order = whole or any(len(images) > 1 for _, _, images in files)
    known: set[tuple[str | None, int]] = set()
    located = []
    for cycle, path, images in files:
        number = 1 if cycle is None and not in_order else numbers.get(path, 1)
        folder, name = path.rsplit("/", 1)
        for image in images:
            planes = [
                plane._replace(file=str(inside(folder, plane.file or name, path)))
                for plane in image.planes
            ]
            stored = {(plane.file, plane.page) for plane in planes}
            # Each file of a multi-file set describes the whole set.
            if stored.isdisjoint(known):
                known |= stored
                located.append(LocatedImage(number, path, replace(image, planes=planes)))
    return located


def raw_planes(located: Sequence[LocatedImage], options: ScanOptions) -> list[RawPlane]:
    """Return the planes of images, whose tiles and channels are numbered.

    Where each file holds one channel, and files of a cycle differ in the name of theirs, channels
    are called by their names, and images of other channels at the position of a tile belong to it.
    Tiles are numbered in the natural order of their files.

    Raises
    ------
    RawDataError
        A tile has no position.
    """
    if options.cycles is not None:
        located = [one for one in located if one.cycle in options.cycles]
    compare_sizes(located, options)
    by_name = _channels_are_named(located)
    images_of = Counter(one.cycle for one in located)
    tiles_of: dict[tuple[int, str], list[_Tile]] = defaultdict(list)
    planes = []
    for cycle, path, image in sorted(located, key=lambda one: natural_key(one.path)):
        name = f"{path} is one of {images_of[cycle]} images of cycle {cycle}"
        y, x = _position(image, name, alone=images_of[cycle] == 1)
        names = [
            clean_token(channel.name) if by_name and channel.name else str(number)
            for number, channel in enumerate(image.channels, 1)
        ]
        tile = _number_tile(tiles_of[cycle, image.region], _Tile(y, x, set(names)), same=by_name)
        planes += [
            RawPlane(
                *(cycle, names[plane.channel], plane.z, plane.file or path, plane.page),
                tile=tile,
                y=y,
                x=x,
                region=image.region,
                unit="px" if image.position_in_px else "um",
            )
            for plane in image.planes
        ]
    return planes


def _number_tile(tiles: list[_Tile], new: _Tile, *, same: bool) -> int:
    """Return the number of a tile, which is added to ``tiles``.

    Where files of the ``same`` tile hold a channel each, it is that of an earlier tile at its
    position that lacks its channels.
    """
    for number, tile in enumerate(tiles if same else (), 1):
        near = abs(tile.y - new.y) <= _SAME_POSITION and abs(tile.x - new.x) <= _SAME_POSITION
        if near and tile.channels.isdisjoint(new.channels):
            tile.channels.update(new.channels)
            return number
    tiles.append(new)
    return len(tiles)


def compare_sizes(located: Sequence[LocatedImage], options: ScanOptions) -> None:
    """Log one sentence for each option that files contradict."""
    deep = [one for one in located if any(plane.z for plane in one.image.planes)]
    sizes = {
        "pixel_um": [(one.path, one.image.pixel_um) for one in located]
        + [(one.path, one.image.pixel_y_um) for one in located],
        "z_step_um": [(one.path, one.image.z_step_um) for one in deep],
    }
    for name, of_files in sizes.items():
        option_um = getattr(options, name) or 0.0
        for path, size_um in of_files if option_um else ():
            if not size_um or abs(size_um - option_um) <= _SIZE_TOLERANCE * option_um:
                continue
            _log_once(
                f"{path}: its metadata give {name} as {size_um:g} µm, but acquisition.{name} is "
                f"{option_um:g}, which is used for every file and cycle"
            )
            break


@cache
def _log_once(text: str) -> None:
    """Log a warning; raw folders are scanned again and again while an acquisition goes on."""
    _logger.warning(text)


def _channels_are_named(located: Sequence[LocatedImage]) -> bool:
    if any(len(image.channels) > 1 for *_, image in located):
        return False
    names = {(cycle, image.channels[0].name) for cycle, _, image in located}
    return len(names) > len({cycle for cycle, _ in names})


def _position(image: OmeImage, name: str, *, alone: bool) -> tuple[float, float]:
    y, x = image.y, image.x
    if y is not None and x is not None and abs(y) + abs(x) < LARGEST:
        return y, x
    if alone:
        return 0.0, 0.0
    raise RawDataError(
        f"{name} and has no PositionX and PositionY in a unit of length in its metadata; use "
        "acquisition.convention 'pattern' with a tile number or row and col, or, of stitched "
        "images, save all channels of a cycle in one file"
    )
