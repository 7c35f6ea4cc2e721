"""Whole slides of growing size through the real workflow: memory and time of every rule.

``python -m benchmarks.slides --sides 8192 16384 [--kind images|tiles] [--cycles 2] [--channels 2]``

``images`` are stitched already, one BigTIFF per cycle (``convention: stitched``); ``tiles`` are raw
tiles of 1440 x 1920 px in three planes, one channel. Nuclei are drawn where the tissue has them;
each cycle is turned, shifted and bent by a known map, with shot noise of its own. For each rule:
CPU seconds of its work per megapixel (of each channel, where channels are worked on alone), the
largest memory and the longest job, and both as shares of what the job asks for, Snakemake's memory
in a Slurm job included; with ``--cores 8`` jobs have all threads that they ask for. Then how far
the registration is off (TRE, px) at points of the tissue, and on the same images with
``--peer-python`` palom (its coarse affine map, its shifts of blocks), with ``--ashlar-python``
ASHLAR, which moves tiles cut from them: of a point the tile whose middle is nearest. Read the lines
of a rule from size to size: memory that grows with the side, and a cost per megapixel that grows,
are defects.
"""

import argparse
import csv
import itertools
import math
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import tifffile
import yaml
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.scenes.slide import Motion, Slide, counts
from benchmarks.whole_cycle import Cost, costs
from tests.support.runs import Run
from tilewright.config.checks import data_size, data_sizes, manifests
from tilewright.config.layout import Layout
from tilewright.config.load import read_experiment
from tilewright.config.rules import SNAKEMAKE_MB
from tilewright.config.tables import TILE_COLUMNS
from tilewright.io.results.registration import read_transform
from tilewright.runtime.files import csv_text

PIXEL_UM = 0.5
TILE, OVERLAP, DEFOCUS_PX = (1440, 1920), 0.1, (2.0, 0.0, 2.0)
#: Raw pixels of ``tiles`` lie so far beyond the slide's edge at most.
JITTER_PX = 6.0
Floats = NDArray[np.float64]
TABLES = {"samples": "samples.tsv", "markers": "markers.csv"}


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


def write_tiles(slide: Slide, motions: list[Motion], raw: Path) -> str:
    """Write tiles by row, column and plane; return their table of positions."""
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
    tiles = [
        {"sample": "slide", "cycle": cycle, "tile": f"r{row + 1}c{col + 1}", "y": row * steps[0],
         "x": col * steps[1], "unit": "px", "use": 1}
        for cycle in range(1, len(motions) + 1)
        for row in range(rows)
        for col in range(cols)
    ]  # fmt: skip
    return csv_text(TILE_COLUMNS, tiles)


def prepare(folder: Path, side: int, kind: str, cycles: int, channels: int, shift_px: float) -> Run:
    """Write the raw data and the configuration of an experiment."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    slide = Slide(side, seed=side)
    motions = [Motion.of(cycle, side, shift_px) for cycle in range(cycles)]
    acquisition: dict[str, object] = {"pixel_um": PIXEL_UM, "reference_cycle": 1}
    settings: dict[str, object] = {"results": str(folder / "results")}
    row = {"sample": "slide", "raw_dir": str(raw)}
    if kind == "images":
        write_images(slide, motions, channels, raw)
        acquisition["convention"] = "stitched"
    else:
        table = write_tiles(slide, motions, raw)
        (folder / "tiles.csv").write_text(table, encoding="utf-8")
        settings["tiles"] = str(folder / "tiles.csv")
        acquisition |= {"convention": "pattern", "z_step_um": 2.0}
        acquisition["pattern"] = "cycle{cycle}/r{row}_c{col}_z{z}_ch{channel}.tif"
        settings["optics"] = {"numerical_aperture": 0.5, "immersion_refractive_index": 1.0}
    tables = {key: str(folder / name) for key, name in TABLES.items()}
    config = {**tables, **settings, "acquisition": acquisition}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with (folder / "samples.tsv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(row), delimiter="\t")
        writer.writeheader()
        writer.writerow(row)
    pairs = itertools.product(range(1, cycles + 1), range(1, channels + 1))
    lines = [f"{c},{k},c{c}m{k},{k == 1},570" for c, k in pairs]
    table = "\n".join(["cycle,channel,marker,reference,emission_nm", *lines, ""])
    (folder / "markers.csv").write_text(table, encoding="utf-8")
    return Run(folder, folder / "config.yaml")


#: Runs in the peer's interpreter: two images, points of the first; writes the points in the second.
PALOM = """
import resource, sys
import dask, dask.array as da, numpy as np, palom, tifffile
dask.config.set(scheduler="threads", num_workers=int(sys.argv[4]))
def plane(path):
    return da.from_zarr(tifffile.imread(path, aszarr=True, key=0)).rechunk(1024)
