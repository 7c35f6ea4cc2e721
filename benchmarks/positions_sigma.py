"""True errors of tile positions over their stated standard errors, on exact truth.

Run as ``python -m benchmarks.positions_sigma [--sigma 60] [--seed 0] [--truth-python PYTHON]``.
Sets of 3 × 3, 4 × 4 and 6 × 6 tiles of 512 px: ``dim`` of 60 electrons, 5 % overlap and 60 %
empty, and a sixth as many ``ordinary`` and ``dense`` ones. Drawn nuclei, and with an interpreter
that has OpenCV the real ones of ``../shared/tools/tile-truth``.

Errors of the main island are taken after its best translation, which no overlap tells: their mean
is subtracted. ``sigma_px`` of other tiles is relative to the main island, and so are their errors.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.positions import truth_tiles
from benchmarks.positions_null import WRONG_PX, edge_errors, located, named_tiles
from benchmarks.positions_scenes import Grid, mosaic
from tests.support.array_tiles import ArrayTiles

Floats = NDArray[np.float64]
SIZE, SIDES = 512, (3, 4, 6)
#: Overlap, empty part, electrons, and for how many dim sets there is one.
KINDS = {"dim": (0.05, 0.6, 60, 1), "ordinary": (0.10, 0.3, 400, 6), "dense": (0.10, 0.0, 1500, 6)}
#: Errors up to here are right; main islands up to so many tiles are small.
RIGHT_PX, SMALL = 0.5, 6


def drawn(kind: str, seed: int) -> Grid:
    """Return a set of drawn nuclei."""
    overlap, empty, peak, _ = KINDS[kind]
    side = SIDES[seed % len(SIDES)]
    return mosaic(np.random.default_rng([seed, 998]), side, side, overlap, empty, peak, SIZE)


def quilted(kind: str, seed: int, python: str) -> Grid:
    """Return a set of real nuclei, made by ``tile-truth``."""
    overlap, empty, peak, _ = KINDS[kind]
    words = f"--n {SIDES[seed % len(SIDES)]} --size {SIZE} --seed {seed} --overlap {overlap}"
    options = f"{words} --empty {empty} --peak_e {peak}".split()
    with tempfile.TemporaryDirectory() as folder:
        tiles, true, light = truth_tiles(Path(folder), options, python)
        stack = np.stack([tiles.read(tile, 0)[None] for tile in range(len(true))])
    in_memory = ArrayTiles(stack, tiles.row, tiles.col, tiles.nominal_px)
    return Grid(in_memory, true, light.flat, light.dark)


class Tally:
    """What became of the tiles of one kind."""

    def __init__(self) -> None:
        self.main: list[Floats] = []
        self.rest: list[Floats] = [np.zeros(0)]
        self.error: list[Floats] = []
        self.counts = np.zeros(6, int)

    def add(self, grid: Grid, folder: Path) -> None:
        """Place the tiles of a set and count."""
        found = located(grid)
        main = found.positions.island == 0
        used = found.edges.accepted
        self.counts[4:] += (used.sum(), (used & (edge_errors(grid, found) > WRONG_PX)).sum())
        if main.sum() < 2:
            return
        error = found.yx_px - grid.true_px
        error = error - error[main].mean(axis=0)
        ratio = error / found.positions.sigma_px[:, None]
        self.main.append(ratio[main].ravel())
        self.rest.append(ratio[~main].ravel())
        self.error.append(error[main].ravel())
        named, _ = named_tiles(found, folder)
        bad = main & (np.abs(error).max(axis=1) > WRONG_PX)
        right = main & (np.hypot(*error.T) <= RIGHT_PX)
        self.counts[:4] += (bad.sum(), (bad & ~named).sum(), right.sum(), (right & named).sum())

    def row(self) -> str:
        """Return the kind's row of the table."""
        each = np.array([spread([ratio]) for ratio in self.main])
        small = [ratio for ratio in self.main if len(ratio) <= 2 * SMALL]
        wrong, unnamed, right, named, used, false = self.counts
        low, high = np.quantile(each, (0.1, 0.9))
        return (
            f"{spread(self.main):9.2f} {low:5.2f}-{high:4.2f} {spread(small):6.2f} "
            f"{spread(self.rest):6.2f} {spread(self.error):8.4f} {wrong:6d} {unnamed:8d} "
            f"{named:5d} of {right:5d} {false:5d} of {used:5d}"
        )


def spread(values: list[Floats]) -> float:
    """Return the root mean square of all values together."""
    together = np.concatenate(values) if values else np.zeros(0)
    return float(np.sqrt(np.mean(together**2))) if together.size else float("nan")


def grids(kind: str, number: int, seed: int, python: str | None) -> Iterator[tuple[str, Grid]]:
    """Yield the sets of one kind, each with the name of its design."""
    for k in range(seed, seed + number):
        yield "drawn", drawn(kind, k)
        if python:
            yield "real", quilted(kind, k, python)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sigma", type=int, default=60, help="dim sets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--truth-python", help="interpreter with OpenCV, for tile-truth")
    options = parser.parse_args()
    print(
        "error / sigma: main island, its 10th and 90th percentile over sets, main islands of up to "
        f"{SMALL} tiles, other tiles; named of right ones (<= {RIGHT_PX} px)\n"
        "set                 main    per set  small  other  rmse px  > 2 px  unnamed   named right"
        "  false overlaps"
    )
    with tempfile.TemporaryDirectory() as scratch:
        for kind, (*_, every) in KINDS.items():
            tallies: dict[str, Tally] = {}
            number = -(-options.sigma // every)
            for design, grid in grids(kind, number, options.seed, options.truth_python):
                tallies.setdefault(design, Tally()).add(grid, Path(scratch))
            for design, tally in tallies.items():
                print(f"{kind:9} {design:5} {tally.row()}", flush=True)


if __name__ == "__main__":
    main()
