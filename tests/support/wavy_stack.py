"""Stacks of a wavy sheet of tissue with its true in-focus projection."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

PLANES, SIZE, PEDESTAL = 9, 192, 100.0


@lru_cache(maxsize=8)
def _wavy(
    seed: int, size: int = SIZE
) -> tuple[NDArray[np.uint16], NDArray[np.float64], NDArray[np.float64]]:
    """Return a stack, the same sheet in focus everywhere, and its height in planes.

    Every plane holds the same light: defocus is a Gaussian of 1.1 px per plane.
    """
    rng = np.random.default_rng(seed)
    spots = ndimage.gaussian_filter((rng.random((size, size)) < 0.01).astype(float), 3)
    texture = np.clip(
        1 + 2 * ndimage.gaussian_filter(rng.standard_normal((size, size)), 1), 0, None
    )
    sheet = 4e4 * spots * texture
    rows = np.arange(size) / size
    height = 4 + 2.5 * np.sin(2 * np.pi * rows + 0.3)[:, None] * np.ones(size)
    stack = np.zeros((PLANES, size, size))
    step = 0.25
    for level in np.arange(0, PLANES, step):
        part = sheet * (np.abs(height - level - step / 2) <= step / 2)
        for z in range(PLANES):
            sigma = np.hypot(0.8, 1.1 * (z - level - step / 2))
            stack[z] += ndimage.gaussian_filter(part, sigma, truncate=6)
    noisy = rng.poisson(stack) + rng.normal(PEDESTAL, 2, stack.shape)
    counts = np.clip(np.rint(noisy), 0, 65535).astype(np.uint16)
    return counts, np.asarray(ndimage.gaussian_filter(sheet, 0.8)), height


def psnr(image: NDArray[Any], truth: NDArray[np.float64]) -> float:
    """Return the PSNR after an affine fit; the peak is the truth's 99.9th percentile."""
    fit = np.polyfit(image.ravel().astype(float), truth.ravel(), 1)
    error = np.polyval(fit, image.astype(float)) - truth
    return float(10 * np.log10(np.percentile(truth, 99.9) ** 2 / np.mean(error**2)))


def wavy(seed: int) -> tuple[NDArray[np.uint16], NDArray[np.float64], NDArray[np.float64]]:
    stack, truth, height = _wavy(seed)
    return stack.copy(), truth, height
