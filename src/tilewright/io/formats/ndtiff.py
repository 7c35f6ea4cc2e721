"""NDTiff data sets of Micro-Manager and Pycro-Manager: TIFF stacks behind ``NDTiff.index``.

The layout is that of the NDTiff specification, versions 2 and 3 (Pinkard et al.,
micro-manager/NDTiff). Of a pyramid (``Full resolution``, ``Downsampled_x2``) the tiles are read.
Its own library prints while it reads and leaves files open where one is damaged; tifffile reads the
index.
"""

import contextlib
import json
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.formats.common import inside
from tilewright.io.formats.located_images import ListedPlane, tiles
from tilewright.io.numbers import finite, positive
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage

NAMES = ("/NDTiff.index",)
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


def read_images(path: str) -> list[OmeImage]:
    """Return the tiles of a data set by its index; none of a reduced level next to the tiles.

    Raises
    ------
    RawDataError
        Only a reduced level of a data set is present.
    ValueError
        The data set is of an older version, or has other axes than tile, channel and z.
    """
    folder = Path(path).parent
    if folder.name.startswith(_REDUCED):
        if (folder.parent / _TILES / Path(path).name).is_file():
            return []
        raise RawDataError(
            f"{folder} is a reduced level of an NDTiff data set; copy the folder {_TILES!r} of "
            f"that data set next to it and name {folder.parent}"
        )
    entries = read_index(Path(path))
    if not entries:
        raise ValueError("its index holds no image")
    for name in {name for entry in entries for name in entry.axes} - _KNOWN:
        if len({entry.axes.get(name) for entry in entries}) > 1:
            raise ValueError(f"it has the axis {name}; save one data set per cycle")
    return _tiles(entries, path)


def read_index(path: Path) -> list[IndexEntry]:
    """Return the entries of an index, up to one that is truncated."""
    from tifffile import read_ndtiff_index

    entries = []
    with contextlib.suppress(struct.error, ValueError):
        for axes, file, pixels, *_, metadata, length, _ in read_ndtiff_index(path):
            entries.append(IndexEntry(axes, file, pixels, metadata, length))
    return entries


def _tiles(entries: list[IndexEntry], source: str) -> list[OmeImage]:
    folder = Path(source).parent
    channels: dict[Any, dict[str, Any]] = {}
    metadata_of_tile: dict[tuple[Any, ...], dict[str, Any]] = {}
    planes = []
    pages: Counter[str] = Counter()
    # Pages are in the order of their offsets.
    for entry in sorted(entries, key=lambda entry: (entry.file, entry.pixel_offset)):
        channel, z = entry.axes.get("channel", 0), entry.axes.get("z", 0)
        tile = tuple(entry.axes.get(name, 0) for name in _TILE_AXES)
        if channel not in channels or tile not in metadata_of_tile:
            metadata = _metadata(inside(folder, entry.file, source), entry)
            channels.setdefault(channel, metadata)
            metadata_of_tile.setdefault(tile, metadata)
        y_um, x_um = (
            _first(finite, metadata_of_tile[tile], *(name.format(axis) for name in _POSITION))
            for axis in "YX"
        )
        place = tile, channel, z, y_um, x_um
        planes.append(ListedPlane("1", *place, entry.file, pages[entry.file]))
        pages[entry.file] += 1
    summary = _summary(folder / entries[0].file)
    shared = {**summary, **next(iter(metadata_of_tile.values()))}
    pixel_um = _first(positive, shared, "PixelSizeUm", "PixelSize_um")
    template = OmeImage(
        [],
        pixel_um=pixel_um,
        pixel_y_um=pixel_um,
        z_step_um=_first(positive, summary, "z-step_um"),
    )
    known = {
        name: OmeChannel(
            name if isinstance(name, str) else None,
            exposure_ms=_first(positive, metadata, "Exposure", "Exposure-ms"),
        )
        for name, metadata in channels.items()
    }
    return tiles(planes, known, template)


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


def _first(
    read: Callable[[str], float | None], metadata: Mapping[str, Any], *names: str
) -> float | None:
    """Return the first number that ``read`` finds under some names; None where none is there."""
    values = (read(str(metadata.get(name))) for name in names)
    return next((value for value in values if value is not None), None)
