"""Contact sheets for the eye: what the workflow made of synthetic tissue, at 1:1 beside raw.

``python -m benchmarks.eye --output FOLDER [--sets SMALL …]``

Each set runs through the real workflow with ``output.keep: stacks``. A sheet shows one channel; its
rows are places, the worst of each metric that names places and twelve random ones. Columns are
the sharpest stitched plane, the in-focus plane and the final image, at three stretches: 0.1 to
99.9 %, 1 to 99.5 %, square root. Levels are those of the whole picture. ``index.csv`` says what a
row shows. Same sets, same bytes.
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

from tests.support.runs import SMALL, make_run
from tilewright.config.layout import Layout
from tilewright.io.mosaic import open_mosaic
from tilewright.io.transform import read_transform
from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.warp import Transform
from tilewright.phantom.design import PhantomDesign
from tilewright.report.places import scan_focus

CROP_PX, PLACES, GAP_PX = 128, 12, 4
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
        for place in _places(report, channel):
            at = (float(place["y_px"]), float(place["x_px"]))
            found[place["metric"]].append(Spot(place["metric"], at, final))
    worst = [spot for metric in sorted(found) for spot in found[metric][:PLACES]]
    random = np.random.default_rng(seed).uniform(0, 1, (PLACES, 2)) * shape
    return worst + [Spot("random", (float(y), float(x)), True) for y, x in random]


def _places(node: Any, channel: str) -> list[dict[str, Any]]:
    """Return every entry of ``places`` below a node that is not another channel's."""
    if isinstance(node, list):
        return [place for part in node for place in _places(part, channel)]
    if not isinstance(node, dict) or str(node.get("channel", channel)) != channel:
        return []
    own = [place for place in node.get("places", []) if place.get("y_px") is not None]
    below = [part for key, part in node.items() if key != "places"]
    return own + _places(below, channel)


def stretches(image: NDArray[Any], part: NDArray[Any]) -> list[NDArray[np.uint8]]:
    """Return a part of an image at three stretches, with levels of the whole image."""
    seen = []
    for low, high, power in ((0.1, 99.9, 1.0), (1.0, 99.5, 1.0), (0.1, 99.9, 0.5)):
        black, white = np.percentile(image, (low, high))
        unit = np.clip((part - black) / max(float(white - black), 1e-6), 0, 1)
        seen.append(np.rint(255 * unit**power).astype(np.uint8))
    return seen


def crop(image: NDArray[Any], at: NDArray[Any]) -> NDArray[np.float32]:
    """Return the crop about a place, moved inside the image; small images are filled up."""
    start = [
        int(np.clip(round(float(c)) - CROP_PX // 2, 0, max(n - CROP_PX, 0)))
        for c, n in zip(at, image.shape, strict=True)
    ]
    part = image[start[0] : start[0] + CROP_PX, start[1] : start[1] + CROP_PX]
    full = np.full((CROP_PX, CROP_PX), image.min(), np.float32)
    full[: part.shape[0], : part.shape[1]] = part
    return full


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
        shown = [
            stretches(image, crop(image, at))
            for image, at in zip(images, (own, own, here), strict=True)
        ]
        cells = [shown[k][s] for s in range(3) for k in range(len(images))]
        rows.append(np.hstack([np.pad(cell, GAP_PX // 2, constant_values=128) for cell in cells]))
    return np.vstack(rows)


def draw(name: str, design: dict[str, Any], output: Path) -> None:
    """Run one set through the workflow and write the sheets of its channels."""
    run = make_run(output / "runs" / name, **design)
    run.edit(output={"keep": "stacks"})
    run.snakemake("registration", "qc", "--cores", "2")
    plan, layout = PhantomDesign(**{**SMALL, **design}), Layout(str(run.results))
    final = zarr.open_group(layout.image_zarr.format(sample="tonsil"), mode="r")["0"]
    backend = cpu_backend(workers=1)
    target = output / name
    target.mkdir(parents=True, exist_ok=True)
    with (target / "index.csv").open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["sheet", "row", "metric", "y_px", "x_px", "frame"])
        for number in range(plan.cycles * plan.channels):
            cycle, channel = number // plan.channels + 1, str(number % plan.channels + 1)
            at = {"sample": "tonsil", "cycle": cycle, "channel": channel}
            raw = open_mosaic(layout.stitch.format(**at))
            picture = np.asarray(final[number], np.float32)  # type: ignore[index]
            images = [
                np.asarray(raw.read(scan_focus(backend, raw).best_plane), np.float32),
                np.asarray(open_mosaic(layout.edf.format(**at)).read(0), np.float32),
                picture,
            ]
            moved = read_transform(layout.transform.format(**at)) if cycle > 1 else None
            seed = zlib.crc32(f"{name} {number}".encode())
            shape = (picture.shape[0], picture.shape[1])
            spots = spots_of(run.sample / "qc", cycle, channel, shape, seed)
            title = f"cycle{cycle}_channel{channel}"
            (target / f"{title}.png").write_bytes(
                imagecodecs.png_encode(sheet(images, moved, spots))
            )
            for row, spot in enumerate(spots):
                frame = "final" if spot.final_frame else "cycle"
                table.writerow([title, row, spot.metric, *(f"{v:.0f}" for v in spot.at), frame])
    print(f"{name}: {target}", flush=True)


def main() -> None:
    """Draw the sets asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    args = parser.parse_args()
    for name in args.sets:
        draw(name, SETS[name], args.output.resolve())


if __name__ == "__main__":
    main()
