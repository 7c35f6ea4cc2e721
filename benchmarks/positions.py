"""Tile positions beside ASHLAR: error on exact truth, agreement on real tiles, time.

Run as ``python -m benchmarks.positions [--peer-python VENV/bin/python] [--data DIR]``. The peer's
interpreter needs ``pip install ashlar opencv-python-headless`` (OpenCV makes the truth sets,
kept in DIR) and a Java runtime.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.calibrated import place_tiles
from benchmarks.truth_tiles import SETS, SHARED, FileTiles, Floats, truth_set
from tests.support.tile_configuration import read_tile_configuration
from tilewright.stages.tile_positions.locate import TileLocations

BARS = {"syn10": "rmse <= 0.06, edge <= 0.04, <= 1.5 s, >= 5x faster"}

#: Runs in the peer's interpreter: argv = sigma, JSON {files, nominal}; prints JSON.
ASHLAR = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, tifffile
from ashlar import reg
job = json.load(open(sys.argv[2]))
class Metadata(reg.Metadata):
    _num_images = len(job["files"]); num_channels = 1; pixel_size = 0.5
    pixel_dtype = np.dtype("uint16")
    def tile_position(self, i): return np.array(job["nominal"][i])
    def tile_size(self, i): return np.array(job["size"])
class Reader(reg.Reader):
    metadata = Metadata()
    def read(self, series, c): return tifffile.imread(job["files"][series])
start = time.perf_counter()
aligner = reg.EdgeAligner(Reader(), max_shift=15, filter_sigma=float(sys.argv[1]),
                          do_make_thumbnail=False)
aligner.run()
print(json.dumps({"seconds": time.perf_counter() - start,
                  "positions": aligner.positions.tolist()}))
"""


def timed(tiles: FileTiles) -> tuple[TileLocations, float]:
    """Return positions and seconds from files to positions on 2 threads, best of 5 runs."""
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        located = place_tiles(tiles, workers=2)
        best = min(best, time.perf_counter() - start)
    return located, best


def peer(python: str, tiles: FileTiles, sigma: float) -> tuple[Floats, float]:
    """Return ASHLAR's positions and seconds."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as job:
        files = [str(path) for path in tiles.files]
        size = list(tiles.shape[1:])
        json.dump({"files": files, "nominal": tiles.nominal_px.tolist(), "size": size}, job)
        job.flush()
        command = [python, "-c", ASHLAR, str(sigma), job.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return np.array(answer["positions"]), float(answer["seconds"])


def errors(found: Floats, true: Floats, tied: NDArray[np.bool_], edges: Any) -> str:
    """Return RMSE over tied tiles and over the edges between them, px."""
    wrong = found - true
    wrong = wrong - wrong[tied].mean(axis=0)
    a, b = edges
    along = (wrong[b] - wrong[a])[tied[a] & tied[b]]
    return (
        f"{np.sqrt(np.mean(wrong[tied] ** 2)):8.3f} {np.abs(wrong[tied]).max():8.3f} "
        f"{np.sqrt(np.mean(along**2)):8.3f}"
    )


def edge_ends(located: TileLocations, used: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return tile numbers (a, b) of the edges, of accepted ones only if ``used``."""
    p, e = located.positions, located.edges
    number = {tile: i for i, tile in enumerate(p.tile.tolist())}
    keep = e.accepted if used else np.ones(len(e.score), bool)
    first, second = (ends[keep].tolist() for ends in (e.tile_a, e.tile_b))
    return np.array([number[tile] for tile in first]), np.array([number[tile] for tile in second])


def brain_tiles() -> FileTiles:
    """Return the real tiles at their nominal positions, ordered by (row, col)."""
    folder = SHARED / "data" / "brain-tiles"
    names, nominal = read_tile_configuration(folder / "TileConfiguration.txt")
    row, col = np.rint(nominal / 460.0).astype(np.int64).T
    order = np.lexsort((col, row))
    files = [folder / names[i] for i in order]
    return FileTiles(
        files, row[order], col[order], nominal[order], (1, 512, 512), np.dtype(np.uint16)
    )


