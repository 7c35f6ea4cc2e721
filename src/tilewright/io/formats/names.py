"""Planes whose paths tell what they are: by a pattern of the user, or a microscope's own."""

import re
from collections.abc import Mapping

from tilewright.errors import RawDataError
from tilewright.io.formats.common import RawPlane, ScanOptions, clean_token, walk_images
from tilewright.io.formats.tile_files import split_pages

#: Field to the expression of its values; words of a channel may hold spaces and the like.
FIELDS = {
    "cycle": r"\d+",
    "channel": r"[A-Za-z0-9-]+|[^/]+?",
    **dict.fromkeys(("tile", "row", "col", "z"), r"\d+"),
    "region": r"[A-Za-z0-9-]+",
}
_TOKEN = re.compile(r"\{(\w+)(?::[^{}]*)?\}|\*|[^{}*]+|.")
#: CODEX and Keyence: ``Cyc1_reg1/1_00001_Z001_CH1.tif``, in all their spellings. The region is the
#: folder's; where that names none, the number before the tile's.
CODEX = re.compile(
    r"(?i)((data/)?raw/|data/)?cyc0*(?P<cycle>\d+)"
    r"(_reg0*(?P<region>\d+)[^/]*/([^/]*_)?|/(0*(?P<region_of_file>\d+)_|[^/]*_)?)"
    r"0*(?P<tile>\d+)_Z0*(?P<z>\d+)_CH0*(?P<channel>\d+)\.tiff?"
)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the expression of the paths of a pattern; a field that returns has the same value.

    Raises
    ------
    RawDataError
        An unknown field, stray braces, or a row without a col.
    """
    fields: set[str] = set()
    expression = ""
    for match in _TOKEN.finditer(pattern.strip("/")):
        field, text = match[1], match[0]
        if field in fields:
            expression += f"(?P={field})"
        elif field in FIELDS:
            fields.add(field)
            expression += f"(?P<{field}>{FIELDS[field]})"
        elif field or text in "{}":
            raise RawDataError(
                f"acquisition.pattern {pattern!r}: unknown field {text!r}; "
                f"fields: {', '.join(f'{{{name}}}' for name in FIELDS)}"
            )
        else:
            expression += "[^/]*" if text == "*" else re.escape(text)
    if ("row" in fields) != ("col" in fields) or {"tile", "row"} <= fields:
        raise RawDataError(
            f"acquisition.pattern {pattern!r} must hold {{tile}}, or {{row}} and {{col}}, "
            "or none of them where there is one tile"
        )
    return re.compile(expression)


def form_of(text: str) -> str:
    """Return a text with ``#`` for each number."""
    return re.sub(r"\d+", "#", text)


def scan_pattern(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes whose path below ``raw_dir`` fits ``options.pattern``.

    A field that is not in the pattern has one value: one cycle, one channel. Without ``{z}`` the
    pages of a file are its z-planes, or its channels and z-planes by OME-XML or ImageJ.

    Raises
    ------
    RawDataError
        There is no pattern, or :func:`compile_pattern` refuses it.
    """
    if not options.pattern:
        raise RawDataError("acquisition.convention 'pattern' needs the key acquisition.pattern")
    expression = compile_pattern(options.pattern)
    depth = options.pattern.strip("/").count("/")
    return split_pages(planes_by_name(raw_dir, expression, depth))


def scan_codex(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes of CODEX in ``raw_dir``, or in its ``data/raw``, ``raw`` or ``data``."""
    return planes_by_name(raw_dir, CODEX, 3)


def planes_by_name(raw_dir: str, expression: re.Pattern[str], depth: int = 5) -> list[RawPlane]:
    """Return the planes whose path below ``raw_dir`` fits an expression with named fields.

    Fields are those of :class:`~tilewright.io.formats.common.RawPlane`; what is not there is 1,
    and z not known; it is counted from 0, wherever names start.
    """
    planes = []
    for path in walk_images(raw_dir, depth):
        if match := expression.fullmatch(path, len(raw_dir) + 1):
            values = {field: text for field, text in match.groupdict().items() if text is not None}
            planes.append(_plane(values, path))
    first = min((plane.z for plane in planes if plane.z is not None), default=0)
    if not first:
        return planes
    return [plane if plane.z is None else plane._replace(z=plane.z - first) for plane in planes]


def _plane(values: Mapping[str, str], path: str) -> RawPlane:
    """Return the plane of a path by the texts of its fields."""
    tile, row, col, z = (
        int(values[field]) if field in values else None for field in ("tile", "row", "col", "z")
    )
    return RawPlane(
        int(values.get("cycle", 1)),
        clean_token(values.get("channel", "1")),
        z,
        path,
        tile=1 if tile is None and row is None else tile,
        row=row,
        col=col,
        region=values.get("region", values.get("region_of_file", "1")),
    )
