"""Fusing one channel of 9353² pixels from 100 tiles, and writing it as OME-TIFF.

``python -m benchmarks.fusion [--peer-python PATH]`` where PATH is the interpreter of a
virtual environment with ASHLAR 1.20. Each line is measured in a process of its own; fusing
is done three times by each peer, and the fastest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

SHARED = Path(__file__).resolve().parents[2] / "shared"
WORKERS = 2
CHUNK_PX = 1024
REPEATS = 3
BAR_S, BAR_RATIO, BAR_RSS_MB = 2.0, 5.0, 1024


class TiffTiles:
    """Tiles of the synthetic set, read from their files when asked for."""

    def __init__(self, folder: Path, in_memory: bool) -> None:
        truth = json.loads((folder / "gt.json").read_text())
        places = np.array(truth["cycles"][0]["true"])
        self.nominal_px = places - places.min(axis=0)
        n, size = truth["n"], truth["size"]
        self.row, self.col = (grid.ravel() for grid in np.mgrid[:n, :n])
        self.shape = (1, size, size)
        self.dtype = np.dtype(np.uint16)
        self._paths = sorted((folder / "c0").glob("*.tif"))
        self._held = [tifffile.imread(path) for path in self._paths] if in_memory else None

    def read(self, tile: int, z: int) -> Any:
        """Return one plane of one tile."""
        return self._held[tile] if self._held else tifffile.imread(self._paths[tile])


def run_ours(folder: Path, output: Path, in_memory: bool) -> dict[str, float]:
    """Stitch the set; return seconds, and the growth of the resident memory in MB."""
    from tilewright.io.results.illumination import Illumination
    from tilewright.io.results.positions import Positions
    from tilewright.kernels.backend import cpu_backend
    from tilewright.stages.stitch.fuse import stitch

    tiles = TiffTiles(folder, in_memory)
    flat = np.load(folder / "flat.npy").astype(np.float32)
    light = Illumination(flat, np.full(flat.shape, 100, np.float32), 100.0)
    y, x = tiles.nominal_px.T
    sure, island = np.zeros(len(y)), np.zeros(len(y), np.int64)
    places = Positions(tiles.row, tiles.col, y, x, sure, island)
    seconds = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        stitch(
            tiles,
            places,
            light,
            output,
            backend=cpu_backend(WORKERS),
            voxel_um=(1.0, 0.5, 0.5),
            chunk_px=CHUNK_PX,
            feather_px=None,
        )
        seconds = min(seconds, time.perf_counter() - start)
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    inputs_mb = 2 * len(y) * tiles.shape[1] * tiles.shape[2] / 2**20 if in_memory else 0
    return {"seconds": seconds, "rss_mb": rss_mb - inputs_mb}


ASHLAR = """
import json, resource, sys, time
import numpy as np, tifffile
from pathlib import Path
from ashlar import reg
folder, output = Path(sys.argv[1]), sys.argv[2]
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
flat_path, dark_path = sys.argv[3] + "-ffp.tif", sys.argv[3] + "-dfp.tif"
tifffile.imwrite(flat_path, flat); tifffile.imwrite(dark_path, np.full(flat.shape, 100, np.float32))
assembled = float("inf")
for _ in range(int(sys.argv[4])):
    image = None
    start = time.perf_counter()
    mosaic = reg.Mosaic(Aligner(), shape, channels=[0], ffp_path=flat_path, dfp_path=dark_path)
    image = mosaic.assemble_channel(0)
    assembled = min(assembled, time.perf_counter() - start)
