"""Draw the pictures of the tutorial from the results of the demo: ``python -m docs.demo_pictures``.

The demo must have been run with its stacks kept:
``snakemake registration qc --configfile config/demo.yaml --config output="{keep: stacks}"``.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import tifffile
from numpy.typing import NDArray

from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.ome_zarr import open_image
from tilewright.io.results.registration import read_transform
from tilewright.quality.figures import display_range, overlay
from tilewright.quality.sampling import moved_thumbnail
from tilewright.report.pictures import COLOURS

FOLDER = Path(__file__).parent / "images/demo"
REPOSITORY = Path(__file__).parent.parent
#: Where cycle 3 lost tissue, as the report says: rows and columns of the final image.
LOST = (slice(36, 292), slice(56, 312))
HEIGHT_PX, GAP_PX = 240, 8
Array = NDArray[Any]


def grey(image: Array, limits: tuple[float, float] | None = None) -> Array:
    """Return an image between its levels, the dark parts lifted, as colour (y, x, 3)."""
    low, high = limits or display_range(image)
    value = np.sqrt(np.clip((image.astype(np.float32) - low) / (high - low), 0, 1))
    return np.repeat(value[:, :, None], 3, axis=2)


def tile_pictures(results: Path) -> list[Array]:
    """Return four raw tiles, the flat-field, and the mosaic of all tiles."""
    with (results / "raw/cycle1.csv").open(newline="") as stream:
        rows = [r for r in csv.DictReader(stream) if r["channel"] == "1" and r["z"] == "2"]
    raw = Path((results / "raw/raw_dir.txt").read_text().strip())
    raw = raw if raw.is_absolute() else REPOSITORY / raw
    tiles = {(int(r["row"]), int(r["col"])): tifffile.imread(raw / r["path"]) for r in rows}
    gap = ((0, 16), (0, 16))
    four = np.block(
        [[np.pad(tiles[r, c], gap, constant_values=9999) for c in (0, 1)] for r in (0, 1)]
    )
    flat = tifffile.imread(results / "illumination/cycle1-ffp.tif", key=0)
    mosaic = open_mosaic(results / "stitch/cycle1_channel1.zarr").read()[2]
    return [
        grey(four, display_range(tiles[1, 1])),
        grey(flat, (flat.min(), flat.max())),
        grey(mosaic),
    ]


def plane_pictures(results: Path) -> list[Array]:
    """Return a place in each raw plane, and in the in-focus plane."""
    stack = open_mosaic(results / "stitch/cycle1_channel1.zarr").read()
    plane = open_mosaic(results / "edf/cycle1_channel1.zarr").read()[0]
    place = (slice(330, 490), slice(430, 590))
    limits = display_range(stack[(slice(None), *place)])
    return [*(grey(z[place], limits) for z in stack), grey(plane[place])]


def cycle_pictures(results: Path) -> list[Array]:
    """Return nuclei of cycle 3 (green) on cycle 1 (magenta) before and after registration."""
    fixed, moving = (
        open_mosaic(results / f"edf/cycle{c}_channel1.zarr").read()[0].astype(np.float32)
        for c in (1, 3)
    )
    transform = read_transform(results / "register/cycle3.npz")
    moved = moved_thumbnail(moving, 1, transform, fixed.shape, 1)
    corner = (slice(300, 460), slice(400, 560))
    before = overlay(np.sqrt(fixed[corner]), np.sqrt(moving[corner]))
    after = overlay(np.sqrt(fixed[corner]), np.sqrt(moved[corner]))
    return [before, after, overlay(np.sqrt(fixed[LOST]), np.sqrt(moved[LOST]))]


def marker_pictures(results: Path) -> list[Array]:
    """Return nuclei, CD3 and CD68 of the final image in colours, whole and where tissue is lost."""
    image = open_image(results / "registration/tonsil.ome.zarr")
    chosen = [image.channel_names.index(name) for name in ("DAPI_1", "CD3", "CD68")]
    planes = [np.asarray(image.levels[0][channel]) for channel in chosen]
    whole = sum(
        grey(plane) * np.array(colour) / 255 for plane, colour in zip(planes, COLOURS, strict=False)
    )
    assert isinstance(whole, np.ndarray)
    return [np.clip(whole, 0, 1), np.clip(whole[LOST], 0, 1), grey(planes[2][LOST])]


def save(name: str, pictures: list[Array]) -> None:
    """Write pictures of one height side by side."""
    halves = []
    for picture in pictures:
        eight = PIL.Image.fromarray(np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8))
        width = round(eight.width * HEIGHT_PX / eight.height)
        halves.append(eight.resize((width, HEIGHT_PX), PIL.Image.Resampling.LANCZOS))
    width = sum(half.width + GAP_PX for half in halves) - GAP_PX
    whole = PIL.Image.new("RGB", (width, HEIGHT_PX), "white")
    left = 0
    for half in halves:
        whole.paste(half, (left, 0))
        left += half.width + GAP_PX
    FOLDER.mkdir(exist_ok=True)
    whole.save(FOLDER / f"{name}.webp", quality=75, method=6)


def main() -> None:
    """Draw all pictures from the folder of results that is named, or from the demo's."""
    results = Path(sys.argv[1] if len(sys.argv) > 1 else REPOSITORY / "demo/results") / "tonsil"
    save("tiles", tile_pictures(results))
    save("planes", plane_pictures(results))
    save("cycles", cycle_pictures(results))
    save("marker", marker_pictures(results))


if __name__ == "__main__":
    main()
