"""False accepts of tile overlaps, misses of weak ones, and sparse mosaics, on exact truth.

Run as ``python -m benchmarks.positions_null [--pairs 20000] [--mosaics 200] [--seed 0]``. Grids
of 2 × 2 to 9 × 7 tiles of 256 px are made of ten kinds whose tiles share no signal, so that every
accepted overlap is false, and of seven kinds whose overlaps hold little. Sparse mosaics are judged
by the report: a tile of the main island that is wrong by more than 2 px must be named.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.positions_scenes import (
    NULL_KINDS,
    READ_NOISE,
    WEAK_KINDS,
    Grid,
    null_grid,
    sparse_mosaic,
    weak_grid,
)
from tilewright.io.results.illumination import Illumination
from tilewright.kernels.backend import cpu_backend
from tilewright.report.judge import judge_stage, read_quality
from tilewright.stages.tile_positions.locate import LocatedTiles, locate, write_located

Floats = NDArray[np.float64]
GRIDS = ((2, 2), (2, 3), (3, 3), (4, 5), (9, 7))
NULL_OVERLAPS, WEAK_OVERLAPS = (0.05, 0.08, 0.10), (0.06, 0.10)
SIZE, WRONG_PX = 256, 2.0


def located(grid: Grid) -> LocatedTiles:
    """Return the positions that the stage finds."""
    fields = Illumination(grid.flat, grid.dark, float(np.median(grid.dark)))
    return locate(grid.tiles, fields, backend=cpu_backend(1))


def edge_errors(grid: Grid, found: LocatedTiles) -> Floats:
    """Return the error (m,) of every measured displacement, px."""
    place = {p: i for i, p in enumerate(zip(grid.tiles.row, grid.tiles.col, strict=True))}
    e = found.edges
    a = [place[p] for p in zip(e.row_a, e.col_a, strict=True)]
    b = [place[p] for p in zip(e.row_b, e.col_b, strict=True)]
    measured = np.stack([e.dy_px, e.dx_px], axis=1)
    return np.asarray(np.hypot(*(measured - (grid.true_px[b] - grid.true_px[a])).T))


def kind_table(
    kinds: tuple[str, ...],
    make: Callable[[str, int, int, int, float, int], Grid],
    overlaps: tuple[float, ...],
    pairs: int,
    seed: int,
) -> None:
    """Print for each kind how many overlaps were accepted, rightly and wrongly."""
    for kind in kinds:
        count = right = wrong = there = 0
        while count < pairs:
            rows, cols = GRIDS[seed % len(GRIDS)]
            for overlap in overlaps:
                grid = make(kind, seed, rows, cols, overlap, SIZE)
                found = located(grid)
                error, accepted = edge_errors(grid, found), found.edges.accepted
                near = error <= WRONG_PX if kinds is WEAK_KINDS else np.zeros(len(error), bool)
                count += len(error)
                there += int(near.sum())
                right += int((accepted & near).sum())
                wrong += int((accepted & ~near).sum())
            seed += 1
        shown = f"{wrong:6d} false = {wrong / count:.1e}"
        if kinds is WEAK_KINDS:
            shown += f"   {right / count:6.1%} accepted rightly"
        print(f"{kind:22} {count:6d} overlaps {shown}", flush=True)


def signal_in_overlap(grid: Grid) -> NDArray[np.bool_]:
    """Return which tiles share at least 50 pixels of tissue with another one.

    Tissue is light of 3 standard deviations of its noise above the glass.
    """
    shape = grid.tiles.shape[1:]
    out = np.zeros(len(grid.true_px), bool)
    for a in range(len(out)):
        for b in range(len(out)):
            step = grid.true_px[b] - grid.true_px[a]
            if a == b or (np.abs(step) >= np.array(shape)).any():
                continue
            low = np.maximum(np.ceil(step), 0).astype(int)
            high = np.minimum(np.floor(step) + shape, shape).astype(int)
            counts = grid.tiles.stack[a, 0, low[0] : high[0], low[1] : high[1]]
            light = (counts.astype(np.float64) - 100.0) / 2.0
            noise = np.sqrt(np.maximum(light, 25.0) + READ_NOISE**2)
            out[a] |= np.count_nonzero(light - 25.0 > 3.0 * noise) >= 50
    return out


def named_tiles(found: LocatedTiles, folder: Path) -> tuple[NDArray[np.bool_], str]:
    """Return which tiles of the main island the report names, and the cycle's verdict."""
    write_located(folder, found)
    manifest = folder / "manifest.csv"  # of which the report reads the tiles that are left out
    manifest.write_text("row,col,channel\n", encoding="utf-8")
    judge_stage(
        "tile_positions",
        {
            "manifest": manifest,
            "positions": folder / "positions.csv",
            "edges": folder / "edges.csv",
            "distortion": folder / "distortion.json",
        },
        folder / "qc.json",
        folder / "qc.png",
        sample="s",
        cycle=1,
    )
    items = {item.metric: item for item in read_quality(folder / "qc.json").items}
    doubt = items["doubtful_tiles"].sentence
    named = np.zeros(len(found.positions.row), bool)
    for tile, (row, col) in enumerate(
        zip(found.positions.row.tolist(), found.positions.col.tolist(), strict=True)
    ):
        named[tile] = _is_named(doubt, row, col)
    worst = max((i.verdict for i in items.values()), key=["pass", "warn", "fail"].index)
    return named, worst


