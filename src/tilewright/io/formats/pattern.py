"""A file pattern such as ``cycle{cycle}/tile_{tile}_z{z}_ch{channel}.tif``."""

import re
from typing import Any

from tilewright.errors import RawDataError
from tilewright.io.formats.common import (
    RawPlane,
    ScanOptions,
    clean_token,
    list_folder,
    rebase_z,
    split_hyperstacks,
)

#: Field to the expression of its values; words of a channel may hold spaces and the like.
FIELDS = {
    "cycle": r"\d+",
    "channel": r"[A-Za-z0-9-]+|[^/]+?",
    **dict.fromkeys(("tile", "row", "col", "z"), r"\d+"),
    "region": r"[A-Za-z0-9-]+",
}
_TOKEN = re.compile(r"\{(\w+)(?::[^{}]*)?\}|\*|[^{}*]+|.")


def compile_pattern(pattern: str) -> list[re.Pattern[str]]:
    """Return one regular expression per folder level of a pattern."""
    fields = re.findall(r"\{(\w+)", pattern)
    if ("row" in fields) != ("col" in fields) or {"tile", "row"} <= set(fields):
        raise RawDataError(
            f"acquisition.pattern {pattern!r} must hold {{tile}}, or {{row}} and {{col}}, "
            "or none of them where there is one tile"
        )
    return [_compile_level(level, pattern) for level in pattern.strip("/").split("/")]


def _compile_level(level: str, pattern: str) -> re.Pattern[str]:
    """Return the expression of a level; a field that returns must have the same value."""
    fields: set[str] = set()
    expression = ""
    for match in _TOKEN.finditer(level):
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
    return re.compile(expression + r"\Z")


def scan(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes whose path below ``raw_dir`` fits ``options.pattern``.

    A field that is not in the pattern has one value: one cycle, one channel. Without ``{z}`` the
    pages of a file are its z-planes, those of an ImageJ hyperstack its channels and z-planes.

    Raises
    ------
    RawDataError
        No pattern, or one with an unknown field, stray braces, or a row without a col.
    """
    if not options.pattern:
        raise RawDataError("acquisition.convention 'pattern' needs the key acquisition.pattern")
    planes: list[RawPlane] = []
    _descend(raw_dir, compile_pattern(options.pattern), {}, planes)
    return rebase_z(split_hyperstacks(planes))


def _descend(
    folder: str, levels: list[re.Pattern[str]], values: dict[str, str], planes: list[RawPlane]
) -> None:
    folders, images = list_folder(folder)
    for name in images if len(levels) == 1 else folders:
        match = levels[0].match(name)
        if match is None:
            continue
        level_values = match.groupdict()
        # A field of a folder that the file name repeats must have the same value.
        if any(values.get(field, value) != value for field, value in level_values.items()):
            continue
        if len(levels) > 1:
            _descend(f"{folder}/{name}", levels[1:], {**values, **level_values}, planes)
        else:
            planes.append(_plane({**values, **level_values}, f"{folder}/{name}"))


def _plane(values: dict[str, str], path: str) -> RawPlane:
    numbers: dict[str, Any] = {
        field: int(values[field]) for field in ("z", "tile", "row", "col") if field in values
    }
    if "row" not in numbers:
        numbers.setdefault("tile", 1)
    return RawPlane(
        cycle=int(values.get("cycle", 1)),
        channel=clean_token(values.get("channel", "1")),
        z=numbers.pop("z", None),
        path=path,
        region=values.get("region", "1"),
        **numbers,
    )
