"""Quality of the final image: whether each channel shows what was stitched, in every file."""

from __future__ import annotations

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
from tilewright.io.results.subtraction import Subtraction, read_subtraction
from tilewright.io.results.transform import read_transform
from tilewright.kernels.backend import cells
from tilewright.kernels.metrics import focus_score, ncc, tissue_mask
from tilewright.kernels.register.warp import Transform
from tilewright.report.figures import display_range, new_figure, save_png, scale_bar, show, shrunk
from tilewright.report.judge import Files, Findings
from tilewright.report.quality.places import Place, judge_detail, moved_thumbnail
from tilewright.report.quality.rings import OWN_PX, around, dark_ring, ring_medians, worst
from tilewright.report.quality.stitched_view import SMALL_PX, StitchedView, read_view
from tilewright.report.verdict import Item, Subject, worse

#: Side of the cells of an overview that are looked at for missing light.
_CELL_PX = 8
#: Tissue counts as missing where the final image has less than this share of its usual light.
_MISSING = 0.05
#: Places of each channel and level at which files are compared.
_PLACES, _PLACE_PX = 9, 128


CAPTION = (
    "Channels of cycle {cycle}: the stitched mosaic, moved into the frame of the final image, "
    "and the final image. Where a background was subtracted, also the in-focus plane before and "
    "what was taken, in one grey scale with the final image."
)


def findings(
    subject: Subject, files: Files, *, image_channels: Sequence[Mapping[str, Any]]
) -> Findings:
    """Judge one channel of the final image against what was stitched.

    ``files`` are the view of what was ``stitched``, the image as ``zarr`` and ``tiff``, the
    ``transform`` of a cycle that was registered, and the ``subtraction`` of an image from which
    backgrounds were subtracted; ``image_channels`` are ``cycle`` and ``channel`` of every channel
    of the image, in its order.

    Of a channel whose background was subtracted, the plane before is judged against what was
    stitched, and the final image against what the subtraction leaves of that plane. Its detail is
    not that of the stack: the stage of the in-focus plane judges it.
    """
    image = open_image(files["zarr"])
    npz = files.get("transform")
    transform = Transform.identity() if npz is None else read_transform(npz)
    order = [(int(entry["cycle"]), str(entry["channel"])) for entry in image_channels]
    index = order.index((subject.cycle, subject.channel))
    stitched = read_view(Path(files["stitched"]), subject.channel)
    pair = _overviews(image, index, stitched, transform)
    npz = files.get("subtraction")
    taken = None if npz is None else read_subtraction(Path(npz), subject.cycle, subject.channel)
    content, places = _content(subject, pair, taken)
    items = [
        *content,
        judge_files(subject, image, Path(files["tiff"]), index),
    ]
    numbers: dict[str, Any] = {"channel_number": index + 1}
    if taken is None:
        items.append(_detail(subject, image, index, stitched, transform))
        rings, found = _rings(subject, image, index, stitched, transform)
        items.append(rings)
        places += found
    else:
        items += _subtracted(subject, taken)
        numbers |= {
            "background": taken.background,
            "background_method": taken.method,
            "background_factor": taken.factor,
            "emptied": taken.emptied,
        }
    numbers["places"] = [asdict(place) for place in places]
    view = (subject.marker, pair, image.pixel_um[1], taken)
    return Findings(items, numbers, view)


def _subtracted(subject: Subject, taken: Subtraction) -> list[Item]:
    """Judge whether more was subtracted than there was, and what could not be."""
    what = f"{taken.factor:.3g} x {taken.background}, by {taken.method}"
    return [
        subject.judge("oversubtracted", taken.oversubtracted, what),
        subject.judge("background_left", taken.left_as_haze, taken.background),
    ]


@dataclass(frozen=True)
class Overviews:
    """Stitched and final light (y, x) on one grid, where both are known, and the binning."""

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
    light, own = stitched.light, int(stitched.factor)
    moved = moved_thumbnail(light, own, transform, final.shape, factor, np.nan)
    valid = np.isfinite(moved)
    return Overviews(np.where(valid, moved, 0), final, valid, factor)


