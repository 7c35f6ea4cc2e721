"""Fusing one channel of 9353² pixels from 100 tiles beside ASHLAR: time and memory.

``python -m benchmarks.fusion [--peer-python PATH]`` where PATH is the interpreter of an environment
with ASHLAR 1.20 and OpenCV. Ours reads tiles from their files and writes a chunked store, ASHLAR
assembles tiles that it holds in memory. Each runs in a process of its own, three times; the
fastest counts. Memory is the growth of the process, without the tiles that ASHLAR holds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.truth_tiles import SHARED, truth_set
from tilewright.io.results.positions import Positions
from tilewright.kernels.backend import cpu_backend
from tilewright.stages.stitch.fuse import stitch

WORKERS = 2
REPEATS = 3
BAR = "bar: 2 s, 5x, 1024 MB"
ASHLAR = """
import json, resource, sys, time
import numpy as np, tifffile
from pathlib import Path
from ashlar import reg
folder, repeats = Path(sys.argv[1]), int(sys.argv[2])
truth = json.loads((folder / "gt.json").read_text())
places = np.array(truth["cycles"][0]["true"]); places -= places.min(0)
stack = [tifffile.imread(p) for p in sorted((folder / "c0").glob("*.tif"))]
size = np.array(stack[0].shape)
class Metadata: pass
class Reader:
    metadata = Metadata()
    def read(self, series, c): return stack[series]
Reader.metadata.pixel_dtype = stack[0].dtype
Reader.metadata.size = size
Reader.metadata.num_channels = 1
class Aligner:
    reader = Reader(); metadata = Reader.metadata; positions = places; channel = 0
    origin = np.zeros(2); centers = places + size / 2
shape = tuple(np.ceil(places.max(0) + size).astype(int))
flat = np.load(folder / "flat.npy").astype(np.float32)
flat_path, dark_path = str(folder / "ffp.tif"), str(folder / "dfp.tif")
tifffile.imwrite(flat_path, flat); tifffile.imwrite(dark_path, np.full(flat.shape, 100, np.float32))
best = float("inf")
for _ in range(repeats):
    image = None
    start = time.perf_counter()
    mosaic = reg.Mosaic(Aligner(), shape, channels=[0], ffp_path=flat_path, dfp_path=dark_path)
    image = mosaic.assemble_channel(0)
    best = min(best, time.perf_counter() - start)
inputs_mb = sum(tile.nbytes for tile in stack) / 2**20
print(json.dumps([best, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - inputs_mb]))
"""


def ours(data: Path) -> list[float]:
    """Fuse the set into a store; return the least seconds and the peak memory in MB."""
    tiles, true, light = truth_set(data, "syn10", sys.executable)
    zeros = np.zeros(len(true))
    y, x = (true - true.min(axis=0)).T
    islands = zeros.astype(np.int64)
    places = Positions(tiles.name, tiles.row, tiles.col, y, x, zeros, islands)
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        stitch(
            tiles, places, light, data / "mosaic.zarr", backend=cpu_backend(WORKERS),
            voxel_um=(1.0, 0.5, 0.5), chunk_px=1024,
        )  # fmt: skip
        best = min(best, time.perf_counter() - start)
    return [best, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]


def measured(*command: str) -> list[float]:
    """Run one of both in a process of its own; return its seconds and MB."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter with ASHLAR 1.20 and OpenCV")
    parser.add_argument("--data", type=Path, help="where the set is kept")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(ours(options.child)))
        return
    if not (SHARED / "tools").is_dir():
        print("../shared/tools is absent, and with it the tool that makes the tiles: not measured")
        return
    os.environ.setdefault("OMP_NUM_THREADS", str(WORKERS))
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or Path(scratch)
        truth_set(data, "syn10", options.peer_python or sys.executable)
        own = measured(sys.executable, "-m", "benchmarks.fusion", "--child", str(data))
        print(f"tilewright {own[0]:.2f} s, {own[1]:.0f} MB; {BAR}", flush=True)
        if options.peer_python:
            command = (options.peer_python, "-c", ASHLAR, str(data / "syn10"), str(REPEATS))
            peer = measured(*command)
            print(f"ASHLAR {peer[0]:.2f} s, {peer[1]:.0f} MB: {peer[0] / own[0]:.1f}x the time")


if __name__ == "__main__":
    main()
