"""Scores of tile positions on drawn scenes, at the constants as they are set.

``python -m benchmarks.constants_positions`` prints them; ``benchmarks.constants`` does so at half
and at twice each of :data:`CONSTANTS`. The environment may name some of :data:`SCENES`
(``SCENES="dim dense"``) and a folder in which made scenes are kept (``WORK``).
"""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibrated import place_tiles
from benchmarks.scenes.positions import NULL_KINDS, WEAK_KINDS, Grid, mosaic, null_grid, weak_grid
from tilewright.kernels.tile_positions.stage_map import fit_stage_map
from tilewright.kernels.tile_positions.tile_layout import rank_grids
from tilewright.stages.tile_positions.locate import TileLocations

Floats = NDArray[np.float64]

_PACKAGE = "tilewright.kernels.tile_positions"
_NAMES = {
    "overlap_strips": "MIN_OVERLAP_PX _WIDEST SMOOTH_PX SEARCHED",
    "displacements": "SIGMAS_PX _ENOUGH _WIDEST _PROBES _FLAT_PX2",
    "strip_correlation": "MIN_FILTERED_PX _FLAT _NEWTON_STEPS _TAPER_PX",
    "false_match": "_TAIL _PRIOR_PEAKS _OBJECT_PX _LARGE_OBJECT _ABOVE_ALL",
    "position_solve": "FALSE_MATCH_PROBABILITY _SKEW _OVERCONFIDENCE _PRIOR_RESIDUALS "
    "_ROUNDS _LEAST_CERTAIN",
    "stage_map": "PAIRS _SURE _MOST _REACH OVERLAPS CLEAR",
}
#: Module and name of every constant on which positions may depend; not what costs time or memory
#: only, and not ``STRIDE``, for which the filter is written.
CONSTANTS = [(f"{_PACKAGE}.{m}", name) for m, names in _NAMES.items() for name in names.split()]

#: Overlap, empty part and electrons of mosaics, as in the table of standard errors.
_MOSAICS = {"dim": (0.05, 0.6, 60.0), "ordinary": (0.10, 0.3, 400.0), "dense": (0.10, 0.0, 1500.0)}
#: Sets of each kind of scene; without signal and with little, one of each of their own kinds.
SCENES = {"dim": 6, "ordinary": 2, "dense": 2, "none": 10, "little": 7}
_SIDE, _SIZE, _WRONG_PX = 3, 384, 2.0


def _make(scene: str, k: int) -> Grid:
    if scene in _MOSAICS:
        rng = np.random.default_rng([k, 998])
        return mosaic(rng, _SIDE, _SIDE, *_MOSAICS[scene], _SIZE)
    kinds, make = (NULL_KINDS, null_grid) if scene == "none" else (WEAK_KINDS, weak_grid)
    return make(kinds[k], 5000, _SIDE, _SIDE, 0.08, 256)


def _kept(scene: str, k: int) -> Grid:
    """Return a scene, from the folder ``WORK`` where it is there."""
    if "WORK" not in os.environ:
        return _make(scene, k)
    path = Path(os.environ["WORK"]) / f"positions-{scene}-{k}.pickle"
    if not path.exists():
        path.write_bytes(pickle.dumps(_make(scene, k)))
    grid: Grid = pickle.loads(path.read_bytes())
    return grid


def _grids() -> Iterator[tuple[str, Grid]]:
    for scene in os.environ.get("SCENES", "").split() or SCENES:
        for k in range(SCENES[scene]):
            yield scene, _kept(scene, k)


def _edge_errors(grid: Grid, found: TileLocations) -> Floats:
    """Return the error (m,) of every measured displacement, px."""
    number = {tile: i for i, tile in enumerate(grid.tiles.name.tolist())}
    e = found.edges
    a, b = ([number[tile] for tile in ends.tolist()] for ends in (e.tile_a, e.tile_b))
    measured = np.stack([e.dy_px, e.dx_px], axis=1)
    return np.asarray(np.hypot(*(measured - (grid.true_px[b] - grid.true_px[a])).T))


def _layout(grid: Grid, overlap: float) -> dict[str, float]:
    """Return the best wrong order of tiles over the right one, and the error of the stage's map.

    Of a stage whose axes are swapped and whose overlap is stated as 0.15.
    """
    images = grid.tiles.stack[:, 0].astype(np.float32)
    ranked = rank_grids(images, [(_SIDE, _SIDE)], np.arange(_SIDE**2))
    score = {one.layout: one.votes for one in ranked}
    right = score.pop("raster_right_down")
    steps = np.stack([grid.tiles.col, grid.tiles.row], axis=1).astype(np.float64)
    found = fit_stage_map(images, 0.85 * _SIZE * steps)
    error = float("nan")
    if found is not None:
        true = (1 - overlap) / 0.85 * np.array([[0.0, 1.0], [1.0, 0.0]])
        error = float(np.abs(found.matrix - true).max())
    return {"wrong order / right": max(score.values()) / right, "stage, error, %": 100 * error}


def _rms(parts: list[Floats]) -> float:
    return float(np.sqrt(np.mean(np.concatenate(parts) ** 2))) if parts else float("nan")


def evaluate() -> dict[str, float]:
    """Return scores by name; less is better but of two.

    Errors are those of main components less their mean; over sigma they should be 1. Displacements
    are right up to 2 px. The least false-match probability where there is no signal should be high.
    """
    errors, ratios = dict[str, list[Floats]](), list[Floats]()
    right = missed = false = 0
    least, scores = 0.0, dict[str, float]()
    for scene, grid in _grids():
        found = place_tiles(grid.tiles)
        used = found.edges.accepted
        near = (_edge_errors(grid, found) <= _WRONG_PX) & (scene != "none")
        right, missed = right + int(near.sum()), missed + int((near & ~used).sum())
        false += int((used & ~near).sum())
        if scene == "none":
            least = min(least, float(found.edges.log10_chance.min()))
        main = found.positions.island == 0
        if scene in ("none", "little") or main.sum() < 2:
            continue
        error = (found.yx_px - grid.true_px)[main]
        error = error - error.mean(axis=0)
        errors.setdefault(scene, []).append(error.ravel())
        if scene in _MOSAICS:
            ratios.append((error / found.positions.sigma_px[main, None]).ravel())
        if scene == "dense":
            scores = _layout(grid, _MOSAICS[scene][0])
    return {
        **{f"{scene}, 0.001 px": 1000 * _rms(parts) for scene, parts in errors.items()},
        "error / sigma": _rms(ratios),
        "right ones left, %": 100 * missed / max(right, 1),
        "false ones used": float(false),
        "least log10 P": least,
        **scores,
    }


if __name__ == "__main__":
    print("\n".join(f"{name:20} {score:9.4f}" for name, score in evaluate().items()))
