"""OME-TIFF whose images are tiles with stage positions."""

from tilewright.io.formats.common import MOST_XML_MB, TIFF, cycle_files, raw_file_errors
from tilewright.io.formats.located_images import LocatedImage, number_cycles
from tilewright.io.text_file import read_content
from tilewright.io.tiff.ome_xml import parse_ome_xml

#: The OME-XML of a set of TIFFs in a file of its own.
COMPANION = (".companion.ome",)


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return all images of the OME-TIFFs in ``raw_dir`` and in its cycle folders.

    A companion file (``name.companion.ome``) describes the TIFFs next to it, whose OME-XML
    only points to it. The cycle is that of the folder or the file name (``cycle2``), else as in
    :func:`~tilewright.io.formats.located_images.number_cycles`.
    """
    files = []
    for cycle, path in cycle_files(raw_dir, COMPANION) + cycle_files(raw_dir, TIFF):
        own = path.endswith(COMPANION)
        xml = read_content(path, MOST_XML_MB) if own else ome_xml(path)
        if xml is not None:
            files.append((cycle, path, parse_ome_xml(xml, path)))
    return number_cycles(files)


def ome_xml(path: str) -> str | None:
    """Return the OME-XML of a file, None where it has none."""
    import tifffile

    with raw_file_errors(path), tifffile.TiffFile(path) as tiff:
        xml: str | None = tiff.ome_metadata
        return xml
