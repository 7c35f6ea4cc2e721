"""Raw formats, by names of files or by their metadata: a folder in, :class:`RawPlane` out."""

import os
from collections.abc import Callable
from functools import partial
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
    ome_tiff,
    phenix,
    stitched,
    tile_files,
)
from tilewright.io.formats.common import RawPlane, ScanOptions
from tilewright.io.formats.located_images import LocatedImage, raw_planes
from tilewright.io.tiff.ome_xml import OmeImage

#: Values of ``acquisition.convention`` by which file names describe planes.
_BY_NAME = {
    "codex": names.scan_codex,
    "pattern": names.scan_pattern,
    "imagexpress": imagexpress.scan,
    "macsima": macsima.scan,
    "fiji": fiji.scan,
}
#: Those whose metadata hold planes, positions, sizes and channels.
SELF_DESCRIBING: dict[str, Callable[[str], list[LocatedImage]]] = {
    "ome_tiff": ome_tiff.read_images,
    "phenix": phenix.read_images,
    "cv8000": cv8000.read_images,
    "ndtiff": ndtiff.read_images,
    "stitched": stitched.read_images,
    **{name: partial(containers.read_images, name=name) for name in containers.FORMATS},
}


def scan(
    convention: str, raw_dir: str | os.PathLike[str], options: ScanOptions | None = None
) -> list[RawPlane]:
    """Return every plane below ``raw_dir``, of all regions.

    Only names are read, except with ``fiji`` (``TileConfiguration.txt``), ``imagexpress`` (the
    metadata of a file per site), ``macsima`` (likewise), ``pattern`` without ``{channel}`` (one
    file) and the conventions in :data:`SELF_DESCRIBING`. Files of other names are ignored.

    Raises
    ------
    RawDataError
        The folder is absent or cannot be read, or its metadata are invalid.
    """
    folder = str(Path(raw_dir).resolve())
    if not Path(folder).is_dir():
        raise RawDataError(f"{raw_dir} is not a folder; correct raw_dir in the samples table")
    options = options or ScanOptions()
    if convention in SELF_DESCRIBING:
        return raw_planes(SELF_DESCRIBING[convention](folder), options)
    return _BY_NAME[convention](folder, options)


def reads_names_only(convention: str, pattern: str | None) -> bool:
    """Return whether :func:`scan` reads file names only."""
    return convention == "codex" or (convention == "pattern" and "{channel" in (pattern or ""))


def read_images(convention: str, raw_dir: str | os.PathLike[str]) -> list[LocatedImage] | None:
    """Return the images that the files' metadata describe, None where names do."""
    read = SELF_DESCRIBING.get(convention)
    return read(str(Path(raw_dir).resolve())) if read else None


def describe(convention: str, path: str) -> OmeImage:
    """Return what the metadata of a file say, where names describe planes."""
    readers = {"imagexpress": imagexpress.describe, "macsima": macsima.describe}
    return readers.get(convention, tile_files.describe)(path)
