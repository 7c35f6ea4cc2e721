"""Images that are stitched already: one file per cycle, of one page per channel.

OME-TIFF, PerkinElmer's QPTIFF, ImageJ and plain TIFF or BigTIFF, with or without a pyramid;
tifffile reports which pages are the full resolution and which are lower levels, thumbnails and
labels.
"""

import math
import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright.errors import BrokenTiffError, RawDataError
from tilewright.io.formats.common import TIFF, cycle_files, natural_key
from tilewright.io.formats.located_images import LocatedImage
from tilewright.io.tiff.headers import PIXEL_TYPES, RawHeader, headers_of, pixel_problem
from tilewright.io.tiff.metadata import DAMAGE_ERRORS, imagej_unit, pixel_um
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage, OmePlane, check_sizes, describe_image

#: Suffixes that files of single tiles do not have.
OTHER_SUFFIXES = (".qptiff", ".btf", ".tf8")
#: No camera has so many pixels a side.
_LARGER_THAN_CAMERAS_PX = 10_000
#: More files than any experiment has cycles.
_MOST_CYCLES = 100
#: A tile or strip of a plane is decoded as one: what a job may hold of it.
_LARGEST_PIECE_MB = 256
#: Of an image's area, from which another image in its file cannot be a label or thumbnail.
_LARGE_SERIES_SHARE = 1 / 3
_JPEG = (6, 7, 33007, 34892)


@dataclass(frozen=True)
class StitchedImage:
    """One stitched image: its full-resolution pages and their metadata."""

    header: RawHeader
    """Size of the file and of a plane; ``problem`` is why it cannot be used."""
    image: OmeImage = field(default_factory=lambda: OmeImage([]))
    """Its planes are the pages of the channels."""
    lossy: bool = False
    """Whether pixels are compressed as JPEG."""
    certain: bool = False
    """Whether the file alone shows that it is no tile: it holds one image, and has a pyramid,
    PerkinElmer's metadata, or more pixels than a camera.
    """


def read_images(raw_dir: str) -> list[LocatedImage]:
    """Return the image of every cycle, ordered by cycle.

    The cycle is that of the folder or the file name (``cycle2``). Without one, each file is a
    cycle, in the order of names.

    Raises
    ------
    RawDataError
        Two files are of one cycle, or one cannot be used.
    """
    files = cycle_files(raw_dir, (*TIFF, *OTHER_SUFFIXES))
    unnumbered = sorted((path for cycle, path in files if cycle is None), key=natural_key)
    located: dict[int, LocatedImage] = {}
    for number, path in files:
        cycle = unnumbered.index(path) + 1 if number is None else number
        if cycle in located:
            raise RawDataError(
                f"duplicate cycle {cycle} ({located[cycle].path} and {path}); a stitched image is "
                "one file with all channels of its cycle: save one such file per cycle, and move "
                "others away"
            )
        stitched = read_image(path)
        if stitched.header.problem:
            raise RawDataError(f"{path} {stitched.header.problem}")
        located[cycle] = LocatedImage(cycle, path, stitched.image)
    return [located[cycle] for cycle in sorted(located)]


def lossy_warnings(located: list[LocatedImage]) -> list[str]:
    """Return a warning for images whose pixels are compressed with loss."""
    names = [Path(path).name for _, path, _ in located if read_image(path).lossy]
    if not names:
        return []
    return [
        f"{', '.join(names)}: pixels are compressed as JPEG, which has lost weak signal and adds "
        "squares of 8 px; export without loss if you can"
    ]


def is_stitched(raw_dir: str) -> bool:
    """Return whether the files of a folder show that they are stitched images of cycles.

    They are where the first holds metadata of a stitched image, or where each name has a cycle and
    sizes differ. Files of one size without a cycle are tiles unless they are larger than the sensor
    of a camera.
    """
    files = cycle_files(raw_dir, (*TIFF, *OTHER_SUFFIXES))
    cycles = [cycle for cycle, _ in files if cycle is not None]
    if not 0 < len(files) <= _MOST_CYCLES or len(set(cycles)) < len(cycles):
        return False
    numbered = len(cycles) == len(files)
    try:
        first = read_image(files[0][1])
        if len(files) == 1 or not (first.certain or numbered):
            return first.certain
        headers = [read_image(path).header for _, path in files]
    except RawDataError:
        return False  # broken metadata, which the reader that needs them will name
    sizes = {(header.height_px, header.width_px) for header in headers if not header.problem}
    if len(sizes) > 1:
        return True
    large = max(first.header.height_px, first.header.width_px) > _LARGER_THAN_CAMERAS_PX
    return first.certain and (numbered or large)


