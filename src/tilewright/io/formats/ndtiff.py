"""NDTiff data sets of Micro-Manager and Pycro-Manager: TIFF stacks behind ``NDTiff.index``.

The layout is that of the NDTiff specification, versions 2 and 3 (Pinkard et al.,
micro-manager/NDTiff). Of a pyramid (``Full resolution``, ``Downsampled_x2``) the tiles are read.
Its own library prints while it reads and leaves files open where one is damaged; tifffile reads the
index.
"""

import contextlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.formats.common import cycle_number, find_in_or_below, inside, raw_file_errors
from tilewright.io.formats.located_images import ListedPlane, LocatedImage, number_cycles, tiles
from tilewright.io.numbers import positive
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane

INDEX_NAME = "NDTiff.index"
_TILES, _REDUCED = "Full resolution", "Downsampled_x"
#: Axes of tiles; the others are channel and z.
_TILE_AXES = ("position", "row", "column")
#: Metadata of an image.
_MOST_BYTES = 10_000_000
_KNOWN = {*_TILE_AXES, "channel", "z"}
#: Names of the stage position in the metadata of an image; the first that is present is read.
_POSITION = ("{}PositionUm", "{}Position_um", "{}Position_um_intended", "{}Position_um_Intended")


class IndexEntry(NamedTuple):
    """One image of a data set: its axes, file, and where pixels and metadata begin."""

    axes: dict[str, Any]
    file: str
    pixel_offset: int
    metadata_offset: int
    metadata_length: int


def find_datasets(raw_dir: str) -> list[str]:
    """Return the folders of data sets: ``raw_dir`` itself, or folders in it, by name.

    Raises
    ------
    RawDataError
        Only reduced levels of a data set are present.
    """
    return find_in_or_below(raw_dir, _tiles_folder)


def _tiles_folder(folder: str) -> str | None:
    """Return the folder of the tiles of a data set; None where ``folder`` is no data set."""
    path = Path(folder)
    if (path / _TILES / INDEX_NAME).is_file():
        return f"{folder}/{_TILES}"
    levels = [path] if path.name.startswith(_REDUCED) else sorted(path.glob(f"{_REDUCED}*"))
    reduced = [level for level in levels if (level / INDEX_NAME).is_file()]
    if reduced:
        raise RawDataError(
            f"{reduced[0]} is a reduced level of an NDTiff data set, no raw data; copy the folder "
            f"{_TILES!r} of that data set, with its {INDEX_NAME}, next to it and name the folder "
            f"that holds both ({reduced[0].parent})"
        )
    return folder if (path / INDEX_NAME).is_file() else None


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return the tiles of every data set; each is a cycle, by its name or in their order.

    Raises
    ------
    RawDataError
        A data set cannot be read, or has other axes than tile, channel and z.
    """
    files = []
    for folder in find_datasets(raw_dir):
        index = f"{folder}/{INDEX_NAME}"
        with raw_file_errors(f"{index}: the data set"):
            images = _tiles(Path(folder))
        path = Path(folder)
        name = path.parent.name if path.name == _TILES else path.name
        files.append((cycle_number(name), index, images))
    return number_cycles(files)


def read_index(path: Path) -> list[IndexEntry]:
    """Return the entries of an index, up to one that is truncated."""
    from tifffile import read_ndtiff_index

    entries = []
    with contextlib.suppress(struct.error, ValueError):
        for axes, file, pixels, *_, metadata, length, _ in read_ndtiff_index(path):
            entries.append(IndexEntry(axes, file, pixels, metadata, length))
    return entries


def _tiles(folder: Path) -> list[OmeImage]:
    entries = read_index(folder / INDEX_NAME)
    if not entries:
        raise ValueError("its index holds no image")
    for name in {name for entry in entries for name in entry.axes} - _KNOWN:
        if len({entry.axes.get(name) for entry in entries}) > 1:
            raise ValueError(f"it has the axis {name}; save one data set per cycle")
    pages = _pages(entries)
    depths = sorted({entry.axes.get("z", 0) for entry in entries})
    channels: dict[Any, dict[str, Any]] = {}
    metadata_of_tile: dict[tuple[Any, ...], dict[str, Any]] = {}
    planes = []
    for entry in entries:
        channel, z = entry.axes.get("channel", 0), entry.axes.get("z", 0)
        tile = tuple(entry.axes.get(name, 0) for name in _TILE_AXES)
        if channel not in channels or tile not in metadata_of_tile:
            metadata = _metadata(inside(folder, entry.file, folder / INDEX_NAME), entry)
            channels.setdefault(channel, metadata)
            metadata_of_tile.setdefault(tile, metadata)
        page = pages[entry.file, entry.pixel_offset]
        y_um, x_um = (_position_um(metadata_of_tile[tile], axis) for axis in "YX")
        plane = OmePlane(list(channels).index(channel), depths.index(z), page, entry.file)
        planes.append(ListedPlane("1", tile, y_um, x_um, plane))
    summary = _summary(folder / entries[0].file)
    size = next(iter(metadata_of_tile.values())).get("PixelSizeUm")
    pixel_um = positive(str(size)) or positive(str(summary.get("PixelSize_um")))
    template = OmeImage(
        [
            OmeChannel(
                name if isinstance(name, str) else None,
                None,
                positive(str(metadata.get("Exposure")))
                or positive(str(metadata.get("Exposure-ms"))),
            )
            for name, metadata in channels.items()
        ],
        pixel_um=pixel_um,
        pixel_y_um=pixel_um,
        z_step_um=positive(str(summary.get("z-step_um"))),
    )
    return tiles(planes, template)


def _pages(entries: list[IndexEntry]) -> dict[tuple[str, int], int]:
    """Return the page of each image by (file, offset): pages are in the order of offsets."""
    files: dict[str, list[int]] = {}
    for entry in entries:
        files.setdefault(entry.file, []).append(entry.pixel_offset)
    return {
        (name, offset): page
        for name, offsets in files.items()
        for page, offset in enumerate(sorted(offsets))
    }


def _summary(path: Path) -> dict[str, Any]:
    from tifffile import read_micromanager_metadata

    with path.open("rb") as stream:
        metadata = read_micromanager_metadata(stream)
    version = metadata.get("MajorVersion", 1)
    if version not in (2, 3):
        raise ValueError(
            f"{path.name} is of version {version}, and versions 2 and 3 are read; save it "
            "again with Micro-Manager 2.0 or Pycro-Manager"
        )
    summary: dict[str, Any] = metadata["Summary"]
    return summary


def _metadata(path: Path, entry: IndexEntry) -> dict[str, Any]:
    with path.open("rb") as stream:
        stream.seek(entry.metadata_offset)
        metadata: dict[str, Any] = json.loads(stream.read(min(entry.metadata_length, _MOST_BYTES)))
        return metadata


def _position_um(metadata: Mapping[str, Any], axis: str) -> float | None:
    values = (metadata.get(name.format(axis)) for name in _POSITION)
    return next((float(value) for value in values if value is not None), None)
