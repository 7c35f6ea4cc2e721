"""A part of a whole cycle through the real workflow, and what the full cycle would take.

``python -m benchmarks.whole_cycle [--tiles 2x2 4x4] [--tile-px 1440] [--planes 20]``

Synthetic tissue of one cycle of four channels is processed to the end, once with the in-focus
plane estimated from the raw stack (``multiplane_wiener``) and once with 3-D deconvolution
(``sum_projection``). CPU seconds and peak memory are those of each job's log, its length that of
Snakemake's benchmark. Two mosaics tell what a rule costs in any case and what each megavoxel adds;
on that line lies the full cycle of 63 tiles of 1440 x 1920 x 20 planes. Minutes on 8 cores are
CPU-minutes over 8.

KINTSUGI's figures are its authors' own, for one cycle of that size: 282 min on 8 cores, 22 min on
a GPU.
"""

import argparse
import contextlib
import csv
import math
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.runs import Run, make_run, peak_mb

#: Raw voxels of a full cycle, in millions, and the cores it is reckoned for.
FULL_MVOX = 63 * 1440 * 1920 * 20 * 4 / 1e6
CORES = 8
KINTSUGI_MIN = {"8 cores": 282, "a GPU": 22}
METHODS = ("multiplane_wiener", "sum_projection")


@dataclass
class Cost:
    """What the jobs of one rule took: seconds of CPU and of the longest, and MB at most."""

    jobs: int = 0
    cpu_s: float = 0.0
    longest_s: float = 0.0
    peak_mb: float = 0.0

    def add(self, row: dict[str, str], log: Path) -> None:
        """Add one job, by its log and Snakemake's benchmark table, which lacks up to 30 CPU-s."""
        self.jobs += 1
        self.cpu_s += cpu_s(log)
        self.longest_s = max(self.longest_s, float(row["s"]))
        self.peak_mb = max(self.peak_mb, peak_mb(log))


def cpu_s(log: Path) -> float:
    """Return the CPU seconds in which a job started and worked, by its log."""
    times = re.findall(r"CPU time ([\d.]+) s, and ([\d.]+) s to start", log.read_text("utf-8"))
    return sum(map(float, times[-1]))


def costs(run: Run) -> dict[str, Cost]:
    """Return what each rule took."""
    found: dict[str, Cost] = {}
    for path in sorted((run.results / "benchmarks").rglob("*.tsv")):
        log = run.results / "logs" / path.parent.name / f"{path.stem}.log"
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream, delimiter="\t"):
                found.setdefault(path.parent.name, Cost()).add(row, log)
    return found


def size(folder: Path) -> int:
    """Return the bytes on the disk below a folder; files may vanish meanwhile."""
    done = subprocess.run(["du", "-sk", folder], capture_output=True, text=True, check=False)
    return 1024 * int(done.stdout.split()[0]) if done.stdout else 0


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[Callable[[], int]]:
    """Give a function that returns the most that a folder has held."""
    most, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            most[0] = max(most[0], size(folder))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        ended.set()
        thread.join()


@dataclass
class Measured:
    """A run: megavoxels and bytes of its raw data, most and last bytes of results, and costs."""

    mvox: float
    raw_b: int
    most_b: int
    left_b: int
    rules: dict[str, Cost]


def report(method: str, small: Measured, large: Measured) -> None:
    """Print what the larger of two runs took, and what a full cycle would."""
    print(f"\nedf.method: {method}; {small.mvox:.0f} and {large.mvox:.0f} Mvox raw")
    print(f"{'rule':16}{'jobs':>5}{'CPU s':>8}{'in any case':>12}{'CPU s/Mvox':>12}{'peak MB':>9}")
    total_s = 0.0
    for rule, cost in large.rules.items():
        more_s = max(0.0, cost.cpu_s - small.rules[rule].cpu_s) / (large.mvox - small.mvox)
        fixed_s = max(0.0, cost.cpu_s - more_s * large.mvox)
        total_s += fixed_s + more_s * FULL_MVOX
        print(f"{rule:16}{cost.jobs:5}{cost.cpu_s:8.1f}{fixed_s:12.1f}{more_s:12.4f}"
              f"{cost.peak_mb:9.0f}")  # fmt: skip
    peers = ", ".join(f"{minutes} min on {on}" for on, minutes in KINTSUGI_MIN.items())
    print(
        f"full cycle: {total_s / 60:.0f} CPU-minutes, {total_s / 60 / CORES:.1f} min on "
        f"{CORES} cores; KINTSUGI: {peers}"
    )
    peak_mb = max(cost.peak_mb for cost in large.rules.values())
    print(f"results {large.left_b / large.raw_b:.2f} x raw, {large.most_b / large.raw_b:.2f} x at "
          f"most during the run; peak memory of a job {peak_mb:.0f} MB")  # fmt: skip


def main() -> None:
    """Make the tiles, run both ways and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiles", nargs=2, default=["2x2", "4x4"], help="rows x columns")
    parser.add_argument("--tile-px", type=int, default=1440)
    parser.add_argument("--planes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    options = parser.parse_args()
    measured: dict[str, list[Measured]] = {method: [] for method in options.methods}
    with tempfile.TemporaryDirectory() as name:
        for tiles in options.tiles:
            rows, cols = map(int, tiles.split("x"))
            design = {
                "cycles": 1, "channels": 4, "rows": rows, "cols": cols, "overlap": 0.1,
                "planes": options.planes, "tile_px": options.tile_px, "seed": options.seed,
            }  # fmt: skip
            mvox = math.prod((rows, cols, options.planes, 4, options.tile_px**2)) / 1e6
            made = Path(name) / tiles
            raw = make_run(made, **design).folder / "raw"
            for method in options.methods:
                run = make_run(made / method, raw=raw, **design)
                run.edit(edf={"method": method})
                with watched(run.results) as most:
                    run.snakemake("registration", "qc")
                measured[method].append(
                    Measured(mvox, size(raw), most(), size(run.results), costs(run))
                )
            shutil.rmtree(made)
        for method, (small, large) in measured.items():
            report(method, small, large)


if __name__ == "__main__":
    main()
