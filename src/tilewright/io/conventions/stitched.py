"""Images that are stitched already: one file per cycle, of one page per channel.

OME-TIFF, PerkinElmer's QPTIFF, ImageJ and plain TIFF or BigTIFF, with or without a pyramid;
tifffile tells which pages are the full resolution and which are lower levels, thumbnails and
labels.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright.errors import BrokenTiffError, RawDataError
from tilewright.io.conventions.common import TIFF, cycle_files, natural_key
from tilewright.io.conventions.described import LocatedImage
from tilewright.io.conventions.ome_xml import OmeChannel, OmeImage, OmePlane, describe_image
from tilewright.io.tiff.metadata import imagej_unit, pixel_um
from tilewright.io.tiff.page_headers import read_page_headers
from tilewright.io.tiff.raw_header import PIXEL_TYPES, RawHeader, pixel_problem

#: Suffixes that files of single tiles do not have.
OTHER_SUFFIXES = (".qptiff", ".btf", ".tf8")
#: No camera has so many pixels a side.
_LARGER_THAN_CAMERAS_PX = 10_000
#: More files than any experiment has cycles.
_MOST_CYCLES = 100
#: A tile or strip of a plane is decoded as one: what a job may hold of it.
_LARGEST_PIECE_MB = 256
#: Of an image's area, from which another image in its file cannot be a label or thumbnail.
_AS_LARGE = 1 / 3
_JPEG = (6, 7, 33007, 34892)


@dataclass(frozen=True)
class StitchedImage:
    """One stitched image: its full-resolution pages, and what the file says of them.

    Attributes
    ----------
    header : RawHeader
        Size of the file and of a plane; ``problem`` says why it cannot be used.
    image : OmeImage
        Its planes are the pages of the channels, in one place.
    lossy : bool
        Whether pixels are compressed as JPEG.
    whole : bool
        Whether the file shows by itself that it is no tile: it holds one image, and has a
        pyramid, PerkinElmer's metadata, or more pixels than a camera.
    """

    path: str
    header: RawHeader
    image: OmeImage = field(default_factory=lambda: OmeImage([]))
    lossy: bool = False
    whole: bool = False


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return the image of every cycle, ordered by cycle.

    The cycle is told by the folder or the file name (``cycle2``). Where none tells, each file is
    a cycle, in the order of names.

    Raises
    ------
    RawDataError
        Two files are of one cycle, or one cannot be used.
    """
    files = cycle_files(raw_dir, (*TIFF, *OTHER_SUFFIXES))
    nameless = sorted((path for cycle, path in files if cycle is None), key=natural_key)
    located: dict[int, LocatedImage] = {}
    for told, path in files:
        cycle = nameless.index(path) + 1 if told is None else told
        if cycle in located:
            raise RawDataError(
                f"{located[cycle].path} and {path} are both of cycle {cycle}, but a stitched image "
                "is one file with all channels of its cycle; save one such file per cycle, and "
                "move others away"
            )
        found = read_image(path)
        if found.header.problem:
            raise RawDataError(f"{path} {found.header.problem}")
        located[cycle] = LocatedImage(cycle, path, found.image)
    return [located[cycle] for cycle in sorted(located)]


def lossy_sentences(located: list[LocatedImage]) -> list[str]:
    """Return a sentence for images whose pixels are compressed with loss."""
    names = [Path(path).name for _, path, _ in located if read_image(path).lossy]
    if not names:
        return []
    return [
        f"{', '.join(names)}: pixels are compressed as JPEG, which has lost weak signal and adds "
        "squares of 8 px; export without loss if you can"
    ]


def looks_stitched(raw_dir: str) -> bool:
    """Return whether the files of a folder show that they are stitched images of cycles.

    By what the first of them holds, or because names tell a cycle each and sizes differ. Files of
    one size that name no cycle are taken for tiles unless they are larger than a camera.
    """
    files = cycle_files(raw_dir, (*TIFF, *OTHER_SUFFIXES))
    told = [cycle for cycle, _ in files if cycle is not None]
    if not 0 < len(files) <= _MOST_CYCLES or len(set(told)) < len(told):
        return False
    named = len(told) == len(files)
    try:
        first = read_image(files[0][1])
        if len(files) == 1 or not (first.whole or named):
            return first.whole
        headers = [read_image(path).header for _, path in files]
    except RawDataError:
        return False  # broken metadata, which the convention that needs them will name
    sizes = {(header.height_px, header.width_px) for header in headers if not header.problem}
    if len(sizes) > 1:
        return True
    large = max(first.header.height_px, first.header.width_px) > _LARGER_THAN_CAMERAS_PX
    return first.whole and (named or large)