first, second = map(plane, sys.argv[1:3])
factor = max(1, first.shape[0] // 2048)
small = [da.coarsen(np.mean, image, {0: factor, 1: factor}, trim_excess=True).compute()
         for image in (first, second)]
aligner = palom.align.Aligner(first, second, *small, factor, factor)
aligner.coarse_register_affine(n_keypoints=4000, plot_match_result=False)
aligner.compute_shifts(); aligner.constrain_shifts()
yx = np.load(sys.argv[3])
block = (yx // 1024).astype(int) @ [aligner.grid_shape[1], 1]
back = np.linalg.inv(aligner.block_affine_matrices)[block]
whole = np.linalg.inv(aligner.affine_matrix)
xy1 = np.column_stack([yx[:, ::-1], np.ones(len(yx))])
use = resource.getrusage(resource.RUSAGE_SELF)
np.savez(sys.argv[3], affine=(xy1 @ whole.T)[:, 1::-1],
         blocks=np.einsum("nij,nj->ni", back, xy1)[:, 1::-1],
         cost=[use.ru_utime + use.ru_stime, use.ru_maxrss / 1024])
"""


#: The same of ASHLAR, with the tiles' height, width and overlap, and the largest shift in px.
ASHLAR = """
import resource, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, tifffile, zarr
from ashlar import reg
tile, overlap, reach = np.array(eval(sys.argv[5])), float(sys.argv[6]), float(sys.argv[7])
first, second = (zarr.open(tifffile.imread(path, aszarr=True, key=0), mode="r")
                 for path in sys.argv[1:3])
starts = [np.linspace(0, n - t, int(np.ceil((n - t) / (t * (1 - overlap)))) + 1).round()
          for n, t in zip(first.shape, tile)]
nominal = np.stack(np.meshgrid(*starts, indexing="ij"), -1).reshape(-1, 2)
class Metadata(reg.Metadata):
    _num_images = len(nominal); num_channels = 1; pixel_size = 0.5
    pixel_dtype = np.dtype("uint16")
    def tile_position(self, i): return nominal[i]
    def tile_size(self, i): return tile
class Reader(reg.Reader):
    def __init__(self, image): self.image, self.metadata = image, Metadata()
    def read(self, series, c):
        y, x = nominal[series].astype(int)
        return np.asarray(self.image[y : y + tile[0], x : x + tile[1]])
def cpu_s():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime
fixed = reg.EdgeAligner(Reader(first), filter_sigma=1.0)
fixed.run()
start_s = cpu_s()
layer = reg.LayerAligner(Reader(second), fixed, max_shift=0.5 * reach, filter_sigma=1.0)
layer.run()
moved = layer.positions - np.median(fixed.positions - nominal, axis=0)
yx = np.load(sys.argv[3])
near = np.concatenate([np.argmin(((part[:, None] - moved - tile / 2) ** 2).sum(-1), 1)
                       for part in np.array_split(yx, len(yx) // 1000 + 1)])
np.savez(sys.argv[3], tiles=yx - moved[near] + nominal[near],
         cost=[cpu_s() - start_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024])
"""
#: Program and names of what it found.
PEERS = {"palom": (PALOM, ("affine", "blocks")), "ASHLAR": (ASHLAR, ("tiles",))}
#: Beyond the motion of a slide's middle, its corners move with the turn.
ASHLAR_REACH = 0.01


def print_peer(peer: str, python: str, run: Run, motions: list[Motion], cores: int) -> None:
    """Print what a peer takes to register each cycle's first channel, and how far it is off."""
    program, names = PEERS[peer]
    images = [run.folder / f"raw/slide_cycle{k}.ome.tif" for k in range(1, len(motions) + 1)]
    for cycle, motion in enumerate(motions[1:], 2):
        side = motion.side
        yx, true = nuclei_of_both(side, motion)
        points = run.folder / "points.npy"
        np.save(points, yx)
        reach = math.hypot(*motion.shift_px) + ASHLAR_REACH * side
        words = [images[0], images[cycle - 1], points, cores, list(TILE), OVERLAP, reach]
        command = [python, "-c", program, *map(str, words)]
        done = subprocess.run(command, check=False)
        if done.returncode:
            print(f"cycle {cycle}: {peer} ended with status {done.returncode}")
            continue
        with np.load(run.folder / "points.npy.npz") as found:
            cpu_s, peak_mb = found["cost"]
            for name in names:
                print(f"cycle {cycle}: {peer}, {name}: {tre(found[name] - true)}; "
                      f"{cpu_s / side**2 * 1e6:.2f} CPU s/Mpx, {peak_mb:.0f} MB")  # fmt: skip


def report(run: Run, side: int, motions: list[Motion]) -> None:
    """Print what each rule took of what it asked for, and how far the registration is off."""
    experiment = read_experiment(run.config)
    layout = Layout(experiment.settings.results)
    sizes = data_sizes(experiment, data_size(experiment, layout, manifests(layout)), {})
    found = costs(run)
    start_s = found.get("summary", Cost(1)).cpu_s
    mpx = side**2 / 1e6
    print(f"\n{side} x {side} px, {len(motions)} cycles, {len(experiment.channels)} channels")
    print(f"{'rule':16}{'jobs':>5}{'CPU s':>8}{'CPU s/Mpx':>11}{'peak MB':>9}{'of asked':>9}"
          f"{'longest s':>10}{'of asked':>9}")  # fmt: skip
    for rule, cost in found.items():
        shape = sizes.request(rule, {"sample": "slide"}, "cpu")
        by = len(experiment.channels) if rule in ("assemble", "resample", "qc_cycle") else cost.jobs
        work = max(0.0, cost.cpu_s - start_s * cost.jobs) / by / mpx
        print(f"{rule:16}{cost.jobs:5}{cost.cpu_s:8.1f}{work:11.4f}{cost.peak_mb:9.0f}"
              f"{(cost.peak_mb + SNAKEMAKE_MB) / shape.mem_mb:9.2f}{cost.longest_s:10.0f}"
              f"{cost.longest_s / 60 / shape.runtime_min:9.2f}")  # fmt: skip
    for cycle, motion in enumerate(motions[1:], 2):
        transform = read_transform(run.results / "slide/register" / f"cycle{cycle}.npz")
        points, true = nuclei_of_both(side, motion)
        residual = transform.points(points) - true
        if not experiment.settings.stitched:  # each mosaic begins where its first tiles lie
            residual -= np.median(residual, axis=0)
        print(f"cycle {cycle}: shift {math.hypot(*motion.shift_px):.0f} px, {tre(residual)}")


def nuclei_of_both(side: int, motion: Motion) -> tuple[Floats, Floats]:
    """Return where nuclei lie in the first cycle and in another that shows them, both (n, 2)."""
    points = Slide(side, seed=side).yx
    true = motion.points(points)
    inside = ((true > 100) & (true < side - 100)).all(axis=1)
    return points[inside], true[inside]


def tre(residual: Floats) -> str:
    """Return the error of a registration in words."""
    worst = np.percentile(np.hypot(*residual.T), [50, 95, 100])
    return f"TRE median {worst[0]:.3f}, 95 % {worst[1]:.3f}, most {worst[2]:.2f} px"


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
    parser.add_argument("--peer-python", help="interpreter with palom; images only")
    parser.add_argument("--ashlar-python", help="interpreter with ashlar and zarr; images only")
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
        pythons = {"palom": options.peer_python, "ASHLAR": options.ashlar_python}
        for peer, python in pythons.items():
            if python and options.kind == "images":
                print_peer(peer, python, run, motions, options.cores)
        if options.folder is None:
            shutil.rmtree(home.parent)


if __name__ == "__main__":
    main()
