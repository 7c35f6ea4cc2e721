"""Colours of rules, the same in every picture."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Okabe–Ito colours: colour-blind readers can tell them from each other.
BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#8a8f98"
COLOURS = (ORANGE, "#56B4E9", BLUE, RED, "#009E73", "#CC79A7", "#E6D800")
IDLE = "#e9ecf0"


@dataclass(frozen=True)
class Palette:
    """Rules in the order of a legend, and their colours; others come last, in grey."""

    colours: Mapping[str, str]

    def of(self, rule: str) -> str:
        """Return the colour of a rule's bars."""
        return self.colours.get(rule, GREY)

    def rank(self, rule: str) -> tuple[int, str]:
        """Return a rule's place in the legend."""
        known = list(self.colours)
        return (known.index(rule) if rule in known else len(known), rule)


def palette_of(rules: Iterable[str]) -> Palette:
    """Return the colours of the rules of any workflow: bright ones first, then the same paler."""
    shades = [*COLOURS, *map(pale, COLOURS)]
    return Palette(dict(zip(dict.fromkeys(rules), itertools.cycle(shades), strict=False)))


def pale(colour: str) -> str:
    """Return a colour mixed with white.

    >>> pale("#000000")
    '#999999'
    """
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(0.4 * part + 0.6 * 255):02x}" for part in parts)
