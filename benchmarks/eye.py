"""Contact sheets for the eye: what the workflow made of synthetic tissue, at 1:1 beside raw.

``python -m benchmarks.eye --output FOLDER [--sets SMALL …]``

Each set runs through the real workflow with ``output.keep: stacks``; ``brain`` are the real tiles
of ``../shared/data``. A sheet shows one channel; its rows are places, the worst of each metric that
names places and twelve random ones. Columns are the sharpest stitched plane, the in-focus plane and
the final image, at three stretches: 0.1 to 99.9 %, 1 to 99.5 %, square root. Levels are those of
the 512 px around the place. ``index.csv`` says what a row shows. Same sets, same bytes.
"""

from __future__ import annotations

import argparse
import csv
import json
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import zarr
from numpy.typing import NDArray

from tests.support.runs import SMALL, Run, make_run
from tilewright.config.layout import Layout
from tilewright.init.folder import create_experiment
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.transform import read_transform
from tilewright.kernels.register.warp import Transform
from tilewright.report.quality.places import scan_focus

CROP_PX, LEVELS_PX, PLACES, GAP_PX = 128, 512, 12, 4
BRAIN = Path(__file__).resolve().parents[2] / "shared" / "data" / "brain-tiles"
_LARGER: dict[str, Any] = {"cycles": 2, "channels": 3, "rows": 3, "cols": 3, "empty_tile": False}
SETS: dict[str, dict[str, Any]] = {
    "demo": {"seed": 1, "rows": 3, "cols": 4, "channels": 3, "overlap": 0.12},
    "tests": SMALL,
    "sparse": {**_LARGER, "seed": 711, "tissue_share": 0.3},
    "dense": {**_LARGER, "seed": 712, "tissue_share": 1.0, "lost_share": 0.0},
    "dim": {**_LARGER, "seed": 713, "peak_electrons": 60.0},
    "debris": {**_LARGER, "seed": 714, "saturated_spots": 40},
    "thick": {**_LARGER, "seed": 715, "planes": 9, "z_step_um": 2.5},
    "rough": {**_LARGER, "seed": 716, "elastic_px": 8.0, "cycle_rotation_deg": 1.0},
}


@dataclass(frozen=True)
class Spot:
    """A row of a sheet: (y, x) px, in the final image's frame or in that of the cycle."""

    metric: str
    at: tuple[float, float]
    final_frame: bool


