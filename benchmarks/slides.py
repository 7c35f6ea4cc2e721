"""Whole slides of growing size through the real workflow: memory and time of every rule.

``python -m benchmarks.slides --sides 8192 16384 [--kind images|tiles] [--cycles 2] [--channels 2]``

``images`` are stitched already, one BigTIFF per cycle (``convention: stitched``); ``tiles`` are raw
tiles of 1440 x 1920 px in three planes, one channel. Nuclei are drawn where the tissue has them;
each cycle is turned, shifted and bent by a known map, with shot noise of its own. For each rule:
CPU seconds of its work per megapixel (of each channel, where channels are worked on alone), the
largest memory and the longest job, and both as shares of what the job asks for. Then how far the
registration is off (TRE, px) at points of the tissue. Read the lines of a rule from size to size:
memory that grows with the side, and a cost per megapixel that grows, are defects.
"""

from __future__ import annotations

import argparse
import csv
import math
import shutil
import tempfile
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tifffile
import yaml
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.whole_cycle import Cost, costs
from tests.support.runs import Run
from tilewright.commands.dag import read_experiment
from tilewright.config.checks import data_sizes
from tilewright.config.layout import Layout
from tilewright.io.results.transform import read_transform

PIXEL_UM, PEDESTAL, STAMP = 0.5, 100, 12
TILE, OVERLAP, DEFOCUS_PX = (1440, 1920), 0.1, (2.0, 0.0, 2.0)
#: Raw pixels of ``tiles`` lie so far beyond the slide's edge at most.
JITTER_PX = 6.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Motion:
    """How a cycle lies against the first, positions in px."""

    side: int
    shift_px: tuple[float, float] = (0.0, 0.0)
    angle_deg: float = 0.0
    bend_px: float = 0.0

    @classmethod
    def of(cls, cycle: int, side: int, shift_px: float) -> Motion:
        """Return the motion of a cycle, from 0; the first does not move."""
        if not cycle:
            return cls(side)
        turn = 2.4 * cycle
        shift = shift_px * np.array([np.cos(turn), np.sin(turn)])
        return cls(side, (float(shift[0]), float(shift[1])), 0.4 * (-1) ** cycle, 5.0)

    def points(self, yx: Floats) -> Floats:
        """Return where points (n, 2) of the first cycle lie in this one."""
        angle, centre = np.radians(self.angle_deg), (self.side - 1) / 2
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        out: Floats = (yx - centre) @ turn.T + centre + np.array(self.shift_px)
        out[:, 0] += self.bend_px * np.sin(yx[:, 1] / 1500)
        out[:, 1] += self.bend_px * np.cos(yx[:, 0] / 1700)
        return out


