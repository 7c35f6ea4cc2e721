"""Every quality number with a verdict: its name, its meaning when bad, its default limits.

The table is ``metrics.yaml`` in this folder, which holds what to do about each reason too.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import yaml

Verdict = Literal["pass", "warn", "fail"]
Direction = Literal["above", "below"]


@dataclass(frozen=True)
class Threshold:
    """Where a number turns to ``warn`` and to ``fail``; ``None`` never does.

    ``direction`` says on which side of the limit the number is bad.
    """

    warn: float | None
    fail: float | None
    direction: Direction

    def verdict(self, value: float) -> Verdict:
        """Return the verdict of a finite number; the limit itself is still good.

        >>> Threshold(1.0, 2.0, "above").verdict(1.0), Threshold(1.0, 2.0, "above").verdict(2.5)
        ('pass', 'fail')
        """
        sign = 1 if self.direction == "above" else -1
        if self.fail is not None and sign * value > sign * self.fail:
            return "fail"
        return "warn" if self.warn is not None and sign * value > sign * self.warn else "pass"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A quality number: what it is called, and what it means when it is bad.

    Attributes
    ----------
    title : str
        Name in tables.
    what : str
        What the number is, in Markdown: ``docs/quality.md`` is written from it.
    reason : str
        Code of a verdict that is not ``pass``: a key of :data:`REASONS`.
    bad : str
        What a bad value means and what to do; ends the sentence.
    threshold : Threshold
        Default limits.
    stages : tuple[str, ...]
        The stages that measure it.
    unit : str
        ``%`` prints a share as percent.
    compares_tiles : bool
        Whether it compares tiles with each other: it does not apply to a single one.
    """

    title: str
    what: str
    reason: str
    bad: str
    threshold: Threshold
    stages: tuple[str, ...]
    unit: str = ""
    compares_tiles: bool = False

    def format(self, value: float) -> str:
        """Return a value with its unit, three significant digits and no power of ten.

        >>> METRICS["tile_brightness"].format(19.04), METRICS["contrast"].format(0.0123)
        ('1900 %', '0.0123')
        """
        number = 100 * value if self.unit == "%" else value
        digits = np.format_float_positional(number, precision=3, fractional=False, trim="-")
        return f"{digits} {self.unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Reason:
    """What a verdict that is not ``pass`` gives as its reason.

    Attributes
    ----------
    remedy : str
        What to look at and to try, in Markdown.
    title : str
        Heading on the page; the code in words where the table gives none.
    """

    remedy: str
    title: str


# Every quality job reads it: 5 ms of CPU time, 30 with PyYAML's own parser.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TABLE = yaml.load(Path(__file__).with_name("metrics.yaml").read_bytes(), _LOADER)
#: Every number with a verdict, by name. The defaults of ``qc.thresholds``.
METRICS = {
    name: Metric(
        **row | {"threshold": Threshold(**row["threshold"]), "stages": tuple(row["stages"])}
    )
    for name, row in _TABLE["metrics"].items()
}
#: Every reason, by its code.
REASONS = {
    code: Reason(**{"title": code.replace("_", " ").capitalize()} | row)
    for code, row in _TABLE["reasons"].items()
}
