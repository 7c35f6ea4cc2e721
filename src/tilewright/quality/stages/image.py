"""Quality of the final image: whether each channel shows what was stitched, in every file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import zarr
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.io.results.ome_zarr import Image, halve, open_image
from tilewright.io.results.result_file import result_file_errors
from tilewright.io.results.subtraction import Subtraction, read_subtraction
from tilewright.io.results.transform import read_transform
from tilewright.kernels.backend import cells
from tilewright.kernels.metrics import focus_score, ncc, tissue_mask
from tilewright.kernels.register.warp import Transform
from tilewright.quality.dark_rings import OWN_PX, around, dark_ring, darkest_ring, ring_medians
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import display_range, new_figure, save_png, scale_bar, show, shrunk
from tilewright.quality.results import ImageLocation, QcContext, QcResult, worse
from tilewright.quality.sampling import evaluate_detail, moved_thumbnail
from tilewright.quality.stitched_view import SMALL_PX, StitchedView, read_view

#: Side of the cells of an overview in which missing light is searched.
_CELL_PX = 8
#: Tissue counts as missing where the final image has less than this share of its usual light.
_MISSING = 0.05
#: Blocks of each channel and level in which files are compared, and their side.
_BLOCKS, _BLOCK_PX = 9, 128


CAPTION = (
    "Channels of cycle {cycle}: the stitched mosaic, moved into the frame of the final image, "
    "and the final image. Where a background was subtracted, also the in-focus plane before and "
    "what was taken, in one grey scale with the final image."
)


def evaluate(
    context: QcContext, files: Files, *, image_channels: Sequence[Mapping[str, Any]]
) -> StageQc:
    """Evaluate one channel of the final image against the stitched mosaic.

    ``files`` are the view of what was ``stitched``, the image as ``zarr`` and ``tiff``, the
    ``transform`` of a cycle that was registered, and the ``subtraction`` of an image from which
    backgrounds were subtracted; ``image_channels`` are ``cycle`` and ``channel`` of every channel
    of the image, in its order.

    Of a channel whose background was subtracted, the plane before is compared with the mosaic, and
    the final image with what the subtraction leaves of that plane. Its detail is not that of the
    stack: the stage of the in-focus plane evaluates it.
    """
    image = open_image(files["zarr"])
    npz = files.get("transform")
    transform = Transform.identity() if npz is None else read_transform(npz)
    order = [(int(entry["cycle"]), str(entry["channel"])) for entry in image_channels]
    index = order.index((context.cycle, context.channel))
    stitched = read_view(Path(files["stitched"]), context.channel)
    pair = _overviews(image, index, stitched, transform)
    npz = files.get("subtraction")
    subtraction = (
        None if npz is None else read_subtraction(Path(npz), context.cycle, context.channel)
    )
    if subtraction and (named := image_channels[index].get("background")):
        subtraction = replace(subtraction, background=named["marker"])
    items, locations = _content(context, pair, subtraction)
    items.append(evaluate_files(context, image, Path(files["tiff"]), index))
    numbers: dict[str, Any] = {"channel_number": index + 1}
    if subtraction is None:
        items.append(_detail(context, image, index, stitched, transform))
        rings, of_rings = _rings(context, image, index, stitched, transform)
        items.append(rings)
        locations += of_rings
    else:
        items += _subtraction(context, subtraction)
        numbers |= {
            "background": subtraction.background,
            "background_method": subtraction.method,
            "background_factor": subtraction.factor,
            "emptied": subtraction.emptied,
        }
    numbers["places"] = [asdict(location) for location in locations]
    view = (context.marker, pair, image.pixel_um[1], subtraction)
    return StageQc(items, numbers, view)


def _subtraction(context: QcContext, subtraction: Subtraction) -> list[QcResult]:
    """Evaluate whether too much was subtracted, and what could not be."""
    what = f"{subtraction.factor:.3g} x {subtraction.background}, by {subtraction.method}"
    return [
        context.evaluate("oversubtracted", subtraction.oversubtracted, what),
        context.evaluate("background_left", subtraction.left_as_haze, subtraction.background),
    ]


@dataclass(frozen=True)
class Overviews:
    """Stitched and final light (y, x) on one grid, where both are known, and its factor."""

    stitched: NDArray[np.float32]
    final: NDArray[np.float32]
    valid: NDArray[np.bool_]
    factor: int


def _overviews(image: Image, index: int, stitched: StitchedView, transform: Transform) -> Overviews:
    """Return overviews of a channel in the frame of the final image."""
    full = image.levels[0]
    factor = max(1, -(-max(full.shape[1:]) // SMALL_PX))
    shape, chunk_px = full.shape[1:], full.chunks[-1]
    final = shrunk(lambda y, x: np.asarray(full[index, y, x]), shape, factor, chunk_px)
    source_factor = int(stitched.factor)
    moved = moved_thumbnail(stitched.light, source_factor, transform, final.shape, factor, np.nan)
    valid = np.isfinite(moved)
    return Overviews(np.where(valid, moved, 0), final, valid, factor)


def _content(
    context: QcContext, pair: Overviews, subtraction: Subtraction | None
) -> tuple[list[QcResult], list[ImageLocation]]:
    """Evaluate whether both show the same, and where the final image lacks bright tissue."""
    none = "the stitched mosaic shows no tissue"
    if subtraction is None:
        return _agreement(context, pair, none)
    before, locations = _agreement(context, replace(pair, final=subtraction.before), none)
    none = f"{subtraction.background} leaves no tissue"
    pair = replace(pair, stitched=subtraction.expected)
    after, more = _agreement(context, pair, none)
    return [worse(*both) for both in zip(before, after, strict=True)], [*locations, *more]


def _agreement(
    context: QcContext, pair: Overviews, none: str
) -> tuple[list[QcResult], list[ImageLocation]]:
    """Evaluate the agreement of two overviews; ``none`` says why there may be no tissue."""
    tissue = np.asarray(tissue_mask(pair.stitched, valid=pair.valid, sigma_px=2.0))
    score = None
    if tissue.any():
        # Of the root: a little bright debris shall not outweigh the tissue.
        roots = (np.sqrt(np.maximum(v, 0)) for v in (pair.stitched, pair.final))
        first, second = (ndimage.gaussian_filter(root, 1.5) for root in roots)
        score = ncc(first, second, pair.valid)
        # An image of one value agrees with nothing.
        score = score if np.isfinite(score) else 0.0
    agreement = context.evaluate("image_agreement", score, none if score is None else "")
    side = _CELL_PX
    stitched, final, share, known = (
        cells(values, side).mean(axis=(1, 3), dtype=np.float64)
        for values in (pair.stitched, pair.final, tissue, pair.valid)
    )
    inside = (share > 0.5) & (known == 1)
    if not inside.any():
        return [agreement, context.evaluate("missing_area", None, none)], []
    # Deconvolution takes away haze, so the dimmer half may lose most of its light.
    bright = inside & (stitched >= np.median(stitched[inside]))
    ratio = final / np.maximum(stitched, 1e-9)
    usual = float(np.median(ratio[bright]))
    missing = bright & (ratio <= _MISSING * usual)
    lost, where = float(missing.sum()) / float(bright.sum()), ""
    locations: list[ImageLocation] = []
    if missing.any():
        y, x = (np.argwhere(missing) + 0.5).mean(axis=0) * side * pair.factor
        where = f"around y {y:.0f} px, x {x:.0f} px"
        locations = [ImageLocation("missing_area", float(y), float(x))]
    area = context.evaluate("missing_area", lost if usual > 0 else 1.0, where)
    return [agreement, area], locations


def _detail(
    context: QcContext, image: Image, index: int, stitched: StitchedView, transform: Transform
) -> QcResult:
    """Evaluate the focus of the final image over that of the sharpest plane, block by block."""
    ratios = []
    side = int(stitched.side)
    for at, sharpest in zip(stitched.blocks, stitched.focus, strict=True):
        if not np.isfinite(sharpest):
            continue
        # What lies outside the frame is left out.
        rows, columns = (slice(max(c, 0), max(c + side, 0)) for c in _final_px(transform, at))
        block = np.asarray(image.levels[0][index, rows, columns])
        if min(block.shape) < side // 2 or min(block.shape) < 64:
            continue
        score = focus_score(block)
        ratios.append(score / float(sharpest) if np.isfinite(score) else 0.0)
    return evaluate_detail(context, ratios, "nothing in the frame is in focus")


def evaluate_files(context: QcContext, image: Image, tiff: Path, index: int) -> QcResult:
    """Evaluate whether all levels of both files hold the same image under the same name."""
    bad: list[str] = []
    compared = 1
    if image.channel_names[index] != context.marker:
        bad.append(f"channel {index + 1} is called {image.channel_names[index]}")
    for level in range(1, len(image.levels)):
        for y, x in _blocks(image.levels[level].shape[1:], _BLOCK_PX):
            low = image.levels[level][index, y : y + _BLOCK_PX, x : x + _BLOCK_PX]
            rows, columns = (slice(2 * at, 2 * (at + _BLOCK_PX)) for at in (y, x))
            high = image.levels[level - 1][index, rows, columns]
            compared += 1
            if not np.array_equal(halve(np.asarray(high)), low):
                bad.append(f"level {level} of the OME-Zarr differs from level {level - 1}")
    # Its checksum is left to `tilewright verify`: a TIFF of the slide is read by each cycle.
    with (
        result_file_errors(tiff, "OME-TIFF", compares=False),
        tifffile.TiffFile(tiff) as file,
    ):
        levels = file.series[0].levels
        # tifffile leaves out the axis of a single channel.
        shape = (len(levels[0].pages), *levels[0].shape[-2:])
        if len(levels) != len(image.levels) or shape != image.levels[0].shape:
            bad.append(f"the OME-TIFF has {len(levels)} levels of shape {shape}")
            levels = []
        for level, series in enumerate(levels):
            stored = zarr.open_array(file.series[0].aszarr(level=level), mode="r")
            side = series.keyframe.tilelength
            for y, x in _blocks(image.levels[level].shape[1:], side):
                at = (index, slice(y, y + side), slice(x, x + side))
                compared += 1
                if not np.array_equal(stored[at[-stored.ndim :]], image.levels[level][at]):
                    bad.append(f"level {level} of the OME-TIFF differs from the OME-Zarr")
    return context.evaluate("file_difference", len(bad) / compared, "; ".join(dict.fromkeys(bad)))


def _blocks(shape: Sequence[int], side: int) -> list[tuple[int, int]]:
    """Return (y, x) of up to ``_BLOCKS`` blocks on a grid of ``side``, spread evenly."""
    rows, columns = (-(-n // side) for n in shape)
    numbers = np.unique(np.linspace(0, rows * columns - 1, _BLOCKS).round().astype(int))
    return [(int(k) // columns * side, int(k) % columns * side) for k in numbers]


def draw(views: Sequence[tuple[str, Overviews, float, Subtraction | None]], path: Path) -> None:
    """Draw each channel as stitched, in the final image, and its subtraction."""
    aspect = views[0][1].final.shape[0] / views[0][1].final.shape[1]
    columns = 4 if any(subtraction for *_, subtraction in views) else 2
    height = float(np.clip(9.6 / columns * aspect + 0.5, 1.8, 6))
    figure = new_figure(10, len(views) * height)
    grid = figure.subplots(len(views), columns, squeeze=False)
    for row, (marker, pair, pixel_um, subtraction) in zip(grid, views, strict=True):
        show(row[0], pair.stitched, f"{marker}: stitched")
        scale_bar(row[0], pixel_um * pair.factor, pair.stitched.shape[1])
        if subtraction is None:
            show(row[-1], pair.final, "final image")
        else:
            limits = display_range(subtraction.before)
            show(row[1], subtraction.before, "in-focus plane before", limits)
            what = f"{subtraction.factor:.3g} x {subtraction.background}"
            show(row[2], subtraction.factor * subtraction.light, what, limits)
            show(row[3], pair.final, "final image", limits)
        for axes in row[1 : -1 if subtraction is None else 1]:
            axes.set_visible(False)
    save_png(figure, path)


def _rings(
    context: QcContext, image: Image, index: int, stitched: StitchedView, transform: Transform
) -> tuple[QcResult, list[ImageLocation]]:
    """Evaluate dark rings around the brightest objects of the stack."""
    locations = []
    frame = image.levels[0].shape[1:]
    for object_px, before in zip(stitched.objects, stitched.rings, strict=True):
        final_px = _final_px(transform, object_px)
        if not all(0 <= c < n for c, n in zip(final_px, frame, strict=True)):
            continue
        (rows, columns), near = around(final_px)
        image_part = np.asarray(image.levels[0][index, rows, columns], np.float64)
        # The elastic part of a transform, and another plane's focus, move an object a little.
        low = [max(c - OWN_PX, 0) for c in near]
        own = image_part[low[0] : near[0] + OWN_PX + 1, low[1] : near[1] + OWN_PX + 1]
        if not own.any():
            continue
        y, x = (int(v) for v in np.unravel_index(int(own.argmax()), own.shape))
        peak = (y + low[0], x + low[1])
        share = dark_ring(ring_medians(image_part[None], peak, image_part)[:, 0], before)
        at = (float(rows.start + peak[0]), float(columns.start + peak[1]))
        locations.append(ImageLocation("dark_rings", *at, share))
    return darkest_ring(context, locations)


def _final_px(transform: Transform, cycle_px: NDArray[Any]) -> tuple[int, int]:
    """Return where a pixel of a cycle lies in the final image, in whole pixels from 0."""
    final_px = np.linalg.solve(transform.affine[:, :2], cycle_px - transform.affine[:, 2])
    y, x = (int(c) for c in np.rint(final_px))
    return y, x