def _content(
    subject: Subject, pair: Overviews, taken: Subtraction | None
) -> tuple[list[Item], list[Place]]:
    """Judge whether both show the same, and where the final image lacks bright tissue."""
    if taken is None:
        return _same(subject, pair, "the stitched mosaic shows no tissue")
    none = "the stitched mosaic shows no tissue"
    before, places = _same(subject, replace(pair, final=taken.before), none)
    none = f"{taken.background} leaves no tissue"
    pair = replace(pair, stitched=taken.expected)
    after, more = _same(subject, pair, none)
    return [worse(*both) for both in zip(before, after, strict=True)], [*places, *more]


def _same(subject: Subject, pair: Overviews, none: str) -> tuple[list[Item], list[Place]]:
    """Judge the agreement of two overviews; ``none`` says why there may be no tissue."""
    tissue = np.asarray(tissue_mask(pair.stitched, valid=pair.valid, sigma_px=2.0))
    score = None
    if tissue.any():
        # Of the root: a few bright specks shall not outweigh the tissue.
        roots = (np.sqrt(np.maximum(v, 0)) for v in (pair.stitched, pair.final))
        first, second = (ndimage.gaussian_filter(root, 1.5) for root in roots)
        score = ncc(first, second, pair.valid)
        # An image of one value agrees with nothing.
        score = score if np.isfinite(score) else 0.0
    agreement = subject.judge("image_agreement", score, none if score is None else "")
    side = _CELL_PX
    stitched, final, share, known = (
        cells(values, side).mean(axis=(1, 3), dtype=np.float64)
        for values in (pair.stitched, pair.final, tissue, pair.valid)
    )
    inside = (share > 0.5) & (known == 1)
    if not inside.any():
        return [agreement, subject.judge("missing_area", None, none)], []
    # Deconvolution takes away haze, so the dimmer half may lose most of its light.
    bright = inside & (stitched >= np.median(stitched[inside]))
    ratio = final / np.maximum(stitched, 1e-9)
    usual = float(np.median(ratio[bright]))
    missing = bright & (ratio <= _MISSING * usual)
    lost, where = float(missing.sum()) / float(bright.sum()), ""
    places: list[Place] = []
    if missing.any():
        y, x = (np.argwhere(missing) + 0.5).mean(axis=0) * side * pair.factor
        where = f"around y {y:.0f} px, x {x:.0f} px"
        places = [Place("missing_area", float(y), float(x))]
    return [agreement, subject.judge("missing_area", lost if usual > 0 else 1.0, where)], places


def _detail(
    subject: Subject, image: Image, index: int, stitched: StitchedView, transform: Transform
) -> Item:
    """Judge the focus of the final image over that of the sharpest plane, at the same places."""
    ratios = []
    side = int(stitched.side)
    for at, sharpest in zip(stitched.blocks, stitched.focus, strict=True):
        if not np.isfinite(sharpest):
            continue
        top = _final_px(transform, at)
        spans = [slice(max(c, 0), max(c, 0) + side) for c in top]
        block = np.asarray(image.levels[0][index, spans[0], spans[1]])
        if min(block.shape) < side // 2 or min(block.shape) < 64:
            continue
        score = focus_score(block)
        ratios.append(score / float(sharpest) if np.isfinite(score) else 0.0)
    return judge_detail(subject, ratios)


