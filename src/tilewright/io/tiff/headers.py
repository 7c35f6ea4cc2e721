"""The page headers of a TIFF, without a decoded pixel, and whether pixels can be counts.

A file whose chain of pages breaks off, or whose data end beyond it, is an error here, where
tifffile logs it and continues with fewer pages.
"""

import logging
import math
import stat
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tilewright.errors import BrokenTiffError
from tilewright.io.tiff.metadata import DAMAGE_ERRORS

#: That of zeros in zstd.
_MOST_COMPRESSION = 2**16
_KINDS = {1: "uint", 2: "int", 3: "float"}
#: Pixel types that are raw camera counts, and one that is with a scale.
PIXEL_TYPES, SCALED_TYPE = ("uint8", "uint16"), "float32"
#: None, LZW, deflate (two numbers) and PackBits; others depend on the codecs installed.
_USUAL_COMPRESSION = (1, 5, 8, 32773, 32946)
_PHOTOMETRIC = {0: "a negative, with white as 0", 3: "numbers of a palette's colours"}


class PageHeader(NamedTuple):
    """One page: its shape, pixel type, samples per pixel and where its data end.

    ``photometric`` and ``compression`` are the TIFF tags 262 (1 where it is absent: counts from
    black to white) and 259.
    """

    height_px: int
    width_px: int
    dtype: str
    samples: int
    photometric: int
    compression: int
    end: int


class RawHeader(NamedTuple):
    """Header of one raw file; ``problem`` is why it cannot be used, "" if it can.

    ``pages`` counts all pages of the file, also those of no use.
    """

    size_bytes: int
    mtime_ns: int
    height_px: int = 0
    width_px: int = 0
    dtype: str = ""
    pages: int = 0
    problem: str = ""


def headers_of(path: str | Path) -> list[PageHeader]:
    """Return the header of every page of a file; BrokenTiffError as :func:`read_page_headers`."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise BrokenTiffError("is a folder, pipe or device")
    with Path(path).open("rb") as stream:
        return read_page_headers(stream)


def read_page_headers(stream: BinaryIO) -> list[PageHeader]:
    """Return the header of every page of a TIFF or BigTIFF.

    Raises
    ------
    BrokenTiffError
        With what is wrong, in words that follow the file's name.
    """
    import tifffile

    # What it says of damaged files is raised below, or is no damage.
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    start = stream.read(2)
    if not start:
        raise BrokenTiffError("is empty (0 bytes)")
    if start not in (b"II", b"MM"):
        raise BrokenTiffError("is no TIFF")
    stream.seek(0)
    try:
        # Of these kinds tifffile computes where pages lie, instead of reading it.
        with tifffile.TiffFile(stream, is_lsm=False, is_scanimage=False) as tiff:
            return _complete_pages(tiff)
    except BrokenTiffError:
        raise
    except DAMAGE_ERRORS as error:
        raise BrokenTiffError(f"is truncated or damaged ({error})") from error


def _complete_pages(tiff: Any) -> list[PageHeader]:
    """Return the pages of an open file, all of whose data and headers lie within it."""
    size_bytes = tiff.filehandle.size
    offsets, pages = dict[int, None](), []
    for page in tiff.pages:
        if page.offset in offsets:
            raise BrokenTiffError("is damaged (its chain of pages is a loop)")
        offsets[page.offset] = None
        pages.append(_page(page, size_bytes))
    if _next_offset(tiff, [*offsets][-1] if offsets else None):
        raise BrokenTiffError(
            f"is truncated ({size_bytes} bytes, the header of a page lies beyond)"
        )
    if not pages:
        raise BrokenTiffError("is a TIFF without a page")
    end = max(page.end for page in pages)
    if end > size_bytes:
        raise BrokenTiffError(f"is truncated ({size_bytes} bytes, its header declares {end})")
    return pages


def _next_offset(tiff: Any, offset: int | None) -> int:
    """Return where the page after that at ``offset`` begins, 0 after the last; None: the first.

    tifffile ends its own search for the last page in no loop of more than 99 pages.
    """
    file, form = tiff.filehandle, tiff.tiff
    if offset is None:
        file.seek(form.offsetsize)
    else:
        file.seek(offset)
        (tags,) = struct.unpack(form.tagnoformat, file.read(form.tagnosize))
        file.seek(offset + form.tagnosize + tags * form.tagsize)
    return int(struct.unpack(form.offsetformat, file.read(form.offsetsize))[0])


def _page(page: Any, size_bytes: int) -> PageHeader:
    """Return the header of a page, which does not declare more pixels than the file can hold."""
    height_px, width_px, samples = page.imagelength, page.imagewidth, page.samplesperpixel
    pieces = page.dataoffsets, page.databytecounts
    if not height_px or not width_px or not pieces[0] or len(pieces[0]) != len(pieces[1]):
        raise BrokenTiffError("is damaged (a page without size or data)")
    dtype = f"{_KINDS.get(page.sampleformat, 'unknown')}{page.bitspersample}"
    bits = math.prod((height_px, width_px, samples, page.bitspersample))
    # Readers take memory for all of them.
    if bits > 8 * size_bytes * (1 if page.compression == 1 else _MOST_COMPRESSION):
        shape = f"{height_px} x {width_px} px of {dtype}"
        raise BrokenTiffError(f"is truncated ({size_bytes} bytes, its header declares {shape})")
    photometric = int(page.tags.valueof("PhotometricInterpretation", 1))
    end = max(map(sum, zip(*pieces, strict=True)))
    return PageHeader(height_px, width_px, dtype, samples, photometric, int(page.compression), end)


def pixel_problem(
    samples: int, photometric: int, compression: int, dtype: str, types: tuple[str, ...]
) -> str:
    """Return why pixels cannot be used as counts, in words that follow the file's name.

    ``samples``, ``photometric`` and ``compression`` are the values of the TIFF tags 277, 262 and
    259; ``types`` the accepted pixel types.
    """
    if samples != 1:
        return (
            f"is a colour image ({samples} samples per pixel), as of brightfield slides; channels "
            "of counts are read only, one page each"
        )
    if photometric != 1:
        return (
            f"does not hold counts with black as 0 but {_PHOTOMETRIC.get(photometric, 'colours')} "
            f"(TIFF tag 262 is {photometric}); save it as greyscale"
        )
    if compression not in _USUAL_COMPRESSION:
        import tifffile

        if compression not in tifffile.TIFF.DECOMPRESSORS:
            return (
                f"is compressed in a way that cannot be read (TIFF tag 259 is {compression}); "
                "save it uncompressed or with deflate"
            )
    if dtype not in types:
        return f"has pixels of type {dtype}; counts are {' or '.join(PIXEL_TYPES)}"
    return ""
