"""Blocks of a registered cycle beside the reference: how far they agree, what shift is left."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.metrics import ncc
from tilewright.kernels.register.warp import Region, Transform, source_region, warp
from tilewright.report.quality.places import CPU

#: Side of a block.
SIDE_PX = 256
#: A place whose texture has less than this share of the usual energy has lost its tissue: that is
#: for ``lost_tissue`` to say, and no mismatch.
_LOST_ENERGY = 0.1
#: The energy is a mean over so many px.
_LOST_PX = 12.0
#: The pixels of a block that a shift is measured on, and their neighbours on either side.
_INNER, _NEXT, _LAST = slice(12, -12), slice(13, -11), slice(11, -13)
Image = NDArray[np.float32]


@dataclass(frozen=True)
class BlockView:
    """One block (y, x) of the reference, and of the cycle before and after resampling.

    ``shift_px`` is what is still left between them.
    """

    at: tuple[int, int]
    reference: NDArray[np.float32]
    before: NDArray[np.float32]
    after: NDArray[np.float32]
    ncc_before: float
    ncc_after: float
    shift_px: tuple[float, float]


def compare_blocks(
    fixed: Mosaic, other: Mosaic, transform: Transform, blocks: list[tuple[int, int]]
) -> list[BlockView]:
    """Compare blocks of the reference with the cycle, before and after resampling it.

    Blocks that the cycle does not cover, or where it has lost its tissue, are left out.
    """
    found, shares = [], []
    for y, x in blocks:
        images = _images(fixed, other, transform, (y, x))
        if images is None:
            continue
        reference, before, after = map(_Texture.of, images)
        worse, better = (_texture_ncc(reference, image) for image in (before, after))
        found.append(BlockView((y, x), *images, worse, better, _shift(reference, after)))
        energies = [float(np.square(texture.pixels).mean()) for texture in (reference, after)]
        # By how much the cycle has more texture than the reference, where it has most.
        shares.append(energies[1] / max(energies[0], 1e-9))
    if not found:
        return []
    kept = np.array(shares) >= _LOST_ENERGY * np.percentile(shares, 90)
    return [block for block, good in zip(found, kept, strict=True) if good]


def _images(
    fixed: Mosaic, other: Mosaic, transform: Transform, at: tuple[int, int]
) -> tuple[Image, Image, Image] | None:
    """Return a block of the reference, and of the cycle before and after resampling."""
    region: Region = (slice(at[0], at[0] + SIDE_PX), slice(at[1], at[1] + SIDE_PX))
    reference = fixed.read(0, *region).astype(np.float32)
    rows, columns = reference.shape
    region = (slice(at[0], at[0] + rows), slice(at[1], at[1] + columns))
    before = np.zeros_like(reference)
    part = other.read(0, *region)
    before[: part.shape[0], : part.shape[1]] = part
    shape = (other.shape[1], other.shape[2])
    source = source_region(transform, region, shape)
    if source is None or not reference.any():
        return None
    origin = (source[0].start, source[1].start)
    after = warp(CPU, other.read(0, *source), origin, shape, transform, region)
    return reference, before, after.astype(np.float32)


@dataclass(frozen=True)
class _Texture:
    """The band-passed square root of a block: noise evened out, staining level and haze taken off.

    Attributes
    ----------
    pixels : (y, x) float32
    waves : (y, x) float32
        Its cosine transform: smoothing by a Gaussian is a product there.
    energy : (y, x) float32
        Mean square over ``_LOST_PX``.
    seen : (y, x) bool
        Where the image has pixels: outside tiles an in-focus plane is 0 all over, single zeros
        are dark pixels of glass.
    """

    pixels: Image
    waves: Image
    energy: Image
    seen: NDArray[np.bool_]

    @classmethod
    def of(cls, image: Image) -> _Texture:
        """Return the texture of counts."""
        shape = (image.shape[0], image.shape[1])
        root: Image = np.sqrt(np.maximum(image, 0))
        waves = _waves(root) * (_gaussian(shape, 1.2) - _gaussian(shape, 12.0))
        pixels = _image(waves)
        energy = _image(_waves(pixels**2) * _gaussian(shape, _LOST_PX))
        return cls(pixels, waves, energy, ndimage.uniform_filter(image, 9) > 0)

    def smoothed(self, sigma_px: float) -> Image:
        """Return the texture, smoothed."""
        shape = (self.waves.shape[0], self.waves.shape[1])
        return _image(self.waves * _gaussian(shape, sigma_px))


def _waves(image: Image) -> Image:
    return np.asarray(fft.dctn(image), np.float32)


def _image(waves: Image) -> Image:
    return np.asarray(fft.idctn(waves), np.float32)


@lru_cache(maxsize=16)
def _gaussian(shape: tuple[int, int], sigma_px: float) -> Image:
    """Return by what a Gaussian of 4 sigma multiplies the cosines (DCT-II) of a mirrored image."""
    radius = int(4 * sigma_px + 0.5)
    x = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (x / sigma_px) ** 2)
    weights /= weights.sum()
    rows, columns = (np.cos(np.outer(np.pi * np.arange(n) / n, x)) @ weights for n in shape)
    return np.outer(rows, columns).astype(np.float32)


def _texture_ncc(first: _Texture, second: _Texture) -> float:
    """NCC of the textures where both images have pixels and tissue; 0 where one is constant."""
    # By how much the cycle has more texture than the reference, where it has most.
    share = (second.energy + 1e-9) / (first.energy + 1e-9)
    kept = share >= _LOST_ENERGY * np.percentile(share, 90)
    score = ncc(CPU, first.pixels, second.pixels, first.seen & second.seen & kept)
    return score if np.isfinite(score) else 0.0


def block_shift(reference: Image, moving: Image) -> tuple[float, float]:
    """Return the (y, x) shift in px that would still improve a block; within a few px of truth."""
    return _shift(_Texture.of(reference), _Texture.of(moving))


def _shift(reference: _Texture, moving: _Texture) -> tuple[float, float]:
    """Return the shift that is left between two textures.

    Gauss–Newton steps on band-passed images with the mean gradient of both (Lucas & Kanade
    1981); the first steps are taken on blurred images, to reach 4 px.
    """
    total = np.zeros(2)
    for sigma, steps in ((3.0, 2), (1.5, 3)):
        first, second = reference.smoothed(sigma), moving.smoothed(sigma)
        for _ in range(steps):
            total = np.clip(total + _step(first, second, total), -8, 8)
    return float(total[0]), float(total[1])


def _step(first: Image, second: Image, total: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shift that one Gauss-Newton step adds to what is found so far."""
    b = ndimage.shift(second, -total, order=1, mode="nearest")
    a, b = (v / max(float(v[_INNER, _INNER].std()), 1e-9) for v in (first, b))
    mean = (a + b) / 2
    gy = mean[_NEXT, _INNER] - mean[_LAST, _INNER]
    gx = mean[_INNER, _NEXT] - mean[_INNER, _LAST]
    slopes = np.stack([gy.ravel(), gx.ravel()]) / 2
    difference = (a - b)[_INNER, _INNER].ravel()
    # The normal equations: least squares of all pixels takes ten times as long.
    step = np.linalg.lstsq(slopes @ slopes.T, slopes @ difference, rcond=None)[0]
    return np.asarray(step, np.float64)
