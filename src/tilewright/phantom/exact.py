"""Arithmetic with the same bits on every x86 CPU.

IEEE 754 rounds ``+ - * /`` and the square root correctly, and NumPy fuses none of them, so
they agree everywhere. Exponentials, powers, sines and matrix products do not: their last bits
depend on the instructions that the CPU has (AVX2, AVX-512, FMA). The phantom takes these of few
numbers, in float64, and settles them on a coarse binary grid; images are looked up from tables
of settled values. A settled number differs between two CPUs with a probability of about
``2**bits`` times 1e-16.

Shot and read noise come from inverse distribution functions, one random word per pixel and noise:
rejection, as in ``Generator.poisson``, shifts the whole stream when the last bit of one pixel's
light differs, and 18 % of a cycle's pixels change.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

Image = NDArray[np.float32]
Words = NDArray[np.uint32]
#: Below this mean a Poisson number is looked up; the expansion is wrong for 0.6 % of the words
#: there and moves the variance by 0.04 %, less above.
_SMALL_MEAN = 4
_STEPS_PER_ELECTRON = 64
#: A float's bits are even in its logarithm. These are the exponent of the smallest tail, 2**-33,
#: and the bits left out: 2048 knots for each halving of the tail.
_FIRST_BITS = int(np.float32(0.5).view(np.int32))
_DROPPED_BITS = 12


def settled(values: ArrayLike, bits: int) -> NDArray[np.float64]:
    """Round to multiples of ``2**-bits``, in float64.

    >>> float(settled(0.3, 4))
    0.3125
    """
    return np.asarray(np.rint(np.asarray(values, np.float64) * 2.0**bits) / 2.0**bits)


def cos_sin(angle: ArrayLike, bits: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return cosine and sine of an angle in radians, settled."""
    return settled(np.cos(angle), bits), settled(np.sin(angle), bits)


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
gaussian = Table(lambda x: np.exp(-0.5 * x**2), -7, 7, 2.0**-7)


@cache
def _normal_tails() -> Image:
    """Return the normal quantile of tails from 2**-33 to 1/2, even in their logarithm."""
    last = int(np.float32(2.0**31).view(np.int32))
    middles = np.arange(_FIRST_BITS, last, 1 << _DROPPED_BITS) + (1 << _DROPPED_BITS) // 2
    tails = middles.astype(np.int32).view(np.float32) / 2.0**32
    return np.append(settled(ndtri(tails), 16), 0).astype(np.float32)


@cache
def _small_means() -> Words:
    """Return P(N <= k) in units of 2**-32, (k, mean), for means 0 to 4 electrons."""
    mean = np.arange(_SMALL_MEAN * _STEPS_PER_ELECTRON + 1) / _STEPS_PER_ELECTRON
    term = np.exp(-mean)
    below = [term]
    for k in range(1, 24):
        term = term * mean / k
        below.append(below[-1] + term)
    return np.asarray(np.clip(np.rint(np.stack(below) * 2.0**32), 0, 2**32 - 1), np.uint32)


def normal(words: Words) -> Image:
    """Return the standard normal quantile of ``words / 2**32``, to 5e-4."""
    # All ones in the upper half, which counts from above so that both tails are as fine.
    upper = (words.view(np.int32) >> 31).view(np.uint32)
    tail = (words ^ upper).view(np.int32).astype(np.float32) + np.float32(0.5)
    quantile = _normal_tails()[(tail.view(np.int32) - _FIRST_BITS) >> _DROPPED_BITS]
    signed = quantile.view(np.uint32) ^ (upper & np.uint32(1 << 31))
    return np.asarray(signed.view(np.float32))


def poisson(words: Words, mean: Image) -> Image:
    """Return the Poisson quantile of ``words / 2**32`` for each mean, whole numbers.

    The expansion of the inverse incomplete gamma function in the normal quantile, of Giles,
    Algorithm 955, ACM Trans. Math. Softw. 42 (2016) 7, equation 6; exact sums below 4.
    """
    w = normal(words)
    root = np.sqrt(np.maximum(mean, _SMALL_MEAN))
    square = w * w
    number = mean + root * w
    number += np.float32(1 / 3) + square * np.float32(1 / 6)
    number -= w * (np.float32(1 / 36) + square * np.float32(1 / 72)) / root
    number = np.maximum(np.floor(number), 0)
    few = mean < _SMALL_MEAN
    if few.any():
        at = np.rint(mean[few] * np.float32(_STEPS_PER_ELECTRON)).astype(np.intp)
        drawn = words[few]
        number[few] = sum((drawn >= row[at]).astype(np.float32) for row in _small_means())
    return np.asarray(number, np.float32)
