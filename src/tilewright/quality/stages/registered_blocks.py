"""Blocks of a registered cycle and of the reference: their agreement and residual shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from skimage import filters
from skimage.registration import phase_cross_correlation

from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import Region
from tilewright.kernels.metrics import ncc
from tilewright.kernels.register.warp import Transform, source_region
from tilewright.quality.sampling import CPU
from tilewright.stages.register.block_passes import Pass, measure_blocks
from tilewright.stages.register.lost_tissue import FACTOR, LostTissueSearch
from tilewright.stages.register.plane_views import PlaneView
from tilewright.stages.register.resample import resample_region

#: Side of a block.
SIDE_PX = 256
#: A block below this agreement is counted as mismatched, and its residual means nothing.
POOR_NCC = 0.5
#: Distance of the blocks that measure local errors, in pixels binned by two, for a transform
#: without nodes.
_STEP_PX = 24
#: A place whose texture has less than this share of the usual energy has lost its tissue: that is
#: for ``lost_tissue`` to say, and no mismatch.
_LOST_ENERGY = 0.1
#: The energy is a mean over so many px.
_LOST_PX = 12.0
Image = NDArray[np.float32]


@dataclass(frozen=True)
class BlockView:
    """One block (y, x) of the reference, and of the cycle before and after resampling.

    ``shift_px`` is the residual between them; None below :data:`POOR_NCC`.
    """

    at: tuple[int, int]
    reference: NDArray[np.float32]
    before: NDArray[np.float32]
    after: NDArray[np.float32]
    ncc_before: float
    ncc_after: float
    shift_px: tuple[float, float] | None


def compare_blocks(
    fixed: Mosaic, other: Mosaic, transform: Transform, blocks: list[tuple[int, int]]
) -> list[BlockView]:
    """Compare blocks of the reference with the cycle, before and after resampling it.

    Blocks that the cycle does not cover, or where it has lost its tissue, are left out.
    """
    views, shares = [], []
    for y, x in blocks:
        images = _images(fixed, other, transform, (y, x))
        if images is None:
            continue
        reference, before, after = map(Texture.of, images)
        worse, better = (_texture_ncc(reference, image) for image in (before, after))
        shift = residual_shift(reference, after) if better >= POOR_NCC else None
        views.append(BlockView((y, x), *images, worse, better, shift))
        energies = [float(np.square(texture.pixels).mean()) for texture in (reference, after)]
        # Energy of the cycle's texture over the reference's; the largest ratio is that of tissue.
        shares.append(energies[1] / max(energies[0], 1e-9))
    if not views:
        return []
    tissue = np.array(shares) >= _LOST_ENERGY * np.percentile(shares, 90)
    return [view for view, good in zip(views, tissue, strict=True) if good]


def local_errors(
    reference: PlaneView,
    moving: PlaneView,
    transform: Transform,
    observer: LostTissueSearch | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return blocks' centres (n, 2), and (n,) how far the field is off there, in px.

    NaN off tissue. The ``observer`` sees the same parts: to read and warp them is half of the cost.

    The length of the mean residual of 3 x 3 neighbouring blocks, weighted by their precision: the
    noise of single blocks averages out; a bend that the field did not follow remains.
    Blocks lie elsewhere than those that made the field. On 22 good pairs 0.02 to 0.14 px in
    the 90th percentile; with 5 to 7 electrons of signal 0.32 and more, in fields that change within
    100 px 0.8 and more.
    """
    nodes = min(transform.field.shape[1:]) > 1
    step = max(round(transform.block_px / 2), 12) if nodes else _STEP_PX
    pass_ = Pass(FACTOR, step, 0, step // 2)
    measured = measure_blocks(
        CPU, reference, moving, transform, pass_, "whole section", observer=observer
    )
    precision = np.where(measured.on_tissue.all(axis=1), 1 / measured.blocks.variance_px2, 0.0)
    around = np.ones((3, 3))

    def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
        grid = values.reshape(measured.shape)
        return np.asarray(ndimage.convolve(grid, around, mode="constant")).reshape(-1)

    total = smooth(precision)
    mean = [smooth(precision * shift) for shift in measured.blocks.shift_px.T]
    length = np.hypot(*mean) / np.maximum(total, 1e-12)
    return measured.centres_px, np.where(precision > 0, length, np.nan)


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
    if source_region(transform, region, shape) is None or not reference.any():
        return None
    after = resample_region(CPU, other, transform, region)
    return reference, before, after.astype(np.float32)


@dataclass(frozen=True)
class Texture:
    """The band-passed square root of a block: without noise, staining level and haze."""

    pixels: Image
    energy: Image
    """float32 (y, x): the texture, and its mean square over ``_LOST_PX``."""
    imaged: NDArray[np.bool_]
    """bool (y, x): where there are pixels. Outside tiles an in-focus plane is 0 all over, single
    zeros are dark pixels of glass.
    """

    @classmethod
    def of(cls, image: Image) -> Texture:
        """Return the texture of counts, in a wider band than the registration's (1 and 5 px)."""
        root = np.sqrt(np.maximum(image, 0))
        pixels = filters.difference_of_gaussians(root, 1.2, 12.0, mode="reflect")
        energy = filters.gaussian(pixels**2, _LOST_PX, mode="reflect")
        return cls(pixels, energy, ndimage.uniform_filter(image, 9) > 0)


def _texture_ncc(first: Texture, second: Texture) -> float:
    """NCC of the textures where both images have pixels and tissue; 0 where one is constant."""
    # As in compare_blocks, by pixel.
    share = (second.energy + 1e-9) / (first.energy + 1e-9)
    tissue = share >= _LOST_ENERGY * np.percentile(share, 90)
    score = ncc(first.pixels, second.pixels, first.imaged & second.imaged & tissue)
    return score if np.isfinite(score) else 0.0


def residual_shift(reference: Texture, moving: Texture) -> tuple[float, float]:
    """Return the residual (y, x) shift in px between two textures.

    The maximum of their cross-correlation (Guizar-Sicairos et al. 2008,
    doi:10.1364/OL.33.000156), under a window, since blocks are not periodic.
    """
    window = filters.window("hann", reference.pixels.shape)
    shift, _, _ = phase_cross_correlation(
        reference.pixels * window, moving.pixels * window, upsample_factor=100, normalization=None
    )
    return -float(shift[0]), -float(shift[1])