def judge_files(subject: Subject, image: Image, tiff: Path, index: int) -> Item:
    """Judge whether all levels of both files hold the same image under the same name."""
    bad: list[str] = []
    looked = 1
    if image.channel_names[index] != subject.marker:
        bad.append(f"channel {index + 1} is called {image.channel_names[index]}")
    for level in range(1, len(image.levels)):
        for y, x in _places(image.levels[level].shape[1:], _PLACE_PX):
            low = image.levels[level][index, y : y + _PLACE_PX, x : x + _PLACE_PX]
            rows, columns = (slice(2 * at, 2 * (at + _PLACE_PX)) for at in (y, x))
            high = image.levels[level - 1][index, rows, columns]
            looked += 1
            if not np.array_equal(halve(np.asarray(high)), low):
                bad.append(f"level {level} of the OME-Zarr differs from level {level - 1}")
    with tifffile.TiffFile(tiff) as file:
        levels = file.series[0].levels
        # tifffile leaves out the axis of a single channel.
        shape = (len(levels[0].pages), *levels[0].shape[-2:])
        if len(levels) != len(image.levels) or shape != image.levels[0].shape:
            bad.append(f"the OME-TIFF has {len(levels)} levels of shape {shape}")
            levels = []
        for level, series in enumerate(levels):
            stored = zarr.open_array(file.series[0].aszarr(level=level), mode="r")
            side = series.keyframe.tilelength
            for y, x in _places(image.levels[level].shape[1:], side):
                at = (index, slice(y, y + side), slice(x, x + side))
                looked += 1
                if not np.array_equal(stored[at[-stored.ndim :]], image.levels[level][at]):
                    bad.append(f"level {level} of the OME-TIFF differs from the OME-Zarr")
    return subject.judge("file_difference", len(bad) / looked, "; ".join(dict.fromkeys(bad)))


def _places(shape: Sequence[int], side: int) -> list[tuple[int, int]]:
    """Return (y, x) of up to ``_PLACES`` places on a grid of ``side``, spread evenly."""
    rows, columns = (-(-n // side) for n in shape)
    picked = np.unique(np.linspace(0, rows * columns - 1, _PLACES).round().astype(int))
    return [(int(k) // columns * side, int(k) % columns * side) for k in picked]


def draw(views: Sequence[tuple[str, Overviews, float, Subtraction | None]], path: Path) -> None:
    """Draw each channel as stitched and in the final image, and what was subtracted from it."""
    aspect = views[0][1].final.shape[0] / views[0][1].final.shape[1]
    columns = 4 if any(taken for *_, taken in views) else 2
    height = float(np.clip(9.6 / columns * aspect + 0.5, 1.8, 6))
    figure = new_figure(10, len(views) * height)
    grid = figure.subplots(len(views), columns, squeeze=False)
    for row, (marker, pair, pixel_um, taken) in zip(grid, views, strict=True):
        show(row[0], pair.stitched, f"{marker}: stitched")
        scale_bar(row[0], pixel_um * pair.factor, pair.stitched.shape[1])
        if taken is None:
            show(row[-1], pair.final, "final image")
        else:
            limits = display_range(taken.before)
            show(row[1], taken.before, "in-focus plane before", limits)
            what = f"{taken.factor:.3g} x {taken.background}"
            show(row[2], taken.factor * taken.light, what, limits)
            show(row[3], pair.final, "final image", limits)
        for axes in row[1 : -1 if taken is None else 1]:
            axes.set_visible(False)
    save_png(figure, path)


def _rings(
    subject: Subject, image: Image, index: int, stitched: StitchedView, transform: Transform
) -> tuple[Item, list[Place]]:
    """Judge dark rings around the objects that were the brightest before anything was done."""
    places = []
    for object_px, before in zip(stitched.objects, stitched.rings, strict=True):
        final_px = _final_px(transform, object_px)
        if min(final_px) < 0:
            continue
        (rows, columns), near = around(final_px)
        shown = np.asarray(image.levels[0][index, rows, columns], np.float64)
        # The elastic part of a transform, and another plane's focus, move an object a little.
        low = [max(c - OWN_PX, 0) for c in near]
        own = shown[low[0] : near[0] + OWN_PX + 1, low[1] : near[1] + OWN_PX + 1]
        if not own.any():
            continue
        y, x = (int(v) for v in np.unravel_index(int(own.argmax()), own.shape))
        peak = (y + low[0], x + low[1])
        share = dark_ring(ring_medians(shown[None], peak, shown)[:, 0], before)
        at = (float(rows.start + peak[0]), float(columns.start + peak[1]))
        places.append(Place("dark_rings", *at, share))
    return worst(subject, places)


def _final_px(transform: Transform, own_px: NDArray[Any]) -> tuple[int, int]:
    """Return where a place of a cycle lies in the final image, in whole pixels from 0."""
    place = np.linalg.solve(transform.affine[:, :2], own_px - transform.affine[:, 2])
    y, x = (int(c) for c in np.rint(place))
    return y, x