def spots_of(qc: Path, cycle: int, channel: str, shape: tuple[int, int], seed: int) -> list[Spot]:
    """Return the worst places of each metric, and random ones in the final image's frame."""
    found: dict[str, list[Spot]] = defaultdict(list)
    for path in sorted(qc.glob(f"*_cycle{cycle}.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        final = report["stage"] in ("register", "image")
        numbers = report["numbers"]
        for place in numbers.get("places", []) + numbers.get(channel, {}).get("places", []):
            at = (float(place["y_px"]), float(place["x_px"]))
            found[place["metric"]].append(Spot(place["metric"], at, final))
    worst = [spot for metric in sorted(found) for spot in found[metric][:PLACES]]
    random = np.random.default_rng(seed).uniform(0, 1, (PLACES, 2)) * shape
    return worst + [Spot("random", (float(y), float(x)), True) for y, x in random]


def crop(image: NDArray[Any], at: NDArray[Any], size_px: int) -> NDArray[np.float32]:
    """Return the square about a place; NaN outside the image."""
    full = np.full((size_px, size_px), np.nan, np.float32)
    first = [round(float(c)) - size_px // 2 for c in at]
    low = [max(f, 0) for f in first]
    part = image[low[0] : max(first[0] + size_px, 0), low[1] : max(first[1] + size_px, 0)]
    y, x = low[0] - first[0], low[1] - first[1]
    full[y : y + part.shape[0], x : x + part.shape[1]] = part
    return full


def stretches(image: NDArray[Any], at: NDArray[Any]) -> list[NDArray[np.uint8]]:
    """Return the crop about a place at three stretches; grey outside the image."""
    part, around = crop(image, at, CROP_PX), crop(image, at, LEVELS_PX)
    if np.isnan(around).all():
        return [np.full(part.shape, 128, np.uint8)] * 3
    seen = []
    for low, high, power in ((0.1, 99.9, 1.0), (1.0, 99.5, 1.0), (0.1, 99.9, 0.5)):
        black, white = np.nanpercentile(around, (low, high))
        unit = np.clip((part - black) / max(float(white - black), 1e-6), 0, 1) ** power
        seen.append(np.nan_to_num(np.rint(255 * unit), nan=128).astype(np.uint8))
    return seen


def sheet(
    images: list[NDArray[Any]], transform: Transform | None, spots: list[Spot]
) -> NDArray[np.uint8]:
    """Return the rows of a sheet; ``images`` are raw, in-focus plane (cycle's frame) and final."""
    rows = []
    for spot in spots:
        here = np.array(spot.at)
        own = here
        if transform is not None and spot.final_frame:
            own = transform.points(here[None])[0]
        elif transform is not None:
            # Good to a pixel: a cycle is shifted, and hardly anything else.
            here = 2 * here - transform.points(here[None])[0]
        shown = [stretches(i, at) for i, at in zip(images, (own, own, here), strict=True)]
        cells = [shown[k][s] for s in range(3) for k in range(len(images))]
        rows.append(np.hstack([np.pad(cell, GAP_PX // 2, constant_values=128) for cell in cells]))
    return np.vstack(rows)


def brain_run(folder: Path) -> Run:
    """Return the experiment that ``tilewright init`` makes of the brain tiles."""
    return Run(folder, create_experiment(BRAIN, folder).config)


def pictures(layout: Layout, at: dict[str, Any]) -> list[NDArray[np.float32]]:
    """Return the sharpest stitched plane and the in-focus plane of a channel."""
    raw = open_mosaic(layout.stitch.format(**at))
    best = scan_focus(raw).best_plane if raw.shape[0] > 1 else 0
    plane = open_mosaic(layout.edf.format(**at))
    return [np.asarray(image, np.float32) for image in (raw.read(best), plane.read(0))]


def draw(name: str, output: Path) -> None:
    """Run one set through the workflow and write the sheets of its channels."""
    folder = output / "runs" / name
    run = brain_run(folder) if name == "brain" else make_run(folder, **SETS[name])
    run.edit(output={"keep": "stacks"})
    run.snakemake("registration", "qc", "--cores", "2")
    layout, sample = Layout(str(run.results)), next(run.results.glob("*/qc")).parent.name
    final = zarr.open_group(layout.image_zarr.format(sample=sample), mode="r")["0"]
    target = output / name
    target.mkdir(parents=True, exist_ok=True)
    table: list[tuple[Any, ...]] = [("sheet", "row", "metric", "y_px", "x_px", "frame")]
    with (run.folder / "markers.csv").open(newline="", encoding="utf-8") as stream:
        channels = [(int(row["cycle"]), row["channel"]) for row in csv.DictReader(stream)]
    for number, (cycle, channel) in enumerate(channels):
        at = {"sample": sample, "cycle": cycle, "channel": channel}
        picture = np.asarray(final[number], np.float32)  # type: ignore[index]
        path = Path(layout.transform.format(**at))
        moved = read_transform(path) if path.exists() else None
        shape = (picture.shape[0], picture.shape[1])
        seed = zlib.crc32(f"{name} {number}".encode())
        spots = spots_of(run.results / sample / "qc", cycle, channel, shape, seed)
        title = f"cycle{cycle}_channel{channel}"
        drawn = sheet([*pictures(layout, at), picture], moved, spots)
        (target / f"{title}.png").write_bytes(imagecodecs.png_encode(drawn))
        for row, spot in enumerate(spots):
            frame = "final" if spot.final_frame else "cycle"
            table.append((title, row, spot.metric, *(f"{v:.0f}" for v in spot.at), frame))
    with (target / "index.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(table)
    print(f"{name}: {target}", flush=True)


def main() -> None:
    """Draw the sets asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=[*SETS, "brain"], default=[*SETS, "brain"])
    args = parser.parse_args()
    for name in args.sets:
        if name == "brain" and not BRAIN.is_dir():
            print(f"brain: {BRAIN} is absent")
            continue
        draw(name, args.output.resolve())


if __name__ == "__main__":
    main()
