"""The count at which a camera saturates, where nobody has said it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Pixels at one and the same largest value that are no chance.
_MIN_PIXELS = 32
#: A tail of bright pixels thins out: its largest value is rarer than the one below. Clipped, it
#: holds all that would lie above; 1 % of saturated pixels are hundreds of times the value below.
_SPIKE = 4


class Top(NamedTuple):
    """The largest value of an image, how many pixels have it, and how many the next lower one."""

    value: float
    pixels: int
    below: int


def top_of(raw: NDArray[Any]) -> Top:
    """Return the top of the histogram of an image of any shape."""
    value = raw.max()
    pixels = int(np.count_nonzero(raw == value))
    if pixels < _MIN_PIXELS or pixels == raw.size:
        return Top(float(value), pixels, 0)
    lower = raw[raw < value].max()
    return Top(float(value), pixels, int(np.count_nonzero(raw == lower)))


def saturation_found(tops: Iterable[Top]) -> float | None:
    """Return the value at which the histogram of all images piles up, None if it does not.

    Only images with at least 32 pixels at their largest value are looked at, and only those at
    the largest value of all; where that is all they show they are constant, not saturated.
    """
    tops = list(tops)
    largest = max((top.value for top in tops), default=0.0)
    piled = [top for top in tops if top.value == largest and top.pixels >= _MIN_PIXELS]
    pixels, below = sum(top.pixels for top in piled), sum(top.below for top in piled)
    return largest if below and pixels > _SPIKE * below else None
