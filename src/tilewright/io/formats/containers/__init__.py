"""Files of microscopes that hold many tiles each: CZI, ND2, LIF.

Each format is an extra (``pip install tilewright[czi]``) and is read by a library of its field.
A container numbers its planes from 0; that number is the page of a
:class:`~tilewright.io.formats.common.RawPlane`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tilewright.errors import RawDataError
from tilewright.io.formats.common import cycle_files, raw_file_errors
from tilewright.io.formats.located_images import LocatedImage, number_cycles
from tilewright.io.tiff.ome_xml import OmeImage

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Suffix of each format, which is also the name of its module, class, extra and convention.
FORMATS = ("czi", "nd2", "lif")
SUFFIXES = tuple(f".{name}" for name in FORMATS)
#: Files that stay open in a process.
_OPEN_FILES = 8


class Contents(NamedTuple):
    """What a container holds: tiles of one size and pixel type."""

    images: Sequence[OmeImage]
    height_px: int
    width_px: int
    dtype: str


class Container(Protocol):
    """An open file of one format."""

    contents: Contents

    def read(self, page: int) -> NDArray[Any]:
        """Return a plane (y, x) in raw counts."""


def is_container(path: str | Path) -> bool:
    """Return whether a file is of one of the formats, by its suffix."""
    return str(path).lower().endswith(SUFFIXES)


def read_images(raw_dir: str, name: str) -> list[LocatedImage]:
    """Return all images of the files of one format in ``raw_dir`` and its cycle folders.

    Raises
    ------
    RawDataError
        The extra is not installed, or a file cannot be read.
    """
    files = cycle_files(raw_dir, (f".{name}",))
    return number_cycles([(cycle, path, contents(path).images) for cycle, path in files])


def contents(path: str | Path) -> Contents:
    """Return what a container holds.

    Raises
    ------
    RawDataError
        The extra is not installed, or the file cannot be read or holds no tiles.
    """
    with raw_file_errors(str(path)):
        return _open(*_identity(path)).contents


def read_page(path: str | Path, page: int) -> NDArray[Any]:
    """Return one plane (y, x) of a container in raw counts; safe to call in threads."""
    import numpy as np

    container = _open(*_identity(path))
    # The libraries' files have one position each.
    with _LOCK:
        return np.ascontiguousarray(container.read(page))


_LOCK = threading.Lock()


def _identity(path: str | Path) -> tuple[str, int, int]:
    """Return the path with its size and time of change."""
    status = Path(path).stat()
    return str(path), status.st_size, status.st_mtime_ns


@lru_cache(maxsize=_OPEN_FILES)
def _open(path: str, _size: int, _mtime: int) -> Container:
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
    if not container.contents.images:
        raise RawDataError(f"{path} holds no tiles; move it away, or name another raw folder")
    return container
