"""How well a transform fits, measured once the cycle is registered: what quality control judges.

All numbers are of one pass over both images, on blocks displaced by half from those that made the
field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Backend, Floats
from tilewright.kernels.register.warp import Transform
from tilewright.stages.register.block_passes import BlockGrid, Pass, measure_blocks
from tilewright.stages.register.lost_tissue import FACTOR, HALO_PX, LostTissueSearch
from tilewright.stages.register.plane_views import PlaneView

#: Share of places on tissue, in percent, whose error lies below ``local_error_px``.
_LOCAL_PERCENTILE = 90.0
#: Correlation below which two images do not show the same.
POOR_NCC = 0.5
#: Worst places that are listed, and shown by quality control.
WORST = 3


def assess(
    backend: Backend,
    reference: PlaneView,
    moving: PlaneView,
    transform: Transform,
    block_px: int,
) -> dict[str, Any]:
    """Measure how well a transform fits.

    Returns
    -------
    dict
        - ``ncc_after``, ``ncc_chance``: correlation of blocks, weighted by their texture, and what
          98 % of blocks of other places stay below
        - ``rotation_deg``, ``shift_px`` (y, x at the centre)
        - ``local_error_px``: 90th percentile over the tissue of the mean residual of 3 x 3
          neighbouring blocks; None without tissue in both cycles. The noise of single blocks
          averages out; a bend that the field did not follow remains. On 22 good pairs 0.02 to
          0.14 px; with 5 to 7 electrons of signal 0.32 and more, in fields that change within
          100 px 0.8 and more
        - ``poor_blocks``: share of the tissue whose 3 x 3 blocks correlate with less than
          ``POOR_NCC``; tissue that the cycle has lost is left out
        - ``lost_tissue``, ``not_imaged``: shares of the reference's tissue, see
          :class:`~tilewright.stages.register.lost_tissue.LostTissue`. None without tissue in both
          cycles
        - ``places``: where each of them is worst, (y, x) in px of the reference
    """
    search = LostTissueSearch(backend, reference.size(FACTOR))
    pass_ = Pass(FACTOR, block_px // 4, offset=block_px // 8, halo_px=HALO_PX)
    grid = measure_blocks(
        backend, reference, moving, transform, pass_, "quality", observe=search.observe
    )
    rotation_deg, shift_px = transform.rotation_and_shift(reference.shape)
    lost = search.result()
    numbers, places = _agreement(grid, _imaged_at(reference, grid.centres_px))
    return {
        **numbers,
        "rotation_deg": _rounded(rotation_deg),
        "shift_px": [round(value, 3) for value in shift_px],
        "lost_tissue": _rounded(lost.share),
        "not_imaged": _rounded(lost.outside),
        "places": [
            *places,
            *(_place("lost_tissue", at) for at in (lost.lost_px, lost.outside_px) if at),
        ],
    }


def _agreement(
    grid: BlockGrid, imaged: NDArray[np.bool_]
) -> tuple[dict[str, float | None], list[dict[str, Any]]]:
    """Return correlations, local error and the share that does not match, and the worst places."""
    both = np.asarray(grid.on_tissue.all(axis=1))
    weight = np.sqrt(grid.blocks.energy.prod(axis=1)) * both
    after = (weight / max(weight.sum(), 1e-12) * grid.blocks.score).sum()
    chance = np.percentile(grid.blocks.chance[both], 98.0) if both.any() else 0.0
    numbers = {"ncc_after": _rounded(after), "ncc_chance": _rounded(chance)}
    precision = np.where(both, 1 / grid.blocks.variance_px2, 0.0)

    def smooth(values: Floats) -> Floats:
        """Sum over 3 x 3 blocks."""
        summed = ndimage.convolve(values.reshape(grid.shape), np.ones((3, 3)), mode="constant")
        return np.asarray(summed).reshape(-1)

    known = precision > 0
    if not known.any():
        return numbers | {"local_error_px": None, "poor_blocks": None}, []
    total = np.maximum(smooth(precision), 1e-12)
    mean = [smooth(precision * shift) / total for shift in grid.blocks.shift_px.T]
    error = np.round(np.hypot(*mean), 4)
    score = np.round(smooth(weight * grid.blocks.score) / np.maximum(smooth(weight), 1e-12), 4)
    # A block that reaches into a tile may have its centre where no tile lies.
    shown = known & imaged if (known & imaged).any() else known
    largest = int(np.argmax(np.where(shown, error, -1)))
    poorest = np.argsort(np.where(shown, score, np.inf), kind="stable")[:WORST]
    centres = grid.centres_px.tolist()
    places = [_place("local_error_px", centres[largest], error[largest])]
    places += [_place("poor_blocks", centres[k]) for k in poorest.tolist() if shown[k]]
    return numbers | {
        "local_error_px": _rounded(np.percentile(error[known], _LOCAL_PERCENTILE)),
        "poor_blocks": _rounded((score[known] < POOR_NCC).mean()),
    }, places


def _place(metric: str, at: Sequence[float], value: float | None = None) -> dict[str, Any]:
    return {"metric": metric, "y_px": at[0], "x_px": at[1], "value": _rounded(value)}


def _rounded(value: Any) -> float | None:
    return None if value is None else round(float(value), 4)


def _imaged_at(view: PlaneView, centres: Floats) -> NDArray[np.bool_]:
    """Return (n,) whether a tile covers each of the places (n, 2), in px."""
    size = view.size(view.factor)
    overview = view.read(view.factor, *(slice(0, n) for n in size))
    y, x = np.rint((centres - (view.factor - 1) / 2) / view.factor).astype(int).T
    inside = (y >= 0) & (x >= 0) & (y < size[0]) & (x < size[1])
    lit = overview[np.clip(y, 0, size[0] - 1), np.clip(x, 0, size[1] - 1)] > 0
    return np.asarray(inside & lit)