def _is_named(sentence: str, row: int, col: int) -> bool:
    if "(" not in sentence:
        return False
    for part in sentence.split("(", 1)[1].split(")")[0].split("; "):
        words = part.replace(",", "").split()
        if len(words) < 4 or words[:2] != ["row", str(row)]:
            continue
        for run in words[3:]:
            first, _, last = run.partition("-")
            if int(first) <= col <= int(last or first):
                return True
    return False


def mosaic_table(number: int, seed: int) -> None:
    """Print what became of sparse mosaics."""
    wrong = unnamed = passed = named = rightly = false = missed = accepted = tiles = 0
    ratio: list[Floats] = []
    with tempfile.TemporaryDirectory() as scratch:
        for k in range(seed, seed + number):
            grid = sparse_mosaic(k)
            found = located(grid)
            main = found.positions.island == 0
            error = found.yx_px - grid.true_px
            error = error - np.median(error[main], axis=0)
            bad = main & (np.abs(error).max(axis=1) > WRONG_PX)
            said, verdict = named_tiles(found, Path(scratch))
            edge = edge_errors(grid, found)
            wrong += int(bad.sum())
            unnamed += int((bad & ~said).sum())
            passed += int(bad.any() and verdict == "pass")
            named += int((said & main).sum())
            untied = ~signal_in_overlap(grid)
            rightly += int((said & main & (bad | untied)).sum())
            false += int((found.edges.accepted & (edge > WRONG_PX)).sum())
            accepted += int(found.edges.accepted.sum())
            missed += int((~found.edges.accepted & (edge <= WRONG_PX)).sum())
            tiles += int(main.sum())
            ratio.append((error / found.positions.sigma_px[:, None])[main].ravel())
    z = np.concatenate(ratio)
    print(
        f"\n{number} sparse mosaics: {tiles} tiles in main islands, {wrong} wrong by > 2 px, "
        f"{unnamed} of them not named, {passed} mosaics pass with one; {named} tiles named, "
        f"{rightly} of them wrong or without tissue in any overlap\n"
        f"{accepted} overlaps accepted, {false} wrong by > 2 px, {missed} right ones left\n"
        f"error / sigma: standard deviation {z.std():.2f}, "
        f"{np.mean(np.abs(z) <= 4):.2%} within 4"
    )


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20000, help="overlaps without signal in all")
    parser.add_argument("--weak", type=int, default=4000, help="overlaps of little signal in all")
    parser.add_argument("--mosaics", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.pairs:
        each = -(-options.pairs // len(NULL_KINDS))
        kind_table(NULL_KINDS, null_grid, NULL_OVERLAPS, each, options.seed)
    if options.weak:
        each = -(-options.weak // len(WEAK_KINDS))
        kind_table(WEAK_KINDS, weak_grid, WEAK_OVERLAPS, each, options.seed)
    if options.mosaics:
        mosaic_table(options.mosaics, options.seed)


if __name__ == "__main__":
    main()
