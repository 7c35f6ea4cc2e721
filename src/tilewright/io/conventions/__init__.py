"""Naming conventions of microscopes: a raw folder in, :class:`RawPlane` out."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.io.conventions import codex, fiji, imagexpress, ome_tiff, pattern
from tilewright.io.conventions.common import RawDataError, RawPlane, ScanOptions

_SCANNERS = {
    "codex": codex.scan,
    "pattern": pattern.scan,
    "ome_tiff": ome_tiff.scan,
    "imagexpress": imagexpress.scan,
    "fiji": fiji.scan,
}


def scan(
    convention: str, raw_dir: str | os.PathLike[str], options: ScanOptions | None = None
) -> list[RawPlane]:
    """Return every plane that ``convention`` finds below ``raw_dir``, of all regions.

    Only names are read, except with ``ome_tiff`` (the OME-XML of each file) and ``fiji``
    (``TileConfiguration.txt``). Files that do not fit the convention are passed over.

    Raises
    ------
    RawDataError
        The folder is absent or cannot be read, or the convention's own files are wrong.
    """
    folder = str(Path(raw_dir).resolve())
    if not Path(folder).is_dir():
        raise RawDataError(f"{raw_dir} is not a folder; correct raw_dir in the samples table")
    return _SCANNERS[convention](folder, options or ScanOptions())
