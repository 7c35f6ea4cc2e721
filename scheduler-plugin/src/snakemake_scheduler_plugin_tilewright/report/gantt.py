"""One run on a cluster as a picture in SVG: a lane for each slot, a bar for each try of a job."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from .runs import Run, Try, pools_of

#: Pixels: the width, all lanes together, a lane, the gap between pools, the thinnest bar.
_WIDTH, _LANES, _LOW, _HIGH, _GAP, _THIN = 1100.0, 700.0, 2.1, 16.0, 18.0, 1.5
#: Pixels: right of the bars, a character, a line of the legend.
_RIGHT, _CHARACTER, _LINE = 14.0, 7.5, 20.0
_STEPS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 240, 480, 1440)
_INK, _FAILED = "#1b1f24", ' stroke="#000" stroke-width="1.5"'
#: Tries that overlap by less did not share a slot: times are rounded.
_ROUNDING_S = 0.01


def draw_gantt(run: Run, colours: Mapping[str, str], words: str) -> str:
    """Return a run as an SVG element.

    Parameters
    ----------
    colours : mapping
        Those of the rules, in the order of the legend.
    words : str
        What the picture says, for those who cannot see it.
    """
    ran = [one for one in run.tries if one.start_s is not None]
    ran.sort(key=lambda one: (one.start_s or 0.0, one.end_s, one.job))
    bands = []
    for pool in pools_of([run]):
        own = [one for one in ran if one.pool == pool]
        of_try, slots = lanes(own), run.slots.get(pool, 0)
        label = f"{pool[0]} {pool[1].upper()}"
        bands.append((label, slots, max([1, slots, *(k + 1 for k in of_try)]), own, of_try))
    high = min(_HIGH, max(_LOW, _LANES / max(1, sum(band[2] for band in bands))))
    left = min(300.0, 24 + _CHARACTER * max((len(band[0]) for band in bands), default=0))
    per_s = (_WIDTH - _RIGHT - left) / (run.span_s or 1.0)
    parts, y = [], _GAP / 2
    for label, slots, count, own, of_try in bands:
        parts.append(_text(left - 8, y + high * count / 2 + 4, label, "end"))
        idle = _box(left, y, run.span_s * per_s, high * slots)
        parts.append(f'<path d="{idle}" fill="{IDLE}"/>')
        shapes: dict[tuple[bool, str], list[str]] = {}
        for one, lane in zip(own, of_try, strict=True):
            x = left + per_s * ((one.start_s or 0.0) - run.start_s)
            box = _box(x, y + high * lane, max(_THIN, per_s * one.ran_s), 0.9 * high)
            shapes.setdefault((bool(one.cause), colours[one.rule]), []).append(box)
        for (failed, colour), boxes in sorted(shapes.items()):
            edge = _FAILED if failed else ""
            parts.append(f'<path class="bar" d="{"".join(boxes)}" fill="{colour}"{edge}/>')
        y += high * count + _GAP
    parts += _axis(run.span_s, left, per_s, y)
    rules = {one.rule for one in ran}
    keys = [(rule, f'fill="{colour}"') for rule, colour in colours.items() if rule in rules]
    keys += [("failed", f'fill="#fff"{_FAILED}')] * any(one.cause for one in ran)
    keys += [("free slot", f'fill="{IDLE}"')] * any(run.slots.values())
    legend, height = _legend(keys, y + 44)
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:.0f}" width="{_WIDTH:g}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(words)}" font-size="12" fill="{_INK}">'
        f"{''.join([*parts, *legend])}</svg>"
    )


def lanes(tries: Iterable[Try]) -> list[int]:
    """Return for each try, given by start, the lowest lane that is free from its start on."""
    ends: list[float] = []
    found = []
    for one in tries:
        start_s = (one.start_s or 0.0) + _ROUNDING_S
        lane = next((k for k, end_s in enumerate(ends) if end_s <= start_s), len(ends))
        ends[lane : lane + 1] = [one.end_s]
        found.append(lane)
    return found


def _box(x: float, y: float, wide: float, high: float) -> str:
    return f"M{x:.1f} {y:.1f}h{wide:.1f}v{high:.1f}h-{wide:.1f}z"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _axis(span_s: float, left: float, per_s: float, y: float) -> list[str]:
    """Return a line below the bars with the time from the start of the run."""
    unit_s, unit = (3600.0, "hours") if span_s > 2 * 3600 else (60.0, "minutes")
    if span_s < 120:
        unit_s, unit = 1.0, "seconds"
    step = next((s for s in _STEPS if s * unit_s >= span_s / 10), span_s / unit_s / 10)
    parts = [f'<path d="M{left:.1f} {y:.1f}H{_WIDTH - _RIGHT:.1f}" stroke="{_INK}"/>']
    for k in range(int(span_s / (step * unit_s)) + 1):
        x = left + per_s * k * step * unit_s
        parts.append(f'<path d="M{x:.1f} {y:.1f}v4" stroke="{_INK}"/>')
        parts.append(_text(x, y + 16, f"{k * step:g}", "middle"))
    return [*parts, _text((left + _WIDTH) / 2, y + 32, f"{unit} from the start", "middle")]


def _legend(keys: Sequence[tuple[str, str]], y: float) -> tuple[list[str], float]:
    """Return the colours with their names, and where the picture ends."""
    parts, x = [], 14.0
    for name, style in keys:
        width = 40 + _CHARACTER * len(name)
        if x + width > _WIDTH and x > 14:
            x, y = 14.0, y + _LINE
        parts += [f'<path d="{_box(x, y, 14, 10)}" {style}/>', _text(x + 20, y + 10, name)]
        x += width
    return parts, y + _LINE


#: Okabe–Ito colours: colour-blind readers can tell them from each other.
_COLOURS = ("#E69F00", "#56B4E9", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E6D800")
IDLE = "#e9ecf0"


def colours_of(rules: Iterable[str]) -> dict[str, str]:
    """Return the colours of rules, in the order of a legend: bright ones, then the same paler."""
    shades = itertools.cycle([*_COLOURS, *map(_pale, _COLOURS)])
    return dict(zip(dict.fromkeys(rules), shades, strict=False))


def _pale(colour: str) -> str:
    """Return a colour mixed with white."""
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(0.4 * part + 0.6 * 255):02x}" for part in parts)
