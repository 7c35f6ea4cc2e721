"""Evidence of the flat-field of a channel: a fit to overlaps and tiles, and empty tiles."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.illumination import OFFSET_BOUND
from tilewright.kernels.camera import EmptyTiles, empty_tiles
from tilewright.kernels.illumination.flat_basis import design_grid, flat_field
from tilewright.kernels.illumination.flat_posterior import FlatFit, fit_flat
from tilewright.kernels.illumination.overlap_cells import OverlapCells
from tilewright.kernels.illumination.overlap_photometry import relative_difference
from tilewright.kernels.illumination.tissue_regions import tissue_and_background
from tilewright.stages.illumination.binned_tiles import TileMeasures
from tilewright.stages.illumination.camera_offset import (
    MIN_CELLS,
    MIN_EDGES,
    Offset,
    edges_and_cells,
)

Plane = NDArray[np.float32]
#: Tiles that the flat-field is fitted to where overlaps are too few: of 8 tiles of three designs
#: the median error was 3 to 13 %, of 64 1 to 5 %, where BaSiC's was 14 and 7 % and vignetting 15 to
#: 34.
MIN_TILES = 8
#: More of them add memory, 0.4 MB each, and no accuracy.
_MAX_TILES = 400
#: Standard error, as a share of the darkest counts, up to which empty tiles count. Where
#: tissue is in most of them it is over 1 (syn10), where they are empty 0.044 to 0.058 (brain
#: tiles, by the order that they are read in and whether the lens was corrected).
_EMPTY_TOLERANCE = 0.1
#: An offset less sure than this share of its bound is not known: around a ring the overlaps gave
#: 31 +- 107 counts for 100, below 145. It is then fitted with the flat-field about a part of its
#: bound; from half of the bound a fit follows the dim places of a ring, and misses it.
_UNSURE = 0.2
_PART_OF_BOUND, _PART_ERROR = 0.8, 0.2
#: A dark-field is taken from empty tiles if it is more than this share of their glow: a third on
#: the brain tiles. It is 0.02 on syn10, whose camera has none; taken off, it gave 1.5 % for 0.6 %.
_EMPTY_STRUCTURE = 0.05


@dataclass(frozen=True)
class Candidate:
    """A flat-field, what it leaves in held-out overlaps, its expected error, numbers of its fit."""

    flat: Plane
    held_out: float | None
    error: float | None = None
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FlatEvidence:
    """What the methods estimate from."""

    measures: TileMeasures
    offset_counts: float
    """Camera offset."""
    offset_method: str
    """How it was found."""
    fit: FlatFit | None
    """Flat-field and offset from overlaps and tiles, or tiles alone; None if there are too few of
    both.
    """
    edges: int
    cells: int
    """Overlaps, and cells in them, with signal."""
    has_place: bool
    """Whether tissue has a preferred place in the tiles."""

    def candidate(self, flat: Plane) -> Candidate:
        """Score a flat-field that was not fitted to the overlaps, and compare it with the fit."""
        if self.fit is None:
            return Candidate(flat, None)
        cells = self.fit.differences.cells
        difference = relative_difference(cells, *cells.sampled(flat), self.offset_counts)
        fit_flat_field = self.fit.flat((flat.shape[0], flat.shape[1]))
        differs = float(np.mean((flat / fit_flat_field - 1.0) ** 2, dtype=np.float64))
        error = float(np.sqrt(self.fit.error**2 + differs))
        return Candidate(flat, _known(self.fit.differences.rms(difference)), error)


def gather(measures: TileMeasures, known: Offset | None) -> FlatEvidence:
    """Fit the flat-field to overlaps and tiles, or to tiles alone.

    Where the offset is not known well it is fitted too, between 0 and the darkest counts.
    """
    bound = measures.darkest_counts
    if known is None and not measures.has_signal(bound, offset_known=False):
        dark = round(measures.median_counts, 1)
        how = "median: the tiles show no light above the noise"
        return FlatEvidence(measures, dark, how, None, 0, 0, has_place=False)
    offset, error, how = known or (bound, np.inf, OFFSET_BOUND)
    free = error > _UNSURE * bound
    if free:
        offset, error = _PART_OF_BOUND * bound, _PART_ERROR * bound
    images, cells = _some(measures.blocks[measures.unsaturated]), measures.cells
    enough, regions = len(images) >= MIN_TILES, tissue_and_background(images)
    images, has_place = images if regions is None else regions, regions is not None
    fit, edges, count = None, 0, 0
    if len(cells) >= MIN_CELLS:
        fit = fit_flat(cells, images, offset, error, free=free)
        edges, count = edges_and_cells(fit)
    if edges < MIN_EDGES or count < MIN_CELLS:
        fit = None
        if enough:
            fit = fit_flat(OverlapCells.none(), images, offset, error, free=free)
    if fit is None:
        offset = known[0] if known else round(bound, 1)
    elif free:
        offset = round(fit.offset_counts, 1)
        how = f"overlaps and tiles: to {fit.offset_error_counts:.1f} counts"
    return FlatEvidence(measures, offset, how, fit, edges, count, has_place)


def _some(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tiles, or as many of them, evenly spaced, as are enough."""
    indices = np.linspace(0, len(images) - 1, min(len(images), _MAX_TILES))
    return images[indices.round().astype(np.int64)]


def dark_field(evidence: FlatEvidence) -> EmptyTiles | None:
    """Return offset and dark-field by empty tiles, None unless both are known well."""
    # The darkest tiles of cores of a tissue microarray are not empty.
    if evidence.fit is None or evidence.has_place:
        return None
    blocks = evidence.measures.blocks
    shape = (blocks.shape[1], blocks.shape[2])
    flat = flat_field(evidence.fit.coefficient, shape).astype(np.float64)
    empty = empty_tiles(blocks, flat)
    # An error of the flat-field that looks like the flat-field itself tilts the line of counts
    # over flat-field, and its intercept with it.
    design = design_grid(shape, evidence.fit.order)
    deviation = (flat - flat.mean()).ravel()
    tilt = (flat.ravel()[:, None] * design).T @ deviation / float(deviation @ deviation + 1e-12)
    covariance = evidence.fit.posterior.covariance[:-1, :-1]
    flat_error = abs(empty.glow_counts) * float(np.sqrt(tilt @ covariance @ tilt))
    tolerance = _EMPTY_TOLERANCE * evidence.measures.darkest_counts
    error = float(np.hypot(empty.error_counts, flat_error))
    has_structure = float(empty.structure_counts.std()) > _EMPTY_STRUCTURE * abs(empty.glow_counts)
    return replace(empty, error_counts=error) if has_structure and error <= tolerance else None


def fitted_candidate(fit: FlatFit, shape_px: tuple[int, int]) -> Candidate:
    """Return the flat-field of the fit."""
    numbers = {
        "order": fit.order,
        "fall": round(fit.posterior.fall, 3),
        "interior": round(fit.posterior.interior, 3),
    }
    return Candidate(fit.flat(shape_px), _known(fit.held_out), fit.error, numbers)


def _known(rms: float) -> float | None:
    return None if np.isnan(rms) else rms
