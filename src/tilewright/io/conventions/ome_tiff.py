"""OME-TIFF whose images are tiles with stage positions."""

from __future__ import annotations

from pathlib import Path

from tilewright.io.conventions.common import TIFF, cycle_files, readable
from tilewright.io.conventions.described import LocatedImage, number_cycles
from tilewright.io.conventions.ome_xml import parse_ome_xml

#: The OME-XML of a set of TIFFs in a file of its own.
COMPANION = (".companion.ome",)


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return all images of the OME-TIFFs in ``raw_dir`` and in its cycle folders.

    A companion file (``name.companion.ome``) describes the TIFFs beside it, whose own OME-XML
    only points to it. The cycle is told by the folder or the file name (``cycle2``), else as
    :func:`~tilewright.io.conventions.described.number_cycles` says.
    """
    described = []
    for cycle, path in cycle_files(raw_dir, COMPANION) + cycle_files(raw_dir, TIFF):
        xml = Path(path).read_text("utf-8") if path.endswith(COMPANION) else ome_xml(path)
        if xml:
            described.append((cycle, path, parse_ome_xml(xml, path)))
    return number_cycles(described)


def ome_xml(path: str) -> str | None:
    """Return the OME-XML of a file, None where it has none."""
    import tifffile

    with readable(path), tifffile.TiffFile(path) as tiff:
        xml: str | None = tiff.ome_metadata
        return xml
