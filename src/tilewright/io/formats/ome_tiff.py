"""OME-TIFF whose images are tiles with stage positions."""

from tilewright.io.formats.common import MOST_XML_MB, TIFF
from tilewright.io.text_file import read_content
from tilewright.io.tiff.ome_xml import OmeImage, parse_ome_xml

#: The OME-XML of a set of TIFFs in a file of its own.
COMPANION = (".companion.ome",)
NAMES = (*COMPANION, *TIFF)


def read_images(path: str) -> list[OmeImage]:
    """Return all images of an OME-TIFF, or of a companion file (``name.companion.ome``).

    A companion describes the TIFFs next to it, whose OME-XML only points to it.
    """
    import tifffile

    if path.endswith(COMPANION):
        return parse_ome_xml(read_content(path, MOST_XML_MB), path)
    with tifffile.TiffFile(path) as tiff:
        return parse_ome_xml(tiff.ome_metadata, path) if tiff.ome_metadata else []
