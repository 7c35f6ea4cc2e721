"""Estimation of the transform between two images, and of whether they match at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.alignment import Coarse, coarse_alignment, rotation_about_centre, texture
from tilewright.kernels.backend import Backend
from tilewright.kernels.block_field import ACCEPTED, fit_affine, fit_field
from tilewright.kernels.warp import Transform
from tilewright.stages.block_passes import Measured, Pass, measure_blocks
from tilewright.stages.plane_views import PlaneView

Floats = NDArray[np.float64]

#: Longest side of the overviews on which rotation and shift are searched.
_COARSE_PX = 512


#: Share of the common texture whose blocks agree on one smooth field. Matching cycles reach
#: 0.8 to 0.98, also with three quarters of the tissue lost; other tissue 0.006 to 0.16.
_LEAST_SHARE = 0.3
#: Where the overviews' correlation is twice that of any contradicting overlay (other tissue: at
#: most 1.2 times), less is enough: at 8 photoelectrons, half of the blocks are noise.
_CLEAR_OVERLAY = 2.0
_LEAST_SHARE_WHEN_CLEAR = 0.15
_LEAST_BLOCKS = 3


@dataclass(frozen=True)
class MatchEvidence:
    """What speaks for a match: the coarse overlay, and blocks that agree on one smooth field.

    ``agreeing_share`` is their share of the texture that both images have.
    """

    coarse: Coarse
    blocks: int
    agreeing_blocks: int
    agreeing_share: float

    @property
    def matches(self) -> bool:
        """Whether both images show the same tissue."""
        return self.agreeing_blocks >= _LEAST_BLOCKS and self.agreeing_share >= self.needed_share

    @property
    def needed_share(self) -> float:
        """Return the share of agreeing texture that is asked for."""
        clear = self.coarse.score > _CLEAR_OVERLAY * self.coarse.chance
        return _LEAST_SHARE_WHEN_CLEAR if clear else _LEAST_SHARE

    def sentence(self) -> str:
        """Say by how much the images match."""
        return (
            f"correlation of the overviews {self.coarse.score:.3f}, of contradicting overlays up "
            f"to {self.coarse.chance:.3f}; {self.agreeing_blocks} of {self.blocks} blocks with "
            f"{100 * self.agreeing_share:.0f} % of the common texture agree on one field, "
            f"{100 * self.needed_share:.0f} % are needed"
        )


def estimate_transform(
    backend: Backend,
    reference: PlaneView,
    moving: PlaneView,
    *,
    block_px: int,
    max_shift_px: float,
    max_rotation_deg: float,
) -> tuple[Transform, MatchEvidence]:
    """Estimate the transform between two views.

    Rotation and shift come from overviews; the affine map and a first field from correlation of
    blocks of overviews and then of twice ``block_px``; the field from Gauss-Newton steps on
    blocks of four thirds of ``block_px`` and of ``block_px``. Parameters as in
    :func:`tilewright.stages.register.register`; the transform means nothing unless the
    evidence matches.
    """
    transform, coarse, factor = _coarse(backend, reference, moving, max_shift_px, max_rotation_deg)
    passes = [Pass(factor, 32, 12)]
    while factor // 4 > 2 and factor // 4 >= reference.factor:
        factor //= 4
        passes.append(Pass(factor, 32, 8))
    passes.append(Pass(2, block_px // 2, block_px // 6))
    for job in passes:
        found = measure_blocks(backend, reference, moving, transform, job, f"search 1/{job.factor}")
        precision = _significant(found)
        targets = transform.points(found.centres_px) + found.blocks.shift_px
        kept = np.zeros(len(precision), bool)
        if precision.any():
            affine, _ = fit_affine(found.centres_px, targets, precision)
            transform, kept = _with_field(affine, found, targets, precision)
    evidence = _evidence(coarse, found, kept)
    for step in (block_px // 3, block_px // 4):
        found = measure_blocks(backend, reference, moving, transform, Pass(2, step), "field")
        targets = transform.points(found.centres_px) + found.blocks.shift_px
        precision = 1 / found.blocks.variance_px2
        transform, _ = _with_field(transform.affine, found, targets, precision)
    return transform, evidence


def negative_of(
    backend: Backend,
    reference: PlaneView,
    moving: PlaneView,
    max_shift_px: float,
    max_rotation_deg: float,
) -> bool:
    """Return whether one image is clearly the negative of the other."""
    found, _ = _overlay(backend, reference, moving, max_shift_px, max_rotation_deg, -1.0)
    return found.score > _CLEAR_OVERLAY * found.chance


def _coarse(
    backend: Backend,
    reference: PlaneView,
    moving: PlaneView,
    max_shift_px: float,
    max_rotation_deg: float,
) -> tuple[Transform, Coarse, int]:
    """Return the first guess, what it rests on, and the binning at which it was found."""
    coarse, factor = _overlay(backend, reference, moving, max_shift_px, max_rotation_deg, 1.0)
    affine = rotation_about_centre(reference.size(factor), coarse.angle_deg)
    affine[:, 2] += coarse.shift_px
    half = np.full(2, (factor - 1) / 2)
    affine[:, 2] = factor * affine[:, 2] - affine[:, :2] @ half + half
    return _with_affine(affine), coarse, factor


def _overlay(
    backend: Backend,
    reference: PlaneView,
    moving: PlaneView,
    max_shift_px: float,
    max_rotation_deg: float,
    sign: float,
) -> tuple[Coarse, int]:
    """Return the best overlay of the overviews, the reference times ``sign``, and the binning."""
    factor = reference.factor
    while max(*reference.size(factor), *moving.size(factor)) > _COARSE_PX:
        factor *= 2
    textures = []
    for view in (reference, moving):
        whole = (slice(0, size) for size in view.size(factor))
        image = backend.asarray(view.read(factor, *whole))
        textures.append(texture(backend, image, view.levels))
    # A step turns the ends of the longer side by 3 px, about the size of the texture's blobs.
    step = np.degrees(6.0 / max(reference.size(factor)))
    steps = int(np.ceil(max_rotation_deg / step))
    angles = np.linspace(-max_rotation_deg, max_rotation_deg, 2 * steps + 1)
    reach = max_shift_px / factor
    return coarse_alignment(backend, sign * textures[0], textures[1], angles, reach), factor


def _with_affine(affine: Floats) -> Transform:
    still = Transform.identity()
    return Transform(affine, still.field, still.origin_px, still.block_px, still.confidence)


def _significant(found: Measured) -> Floats:
    """Return precisions, zero where the peak does not stand out from second-best peaks."""
    blocks = found.blocks
    threshold = 1.15 * np.percentile(blocks.chance, 98.0)
    return np.where(blocks.score > threshold, 1 / blocks.variance_px2, 0.0)


def _with_field(
    affine: Floats, found: Measured, targets: Floats, precision: Floats
) -> tuple[Transform, NDArray[np.bool_]]:
    """Return the transform with a field through the targets, and which blocks it accepted."""
    residual = targets - found.centres_px @ affine[:, :2].T - affine[:, 2]
    fit = fit_field(
        residual.T.reshape(2, *found.grid), precision.reshape(found.grid), found.spacing_px
    )
    transform = Transform(
        affine,
        fit.field.astype(np.float32),
        np.full(2, found.origin_px),
        found.spacing_px,
        fit.weight.astype(np.float32),
    )
    return transform, fit.weight.reshape(-1) > ACCEPTED


def _evidence(coarse: Coarse, found: Measured, kept: NDArray[np.bool_]) -> MatchEvidence:
    # Blocks count by the texture that both images have there: lost tissue and empty glass
    # weigh nothing.
    common = np.sqrt(found.blocks.energy.prod(axis=1))
    share = round(float(common[kept].sum() / max(common.sum(), 1e-12)), 4)
    return MatchEvidence(coarse, len(kept), int(kept.sum()), share)
