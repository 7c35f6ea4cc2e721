"""The JSON that each quality stage writes for one cycle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.report.verdict import Item, worst


@dataclass(frozen=True)
class Quality:
    """What one quality stage found in one cycle.

    Attributes
    ----------
    sample, cycle, stage
        What was looked at.
    items : tuple of Item
        Judged numbers.
    numbers : dict
        Further numbers, not judged.
    caption : str
        What its picture shows; also the alternative text.
    """

    sample: str
    cycle: int
    stage: str
    items: tuple[Item, ...]
    numbers: dict[str, Any]
    caption: str


def _plain(value: Any) -> Any:
    """Return JSON values: numbers rounded to six digits, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def write_quality(path: Path, quality: Quality) -> None:
    """Write whole or not at all."""
    content = {
        "sample": quality.sample,
        "cycle": quality.cycle,
        "stage": quality.stage,
        "verdict": worst(item.verdict for item in quality.items),
        "caption": quality.caption,
        "items": [item.as_dict() for item in quality.items],
        "numbers": quality.numbers,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    text = json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def read_quality(path: Path) -> Quality:
    """Read what :func:`write_quality` wrote.

    Raises
    ------
    ValueError
        The file is not a quality file; the message names it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        items = tuple(Item(**item) for item in content["items"])
        keys = ("sample", "cycle", "stage", "numbers", "caption")
        return Quality(items=items, **{key: content[key] for key in keys})
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a quality file of tilewright ({error}); remove it and run again"
        ) from error
