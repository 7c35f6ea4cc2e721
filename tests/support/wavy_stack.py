"""Stacks of a wavy sheet of tissue with its true in-focus projection."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

PLANES, SIZE, PEDESTAL = 9, 192, 100.0


@lru_cache(maxsize=8)
def _wavy(seed: int) -> tuple[NDArray[np.uint16], NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    spots = ndimage.gaussian_filter((rng.random((SIZE, SIZE)) < 0.01).astype(float), 3)
    texture = ndimage.gaussian_filter(rng.standard_normal((SIZE, SIZE)), 1)
    sheet = 4e4 * spots * np.clip(1 + 2 * texture, 0, None)
    height = 4 + 2.5 * np.sin(2 * np.pi * np.arange(SIZE) / SIZE + 0.3)[:, None] * np.ones(SIZE)
    stack = np.zeros((PLANES, SIZE, SIZE))
    step = 0.25
    for level in np.arange(0, PLANES, step) + step / 2:
        part = sheet * (np.abs(height - level) <= step / 2)
        for z in range(PLANES):
            stack[z] += ndimage.gaussian_filter(part, np.hypot(0.8, 1.1 * (z - level)), truncate=6)
    noisy = rng.poisson(stack) + rng.normal(PEDESTAL, 2, stack.shape)
    counts = np.clip(np.rint(noisy), 0, 65535).astype(np.uint16)
    return counts, np.asarray(ndimage.gaussian_filter(sheet, 0.8)), height


def wavy(seed: int) -> tuple[NDArray[np.uint16], NDArray[np.float64], NDArray[np.float64]]:
    """Return a stack, the same sheet in focus everywhere, and its height in planes.

    Every plane holds the same light: defocus is a Gaussian of 1.1 px per plane.
    """
    stack, truth, height = _wavy(seed)
    return stack.copy(), truth, height


def psnr(image: Any, truth: NDArray[Any]) -> float:
    """Return the PSNR after an affine fit; the peak is the truth's 99.9th percentile."""
    image = np.asarray(image, float)
    error = np.polyval(np.polyfit(image.ravel(), truth.ravel(), 1), image) - truth
    return float(10 * np.log10(np.percentile(truth, 99.9) ** 2 / np.mean(error**2)))
