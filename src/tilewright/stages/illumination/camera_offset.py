"""The camera offset of the channels of one cycle, from their overlaps."""

from collections.abc import Sequence

import numpy as np

from tilewright.kernels.illumination.flat_posterior import FlatFit, fit_flat
from tilewright.kernels.illumination.overlap_photometry import random_effects
from tilewright.stages.illumination.binned_tiles import TileMeasures

#: Counts without light, their standard error, and how they are known.
Offset = tuple[float, float, str]
#: Four tiles have four overlaps, of which one may be empty. The error that is reported says
#: what three are worth.
MIN_EDGES = 3
MIN_CELLS = 300
#: Errors of offsets by overlaps are raised by this, twice where no other channel confirms them: of
#: 150 sets the true ones were 2 times those of the fit, and of dim markers up to 4.
_OFFSET_CAUTION = 2.0
#: Errors below this are arithmetic: of tiles that were filled with zeros the fit's is none.
_LEAST_COUNTS = 0.1


def camera_offsets(measures: Sequence[TileMeasures]) -> list[Offset | None]:
    """Return the camera offset of each channel of a cycle; None where it is unknown.

    Overlaps measure each channel's own. A camera has one, so the others are a prior for it,
    as far as they agree with one another: a random-effects mean (DerSimonian & Laird, Controlled
    Clinical Trials 7, 1986). Of a dim marker on glass its own was 2 to 4 counts off, and a grid was
    left along all tile borders. Channels of two cameras do not agree, and each keeps its
    own.
    """
    by_overlaps: dict[int, tuple[float, float]] = {}
    for k, one in enumerate(measures):
        bound = one.darkest_counts
        if len(one.cells) < MIN_CELLS or not one.has_signal(bound, offset_known=False):
            continue
        fit = fit_flat(one.cells, one.blocks[:0], bound / 2, bound / 2, free=True)
        if edges_and_cells(fit)[0] >= MIN_EDGES:
            by_overlaps[k] = fit.offset_counts, fit.offset_error_counts
    caution = _OFFSET_CAUTION if len(by_overlaps) > 1 else 2 * _OFFSET_CAUTION
    by_overlaps = {
        k: (at, max(caution * error, _LEAST_COUNTS)) for k, (at, error) in by_overlaps.items()
    }
    offsets: list[Offset | None] = []
    for k, one in enumerate(measures):
        both = random_effects(by_overlaps.get(k), [one for j, one in by_overlaps.items() if j != k])
        # Light is never negative: a channel of another camera has its own offset.
        if both and both[0] - 2 * both[1] > one.darkest_counts + 3 * one.noise_counts:
            both = by_overlaps.get(k)
        offsets.append(both and (round(both[0], 1), both[1], f"overlaps: to {both[1]:.1f} counts"))
    return offsets


def edges_and_cells(fit: FlatFit) -> tuple[int, int]:
    """Return how many overlaps show signal, and how many cells in them."""
    valid = fit.differences.has_signal
    return len(np.unique(fit.differences.cells.edge[valid])), int(valid.sum())
