"""Arithmetic that gives the same bits on every x86 CPU.

IEEE 754 rounds ``+ - * /`` and the square root correctly, and NumPy fuses none of them, so
they agree everywhere. Exponentials, powers, sines and matrix products do not: their last bits
depend on the instructions that the CPU has (AVX2, AVX-512, FMA). The phantom takes these of few
numbers, in float64, and settles them on a coarse binary grid; images are looked up from tables
of settled values. A settled number differs between two CPUs with a probability of about
``2**bits`` times 1e-16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Image = NDArray[np.float32]


def settled(values: ArrayLike, bits: int) -> NDArray[np.float64]:
    """Round to multiples of ``2**-bits``, in float64.

    >>> float(settled(0.3, 4))
    0.3125
    """
    return np.asarray(np.rint(np.asarray(values, np.float64) * 2.0**bits) / 2.0**bits)


class Table:
    """A smooth function of absolute value up to 1, interpolated linearly between its knots.

    Parameters
    ----------
    function : callable
        Float64 array to float64 array.
    low, high : float
        Arguments beyond are taken as these.
    step : float
        Distance of the knots, a power of 2.
    """

    def __init__(
        self, function: Callable[[NDArray[np.float64]], Any], low: float, high: float, step: float
    ) -> None:
        knots = np.arange(low, high + 1.5 * step, step)
        values = settled(function(knots), 20)
        self._values = values.astype(np.float32)[:-1]
        self._slopes = np.diff(values).astype(np.float32)
        self._low, self._high = np.float32(low), np.float32(high)
        self._step = np.float32(step)

    def __call__(self, x: Image) -> Image:
        """Return the function of each element, float32."""
        at = (np.clip(x, self._low, self._high) - self._low) / self._step
        index = at.astype(np.intp)
        at -= index
        at *= self._slopes[index]
        at += self._values[index]
        return np.asarray(at, np.float32)


#: 1 / (1 + exp(-x)); wrong by 2e-5 at most.
sigmoid = Table(lambda x: 1 / (1 + np.exp(-x)), -20, 20, 2.0**-5)
#: exp(-x² / 2); wrong by 1e-5 at most.
bell = Table(lambda x: np.exp(-0.5 * x**2), -7, 7, 2.0**-7)
