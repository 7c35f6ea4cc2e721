"""Images that are stitched already: one file per cycle, of one page per channel.

OME-TIFF, PerkinElmer's QPTIFF, ImageJ and plain TIFF or BigTIFF, with or without a pyramid;
tifffile reports which pages are the full resolution and which are lower levels, thumbnails and
labels.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from tilewright.errors import RawDataError
from tilewright.io.formats.common import TIFF, file_identity, find_files, raw_file_errors
from tilewright.io.formats.located_images import known_channels
from tilewright.io.formats.tile_files import describe
from tilewright.io.numbers import positive
from tilewright.io.tiff.headers import PIXEL_TYPES, PageHeader, RawHeader, headers_of, pixel_problem
from tilewright.io.tiff.metadata import of_tiff
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane, check_sizes, describe_image

#: Suffixes that files of single tiles do not have.
OTHER_SUFFIXES = (".qptiff", ".btf", ".tf8")
NAMES = (*TIFF, *OTHER_SUFFIXES)
#: No camera has so many pixels a side.
_LARGER_THAN_CAMERAS_PX = 10_000
#: More files than any experiment has cycles.
_MOST_CYCLES = 100
#: A tile or strip of a plane is decoded as one: what a job may hold of it.
_LARGEST_PIECE_MB = 256
#: Of an image's area, from which another image in its file cannot be a label or thumbnail.
_LARGE_SERIES_SHARE = 1 / 3
_US_TO_MS = 1e-3


class StitchedImage(NamedTuple):
    """One stitched image: its full-resolution pages and their metadata.

    Attributes
    ----------
    header : RawHeader
        Size of the file and of a plane.
    image : OmeImage
        Its planes are the pages of the channels.
    """

    header: RawHeader
    image: OmeImage


def read_images(path: str) -> list[OmeImage]:
    """Return the image of a file, as :func:`read_image`."""
    return [read_image(path).image]


def is_stitched(raw_dir: str) -> bool:
    """Return whether the files of a folder show that they are stitched images of cycles.

    They are where the first holds metadata of a stitched image, or where each name has a cycle and
    sizes differ. Files of one size without a cycle are tiles unless they are larger than the sensor
    of a camera.
    """
    files = find_files(raw_dir, NAMES)
    cycles = [cycle for cycle, _ in files if cycle is not None]
    if not 0 < len(files) <= _MOST_CYCLES or len(set(cycles)) < len(cycles):
        return False
    numbered = len(cycles) == len(files)
    certain, _ = of_tiff(files[0][1], _kind, (False, None))
    if len(files) == 1 or not (certain or numbered):
        return certain
    # Files that cannot be read will be named by the reader.
    sizes = {of_tiff(path, _kind, (False, None))[1] for _, path in files} - {None}
    large = any(max(size) > _LARGER_THAN_CAMERAS_PX for size in sizes if size)
    return len(sizes) > 1 or (certain and (numbered or large))


def _kind(tiff: Any) -> tuple[bool, tuple[int, int]]:
    """Return whether a file alone shows that it is no tile, and the size of its image.

    It holds one image, and has a pyramid, PerkinElmer's metadata, or more pixels than a camera.
    """
    main, images, _ = _main(tiff)
    size = main.keyframe.imagelength, main.keyframe.imagewidth
    large = max(size) > _LARGER_THAN_CAMERAS_PX
    return images == 1 and (tiff.is_qpi or len(main.levels) > 1 or large), size


def _main(tiff: Any) -> tuple[Any, int, Sequence[PageHeader]]:
    """Return the largest series of a file, how many are of like size, and the headers of all pages.

    Others are a label, macro or thumbnail.
    """
    # tifffile goes on with fewer pages where their chain breaks off.
    pages = headers_of(tiff.filehandle.path)
    if tiff.is_ome:
        check_sizes(tiff.ome_metadata, tiff.filename)
    main = max(tiff.series, key=_area)
    images = sum(_area(one) >= _LARGE_SERIES_SHARE * _area(main) for one in tiff.series)
    return main, images, pages


def _area(series: Any) -> int:
    return int(series.keyframe.imagelength * series.keyframe.imagewidth)


def read_image(path: str) -> StitchedImage:
    """Return what a file holds; an unchanged file is opened once per process.

    Raises
    ------
    RawDataError
        It cannot be read or used.
    """
    with raw_file_errors(path):
        return _read(*file_identity(path))


@lru_cache(maxsize=1024)
def _read(path: str, size_bytes: int, mtime_ns: int) -> StitchedImage:
    import tifffile

    with tifffile.TiffFile(path) as tiff:
        main, images, pages = _main(tiff)
        first = pages[main.keyframe.index]
        if problem := _problem(tiff, main, first, images):
            raise RawDataError(f"{path} {problem}")
        metadata = _description(path, tiff, main)
        numbers = [page.index for page in main.pages]
    image = replace(
        metadata,
        channels=known_channels(metadata.channels, len(numbers)),
        planes=[OmePlane(channel, 0, page, None) for channel, page in enumerate(numbers)],
    )
    size = first.height_px, first.width_px
    header = RawHeader(size_bytes, mtime_ns, *size, first.dtype, 1 + max(numbers))
    return StitchedImage(header, image)


def _problem(tiff: Any, main: Any, first: PageHeader, images: int) -> str:
    """Return why an image cannot be used, in words that follow the file's name."""
    form = first.samples, first.photometric, first.compression
    if problem := pixel_problem(*form, first.dtype, PIXEL_TYPES):
        return problem
    axes = dict(zip(main.axes, main.shape, strict=True))
    for axis, what in (("Z", "z-planes"), ("T", "time points")):
        if axes.get(axis, 1) > 1:
            return (
                f"holds {axes[axis]} {what} of a stitched image, of which one plane per channel "
                "is read; save the plane in focus, or start from the raw tiles"
            )
    if images > 1:
        return f"holds {images} images of like size; save one image per file"
    channels = math.prod(main.shape) // _area(main)
    present = sum(page is not None and page.parent is tiff for page in main.pages)
    if present < channels:
        return (
            f"declares {channels} channels, but has pages for {present}; save all channels of a "
            "cycle in one file, as BigTIFF, or copy it again"
        )
    piece_mb = math.prod(main.keyframe.chunks) * main.keyframe.dtype.itemsize / 2**20
    if piece_mb > _LARGEST_PIECE_MB and not main.keyframe.is_memmappable:
        return (
            f"is compressed in pieces of {piece_mb:.0f} MB, each of which must be decoded at once; "
            "save it in tiles, such as 512 x 512 px"
        )
    return ""


def _description(path: str, tiff: Any, main: Any) -> OmeImage:
    """Return channels and sizes from OME-XML, PerkinElmer's XML, ImageJ or the resolution tags."""
    if main.kind == "ome":
        return describe_image(tiff.ome_metadata, path, tiff.series.index(main))
    image = describe(path)
    if tiff.is_qpi:
        return replace(image, channels=[_qpi_channel(page.description) for page in main.pages])
    return image


def _qpi_channel(description: str) -> OmeChannel:
    """Return the channel in PerkinElmer's XML of a page, an empty one where that is broken.

    >>> _qpi_channel("<Q><Name>Opal 570</Name><Biomarker>CD8</Biomarker></Q>").name
    'CD8'
    """
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(description)
    except ElementTree.ParseError:
        return OmeChannel()
    names = [(root.findtext(key) or "").strip() for key in ("Biomarker", "Name")]
    exposure_ms = positive(root.findtext("ExposureTime"), scale=_US_TO_MS)
    return OmeChannel(names[0] or names[1] or None, None, exposure_ms)
