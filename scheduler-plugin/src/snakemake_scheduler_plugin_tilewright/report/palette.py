"""Colours of rules, the same in every picture."""

import itertools
from collections.abc import Iterable, Mapping

#: Okabe–Ito colours: colour-blind readers can tell them from each other.
BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#8a8f98"
COLOURS = (ORANGE, "#56B4E9", BLUE, RED, "#009E73", "#CC79A7", "#E6D800")
IDLE = "#e9ecf0"


def colours_of(rules: Iterable[str], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the colours of rules, in the order of a legend.

    Those of any workflow are bright at first, then the same paler. Where a workflow has ``own``
    ones, other rules come last, in grey.
    """
    names = list(dict.fromkeys(rules))
    if own is None:
        shades = itertools.cycle([*COLOURS, *map(pale, COLOURS)])
        return dict(zip(names, shades, strict=False))
    others = sorted(set(names) - own.keys())
    return {name: own[name] for name in own if name in names} | dict.fromkeys(others, GREY)


def pale(colour: str) -> str:
    """Return a colour mixed with white.

    >>> pale("#000000")
    '#999999'
    """
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(0.4 * part + 0.6 * 255):02x}" for part in parts)
