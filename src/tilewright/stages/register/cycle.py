"""Registration of one cycle to the reference cycle: coarse, affine, robust block field.

The transform is estimated first, then it is decided whether the two images match at all. Memory
holds two overviews of at most 2048 px a side and a few cells of 1200 px a side per thread, whatever
the size of the images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import MismatchError
from tilewright.io.results.mosaic import Mosaic
from tilewright.io.results.registration import write_transform
from tilewright.kernels.backend import Backend, Floats
from tilewright.kernels.device_memory import OomHint, track_device_memory
from tilewright.kernels.register.alignment import (
    CoarseAlignment,
    bandpass_sqrt,
    coarse_alignment,
    rotation_about_centre,
)
from tilewright.kernels.register.block_field import ACCEPTED, fit_field
from tilewright.kernels.register.warp import Transform
from tilewright.stages.register.assessment import assess
from tilewright.stages.register.block_passes import BlockGrid, Pass, measure_blocks
from tilewright.stages.register.plane_views import PlaneView, Source, open_views

# Not done in parts: the correlation of the overviews is of one piece, and far larger than cells.
_OOM_HINT = OomHint("register", "two overviews and their correlation over all shifts")
#: Longest side of the overviews on which rotation and shift are searched.
_COARSE_PX = 512
#: Finest block of the deformation field where the images have as much, a multiple of 12.
_BLOCK_PX = 96
#: Share of the common texture whose blocks agree on one smooth field. Matching cycles reach
#: 0.8 to 0.98, also with three quarters of the tissue lost; other tissue 0.006 to 0.16. Half of it
#: is enough where the overviews' correlation is twice that of any contradicting overlay (other
#: tissue: at most 1.2 times): at 8 photoelectrons, half of the blocks are noise.
_LEAST_SHARE = 0.3
#: What to do about two images that do not match.
_ADVICE = (
    "check that both show nuclei (column reference of the markers table) of the same tissue, in "
    "focus, and neither as a negative; raise registration.max_shift_px or "
    "registration.max_rotation_deg"
)


@track_device_memory(_OOM_HINT)
def register(
    reference: Source,
    moving: Source,
    npz_path: str | Path,
    json_path: str | Path,
    *,
    backend: Backend,
    max_shift_px: float | None,
    max_rotation_deg: float,
    allow_unregistered: bool,
) -> Transform:
    """Register a cycle to the reference cycle and write the transform with its quality.

    Parameters without a line here are keys of the configuration, see
    :mod:`tilewright.config.settings`; None is ``auto``.

    Parameters
    ----------
    reference, moving : path, Mosaic, (y, x) array, or Plane
        The reference channel of both cycles, in counts; their sizes may differ.
    npz_path, json_path : Path
        Files to write; see :func:`tilewright.io.results.registration.write_transform`.
    allow_unregistered : bool
        Write the identity with ``registered`` false and the reason, instead of failing.

    Raises
    ------
    MismatchError
        The images do not show the same tissue.
    DeviceMemoryError
        The GPU's memory does not hold the overviews and their correlation.
    """
    views = open_views(reference, moving)
    block_px = min(_BLOCK_PX, *(min(view.shape) // 12 * 12 for view in views))
    reach = float(max(*views[0].shape, *views[1].shape)) if max_shift_px is None else max_shift_px
    pair = _Pair(backend, *views, block_px, reach, max_rotation_deg)
    transform, failure = _estimate(pair)
    if failure and not allow_unregistered:
        raise MismatchError(
            f"{_name(moving)} does not match the reference {_name(reference)}: {failure}; "
            f"{_ADVICE}, or add the cycle to registration.allow_unregistered"
        )
    write_transform(transform, npz_path, json_path)
    return transform


class _Pair(NamedTuple):
    """Two images, and how they are registered; parameters as in :func:`register`."""

    backend: Backend
    reference: PlaneView
    moving: PlaneView
    block_px: int
    max_shift_px: float
    max_rotation_deg: float

    def measure(self, transform: Transform, pass_: Pass, name: str) -> BlockGrid:
        """Measure the shifts of blocks that are left under a transform."""
        return measure_blocks(self.backend, self.reference, self.moving, transform, pass_, name)


def _estimate(pair: _Pair) -> tuple[Transform, str]:
    """Return the transform with its quality, and why the images do not match, "" if they do."""
    transform, evidence = _estimate_transform(pair)
    numbers = _numbers(evidence)
    failure = "" if evidence.matches else evidence.sentence()
    if evidence.matches:
        measured = assess(pair.backend, pair.reference, pair.moving, transform, pair.block_px)
        quality = numbers | {"registered": True} | measured
        transform = dataclasses.replace(transform, quality=quality)
        failure = _disagreement(quality)
    if failure:
        reason = f"the cycles do not match: {failure}"
        transform = Transform.identity(numbers | {"registered": False, "reason": reason})
    return transform, failure


def _name(source: Source) -> str:
    if isinstance(source, Mosaic):
        return str(source.path)
    return str(source) if isinstance(source, str | Path) else "image"


def _numbers(evidence: MatchEvidence) -> dict[str, object]:
    return {
        "coarse_ncc": round(evidence.coarse.score, 4),
        "coarse_ncc_chance": round(evidence.coarse.chance, 4),
        "agreeing_blocks": evidence.agreeing_blocks,
        "agreeing_share": round(evidence.agreeing_share, 4),
    }


def _disagreement(quality: Mapping[str, Any]) -> str:
    """Return by how much blocks disagree although there is a transform, "" if they agree."""
    # A cycle out of focus by 12 µm has a transform from its coarse structure, 1 to 7 px wrong.
    after, chance = quality["ncc_after"], quality["ncc_chance"]
    if after > chance:
        return ""
    return (
        f"registered blocks agree with NCC {after:.2f}, and blocks of other places reach "
        f"{chance:.2f} by chance"
    )


@dataclass(frozen=True)
class MatchEvidence:
    """Evidence for a match: the coarse alignment, and blocks that agree on one smooth field.

    ``agreeing_share`` is their share of the texture that both images have.
    """

    coarse: CoarseAlignment
    blocks: int
    agreeing_blocks: int
    agreeing_share: float

    @property
    def matches(self) -> bool:
        """Whether both images show the same tissue."""
        return self.agreeing_share >= self.needed_share

    @property
    def needed_share(self) -> float:
        """Return the least share of agreeing texture."""
        return _LEAST_SHARE * max(self.coarse.chance / max(self.coarse.score, 1e-12), 0.5)

    def sentence(self) -> str:
        """Return by how much the images match."""
        return (
            f"correlation of the overviews {self.coarse.score:.3f}, of contradicting overlays up "
            f"to {self.coarse.chance:.3f}; {self.agreeing_blocks} of {self.blocks} blocks with "
            f"{100 * self.agreeing_share:.0f} % of the common texture agree on one field, "
            f"{100 * self.needed_share:.0f} % are needed"
        )


def _estimate_transform(pair: _Pair) -> tuple[Transform, MatchEvidence]:
    """Estimate the transform; it means nothing unless the evidence matches."""
    # Rotation and shift from overviews; the affine map and a first field from correlation of blocks
    # of overviews and then of twice block_px; the field from Gauss-Newton steps on smaller blocks.
    transform, coarse, factor = _coarse_transform(pair)
    passes = [Pass(factor, 32, 12)]
    while factor // 4 > 2 and factor // 4 >= pair.reference.factor:
        factor //= 4
        passes.append(Pass(factor, 32, 8))
    passes.append(Pass(2, pair.block_px // 2, pair.block_px // 6))
    for pass_ in passes:
        grid = pair.measure(transform, pass_, f"search 1/{pass_.factor}")
        transform, accepted = _refined(transform, grid, _significant(grid))
    evidence = _evidence(coarse, grid, accepted)
    for step in (pair.block_px // 3, pair.block_px // 4):
        grid = pair.measure(transform, Pass(2, step), "field")
        transform, _ = _refined(transform, grid, 1 / grid.blocks.variance_px2)
    return transform, evidence


def _coarse_transform(pair: _Pair) -> tuple[Transform, CoarseAlignment, int]:
    """Return the first transform, the alignment behind it, and its binning."""
    coarse, factor = _overlay(pair)
    affine = rotation_about_centre(pair.reference.size(factor), coarse.angle_deg)
    affine[:, 2] += coarse.shift_px
    half = np.full(2, (factor - 1) / 2)
    affine[:, 2] = factor * affine[:, 2] - affine[:, :2] @ half + half
    return dataclasses.replace(Transform.identity(), affine=affine), coarse, factor


def _overlay(pair: _Pair) -> tuple[CoarseAlignment, int]:
    """Return the best alignment of the overviews, and their binning."""
    backend, reference, moving, *_ = pair
    factor = reference.factor
    while max(*reference.size(factor), *moving.size(factor)) > _COARSE_PX:
        factor *= 2
    textures = []
    for view in (reference, moving):
        whole = (slice(0, size) for size in view.size(factor))
        image = backend.asarray(view.read(factor, *whole))
        textures.append(bandpass_sqrt(backend, image, view.levels))
    # A step turns the ends of the longer side by 3 px, about the size of the texture's blobs.
    step = np.degrees(6.0 / max(reference.size(factor)))
    steps = int(np.ceil(pair.max_rotation_deg / step))
    angles = np.linspace(-pair.max_rotation_deg, pair.max_rotation_deg, 2 * steps + 1)
    reach = pair.max_shift_px / factor
    return coarse_alignment(backend, textures[0], textures[1], angles, reach), factor


def _significant(grid: BlockGrid) -> Floats:
    """Return precisions, zero where the peak does not stand out from second-best peaks."""
    blocks = grid.blocks
    threshold = 1.15 * np.percentile(blocks.chance, 98.0)
    return np.where(blocks.score > threshold, 1 / blocks.variance_px2, 0.0)


def _refined(
    transform: Transform, grid: BlockGrid, precision: Floats
) -> tuple[Transform, NDArray[np.bool_]]:
    """Return the transform through the shifts of blocks, and which of them it accepted."""
    centres, affine = grid.centres_px, transform.affine
    shift = transform.points(centres) + grid.blocks.shift_px
    shift -= centres @ affine[:, :2].T + affine[:, 2]
    correction, field, weight = fit_field(
        centres.reshape(*grid.shape, 2),
        shift.reshape(*grid.shape, 2),
        precision.reshape(grid.shape),
    )
    refined = Transform(
        affine + correction,
        field.astype(np.float32),
        np.full(2, grid.origin_px),
        grid.spacing_px,
        weight.astype(np.float32),
    )
    return refined, weight.reshape(-1) > ACCEPTED


def _evidence(
    coarse: CoarseAlignment, grid: BlockGrid, accepted: NDArray[np.bool_]
) -> MatchEvidence:
    # Blocks are weighted by the texture that both images have: lost tissue and empty glass
    # have none.
    common = np.sqrt(grid.blocks.energy.prod(axis=1))
    share = round(float(common[accepted].sum() / max(common.sum(), 1e-12)), 4)
    return MatchEvidence(coarse, len(accepted), int(accepted.sum()), share)
