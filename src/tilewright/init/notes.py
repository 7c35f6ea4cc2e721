"""What ``tilewright init`` says of a raw folder: facts, doubts, questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.io.formats.common import natural_key
from tilewright.runtime.text import few


@dataclass
class Notes:
    """Sentences on the raw data.

    Attributes
    ----------
    findings : list[str]
        What the data are.
    warnings : list[str]
        What may be wrong.
    unknown : list[str]
        What is to be filled in, each with its place.
    """

    findings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def seen(self) -> list[str]:
        """Return findings and warnings, which say that they are."""
        return [*self.findings, *(f"warning: {warning}" for warning in self.warnings)]


def rows_text(rows: Sequence[int]) -> str:
    """Return rows of a file in words.

    >>> rows_text([2]), rows_text([2, 3, 5])
    ('row 2', 'rows 2 to 5')
    """
    first, last = min(rows), max(rows)
    return f"row {first}" if first == last else f"rows {first} to {last}"


def values_text(values: Sequence[str]) -> str:
    """Return values as a range of numbers, or the first of some words."""
    distinct = sorted(set(values), key=natural_key)
    if all(value.isdecimal() for value in distinct) and len(distinct) > 2:
        return f"{distinct[0]} … {distinct[-1]}"
    return few(distinct, 6)