def agreement(
    tiles: FileTiles,
    positions: Floats,
    ends: tuple[NDArray[Any], NDArray[Any]],
) -> tuple[Floats, Floats]:
    """Return the NCC of LoG-filtered (1.6 px) overlaps at solved positions, and their texture."""
    planes = [
        ndimage.gaussian_laplace(tiles.read(i, 0).astype(np.float32), 1.6)
        for i in range(len(tiles.files))
    ]
    score, texture = [], []
    for a, b in zip(*ends, strict=True):
        step = positions[b] - positions[a]
        whole = np.floor(step).astype(int)
        moved = ndimage.shift(planes[b], step - whole, order=3)
        size = np.array(moved.shape)
        low, high = np.maximum(0, whole) + 3, np.minimum(size, size + whole) - 3
        part_a = planes[a][low[0] : high[0], low[1] : high[1]]
        low, high = low - whole, high - whole
        part_b = moved[low[0] : high[0], low[1] : high[1]]
        score.append(float(np.corrcoef(part_a.ravel(), part_b.ravel())[0, 1]))
        texture.append(float(min(part_a.std(), part_b.std())))
    return np.array(score), np.array(texture)


def report_truth(folder: Path, python: str | None) -> None:
    """Print the table of errors on truth sets."""
    print(f"{'set':12} {'method':16} {'rmse px':>8} {'max px':>8} {'edge px':>8} {'s':>7}  bar")
    for name in SETS:
        tiles, true, _ = truth_set(folder, name, python or sys.executable)
        located, seconds = timed(tiles)
        tied, ends = located.positions.island == 0, edge_ends(located, True)
        line = errors(located.yx_px, true, tied, ends)
        print(f"{name:12} {'tilewright':16} {line} {seconds:7.2f}  {BARS.get(name, '')}")
        for sigma in (0.0, 1.0) if python else ():
            found, seconds = peer(str(python), tiles, sigma)
            line = errors(found, true, tied, ends)
            print(f"{'':12} {f'ASHLAR s={sigma:.0f}':16} {line} {seconds:7.2f}")
        print(f"{'':12} over {tied.sum()} of {len(tied)} tiles that overlaps tie together")


def report_brain(python: str | None) -> None:
    """Print the table of agreement on the real tiles."""
    tiles = brain_tiles()
    located, seconds = timed(tiles)
    ends = edge_ends(located, False)
    rows = [("tilewright", located.yx_px, seconds)]
    for sigma in (0.0, 1.0) if python else ():
        rows.append((f"ASHLAR s={sigma:.0f}", *peer(str(python), tiles, sigma)))
    print(f"\n{'brain tiles':12} {'method':16} {'mean NCC':>8} {'bad edges':>9} {'s':>7}  bar")
    results = [agreement(tiles, positions, ends) for _, positions, _ in rows]
    textured = np.argsort(-results[0][1])[:91]
    best = np.max([score for score, _ in results], axis=0)
    bar = "NCC >= 0.80, no bad edge"
    for (name, _, seconds), (score, _) in zip(rows, results, strict=True):
        bad = np.count_nonzero(score[textured] < 0.5 * best[textured])
        print(f"{'':12} {name:16} {score[textured].mean():8.4f} {bad:9d} {seconds:7.2f}  {bar}")
        bar = ""


def main() -> None:
    """Run both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter of a venv with ashlar and OpenCV")
    parser.add_argument("--data", type=Path, help="where truth sets are kept")
    options = parser.parse_args()
    if not SHARED.is_dir():
        print(f"{SHARED} is absent: this benchmark needs its tools and tiles")
        return
    with tempfile.TemporaryDirectory() as scratch:
        report_truth(options.data or Path(scratch), options.peer_python)
    report_brain(options.peer_python)


if __name__ == "__main__":
    main()