def read_image(path: str) -> StitchedImage:
    """Return what a file holds; one that has not changed is opened once in a process."""
    try:
        status = os.stat(path)  # noqa: PTH116 (as for other raw files)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        return StitchedImage(path, RawHeader(0, 0, problem=problem))
    return _read(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _read(path: str, size_bytes: int, mtime_ns: int) -> StitchedImage:
    import tifffile

    blank = RawHeader(size_bytes, mtime_ns)
    try:
        # tifffile goes on with fewer pages where their chain breaks off.
        with open(path, "rb") as stream:  # noqa: PTH123
            read_page_headers(stream, size_bytes)
        with tifffile.TiffFile(path) as tiff:
            return _image(path, tiff, blank)
    except RawDataError:
        raise
    except BrokenTiffError as error:
        return StitchedImage(path, blank._replace(problem=str(error)))
    except (tifffile.TiffFileError, OSError, ValueError, LookupError, RuntimeError) as error:
        return StitchedImage(path, blank._replace(problem=f"is no readable TIFF ({error})"))


def _image(path: str, tiff: Any, blank: RawHeader) -> StitchedImage:
    """Return the largest image of an open file."""
    number, main = max(enumerate(tiff.series), key=lambda item: (_area(item[1]), -item[0]))
    first = main.keyframe
    whole = not _alike(tiff, main) and (
        tiff.is_qpi
        or len(main.levels) > 1
        or max(first.imagelength, first.imagewidth) > _LARGER_THAN_CAMERAS_PX
    )
    problem = _problem(tiff, main)
    if problem:
        return StitchedImage(path, blank._replace(problem=problem), whole=whole)
    told = _description(path, tiff, main, number)
    count = len(main.pages)
    channels = told.channels if len(told.channels) == count else [OmeChannel()] * count
    planes = [OmePlane(k, 0, page.index, None) for k, page in enumerate(main.pages)]
    header = blank._replace(
        height_px=first.imagelength,
        width_px=first.imagewidth,
        dtype=str(first.dtype),
        pages=1 + max(page.index for page in main.pages),
    )
    image = replace(told, channels=channels, planes=planes)
    return StitchedImage(path, header, image, first.compression in _JPEG, whole)


def _area(series: Any) -> int:
    return int(series.keyframe.imagelength * series.keyframe.imagewidth)


def _alike(tiff: Any, main: Any) -> int:
    """Return how many other images of a file are no label, macro or thumbnail, by their size."""
    return sum(s is not main and _area(s) >= _AS_LARGE * _area(main) for s in tiff.series)


def _problem(tiff: Any, main: Any) -> str:
    """Return why an image cannot be used, in words that follow the file's name."""
    first, axes = main.keyframe, dict(zip(main.axes, main.shape, strict=True))
    photometric = int(first.tags.valueof("PhotometricInterpretation", 1))
    form = first.samplesperpixel, photometric, first.compression
    problem = pixel_problem(*form, str(first.dtype), PIXEL_TYPES)
    if problem:
        return problem
    for axis, what in (("Z", "z-planes"), ("T", "time points")):
        if axes.get(axis, 1) > 1:
            return (
                f"holds {axes[axis]} {what} of a stitched image, of which one plane per channel "
                "is read; save the plane in focus, or start from the raw tiles"
            )
    alike = _alike(tiff, main)
    if alike:
        return f"holds {1 + alike} images of like size; save one image per file"
    if main.is_multifile:
        return "names other files that hold its planes; save all channels of a cycle in one file"
    if len(main.pages) < math.prod(main.shape) / _area(main) or None in main.pages:
        return (
            f"tells {math.prod(main.shape) // _area(main)} channels, but has pages for "
            f"{sum(page is not None for page in main.pages)}; save it as BigTIFF, or copy it again"
        )
    piece_mb = math.prod(first.chunks) * first.dtype.itemsize / 2**20
    if piece_mb > _LARGEST_PIECE_MB and not first.is_memmappable:
        return (
            f"is compressed in pieces of {piece_mb:.0f} MB, each of which must be decoded at once; "
            "save it in tiles, such as 512 x 512 px"
        )
    return ""


def _description(path: str, tiff: Any, main: Any, number: int) -> OmeImage:
    """Return names and sizes from OME-XML, PerkinElmer's XML, ImageJ or the resolution tags."""
    if main.kind == "ome":
        return describe_image(tiff.ome_metadata, path, number)
    channels = []
    if tiff.is_qpi:
        channels = [_of_qpi(page.description) for page in main.pages]
    elif tiff.imagej_metadata and len(tiff.imagej_metadata.get("Labels", ())) == len(main.pages):
        channels = [OmeChannel(name) for name in tiff.imagej_metadata["Labels"]]
    y_um, x_um = pixel_um(main.keyframe, imagej_unit(tiff.imagej_metadata))
    return OmeImage(channels, pixel_um=x_um, pixel_y_um=y_um)


def _of_qpi(description: str) -> OmeChannel:
    """Return the channel that PerkinElmer's XML of a page describes, nothing where it is broken.

    >>> _of_qpi("<Q><Name>Opal 570</Name><Biomarker>CD8</Biomarker></Q>").name
    'CD8'
    """
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(description)
    except ElementTree.ParseError:
        return OmeChannel()
    names = [(root.findtext(key) or "").strip() for key in ("Biomarker", "Name")]
    exposure = (root.findtext("ExposureTime") or "").strip()
    # In µs.
    exposure_ms = int(exposure) / 1000 if exposure.isdigit() and int(exposure) else None
    return OmeChannel(next(filter(None, names), None), None, exposure_ms)
