"""Metadata of TIFF files."""

import csv
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

MICROMETRES = ("µm", "μm", "um", "micron", "microns", "micrometer")
#: 72 and 96 dots per inch are a printer's, not a microscope's.
_LARGEST_PIXEL_UM = 20.0
#: What readers and codecs raise on damaged files: errors of their own are of these, too.
DAMAGE_ERRORS = (
    *(OSError, ValueError, LookupError, RuntimeError, TypeError, EOFError, AssertionError),
    *(struct.error, SyntaxError, csv.Error, ArithmeticError),  # SyntaxError as of broken XML
)
_T = TypeVar("_T")
_U = TypeVar("_U")


def of_tiff(path: str, read: Callable[[Any], _T], unknown: _U) -> _T | _U:
    """Return what ``read`` returns for the open file, ``unknown`` where it is no readable TIFF.

    The check of headers reports such a file.
    """
    import tifffile

    try:
        with tifffile.TiffFile(path) as tiff:
            return read(tiff)
    except (tifffile.TiffFileError, *DAMAGE_ERRORS):
        return unknown


def imagej_unit(imagej: Mapping[str, Any] | None) -> str:
    """Return the unit of length in ImageJ's metadata, empty without any."""
    return str((imagej or {}).get("unit", "")).replace("\\u00B5", "µ")


def pixel_um(page: Any, unit: str) -> tuple[float | None, float | None]:
    """Return the pixel size (y, x) in the resolution tags, None where it is no microscope's.

    ``unit`` is ImageJ's, which takes precedence over that of the tags.
    """
    unit_um = {2: 25_400.0, 3: 1e4}.get(page.tags.valueof("ResolutionUnit", 2))
    if unit in MICROMETRES:
        unit_um = 1.0

    def size_um(tag: str) -> float | None:
        dots, per = page.tags.valueof(tag, (0, 1))
        value = unit_um * per / dots if unit_um and dots else 0.0
        return round(value, 6) if 0 < value < _LARGEST_PIXEL_UM else None

    return size_um("YResolution"), size_um("XResolution")
