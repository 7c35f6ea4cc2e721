"""Means and linear interpolation of images on the device, by whole factors."""

from typing import Any

import numpy as np

from tilewright.kernels.backend import Array


def mean_2x2(values: Array) -> Array:
    """Return means over 2 × 2 pixels of the last two axes."""
    rows = values[..., ::2, :] + values[..., 1::2, :]
    return np.float32(0.25) * (rows[..., ::2] + rows[..., 1::2])


def downsample_mean(image: Array) -> Array:
    """Return means of 8 × 8 pixels of an image (y, x) of multiples of 8.

    >>> downsample_mean(np.arange(64, dtype=np.float32).reshape(8, 8))
    array([[31.5]], dtype=float32)
    """
    for _ in range(3):
        image = mean_2x2(image)
    return image


def upsample_linear(xp: Any, values: Array, factor: int) -> Array:
    """Interpolate the last two axes linearly onto ``factor`` times as many pixels; rims repeat."""
    for axis in (-1, -2):
        last = values.shape[axis] - 1
        before = np.maximum(np.arange(-1, last), 0)
        after = np.minimum(np.arange(1, last + 2), last)
        sides = [xp.take(values, xp.asarray(at), axis=axis) for at in (before, after)]
        shape = [*values.shape]
        shape[axis] *= factor
        out = xp.empty(shape, dtype=values.dtype)
        for step in range(factor):
            offset = (step + 0.5) / factor - 0.5
            share = np.float32(abs(offset))
            index: list[Any] = [slice(None)] * values.ndim
            index[axis] = slice(step, None, factor)
            out[tuple(index)] = (1 - share) * values + share * sides[int(offset > 0)]
        values = out
    return values