inputs_mb = sum(tile.nbytes for tile in stack) / 2**20
rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - inputs_mb
print(json.dumps({"seconds": assembled, "rss_mb": rss_mb}))
"""


def run_ashlar(python: str, folder: Path, scratch: Path) -> dict[str, float]:
    """Assemble the same channel with ASHLAR's Mosaic, in memory, at the same positions."""
    command = [python, "-c", ASHLAR, str(folder), "-", str(scratch / "ashlar"), str(REPEATS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def run_tiff(mosaic: Path, scratch: Path, compression: Any) -> dict[str, float]:
    """Make the pyramid and the OME-TIFF of three channels of the mosaic."""
    from tilewright.io.results.mosaic import open_mosaic
    from tilewright.io.results.ome_tiff import write_ome_tiff
    from tilewright.io.results.ome_zarr import create_image

    source = open_mosaic(mosaic)
    _, height, width = source.shape
    names = ["DAPI", "CD3", "CD8"]
    start = time.perf_counter()
    with create_image(
        scratch / "image.zarr",
        (height, width),
        source.dtype,
        CHUNK_PX,
        (0.5, 0.5),
        names,
        name="image",
        workers=WORKERS,
    ) as image:
        for channel in range(len(names)):
            for y in range(0, height, CHUNK_PX):
                image.write(channel, y, 0, source.read(0, slice(y, y + CHUNK_PX)))
    pyramid_s = time.perf_counter() - start
    path = scratch / f"{compression}.ome.tif"
    write_ome_tiff(scratch / "image.zarr", path, compression=compression, workers=WORKERS)
    seconds = time.perf_counter() - start - pyramid_s
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    mb = len(names) * height * width * 2 / 1e6
    return {
        "pyramid_s": pyramid_s,
        "seconds": seconds,
        "rss_mb": rss_mb,
        "mb": mb,
        "file_mb": path.stat().st_size / 1e6,
    }


def run_raw_tifffile(mosaic: Path, scratch: Path, compression: Any) -> dict[str, float]:
    """Write one channel, full resolution only, with tifffile from an array in memory."""
    from tilewright.io.results.mosaic import open_mosaic

    image = open_mosaic(mosaic).read(0)
    codec, level = {"deflate": ("zlib", 1), "zstd": ("zstd", 1)}[compression]
    start = time.perf_counter()
    tifffile.imwrite(
        scratch / "raw.tif",
        image,
        tile=(512, 512),
        compression=codec,
        compressionargs={"level": level},
        predictor=True,
        maxworkers=WORKERS,
        photometric="minisblack",
    )
    return {"seconds": time.perf_counter() - start, "mb": image.nbytes / 1e6}


def measured(name: str, *arguments: str) -> dict[str, float]:
    """Run one of the measurements above in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fusion", "--measure", name, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def measure(name: str, arguments: list[str]) -> dict[str, float]:
    """Dispatch ``--measure``: run ``name`` in this process."""
    first, second, *rest = arguments
    if name == "ours":
        return run_ours(Path(first), Path(second), rest[0] == "memory")
    function = {"tiff": run_tiff, "raw": run_raw_tifffile}[name]
    return function(Path(first), Path(second), rest[0])


def make_set(folder: Path, python: str) -> None:
    """Make the synthetic set; its tool needs OpenCV in the interpreter given."""
    tool = [python, str(SHARED / "tools" / "tile-truth"), str(folder)]
    options = ["--n", "10", "--seed", "1", "--cycles", "1"]
    subprocess.run([*tool, *options], check=True)


def table(folder: Path, scratch: Path, peer: str | None) -> None:
    """Measure everything and print it."""
    mosaic = scratch / "mosaic.zarr"
    print(f"{'what':44} {'s':>7} {'RSS MB':>8}  bar")
    best = float("inf")
    for kind in ("memory", "tiff"):
        got = measured("ours", str(folder), str(mosaic), kind)
        best = min(best, got["seconds"])
        bar = f"<= {BAR_S} s, <= {BAR_RSS_MB} MB"
        what = f"tilewright, tiles from {kind}"
        print(f"{what:44} {got['seconds']:7.2f} {got['rss_mb']:8.0f}  {bar}")
    if peer:
        got = run_ashlar(peer, folder, scratch)
        ratio = f"{got['seconds'] / best:.1f}x (bar: {BAR_RATIO}x)"
        what = "ASHLAR assemble_channel, nothing written"
        print(f"{what:44} {got['seconds']:7.2f} {got['rss_mb']:8.0f}  {ratio}")
    for compression in ("deflate", "zstd"):
        got = measured("tiff", str(mosaic), str(scratch), compression)
        rate = f"{got['mb'] / got['seconds']:.0f} MB/s, {got['file_mb']:.0f} of {got['mb']:.0f} MB"
        what = f"OME-TIFF of 3 channels with pyramid, {compression}"
        print(f"{what:44} {got['seconds']:7.2f} {got['rss_mb']:8.0f}  {rate}")
        print(f"{'  its OME-Zarr pyramid before':44} {got['pyramid_s']:7.2f}")
        got = measured("raw", str(mosaic), str(scratch), compression)
        what = f"tifffile alone, 1 channel, no pyramid, {compression}"
        print(f"{what:44} {got['seconds']:7.2f} {'':8}  {got['mb'] / got['seconds']:.0f} MB/s")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter with ASHLAR 1.20 (and OpenCV)")
    parser.add_argument("--data", type=Path, help="set made before by tile-truth --n 10 --seed 1")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], options.measure[1:])))
        return
    if not (SHARED / "tools").is_dir() and options.data is None:
        print("../shared/tools is absent, and with it the tool that makes the tiles: not measured")
        return
    os.environ.setdefault("OMP_NUM_THREADS", str(WORKERS))
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.data or Path(scratch) / "syn10"
        if options.data is None:
            make_set(folder, options.peer_python or sys.executable)
        table(folder, Path(scratch), options.peer_python)


if __name__ == "__main__":
    main()
