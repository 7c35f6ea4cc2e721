"""Metadata of TIFF files."""

import csv
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

#: µm per unit of length in OME-XML, ImageJ's metadata and Harmony's index; what is no length
#: (``pixel``, ``reference frame``) is not among them.
UM = {
    **dict.fromkeys(("µm", "μm", "um", "micron", "microns", "micrometer"), 1.0),
    **dict.fromkeys(("Å", "\u212b"), 1e-4),
    **{"pm": 1e-6, "nm": 1e-3, "mm": 1e3, "cm": 1e4, "dm": 1e5, "m": 1e6},
    **{"in": 25_400.0, "inch": 25_400.0, "thou": 25.4},
}
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
    of_tag = {2: "inch", 3: "cm"}.get(page.tags.valueof("ResolutionUnit", 2), "")
    unit_um = UM.get(unit or of_tag)

    def size_um(tag: str) -> float | None:
        dots, per = page.tags.valueof(tag, (0, 1))
        value = unit_um * per / dots if unit_um and dots else 0.0
        return round(value, 6) if 0 < value < _LARGEST_PIXEL_UM else None

    return size_um("YResolution"), size_um("XResolution")
