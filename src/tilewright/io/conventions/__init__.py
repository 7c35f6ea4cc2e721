"""Naming conventions of microscopes: a raw folder in, :class:`RawPlane` out."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tilewright.errors import RawDataError
from tilewright.io.conventions import (
    codex,
    containers,
    cv8000,
    fiji,
    imagexpress,
    macsima,
    ndtiff,
    ome_tiff,
    pattern,
    phenix,
    stitched,
)
from tilewright.io.conventions.common import RawPlane, ScanOptions
from tilewright.io.conventions.described import LocatedImage, place

#: Conventions of names.
_SCANNERS = {
    "codex": codex.scan,
    "pattern": pattern.scan,
    "imagexpress": imagexpress.scan,
    "fiji": fiji.scan,
}
#: Conventions whose files tell planes, positions, sizes and channels.
DESCRIBED: dict[str, Callable[[str], list[LocatedImage]]] = {
    "ome_tiff": ome_tiff.read_images,
    "macsima": macsima.read_images,
    "phenix": phenix.read_images,
    "cv8000": cv8000.read_images,
    "ndtiff": ndtiff.read_images,
    "stitched": stitched.read_images,
    **{name: partial(containers.read_images, name=name) for name in containers.FORMATS},
}


def scan(
    convention: str, raw_dir: str | os.PathLike[str], options: ScanOptions | None = None
) -> list[RawPlane]:
    """Return every plane that ``convention`` finds below ``raw_dir``, of all regions.

    Only names are read, except with ``fiji`` (``TileConfiguration.txt``), ``imagexpress`` (the
    metadata of a file per site), ``pattern`` without ``{channel}`` (one file) and the conventions
    in :data:`DESCRIBED`. Files that do not fit the convention are passed over.

    Raises
    ------
    RawDataError
        The folder is absent or cannot be read, or the convention's own files are wrong.
    """
    folder = str(Path(raw_dir).resolve())
    if not Path(folder).is_dir():
        raise RawDataError(f"{raw_dir} is not a folder; correct raw_dir in the samples table")
    options = options or ScanOptions()
    if convention in DESCRIBED:
        return place(DESCRIBED[convention](folder), options)
    return _SCANNERS[convention](folder, options)


def names_tell(convention: str, pattern: str | None) -> bool:
    """Return whether :func:`scan` reads names alone, and opens no file."""
    return convention == "codex" or (convention == "pattern" and "{channel" in (pattern or ""))


def numbers_tiles(convention: str, raw_dir: str | os.PathLike[str], pattern: str | None) -> bool:
    """Return whether tiles are known by their number, so that ``layout`` places them."""
    if convention == "imagexpress":
        return not imagexpress.tells_positions(str(Path(raw_dir).resolve()))
    return convention == "codex" or "{tile" in (pattern or "")


def described_images(convention: str, raw_dir: str | os.PathLike[str]) -> list[LocatedImage] | None:
    """Return what the files tell of themselves, None for a convention of names."""
    read = imagexpress.read_images if convention == "imagexpress" else DESCRIBED.get(convention)
    return read(str(Path(raw_dir).resolve())) if read else None
