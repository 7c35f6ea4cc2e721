"""Quality numbers with a verdict: their meaning and limits, results in words, and locations.

The table of all of them is ``metrics.yaml`` in this folder, which holds what to do about each
reason too.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import yaml

from tilewright.errors import ConfigError
from tilewright.runtime.text import suggestion

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


#: The best is the least.
RANK: dict[Verdict, int] = {verdict: rank for rank, verdict in enumerate(get_args(Verdict))}
#: Reason of a number that compares tiles, where there is a single one.
NOT_APPLICABLE = "not_applicable"
#: Stages whose locations are in the frame of the final image.
REGISTERED = ("register", "subtract")


@dataclass(frozen=True)
class QcResult:
    """One number and its verdict; ``channel`` is empty where it is of the whole cycle.

    ``value`` is ``None`` where the number could not be computed, which is a warning. ``detail``
    says where, or why not; it is part of the sentence.
    """

    sample: str
    cycle: int
    channel: str
    marker: str
    stage: str
    metric: str
    value: float | None
    warn: float | None
    fail: float | None
    direction: Direction
    verdict: Verdict
    reason: str
    sentence: str
    detail: str = ""

    @property
    def name(self) -> str:
        """The marker, or the channel where no marker is given; empty for the whole cycle."""
        return self.marker or self.channel


@dataclass(frozen=True)
class QcContext:
    """A cycle of a sample, or one of its channels, at one stage; and thresholds by metric.

    ``thresholds`` are those of :func:`resolve_thresholds`; ``tiles`` is the number of tiles, where
    it matters.
    """

    sample: str
    cycle: int
    stage: str
    thresholds: Mapping[str, Threshold]
    channel: str = ""
    marker: str = ""
    tiles: int | None = None

    def evaluate(self, metric: str, value: float | None, detail: str = "") -> QcResult:
        """Return a number with its verdict.

        Parameters
        ----------
        metric : str
            A key of ``METRICS``.
        value : float or None
            ``None`` and NaN mean that it could not be computed: the verdict is then ``warn`` with
            the reason ``unknown``, never ``pass``; but for what compares tiles where there is a
            single one: that does not apply.
        detail : str
            Where, or why it could not be computed; added to the sentence.

        Examples
        --------
        >>> context = QcContext("tonsil", 2, "register", resolve_thresholds({}))
        >>> result = context.evaluate("local_error_px", 0.81, "near y 40 px")
        >>> result.verdict, result.sentence.split(":")[1]
        ('warn', ' 0.81 px (near y 40 px), above 0.3 px')
        """
        kind, limits = METRICS[metric], self.thresholds[metric]
        known = None if value is None or math.isnan(value) else float(value)
        if known is None and kind.compares_tiles and self.tiles == 1:
            verdict: Verdict = "pass"
            reason = NOT_APPLICABLE
            sentence = f"{kind.title}: not applicable, there is a single tile."
        elif known is None:
            verdict = "warn"
            reason = "unknown"
            sentence = f"{kind.title} could not be computed" + (f": {detail}." if detail else ".")
        else:
            verdict = limits.verdict(known)
            reason = "" if verdict == "pass" else kind.reason
            sentence = _sentence(kind, known, limits, verdict, detail)
        who = (self.sample, self.cycle, self.channel, self.marker, self.stage)
        limit = (limits.warn, limits.fail, limits.direction)
        return QcResult(*who, metric, known, *limit, verdict, reason, sentence, detail)

    @property
    def name(self) -> str:
        """The marker, or ``channel 1`` where no marker is given."""
        return self.marker or f"channel {self.channel}"


@dataclass(frozen=True)
class ImageLocation:
    """Where a number is worst; stages list theirs as ``places`` in their numbers.

    Attributes
    ----------
    metric : str
        A key of ``METRICS``.
    y_px, x_px : float
        In the frame of the final image for the stages ``REGISTERED``, in that of the cycle's mosaic
        for the others.
    value : float | None
        The number there, in the unit of the metric; ``None`` where it has none of its own.
    """

    metric: str
    y_px: float
    x_px: float
    value: float | None = None


class LocatedIssue(NamedTuple):
    """A location that a stage listed; ``channel`` is empty where it is of the whole cycle."""

    cycle: int
    stage: str
    channel: str
    location: ImageLocation


def located_issues(cycle: int, stage: str, numbers: Mapping[str, Any]) -> Iterator[LocatedIssue]:
    """Yield the locations that a stage listed in its numbers, or in those of its channels."""
    parts = {"": numbers} | {k: v for k, v in numbers.items() if isinstance(v, dict)}
    for channel, part in parts.items():
        for row in part.get("places", []):
            yield LocatedIssue(cycle, stage, channel, ImageLocation(**row))


def resolve_thresholds(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Threshold]:
    """Return the default thresholds with those of ``qc.thresholds`` of a config that was read.

    Raises
    ------
    ConfigError
        A metric is unknown, or ``fail`` would come before ``warn``.

    Examples
    --------
    >>> resolve_thresholds({"contrast": {"warn": 8.0}})["contrast"]
    Threshold(warn=8.0, fail=3.0, direction='below')
    """
    resolved = {name: metric.threshold for name, metric in METRICS.items()}
    for name, values in overrides.items():
        if name not in METRICS:
            hint = suggestion(name, METRICS)
            raise ConfigError(f"qc.thresholds names no metric '{name}'; {hint}")
        resolved[name] = limits = replace(resolved[name], **values)
        warn, fail = limits.warn, limits.fail
        if fail is not None and warn not in (None, fail) and limits.verdict(fail) == "pass":
            raise ConfigError(
                f"qc.thresholds.{name}: fail ({fail}) must lie {limits.direction} warn ({warn})"
            )
    return resolved


def _sentence(kind: Metric, value: float, limits: Threshold, verdict: Verdict, detail: str) -> str:
    where = f" ({detail})" if detail else ""
    text = f"{kind.title}: {kind.format(value)}{where}"
    if verdict == "pass":
        return f"{text}."
    if kind.reason == "unregistered":
        return f"{kind.title}: {kind.bad}{where}."
    limit = limits.fail if verdict == "fail" else limits.warn
    shown = kind.format(limit) if limit is not None else "?"
    return f"{text}, {limits.direction} {shown}: {kind.bad}."


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict; of none it is ``warn``: nothing was evaluated.

    >>> worst(["pass", "fail", "warn"]), worst([])
    ('fail', 'warn')
    """
    return max(verdicts, key=RANK.__getitem__, default="warn")
