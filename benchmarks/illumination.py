"""Accuracy and time of the flat-field beside BaSiCPy.

``python -m benchmarks.illumination [--peer-python PATH] [--data DIR] [--hard-flat FLAT.npy]``

Synthetic tiles of ``../shared/tools/tile-truth`` (made into --data where absent; needs opencv):
``syn10`` with its smooth flat-field and, where --hard-flat is given, ``hard10`` with that one.
The real brain tiles have no truth: their figure is the held-out overlap log-ratio.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tests.support.array_tiles import ArrayTiles, correct
from tests.support.illumination_truth import relative_rmse
from tilewright.io.results.positions import Positions
from tilewright.kernels.backend import cpu_backend
from tilewright.stages.illumination.estimate import estimate_illumination
from tilewright.stages.tile_positions.locate import locate

SHARED = Path(__file__).resolve().parents[2] / "shared"
OFFSET_COUNTS = 100.0
BARS = {"syn10": 0.007, "hard10": 0.037}
PEER = """
import sys, time
import numpy as np
from basicpy import BaSiC
stack = np.load(sys.argv[1])
start = time.perf_counter()
model = BaSiC(get_darkfield=sys.argv[3] == "1")
model.fit(stack)
print("SECONDS", time.perf_counter() - start)
np.save(sys.argv[2], model.flatfield)
"""


def read_truth(folder: Path) -> tuple[ArrayTiles, Positions, NDArray[np.float64]]:
    """Return tiles, true positions and true flat-field of a tile-truth folder."""
    truth = json.loads((folder / "gt.json").read_text())
    n = truth["n"]
    row, col = (index.ravel().astype(np.int64) for index in np.indices((n, n)))
    names = [f"tile_r{i:03d}_c{j:03d}.tif" for i, j in zip(row, col, strict=True)]
    stack = np.stack([tifffile.imread(folder / "c0" / name) for name in names])[:, None]
    place = np.asarray(truth["cycles"][0]["true"])
    places = Positions(
        row, col, place[:, 0], place[:, 1], np.zeros(n * n), np.zeros(n * n, dtype=np.int64)
    )
    return ArrayTiles(stack, row, col, place), places, np.load(folder / "flat.npy")


def read_brain() -> tuple[ArrayTiles, Positions]:
    """Return the 63 brain tiles and the positions found in their uncorrected strips."""
    folder = SHARED / "data" / "brain-tiles"
    text = (folder / "TileConfiguration.txt").read_text()
    found = re.findall(r"^(\S+\.tif);\s*;\s*\(([^,]+),([^)]+)\)", text, flags=re.M)
    place = np.array([(float(y), float(x)) for _, x, y in found])
    row, col = (np.unique(v, return_inverse=True)[1].astype(np.int64) for v in place.T)
    order = np.lexsort((col, row))
    stack = np.stack([tifffile.imread(folder / found[k][0]) for k in order])[:, None]
    tiles = ArrayTiles(stack, row[order], col[order], place[order])
    return tiles, locate(tiles, backend=cpu_backend(2)).positions


def peer(python: str, stack: NDArray[Any], dark: bool) -> tuple[NDArray[Any], float]:
    """Return BaSiCPy's flat-field (mean 1) and its seconds, from its own interpreter."""
    with tempfile.TemporaryDirectory() as name:
        images, flat = Path(name) / "images.npy", Path(name) / "flat.npy"
        np.save(images, stack)
        command = [python, "-W", "ignore", "-c", PEER, str(images), str(flat), str(int(dark))]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = np.load(flat)
    return found / found.mean(), float(out.split("SECONDS")[1].split()[0])


def line(*cells: object) -> None:
    """Print one row of the table."""
    print("  ".join(f"{cell!s:<22}" for cell in cells), flush=True)


def measure(name: str, folder: Path, peer_python: str | None) -> bool:
    """Print the rows of one synthetic set; return whether the bar is met."""
    tiles, places, truth = read_truth(folder)
    line(name, "uncorrected", f"{100 * relative_rmse(np.ones_like(truth), truth):.2f} %")
    reached = np.inf
    for label, known in (("overlaps", places), ("tiles alone", None)):
        for offset in (OFFSET_COUNTS, None):
            wall, cpu = time.perf_counter(), time.process_time()
            found, numbers = estimate_illumination(
                tiles, known, backend=cpu_backend(2), offset_counts=offset
            )
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            error = relative_rmse(found.flat, truth)
            if known is not None and offset is not None:
                reached = error
            told = "given" if offset is not None else f"found {numbers['offset_counts']:g}"
            ratio = f"held out {numbers['heldout_log_ratio']}"
            told = f"{label}, offset {told}"
            line(name, told, f"{100 * error:.2f} %", f"{wall:.1f} s, {cpu:.1f} CPU-s", ratio)
    if peer_python:
        for dark in (False, True):
            flat, seconds = peer(peer_python, tiles.stack[:, 0], dark)
            label = "BaSiCPy" + (" + dark-field" if dark else "")
            line(name, label, f"{100 * relative_rmse(flat, truth):.2f} %", f"{seconds:.1f} s")
    met = reached <= BARS[name]
    line(name, "bar", f"{100 * BARS[name]:.1f} %", "met" if met else "NOT MET")
    return met


def brain(png: Path | None) -> None:
    """Print held-out log-ratios of the brain tiles; picture the mean tile before and after."""
    tiles, places = read_brain()
    backend = cpu_backend(2)
    found, numbers = estimate_illumination(tiles, places, backend=backend)
    for name, value in numbers["heldout_log_ratio_rms"].items():
        line("brain", name, f"held out {value:.4f}")
    line("brain", "method, offset", numbers["method"], numbers["offset_counts"], numbers["fits"])
    if png is None:
        return
    from matplotlib import pyplot

    raw = tiles.stack[:, 0]
    after = correct(backend, raw, found.flat, found.dark, found.pedestal)
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4))
    for axis, image, title in zip(
        axes,
        (raw.mean(axis=0), found.flat, after.mean(axis=0)),
        ("mean tile", "flat-field", "mean tile, corrected"),
        strict=True,
    ):
        figure.colorbar(axis.imshow(image), ax=axis)
        axis.set_title(title)
    figure.savefig(png, dpi=80)


def main() -> int:
    """Run the benchmark; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter of a venv with basicpy")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tilewright")
    parser.add_argument("--hard-flat", type=Path, help=".npy of a flat-field, any size")
    parser.add_argument("--png", type=Path, help="picture of the brain tiles' mean")
    options = parser.parse_args()
    if not (SHARED / "tools").is_dir():
        print("../shared is absent: there are no tiles with known truth to measure on")
        return 0
    sets: dict[str, list[str]] = {"syn10": []}
    if options.hard_flat or (options.data / "hard10" / "gt.json").exists():
        sets["hard10"] = ["--flatfile", str(options.hard_flat)]
    met = []
    for name, extra in sets.items():
        folder = options.data / name
        if not (folder / "gt.json").exists():
            tool = str(SHARED / "tools" / "tile-truth")
            size = ["--n", "10", "--seed", "1", "--cycles", "1"]
            subprocess.run([sys.executable, tool, str(folder), *size, *extra], check=True)
        met.append(measure(name, folder, options.peer_python))
    brain(options.png)
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