def read_image(path: str) -> StitchedImage:
    """Return what a file holds; an unchanged file is opened once per process."""
    try:
        status = os.stat(path)  # noqa: PTH116 (as for other raw files)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        return StitchedImage(RawHeader(0, 0, problem=problem))
    return _read(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _read(path: str, size_bytes: int, mtime_ns: int) -> StitchedImage:
    import tifffile

    blank = RawHeader(size_bytes, mtime_ns)
    try:
        # tifffile goes on with fewer pages where their chain breaks off.
        headers_of(path)
        with tifffile.TiffFile(path) as tiff:
            if tiff.is_ome:
                check_sizes(tiff.ome_metadata, path)
            return _image(path, tiff, blank)
    except RawDataError:
        raise
    except BrokenTiffError as error:
        return StitchedImage(blank._replace(problem=str(error)))
    except (tifffile.TiffFileError, *DAMAGE_ERRORS) as error:
        return StitchedImage(blank._replace(problem=f"is no readable TIFF ({error})"))


def _image(path: str, tiff: Any, blank: RawHeader) -> StitchedImage:
    """Return the largest image of an open file."""
    number, main = max(enumerate(tiff.series), key=lambda item: (_area(item[1]), -item[0]))
    first = main.keyframe
    certain = not _count_large_series(tiff, main) and (
        tiff.is_qpi
        or len(main.levels) > 1
        or max(first.imagelength, first.imagewidth) > _LARGER_THAN_CAMERAS_PX
    )
    problem = _problem(tiff, main)
    if problem:
        return StitchedImage(blank._replace(problem=problem), certain=certain)
    metadata = _description(path, tiff, main, number)
    count = len(main.pages)
    channels = metadata.channels if len(metadata.channels) == count else [OmeChannel()] * count
    planes = [OmePlane(k, 0, page.index, None) for k, page in enumerate(main.pages)]
    header = blank._replace(
        height_px=first.imagelength,
        width_px=first.imagewidth,
        dtype=str(first.dtype),
        pages=1 + max(page.index for page in main.pages),
    )
    image = replace(metadata, channels=channels, planes=planes)
    return StitchedImage(header, image, first.compression in _JPEG, certain)


def _area(series: Any) -> int:
    return int(series.keyframe.imagelength * series.keyframe.imagewidth)


def _count_large_series(tiff: Any, main: Any) -> int:
    """Return how many other images of a file are no label, macro or thumbnail, by their size."""
    return sum(s is not main and _area(s) >= _LARGE_SERIES_SHARE * _area(main) for s in tiff.series)


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
    others = _count_large_series(tiff, main)
    if others:
        return f"holds {1 + others} images of like size; save one image per file"
    if main.is_multifile:
        return "names other files that hold its planes; save all channels of a cycle in one file"
    if len(main.pages) < math.prod(main.shape) / _area(main) or None in main.pages:
        return (
            f"declares {math.prod(main.shape) // _area(main)} channels, but has pages for "
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
    """Return channels and sizes from OME-XML, PerkinElmer's XML, ImageJ or the resolution tags."""
    if main.kind == "ome":
        return describe_image(tiff.ome_metadata, path, number)
    channels = []
    if tiff.is_qpi:
        channels = [_qpi_channel(page.description) for page in main.pages]
    elif tiff.imagej_metadata and len(tiff.imagej_metadata.get("Labels", ())) == len(main.pages):
        channels = [OmeChannel(name) for name in tiff.imagej_metadata["Labels"]]
    y_um, x_um = pixel_um(main.keyframe, imagej_unit(tiff.imagej_metadata))
    return OmeImage(channels, pixel_um=x_um, pixel_y_um=y_um)


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
    exposure = (root.findtext("ExposureTime") or "").strip()
    # In µs.
    exposure_ms = int(exposure) / 1000 if exposure.isdigit() and int(exposure) else None
    return OmeChannel(next(filter(None, names), None), None, exposure_ms)
