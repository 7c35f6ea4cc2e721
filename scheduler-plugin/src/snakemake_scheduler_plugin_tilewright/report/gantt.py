"""Runs on a cluster as a picture in SVG: pools as bands, their slots as lanes, jobs as bars."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from snakemake_scheduler_plugin_tilewright.report.palette import IDLE, Palette
from snakemake_scheduler_plugin_tilewright.report.runs import (
    ClusterRun,
    JobBar,
    Use,
    lanes,
    percent,
)

#: Pixels: the picture, all slots together, the jobs above them and the least height of a pool.
_WIDTH, _SLOTS, _ABOVE, _BAND, _GAP = 1100.0, 715.0, 99.0, 40.0, 14.0
#: Pixels: the lowest and highest lane, those that touch, and the thinnest bar.
_LOW, _HIGH, _TOUCH, _THIN = 2.1, 16.5, 5.5, 1.3
#: Pixels: right of the bars, a character of the labels, a line of the legend.
_RIGHT, _CHARACTER, _LINE = 14.0, 7.5, 20.0
#: Share of the width between two runs, and of the shortest bar.
_PAUSE, _SHORTEST = 0.04, 0.0015
#: Bars that no longer get a white border.
_MANY = 600
_STEPS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 240, 480, 1440)
_INK = "#1b1f24"
_HATCH = (
    '<defs><pattern id="gantt-failed" width="5" height="5" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M0 0v5" stroke="#000" stroke-width="1.6"/></pattern>'
    "</defs>"
)


@dataclass(frozen=True)
class _Band:
    """Lanes of a pool; all heights in pixels.

    ``foot`` is its lower edge, ``lane`` and ``above`` the height of a lane of its ``slots`` and of
    one above them.
    """

    use: Use
    foot: float
    lane: float
    above: float
    slots: int
    lanes: int
    of_bar: dict[JobBar, int]

    def at(self, lane: int) -> float:
        """Return the lower edge of a lane."""
        return (
            self.foot - self.lane * min(lane, self.slots) - self.above * max(0, lane - self.slots)
        )


class _Times:
    """Where on the picture a time of a run is: runs one after the other, the rest is cut out."""

    def __init__(self, runs: Sequence[ClusterRun], left: float) -> None:
        self.left = left
        self.total_s = sum(run.span_s for run in runs) or 1.0
        self.pause_s = _PAUSE * self.total_s
        starts = itertools.accumulate((run.span_s + self.pause_s for run in runs), initial=0.0)
        self.starts = dict(zip((run.number for run in runs), starts, strict=False))
        span_s = self.starts[runs[-1].number] + runs[-1].span_s
        self.per_s = (_WIDTH - _RIGHT - left) / (span_s or 1.0)

    def x(self, run: ClusterRun, after_s: float) -> float:
        """Return the place of a time after the start of a run."""
        return self.left + self.per_s * (self.starts[run.number] + after_s)


def draw_gantt(
    runs: Sequence[ClusterRun], uses: Sequence[Use], palette: Palette, words: str
) -> str:
    """Return runs as an SVG element, one after the other; the time between them is cut out.

    Parameters
    ----------
    runs : sequence of ClusterRun
        In the order of time.
    uses : sequence of Use
        The pools in the order of the bands.
    words : str
        What the picture says, for those who cannot see it.
    """
    bands = _bands(runs, uses)
    foot = bands[-1].foot + _GAP / 2
    longest = max(len(line) for band in bands for line in _label(band.use))
    times = _Times(runs, min(300.0, 14 + _CHARACTER * longest))
    rules = sorted({bar.rule for run in runs for bar in run.bars}, key=palette.rank)
    failed = any(bar.failed for run in runs for bar in run.bars)
    parts = [_HATCH]
    for run, band in itertools.product(runs, bands):
        parts += _slots(band, run, times)
        parts += _bars(band, run, times, palette)
    parts += _axis(runs, times, foot)
    for band in bands:
        middle = (band.foot + band.at(band.lanes)) / 2
        for line, text in enumerate(_label(band.use)):
            parts.append(_text(times.left - 8, middle - 3 + 13 * line, text, "end"))
    legend, height = _legend(rules, bands, palette, failed, foot + 44)
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:.0f}" width="{_WIDTH:g}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(words)}" font-size="12" fill="{_INK}">'
        f"{''.join([*parts, *legend])}</svg>"
    )


def _bands(runs: Sequence[ClusterRun], uses: Sequence[Use]) -> list[_Band]:
    """Return the bands from top to bottom; jobs beside the slots lie above them, however many."""
    placed: list[tuple[Use, dict[JobBar, int], int, int]] = []
    for use in uses:
        bars = [bar for run in runs for bar in run.bars if bar.pool == use.pool.name]
        of_bar = dict(zip(bars, lanes(bars), strict=True))
        slots = max(1, use.pool.slots)
        placed.append((use, of_bar, slots, max([slots, *(k + 1 for k in of_bar.values())])))
    total = sum(slots for _, _, slots, _ in placed)
    lane = min(max(_SLOTS / total, _LOW), _HIGH)
    found: list[_Band] = []
    y = _GAP
    for use, of_bar, slots, count in placed:
        above = min(lane, _ABOVE / max(1, count - slots))
        stretch = max(1.0, _BAND / (lane * slots + above * (count - slots)))
        height = stretch * (lane * slots + above * (count - slots))
        found.append(_Band(use, y + height, lane * stretch, above * stretch, slots, count, of_bar))
        y += height + _GAP
    return found


def _slots(band: _Band, run: ClusterRun, times: _Times) -> Iterator[str]:
    """Yield the slots that a pool had in a run, shaded, with a line on top."""
    pool = run.pools.get(band.use.pool.name)
    if pool is None or not pool.slots:
        return
    left, right, head = times.x(run, 0), times.x(run, run.span_s), band.at(pool.slots)
    yield f'<path d="{_box(left, right, head, band.foot)}" fill="{IDLE}"/>'
    if band.lane > _TOUCH:
        lines = "".join(f"M{left:.1f} {band.at(k):.1f}H{right:.1f}" for k in range(1, pool.slots))
        yield f'<path d="{lines}" stroke="#fff" stroke-width=".9"/>'
    yield f'<path d="M{left:.1f} {head:.1f}H{right:.1f}" stroke="{_INK}"/>'


def _bars(band: _Band, run: ClusterRun, times: _Times, palette: Palette) -> Iterator[str]:
    """Yield the bars of each rule in one path; what failed over the others."""
    apart = band.lane > _TOUCH and len(run.bars) < _MANY
    shapes: dict[tuple[bool, str], list[str]] = {}
    for bar in run.bars:
        if bar.pool != band.use.pool.name:
            continue
        lane = band.of_bar[bar]
        foot, head = band.at(lane), band.at(lane + 1)
        inset = 0.08 * (foot - head) * apart
        left = times.x(run, bar.start_s - run.start_s)
        least = max(_SHORTEST * times.total_s * times.per_s, _THIN)
        right = max(times.x(run, bar.end_s - run.start_s), left + least)
        box = _box(left, right, min(head + inset, foot - inset - _THIN), foot - inset)
        shapes.setdefault((bar.failed, palette.of(bar.rule)), []).append(box)
    for (failed, colour), boxes in sorted(shapes.items()):
        path = "".join(boxes)
        edge = ' stroke="#fff" stroke-width=".5"' if apart and not failed else ""
        yield f'<path class="bar" d="{path}" fill="{colour}"{edge}/>'
        if failed:
            yield f'<path d="{path}" fill="url(#gantt-failed)" stroke="#000" stroke-width=".8"/>'


def _box(left: float, right: float, top: float, foot: float) -> str:
    wide, high = right - left, foot - top
    return f"M{left:.1f} {top:.1f}h{wide:.1f}v{high:.1f}h-{wide:.1f}z"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _axis(runs: Sequence[ClusterRun], times: _Times, foot: float) -> Iterator[str]:
    """Label the time from the start of each run; two strokes mark what is cut out between."""
    unit_s, unit, step_s = time_step(times.total_s)
    yield f'<path d="M{times.left:.1f} {foot:.1f}H{_WIDTH - _RIGHT:.1f}" stroke="{_INK}"/>'
    for run in runs:
        for k in range(int(run.span_s / step_s) + 1):
            x = times.x(run, k * step_s)
            yield f'<path d="M{x:.1f} {foot:.1f}v4" stroke="{_INK}"/>'
            yield _text(x, foot + 16, f"{k * step_s / unit_s:g}", "middle")
        if len(runs) > 1:
            yield _text(times.x(run, 0), 11, f"run {run.number}")
        if run is not runs[0]:
            yield _text(times.x(run, -times.pause_s / 2), foot + 4, "//", "middle")
    which = "each run" if len(runs) > 1 else "the run"
    yield _text((times.left + _WIDTH) / 2, foot + 32, f"{unit} from the start of {which}", "middle")


def time_step(total_s: float) -> tuple[float, str, float]:
    """Return the unit of a time axis in seconds and by name, and the seconds between its ticks."""
    unit_s, unit = (3600.0, "hours") if total_s > 2 * 3600 else (60.0, "minutes")
    if total_s < 120:
        unit_s, unit = 1.0, "seconds"
    step = next((s for s in _STEPS if s * unit_s >= total_s / 10), total_s / unit_s / 10)
    return unit_s, unit, step * unit_s


def _label(use: Use) -> tuple[str, str]:
    kind = use.pool.kind.upper()
    if use.utilisation is None:
        return f"{use.pool.account} {kind}", "no slots"
    slots = f"{use.pool.slots} slot{'s' * (use.pool.slots != 1)}"
    return f"{use.pool.account} {kind}", f"{slots}, {percent(use.utilisation)} busy"


def _legend(
    rules: Iterable[str], bands: Sequence[_Band], palette: Palette, failed: bool, y: float
) -> tuple[list[str], float]:
    """Return the key of the colours and of what else is drawn, and where the picture ends."""
    box = '<path d="M{x:.1f} {y:.1f}h14v10h-14z" {style}/>'
    entries = [(rule, box, f'fill="{palette.of(rule)}"') for rule in rules]
    if failed:
        entries.append(("failed or cancelled", box, 'fill="url(#gantt-failed)" stroke="#000"'))
    entries.append(("idle slot", box, f'fill="{IDLE}"'))
    if any(band.lanes > max(1, band.use.pool.slots) for band in bands):
        line = '<path d="M{x:.1f} {y:.1f}m0 5h14" {style}/>'
        words = "number of slots; jobs above it fitted in beside them"
        entries.append((words, line, f'stroke="{_INK}"'))
    parts, x = [], 14.0
    for text, shape, style in entries:
        width = 40 + _CHARACTER * len(text)
        if x + width > _WIDTH and x > 14:
            x, y = 14.0, y + _LINE
        parts += [shape.format(x=x, y=y, style=style), _text(x + 20, y + 10, text)]
        x += width
    return parts, y + _LINE
