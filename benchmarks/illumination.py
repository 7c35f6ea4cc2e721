"""Accuracy and time of the flat-field beside BaSiCPy.

``python -m benchmarks.illumination [--peer-python PATH] [--data DIR]`` measures on 10 x 10 tiles
with a known flat-field. PATH is the interpreter of an environment with basicpy and OpenCV.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibrated import estimate_illumination
from benchmarks.scenes.illumination import relative_rmse
from benchmarks.truth_tiles import OFFSET_COUNTS, SHARED, FileTiles, truth_set
from tilewright.io.results.positions import Positions

BAR = 0.007
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


def peer(python: str, tiles: FileTiles, dark: bool) -> tuple[NDArray[Any], float]:
    """Return BaSiCPy's flat-field (mean 1) and its seconds, from its own interpreter."""
    with tempfile.TemporaryDirectory() as name:
        images, flat = Path(name) / "images.npy", Path(name) / "flat.npy"
        np.save(images, np.stack([tiles.read(k, 0) for k in range(len(tiles.files))]))
        command = [python, "-W", "ignore", "-c", PEER, str(images), str(flat), str(int(dark))]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = np.load(flat)
    return found / found.mean(), float(out.split("SECONDS")[1].split()[0])


def line(*cells: object) -> None:
    """Print one row of the table."""
    print("  ".join(f"{cell!s:<32}" for cell in cells), flush=True)


def measure(data: Path, peer_python: str | None) -> bool:
    """Print the rows; return whether the bar is met."""
    tiles, true, fields = truth_set(data, "syn10", peer_python or sys.executable)
    truth, zeros, (y, x) = fields.flat, np.zeros(len(true)), true.T
    islands = zeros.astype(np.int64)
    places = Positions(tiles.name, tiles.row, tiles.col, y, x, zeros, islands)
    line("uncorrected", f"{100 * relative_rmse(np.ones_like(truth), truth):.2f} %")
    errors = []
    for label, known in (("overlaps", places), ("tiles alone", None)):
        for offset in (OFFSET_COUNTS, None):
            wall, cpu = time.perf_counter(), time.process_time()
            found, numbers = estimate_illumination(tiles, known, workers=2, offset_counts=offset)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            errors.append(relative_rmse(found.flat, truth))
            offset_is = "given" if offset is not None else f"found {numbers['offset_counts']:g}"
            times = f"{wall:.1f} s, {cpu:.1f} CPU-s"
            line(f"{label}, offset {offset_is}", f"{100 * errors[-1]:.2f} %", times)
    for dark in (False, True) if peer_python else ():
        flat, seconds = peer(str(peer_python), tiles, dark)
        error = f"{100 * relative_rmse(flat, truth):.2f} %"
        line("BaSiCPy" + (" + dark-field" if dark else ""), error, f"{seconds:.1f} s")
    met = errors[0] <= BAR
    line("bar", f"{100 * BAR:.1f} %", "met" if met else "NOT MET")
    return met


def main() -> int:
    """Run the benchmark; 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter with basicpy and OpenCV")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tilewright")
    options = parser.parse_args()
    if not (SHARED / "tools").is_dir():
        print("../shared is absent: there are no tiles with known truth to measure on")
        return 0
    return 0 if measure(options.data, options.peer_python) else 1


if __name__ == "__main__":
    raise SystemExit(main())
