"""Raw formats, by names of files or by their metadata: a folder in, :class:`RawPlane` out."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tilewright.errors import RawDataError
from tilewright.io.formats import (
    containers,
    cv8000,
    fiji,
    imagexpress,
    macsima,
    names,
    ndtiff,
    phenix,
    stitched,
    tile_files,
)
from tilewright.io.formats.common import TIFF, RawPlane, ScanOptions, find_files, raw_file_errors
from tilewright.io.formats.located_images import (
    COMPANION,
    LocatedImage,
    number_cycles,
    raw_planes,
    read_ome_tiff,
)
from tilewright.io.tiff.ome_xml import OmeImage

#: Values of ``acquisition.convention`` by which file names describe planes.
_BY_NAME = {
    "codex": names.scan_codex,
    "pattern": names.scan_pattern,
    "imagexpress": imagexpress.scan,
    "macsima": macsima.scan,
    "fiji": fiji.scan,
}
#: Those whose metadata hold planes, positions, sizes and channels: how their files are named, as
#: for :func:`~tilewright.io.formats.common.list_folder`, and what the images of a file are.
_BY_METADATA: dict[str, tuple[tuple[str, ...], Callable[[str], Sequence[OmeImage]]]] = {
    "ome_tiff": ((*COMPANION, *TIFF), read_ome_tiff),
    "phenix": (phenix.NAMES, phenix.read_images),
    "cv8000": (cv8000.NAMES, cv8000.read_images),
    "ndtiff": (ndtiff.NAMES, ndtiff.read_images),
    "stitched": (stitched.NAMES, stitched.read_images),
    **{name: ((f".{name}",), containers.read_images) for name in containers.FORMATS},
}
#: Names of the files that a folder of a format holds.
FILES = {"fiji": fiji.NAMES, **{name: files for name, (files, _) in _BY_METADATA.items()}}


def scan(
    convention: str, raw_dir: str | os.PathLike[str], options: ScanOptions | None = None
) -> list[RawPlane]:
    """Return every plane below ``raw_dir``, of all regions.

    Only names are read, except with ``fiji`` (``TileConfiguration.txt``), ``imagexpress`` (the
    metadata of a file per site), ``macsima`` (likewise), ``pattern`` without ``{channel}`` (one
    file) and the conventions whose metadata describe planes. Files of other names are ignored.

    Raises
    ------
    RawDataError
        The folder is absent or cannot be read, or its metadata are invalid.
    """
    folder = str(Path(raw_dir).resolve())
    if not Path(folder).is_dir():
        raise RawDataError(f"{raw_dir} is not a folder; correct raw_dir in the samples table")
    options = options or ScanOptions()
    located = read_images(convention, folder)
    return (
        _BY_NAME[convention](folder, options) if located is None else raw_planes(located, options)
    )


def reads_names_only(convention: str, pattern: str | None) -> bool:
    """Return whether :func:`scan` reads file names only."""
    return convention == "codex" or (convention == "pattern" and "{channel" in (pattern or ""))


def read_images(convention: str, raw_dir: str | os.PathLike[str]) -> list[LocatedImage] | None:
    """Return the images that the files' metadata describe, None where names do.

    Raises
    ------
    RawDataError
        A file cannot be read, or it is open of which cycle it is.
    """
    if convention not in _BY_METADATA:
        return None
    file_names, read = _BY_METADATA[convention]
    files = []
    for cycle, path in find_files(str(Path(raw_dir).resolve()), file_names):
        with raw_file_errors(path):
            files.append((cycle, path, read(path)))
    return number_cycles(files, whole=convention == "stitched")


def describe(convention: str, path: str) -> OmeImage:
    """Return what the metadata of a file say, where names describe planes."""
    readers = {"imagexpress": imagexpress.describe, "macsima": macsima.describe}
    return readers.get(convention, tile_files.describe)(path)
