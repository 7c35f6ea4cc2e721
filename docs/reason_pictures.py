"""Draw what each reason of a verdict looks like: ``python -m docs.reason_pictures [REASON…]``.

The damages are those of the tests (``tests/support/quality``). Each is put into a copy of their
small experiment; the same place is cut out of the copy (left, or above) and of the undamaged one,
at the same grey levels. The sentence of the report on the copy is stored with the pictures: the
page of reasons cites it. Ten minutes on one core.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import tifffile
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.quality import damages, faults
from tests.support.quality.workbench import CYCLES, Bench, make_bench
from tilewright.io.results.ome_zarr import open_image
from tilewright.io.results.registration import read_transform
from tilewright.quality.figures import display_range, overlay
from tilewright.quality.results import METRICS, QcResult
from tilewright.quality.sampling import moved_thumbnail

FOLDER = Path(__file__).parent / "images/reasons"
#: Width of either half of a picture, and what separates both.
SIDE_PX, GAP_PX = 240, 8
Array = NDArray[Any]
#: From an experiment to a picture, grey (y, x) or in colour (y, x, 3).
View = Callable[[Bench], Array]


@dataclass(frozen=True)
class Picture:
    """How a reason is shown.

    Attributes
    ----------
    metric : str
        The number whose fault in ``WARNS`` is put in.
    view : View
        What is looked at.
    side_px : int
        Size of the part that is cut out; 0 shows the whole.
    at : (int, int)
        First row and column of that part; without, it is where the damage changes most.
    below : bool
        Put the undamaged one below, not to the right.
    own_levels : bool
        Grey levels of either half are its own.
    """

    metric: str
    view: View
    side_px: int = 0
    at: tuple[int, int] | None = None
    below: bool = False
    own_levels: bool = False


def mosaic(template: str = "stitch", cycle: int = 1, channel: str = "1", z: int = 2) -> View:
    """Look at a plane of a mosaic."""
    return lambda bench: bench.pixels(template, cycle, channel)[z]


def planes(template: str = "stitch", channel: str = "1") -> View:
    """Look at one part of all planes, side by side."""

    def view(bench: Bench) -> Array:
        stack = bench.pixels(template, 1, channel)[:, 200:320, 200:320]
        return np.concatenate([np.pad(p, ((0, 0), (0, 4))) for p in stack], axis=1)

    return view


def final(channel: int) -> View:
    """Look at a channel of the final image."""

    def view(bench: Bench) -> Array:
        return np.asarray(open_image(bench.path("image_zarr")).levels[0][channel])

    return view


def nuclei(bench: Bench) -> Array:
    """Look at the nuclei of cycle 2 (green) on those of cycle 1 (magenta)."""
    fixed, moving = (bench.pixels("edf", cycle, "1")[0] for cycle in CYCLES)
    transform = read_transform(bench.path("transform", 2))
    moved = moved_thumbnail(moving.astype(np.float32), 1, transform, fixed.shape, 1)
    return overlay(fixed, moved)


def flat(bench: Bench) -> Array:
    """Look at the flat-field."""
    return np.asarray(bench.fields(1, "2")[0].flat)


def raw_tile(bench: Bench) -> Array:
    """Look at a raw plane."""
    return np.asarray(tifffile.imread(bench.raw(1, "2", 4)[2]))


def overlaps(bench: Bench) -> Array:
    """Look at the picture of tile positions in the report."""
    bench.quality("tile_positions", 1, ())
    path = bench.run.folder / "tile_positions.png"
    return np.asarray(PIL.Image.open(path).convert("RGB")) / 255


#: Every reason that has a picture. The others change no pixel that one could see.
PICTURES = {
    "uncertain_flat": Picture("flat_error", flat),
    "uneven_illumination": Picture("heldout_difference", flat),
    "no_grain": Picture("equal_neighbours", raw_tile, 60),
    "doubtful_tiles": Picture("doubtful_tiles", overlaps),
    "missing_planes": Picture("tiles_left_out", mosaic()),
    "saturated": Picture("saturated", mosaic(channel="2"), 240, own_levels=True),
    "no_signal": Picture("contrast", mosaic(channel="2"), 240),
    "out_of_focus": Picture("focus", mosaic(cycle=2), 160),
    "focus_outside_stack": Picture("focus_edge", mosaic("edf", channel="2", z=0), 160),
    "wrong_neighbours": Picture("unlike_overlaps", mosaic(), 240),
    "uneven_tiles": Picture("tile_brightness", mosaic()),
    "hot_pixels": Picture("hot_pixels", mosaic(channel="2"), 80),
    "overcorrected": Picture("undershoot", mosaic("edf", z=0), 120),
    "detail_lost": Picture("image_detail", mosaic("edf", channel="2", z=0), 160),
    "damaged_planes": Picture("damaged_planes", planes(channel="2"), below=True),
    "poor_overlap": Picture("poor_blocks", nuclei, 240),
    "local_error": Picture("local_error_px", nuclei, 120),
    "lost_tissue": Picture("lost_tissue", nuclei),
    "unregistered": Picture("unregistered", nuclei, 240),
    "oversubtracted": Picture("oversubtracted", final(1), 240),
}


def cut(bad: Array, good: Array, picture: Picture) -> tuple[Array, Array]:
    """Return of both the part that is shown."""
    side_px = picture.side_px
    both = tuple(slice(0, min(sizes)) for sizes in zip(bad.shape, good.shape, strict=True))
    bad, good = bad[both].astype(np.float32), good[both].astype(np.float32)
    if not side_px or min(good.shape[:2]) <= side_px:
        return bad, good
    change = np.abs(bad - good)
    change = ndimage.uniform_filter(change if change.ndim == 2 else change.sum(2), side_px // 2)
    half = side_px // 2
    inside = change[half : 1 - half, half : 1 - half]
    y, x = picture.at or np.unravel_index(inside.argmax(), inside.shape)
    return bad[y : y + side_px, x : x + side_px], good[y : y + side_px, x : x + side_px]


def drawn(image: Array, limits: tuple[float, float], width_px: int) -> PIL.Image.Image:
    """Return a picture of a width, in grey between two levels or in its own colours."""
    if image.ndim == 2:
        # The square root shows dim structure next to bright debris.
        image = np.sqrt(np.clip((image - limits[0]) / (limits[1] - limits[0]), 0, 1))
    eight = np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)
    height_px = round(image.shape[0] * width_px / image.shape[1])
    small = width_px <= image.shape[1]
    how = PIL.Image.Resampling.LANCZOS if small else PIL.Image.Resampling.NEAREST
    return PIL.Image.fromarray(eight).convert("RGB").resize((width_px, height_px), how)


def pair(bad: Array, good: Array, below: bool, own_levels: bool) -> PIL.Image.Image:
    """Return both pictures in one, the bad first."""
    width_px = 2 * SIDE_PX + GAP_PX if below else SIDE_PX
    levels = [display_range(image if own_levels else good) for image in (bad, good)]
    halves = [drawn(i, limits, width_px) for i, limits in zip((bad, good), levels, strict=True)]
    height_px = max(half.height for half in halves)
    size = (width_px, 2 * height_px + GAP_PX) if below else (2 * SIDE_PX + GAP_PX, height_px)
    whole = PIL.Image.new("RGB", size, "white")
    whole.paste(halves[0], (0, 0))
    whole.paste(halves[1], (0, height_px + GAP_PX) if below else (SIDE_PX + GAP_PX, 0))
    return whole


def worst_item(bench: Bench, asked: faults.Asked, metric: str) -> QcResult:
    """Return the worst item on a number."""
    items = [i for stage, cycle, channels in asked for i in bench.quality(stage, cycle, channels)]
    mine = [i for i in items if i.metric == metric and i.verdict != "pass"]
    return max(mine, key=lambda item: item.verdict == "fail")


def make(reason: str, base: Bench, folder: Path) -> dict[str, str]:
    """Draw a reason; return its damage, verdict and sentence."""
    picture = PICTURES[reason]
    name = damages.WARNS[picture.metric]
    copy = base.copy(folder / reason)
    item = worst_item(copy, damages.EVERY[name].harm(copy), picture.metric)
    assert METRICS[picture.metric].reason == item.reason == reason
    bad, good = cut(picture.view(copy), picture.view(base), picture)
    FOLDER.mkdir(exist_ok=True)
    pair(bad, good, picture.below, picture.own_levels).save(
        FOLDER / f"{reason}.webp", quality=70, method=6
    )
    return {"damage": name, "verdict": item.verdict, "sentence": item.sentence}


def store(reason: str, texts: dict[str, str]) -> None:
    """Write the damage and the sentence of a picture into the file of all."""
    path = FOLDER / "sentences.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    known[reason] = texts
    known = {name: known[name] for name in PICTURES if name in known}
    path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Draw the reasons that are named, or all."""
    with tempfile.TemporaryDirectory() as name:
        base = make_bench(Path(name) / "base")
        for reason in sys.argv[1:] or PICTURES:
            texts = make(reason, base, Path(name))
            store(reason, texts)
            print(reason, texts["sentence"], flush=True)


if __name__ == "__main__":
    main()