class Slide:
    """Nuclei of a square slide, drawn a part at a time."""

    def __init__(self, side: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.side = side
        self.yx = rng.random((int(side**2 / 26**2), 2)) * side
        cells = (self.yx // 1500).astype(int)
        tissue = ndimage.gaussian_filter(rng.random([side // 1500 + 1] * 2), 1.0, mode="reflect")
        self.yx = self.yx[tissue[cells[:, 0], cells[:, 1]] > np.percentile(tissue, 25)]
        self.radius = rng.uniform(5, 9, len(self.yx))
        self.light = 800 * rng.lognormal(0, 0.35, len(self.yx))

    def moved(self, motion: Motion) -> Slide:
        """Return the slide as it lies in a cycle."""
        new, yx = copy(self), motion.points(self.yx)
        order = np.argsort(yx[:, 0])
        new.yx, new.radius, new.light = yx[order], self.radius[order], self.light[order]
        return new

    def draw(self, y0: float, x0: float, shape: tuple[int, int]) -> NDArray[np.float32]:
        """Return the light of a part whose first pixel lies at (y0, x0); of a moved slide."""
        first, last = np.searchsorted(self.yx[:, 0], (y0 - STAMP, y0 + shape[0] + STAMP))
        near = np.arange(first, last)
        x = self.yx[near, 1]
        near = near[(x > x0 - STAMP) & (x < x0 + shape[1] + STAMP)]
        out = np.zeros([n + 4 * STAMP for n in shape], np.float32)
        grid = np.arange(-STAMP, STAMP + 1)
        for some in np.array_split(near, len(near) // 10_000 + 1):
            at = self.yx[some] - (y0, x0) + 2 * STAMP
            whole = np.floor(at).astype(int)
            dy, dx = ((grid - (at - whole)[:, k, None]) for k in (0, 1))
            distance = np.hypot(dy[:, :, None], dx[:, None, :])
            stamps = self.light[some, None, None] / (
                1 + np.exp(1.5 * (distance - self.radius[some, None, None]))
            )
            rows, columns = (whole[:, k, None] + grid for k in (0, 1))
            np.add.at(out, (rows[:, :, None], columns[:, None, :]), stamps.astype(np.float32))
        return out[2 * STAMP : -2 * STAMP, 2 * STAMP : -2 * STAMP]


def counts(rng: np.random.Generator, light: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return what a camera counts, half a photon a count."""
    return np.asarray(rng.poisson(2 * light) / 2 + PEDESTAL, np.uint16)


def write_images(slide: Slide, motions: list[Motion], channels: int, raw: Path) -> None:
    """Write one BigTIFF per cycle, band by band, one page per channel."""
    side = slide.side
    for cycle, motion in enumerate(motions):
        moved, rng = slide.moved(motion), np.random.default_rng(cycle)

        def tiles(moved: Slide = moved, rng: np.random.Generator = rng) -> object:
            for _ in range(channels):
                for y in range(0, side, 512):
                    band = counts(rng, moved.draw(y, 0, (512, side)))
                    for x in range(0, side, 512):
                        yield np.ascontiguousarray(band[:, x : x + 512])

        with tifffile.TiffWriter(raw / f"slide_cycle{cycle + 1}.ome.tif", bigtiff=True) as tiff:
            tiff.write(
                tiles(),
                shape=(channels, side, side),
                dtype=np.uint16,
                tile=(512, 512),
                compression="zlib",
                compressionargs={"level": 1},
                metadata={
                    "axes": "CYX",
                    "PhysicalSizeX": PIXEL_UM,
                    "PhysicalSizeY": PIXEL_UM,
                    "Channel": {"Name": [f"M{k}" for k in range(channels)]},
                },
            )


def write_tiles(slide: Slide, motions: list[Motion], raw: Path) -> tuple[int, int]:
    """Write tiles by row, column and plane; return rows and columns."""
    steps = [round(n * (1 - OVERLAP)) for n in TILE]
    rows, cols = (max(1, (slide.side - n) // s + 1) for n, s in zip(TILE, steps, strict=True))
    y, x = (np.linspace(-1, 1, n) for n in TILE)
    flat = 1.1 - 0.25 * (y[:, None] ** 2 + x[None, :] ** 2)
    for cycle, motion in enumerate(motions):
        moved, rng = slide.moved(motion), np.random.default_rng(cycle)
        for row in range(rows):
            for col in range(cols):
                at = np.array([row * steps[0], col * steps[1]]) + rng.uniform(-1, 1, 2) * JITTER_PX
                light = moved.draw(at[0], at[1], TILE)
                for z, blur in enumerate(DEFOCUS_PX):
                    seen = ndimage.gaussian_filter(light, blur) if blur else light
                    path = raw / f"cycle{cycle + 1}" / f"r{row + 1}_c{col + 1}_z{z + 1}_ch1.tif"
                    path.parent.mkdir(exist_ok=True)
                    tifffile.imwrite(path, counts(rng, (seen * flat).astype(np.float32)))
    return rows, cols


def prepare(folder: Path, side: int, kind: str, cycles: int, channels: int, shift_px: float) -> Run:
    """Write the raw data and the configuration of an experiment."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    slide = Slide(side, seed=side)
    motions = [Motion.of(cycle, side, shift_px) for cycle in range(cycles)]
    acquisition = {"pixel_um": PIXEL_UM, "reference_cycle": 1, "reference_channel": "1"}
    settings: dict[str, object] = {"results": str(folder / "results")}
    row = {"sample": "slide", "raw_dir": str(raw)}
    if kind == "images":
        write_images(slide, motions, channels, raw)
        acquisition["convention"] = "stitched"
    else:
        rows, cols = write_tiles(slide, motions, raw)
        acquisition |= {"convention": "pattern", "z_step_um": 2.0, "overlap": OVERLAP}
        acquisition["pattern"] = "cycle{cycle}/r{row}_c{col}_z{z}_ch{channel}.tif"
        settings["optics"] = {"numerical_aperture": 0.5, "immersion_refractive_index": 1.0}
        row |= {"rows": str(rows), "cols": str(cols)}
    tables = {key: str(folder / name) for key, name in TABLES.items()}
    config = {**tables, **settings, "acquisition": acquisition}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with (folder / "samples.tsv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(row), delimiter="\t")
        writer.writeheader()
        writer.writerow(row)
    lines = [f"{c},{k},c{c}m{k},570" for c in range(1, cycles + 1) for k in range(1, channels + 1)]
    table = "\n".join(["cycle,channel,marker,emission_nm", *lines, ""])
    (folder / "markers.csv").write_text(table, encoding="utf-8")
    return Run(folder, folder / "config.yaml")


TABLES = {"samples": "samples.tsv", "markers": "markers.csv"}


def report(run: Run, side: int, motions: list[Motion]) -> None:
    """Print what each rule took of what it asked for, and how far the registration is off."""
    experiment = read_experiment(run.config)
    sizes = data_sizes(experiment, Layout(experiment.settings.results), {})
    found = costs(run)
    start_s = found.get("summary", Cost(1)).cpu_s
    mpx = side**2 / 1e6
    print(f"\n{side} x {side} px, {len(motions)} cycles, {len(experiment.channels)} channels")
    print(f"{'rule':16}{'jobs':>5}{'CPU s':>8}{'CPU s/Mpx':>11}{'peak MB':>9}{'of asked':>9}"
          f"{'longest s':>10}{'of asked':>9}")  # fmt: skip
    for rule, cost in found.items():
        shape = sizes.shape(rule, {"sample": "slide"}, gpu=False)
        by = len(experiment.channels) if rule in ("assemble", "resample", "qc_cycle") else cost.jobs
        work = max(0.0, cost.cpu_s - start_s * cost.jobs) / by / mpx
        print(f"{rule:16}{cost.jobs:5}{cost.cpu_s:8.1f}{work:11.4f}{cost.peak_mb:9.0f}"
              f"{cost.peak_mb / shape.mem_mb:9.2f}{cost.longest_s:10.0f}"
              f"{cost.longest_s / 60 / shape.runtime_min:9.2f}")  # fmt: skip
    for cycle, motion in enumerate(motions[1:], 2):
        transform = read_transform(run.results / "slide/register" / f"cycle{cycle}.npz")
        points = Slide(side, seed=side).yx
        true = motion.points(points)
        inside = ((true > 100) & (true < side - 100)).all(axis=1)
        residual = transform.points(points[inside]) - true[inside]
        if not experiment.settings.stitched:  # each mosaic begins where its first tiles lie
            residual -= np.median(residual, axis=0)
        off = np.hypot(*residual.T)
        shift, worst = math.hypot(*motion.shift_px), np.percentile(off, [50, 95, 100])
        print(f"cycle {cycle}: shift {shift:.0f} px, TRE median {worst[0]:.3f}, 95 % "
              f"{worst[1]:.3f}, most {worst[2]:.2f} px")  # fmt: skip


def main() -> None:
    """Make slides, run the workflow on them, and print the table of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--kind", choices=("images", "tiles"), default="images")
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--shift-px", type=float, default=200.0)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to work, and to leave everything")
    options = parser.parse_args()
    channels = options.channels if options.kind == "images" else 1
    for side in options.sides:
        home = options.folder or Path(tempfile.mkdtemp())
        home /= f"{options.kind}{side}"
        how = (options.kind, options.cycles, channels, options.shift_px)
        motions = [Motion.of(cycle, side, options.shift_px) for cycle in range(options.cycles)]
        run = Run(home, home / "config.yaml") if home.is_dir() else prepare(home, side, *how)
        run.snakemake("registration", "qc", "--cores", str(options.cores))
        report(run, side, motions)
        if options.folder is None:
            shutil.rmtree(home.parent)


if __name__ == "__main__":
    main()
