"""Files of microscopes that hold many tiles each: CZI, ND2, LIF.

Each format is an extra (``pip install tilewright[czi]``) and is read by a library of its field.
The page of a :class:`~tilewright.io.formats.common.RawPlane` counts the planes of a container, by
tile, channel and z.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tilewright.errors import RawDataError
from tilewright.io.formats.common import file_identity, raw_file_errors
from tilewright.io.tiff.ome_xml import OmeImage, OmePlane

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Suffix of each format, which is also the name of its module, class, extra and convention.
FORMATS = ("czi", "nd2", "lif")
SUFFIXES = tuple(f".{name}" for name in FORMATS)
#: Files that stay open in a process.
_OPEN_FILES = 8


class Container(Protocol):
    """An open file of one format: tiles of one size and pixel type.

    Attributes
    ----------
    tiles : Sequence[tuple[OmeImage, int]]
        Each tile, its planes not listed, and how many z-planes its channels have.
    """

    height_px: int
    width_px: int
    dtype: str
    tiles: Sequence[tuple[OmeImage, int]]

    def read(self, tile: int, channel: int, z: int) -> NDArray[Any]:
        """Return a plane (y, x) in raw counts."""


class Contents(NamedTuple):
    """An open container, its tiles with their planes, and which plane a page is.

    Attributes
    ----------
    places : Sequence[tuple[int, int, int]]
        (tile, channel, z) of each page.
    """

    container: Container
    images: Sequence[OmeImage]
    places: Sequence[tuple[int, int, int]]


def is_container(path: str | Path) -> bool:
    """Return whether a file is of one of the formats, by its suffix."""
    return str(path).lower().endswith(SUFFIXES)


def read_images(path: str) -> Sequence[OmeImage]:
    """Return all images of a container, as :func:`contents`."""
    return contents(path).images


def contents(path: str | Path) -> Contents:
    """Return what a container holds.

    Raises
    ------
    RawDataError
        The extra is not installed, or the file cannot be read or holds no tiles.
    """
    with raw_file_errors(str(path)):
        return _open(*file_identity(path))


def read_page(path: str | Path, page: int) -> NDArray[Any]:
    """Return one plane (y, x) of a container in raw counts; safe to call in threads."""
    import numpy as np

    opened = _open(*file_identity(path))
    # The libraries' files have one position each.
    with _LOCK:
        return np.ascontiguousarray(opened.container.read(*opened.places[page]))


_LOCK = threading.Lock()


@lru_cache(maxsize=_OPEN_FILES)
def _open(path: str, _size: int, _mtime: int) -> Contents:
    name = Path(path).suffix.lower().lstrip(".")
    try:
        module = import_module(f"tilewright.io.formats.containers.{name}")
    except ModuleNotFoundError as error:
        raise RawDataError(
            f"{path}: reading .{name} files needs {error.name}, which is not installed; "
            f"run: pip install 'tilewright[{name}]'"
        ) from error
    with _LOCK:
        container: Container = getattr(module, name.capitalize())(path)
    if not container.tiles:
        raise RawDataError(f"{path} holds no tiles; move it away, or name another raw folder")
    images, places = [], list[tuple[int, int, int]]()
    for tile, (image, depth) in enumerate(container.tiles):
        planes = []
        for channel, z in product(range(len(image.channels)), range(depth)):
            planes.append(OmePlane(channel, z, len(places), None))
            places.append((tile, channel, z))
        images.append(replace(image, planes=planes))
    return Contents(container, images, places)
