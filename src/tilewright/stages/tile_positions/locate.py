"""Where each tile lies: overlap strips in, positions with their errors out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.results.positions import Edges, Positions, write_table, write_tile_configuration
from tilewright.kernels.tile_positions.displacements import (
    Overlaps,
    choose_sigma,
    measure_overlaps,
)
from tilewright.kernels.tile_positions.overlap_strips import StripPlan, Strips, searched_px
from tilewright.kernels.tile_positions.position_solve import (
    FALSE_MATCH_PROBABILITY,
    Solution,
    solve_positions,
)
from tilewright.stages.tile_planes import TileSource


@dataclass(frozen=True)
class TileLocations:
    """Positions, edges, and the filter behind them.

    Attributes
    ----------
    sigma_px : float
        Width of the LoG used.
    origin_px : float64 (2,)
        Where the sample lies in its scan.
    """

    positions: Positions
    edges: Edges
    sigma_px: float
    origin_px: NDArray[np.float64]

    @property
    def yx_px(self) -> NDArray[np.float64]:
        """Positions (n, 2)."""
        return np.stack([self.positions.y_px, self.positions.x_px], axis=1)


def locate(
    tiles: TileSource,
    plans: Sequence[StripPlan],
    firsts: Sequence[Strips],
    seconds: Sequence[Strips],
    *,
    sigma_px: float | None = None,
    false_match_probability: float = FALSE_MATCH_PROBABILITY,
    workers: int = 1,
) -> dict[str, TileLocations]:
    """Find the positions of the tiles of each sample from their overlaps.

    Parameters
    ----------
    tiles : TileSource
        Tiles of one cycle and channel.
    plans : sequence of StripPlan
        Their overlaps.
    firsts, seconds : sequence of Strips, each (m, y, x)
        Strips of tiles a and b of every plan, divided by their flat-field, without the camera's
        lines.
    sigma_px : float, optional
        Width of the LoG; None is chosen.
    false_match_probability : float
        See :func:`~tilewright.kernels.tile_positions.position_solve.solve_positions`.
    workers : int
        Threads that share the strips.
    """
    sigma = choose_sigma(plans, firsts, seconds) if sigma_px is None else sigma_px
    total = sum(len(plan.pairs) for plan in plans)
    with tqdm(desc="calibrate: correlate", total=total, mininterval=5) as bar:
        overlaps = measure_overlaps(plans, firsts, seconds, sigma, workers, bar.update)
    tolerance = max((plan.max_shift_px for plan in plans), default=searched_px(tiles.shape[1:]))
    located = {}
    for sample in dict.fromkeys(tiles.sample.tolist()):
        own = np.flatnonzero(tiles.sample == sample)
        part = _of_tiles(overlaps, own)
        solution = solve_positions(
            tiles.nominal_px[own], tiles.row[own], part, tolerance, false_match_probability
        )
        located[sample] = _located(tiles, own, part, solution, sigma)
    return located


def _of_tiles(overlaps: Overlaps, own: NDArray[np.int64]) -> Overlaps:
    """Return the overlaps of some tiles, renumbered from 0."""
    chosen = np.isin(overlaps.pairs[:, 0], own)
    part = Overlaps(*(values[chosen] for values in vars(overlaps).values()))
    return replace(part, pairs=np.searchsorted(own, part.pairs))


def _located(
    tiles: TileSource,
    own: NDArray[np.int64],
    overlaps: Overlaps,
    solution: Solution,
    sigma_px: float,
) -> TileLocations:
    name = tiles.name[own]
    y, x = solution.position_px.T
    a, b = overlaps.pairs.T
    dy, dx = overlaps.displacement_px.T
    place = name, tiles.row[own], tiles.col[own], y, x
    return TileLocations(
        Positions(*place, solution.sigma_px, solution.component),
        Edges(
            *(name[a], name[b], dy, dx),
            *(overlaps.score, solution.accepted, solution.residual_px),
            np.asarray(np.round(np.log10(solution.false_match_probability), 2), np.float64),
        ),
        sigma_px,
        tiles.nominal_px[own].min(axis=0),
    )


def write_located(folder: Path, located: Mapping[str, TileLocations]) -> None:
    """Write ``positions.csv``, ``edges.csv`` and ``TileConfiguration.txt`` of a scan.

    Each is written whole. ``folder`` is made where absent. Fiji's file names the images
    ``tile{name}.tif``; of several samples the names begin with the sample's.
    """
    several = len(located) > 1
    names = [
        f"{sample}_tile{name}.tif" if several else f"tile{name}.tif"
        for sample, found in located.items()
        for name in found.positions.tile.tolist()
    ]
    places = [found.yx_px + several * found.origin_px for found in located.values()]
    write_tile_configuration(folder / "TileConfiguration.txt", names, np.concatenate(places))
    write_table(folder / "edges.csv", {s: found.edges for s, found in located.items()})
    write_table(folder / "positions.csv", {s: found.positions for s, found in located.items()})
