"""The tables of keys: pydantic's JSON schemas of the configuration, in words.

A key's meaning is that under "Attributes" in the docstring of its section, of several keys at once.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from tilewright.config.settings import Section, Settings

_UNITS = {"_px": "px", "_um": "µm", "_deg": "°", "_counts": "counts"}
_ITEMS = {"string": "names"}


def _range(part: dict[str, Any], unit: str) -> str:
    """Return the numbers that a part of a schema allows.

    >>> _range({"minimum": 48, "multipleOf": 12}, "px"), _range({"exclusiveMinimum": 0}, "")
    ('from 48 px, a multiple of 12', 'above 0')
    """
    unit = f" {unit}" if unit else ""
    low, high = part.get("minimum"), part.get("maximum")
    if low is not None and high is not None:
        return f"{low:g} to {high:g}{unit}"
    bounds = (
        f"above {part['exclusiveMinimum']:g}{unit}" if "exclusiveMinimum" in part else "",
        f"from {low:g}{unit}" if low is not None else "",
        f"at most {high:g}{unit}" if high is not None else "",
        f"below {part['exclusiveMaximum']:g}" if "exclusiveMaximum" in part else "",
        f"a multiple of {part['multipleOf']}" if "multipleOf" in part else "",
    )
    return ", ".join(bound for bound in bounds if bound) or "number"


def _part(part: dict[str, Any], unit: str) -> str:
    """Return what one part of a schema allows."""
    if "$ref" in part:
        return "keys as in the default"
    if "enum" in part:
        return ", ".join(literal(value) for value in part["enum"])
    if "const" in part:
        return literal(part["const"])
    kind = part.get("type")
    if kind in ("number", "integer"):
        return _range(part, unit)
    return {
        "null": "`null`",
        "boolean": "`true`, `false`",
        "array": f"list of {_ITEMS.get(part.get('items', {}).get('type'), 'numbers')}",
        "string": "text",
        "object": "table",
    }[str(kind)]


def literal(value: object) -> str:
    """Return a value as one writes it in YAML.

    >>> literal(None), literal(True), literal(5.0), literal("0.4"), literal("auto")
    ('`null`', '`true`', '`5`', '`"0.4"`', '`auto`')
    >>> literal({"cpus": 8, "mem_gb": 48.0})
    '`{cpus: 8, mem_gb: 48}`'
    """
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):
        parts = (f"{key}: {literal(one).strip('`')}" for key, one in value.items())
        return f"`{{{', '.join(parts)}}}`"
    if value is None or isinstance(value, bool):
        return f"`{str(value).lower().replace('none', 'null')}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, tuple):
        return f"`{[*value]}`"
    quoted = isinstance(value, str) and re.fullmatch(r"[\d.]+", value)
    return f'`"{value}"`' if quoted else f"`{value}`"


def rows(section: type[BaseModel], keep: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
    """Return keys, values, default and meaning; of the keys to keep, all without a choice."""
    schema = section.model_json_schema()["properties"]
    meanings = dict(_meanings(section))
    missing = section.model_fields.keys() - {name for names in meanings for name in names}
    if wrong := missing.intersection(keep or section.model_fields):
        raise ValueError(f"say under Attributes what {', '.join(sorted(wrong))} means")
    found = []
    for names, meaning in meanings.items():
        name = names[-1]
        field = section.model_fields[name]
        unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
        parts = schema[name].get("anyOf", [schema[name]])
        default = literal(field.get_default(call_default_factory=True))
        found.append((
            ", ".join(f"`{one}`" for one in names),
            ", ".join(_part(part, unit) for part in parts),
            "needed" if field.is_required() else default,
            meaning,
        ))  # fmt: skip
    return found


def _meanings(section: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the names of keys, and what they mean."""
    listed = (inspect.getdoc(section) or "").partition("Attributes\n----------\n")[2]
    for names, meaning in re.findall(r"^(\S.*)\n((?:    .*\n?)+)", listed, re.M):
        yield tuple(names.split(", ")), " ".join(meaning.split())


def sections() -> dict[str, type[Section]]:
    """Return the sections of the configuration that have keys of their own."""
    kinds = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {n: k for n, k in kinds.items() if isinstance(k, type) and issubclass(k, Section)}


#: Keys at the top of a configuration that are no section.
TOP = tuple(
    name for name in Settings.model_fields if name not in sections() and name != "resources"
)
