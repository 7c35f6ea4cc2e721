"""The ways to a flat-field: overlaps, BaSiC, files; each scored on the same overlaps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from tilewright.io.illumination import IlluminationFileError, read_plane
from tilewright.kernels.backend import Array, Backend
from tilewright.kernels.basic import fit_basic
from tilewright.kernels.camera_offset import empty_tiles
from tilewright.kernels.illumination import enlarge
from tilewright.kernels.overlap_cells import OverlapCells
from tilewright.kernels.overlap_photometry import (
    LogRatios,
    estimate_offset,
    fit_overlaps,
    log_ratios,
    rms,
)
from tilewright.stages.illumination_tiles import (
    BinnedTiles,
    block_means,
    darkest_counts,
    has_signal,
)

Plane = NDArray[np.float32]
Float = NDArray[np.float64]

#: A flat-field below this share of its mean would multiply noise by more than 20.
MIN_FLAT = 0.05
MIN_EDGES = 6
MIN_CELLS = 300
MIN_IMAGES_BASIC = 8
_OFFSET_ROUNDS = 5
_OFFSET_ORDER = 5
#: Standard error, as a share of the darkest counts, at which empty tiles are believed. Where
#: tissue is in most of them it is over 1 (syn10), where they are empty 0.02 (brain tiles).
_EMPTY_TOLERANCE = 0.05
_MEAN_BLOCK = 4


@dataclass(frozen=True)
class Candidate:
    """A flat-field, the rms log-ratio it leaves in held-out overlaps, numbers of its fit."""

    flat: Plane
    held_out: float | None
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """What the methods estimate from.

    Attributes
    ----------
    binned : BinnedTiles
    offset_counts : float
        Camera offset.
    offset_method : str
        How it was found.
    ratios : LogRatios or None
        Log-ratios of overlaps, None if there are too few with signal.
    edges : int
        Overlaps in ``ratios``.
    structure : ndarray of float64, shape (h, w), or None
        Dark-field beside the offset, in blocks of binned pixels, where empty tiles show it.
    """

    binned: BinnedTiles
    offset_counts: float
    offset_method: str
    ratios: LogRatios | None
    edges: int
    structure: Float | None = None

    def score(self, flat: Plane) -> float | None:
        """Rms of the overlap log-ratio under ``flat``, None without overlaps."""
        if self.ratios is None:
            return None
        log_flat = np.log(flat)
        size = np.asarray(flat.shape)[:, None]
        at = [
            map_coordinates(log_flat, (place.T + 1.0) * size / 2.0 - 0.5, order=1, mode="nearest")
            for place in (self.ratios.cells.place_first, self.ratios.cells.place_second)
        ]
        return rms(self.ratios, self.ratios.value - (at[0] - at[1]))


def gather(
    backend: Backend,
    binned: BinnedTiles,
    cells: OverlapCells | None,
    given: float | None,
    seed: int,
) -> Evidence:
    """Settle the camera offset (``given``, or estimated if None) and take the log-ratios."""
    offset, how, structure = _offset(backend, binned, cells, given, seed)
    ratios = None if cells is None else log_ratios(cells, offset)
    if ratios is None or len(ratios.value) < MIN_CELLS:
        return Evidence(binned, offset, how, None, 0, structure)
    edges = len(np.unique(ratios.cells.edge))
    return Evidence(binned, offset, how, ratios, edges, structure)


def _offset(
    backend: Backend,
    binned: BinnedTiles,
    cells: OverlapCells | None,
    given: float | None,
    seed: int,
) -> tuple[float, str, Float | None]:
    """Camera offset: given, or from empty tiles, dark overlap cells, or the darkest pixels."""
    if given is not None:
        return float(given), "given", None
    bound = darkest_counts(backend, binned)
    if not has_signal(backend, binned, bound, offset_known=False):
        dark = float(backend.xp.median(binned.images))
        return round(dark, 1), "median: the tiles show no light above the noise", None
    offset, error, tolerance, how = 0.9 * bound, np.inf, 0.0, ""
    structure: Float | None = None
    if cells is not None:
        # 16 000 cells give the offset of syn10 to 1 count in a quarter of the time of all.
        sample = cells.take(np.arange(0, len(cells), max(1, len(cells) // 16_000)))
        mean = _tile_mean(backend, binned)
        blocks = backend.to_numpy(block_means(binned)).astype(np.float64)
        # The planes of a tile are not independent: they are one image here.
        blocks = blocks.reshape(len(binned.planes), -1, *blocks.shape[1:]).mean(axis=0)
        for _ in range(_OFFSET_ROUNDS):
            ratios = log_ratios(sample, offset)
            if len(np.unique(ratios.cells.edge)) < MIN_EDGES or len(ratios.value) < MIN_CELLS:
                break
            log_mean = _log_tile_mean(mean, offset)
            model = fit_overlaps(ratios, log_mean, order=_OFFSET_ORDER, seed=seed)
            flat = model.flat(blocks.shape[1:]).astype(np.float64)
            empty = empty_tiles(blocks, flat)
            found, error, structure = dataclasses.astuple(empty)
            how, tolerance = "empty tiles: what makes them even", _EMPTY_TOLERANCE * bound
            if error > tolerance:
                structure = None
                found, error = estimate_offset(sample, model)
                how = "overlaps: ratios of dark cells do not depend on signal"
                tolerance = max(1.0, 0.01 * bound)
            offset = float(np.clip(found, 0.0, bound))
    if error <= tolerance:
        return round(offset, 1), how, structure
    how = "5th percentile over images of their 1st percentile: an upper bound"
    return round(bound, 1), how, None


def _tile_mean(backend: Backend, binned: BinnedTiles) -> Float:
    """Mean of all images (y, x), in blocks of 4 x 4 binned pixels where tiles are large."""
    mean = backend.to_numpy(binned.images.mean(axis=(0, 1))).astype(np.float64)
    h, w = (size // _MEAN_BLOCK for size in mean.shape)
    if min(h, w) < 4:
        return np.asarray(mean)
    blocks = mean[: h * _MEAN_BLOCK, : w * _MEAN_BLOCK].reshape(h, _MEAN_BLOCK, w, _MEAN_BLOCK)
    return np.asarray(blocks.mean(axis=(1, 3)))


def _log_tile_mean(mean_counts: Float, offset_counts: float) -> Float:
    signal = mean_counts - offset_counts
    return np.asarray(np.log(np.maximum(signal, MIN_FLAT * max(float(signal.mean()), 1e-6))))


def try_overlap(
    backend: Backend, evidence: Evidence, order: int | None, seed: int
) -> Candidate | str:
    """Flat-field by overlap photometry, or why there is none."""
    if evidence.ratios is None or evidence.edges < MIN_EDGES:
        return f"overlap needs {MIN_EDGES} overlaps with signal and has {evidence.edges}"
    log_mean = _log_tile_mean(_tile_mean(backend, evidence.binned), evidence.offset_counts)
    model = fit_overlaps(evidence.ratios, log_mean, order=order, seed=seed)
    return Candidate(
        model.flat(evidence.binned.shape_px),
        rms(evidence.ratios, model.held_out),
        {"order": model.order, "tile_mean_weight": model.pull},
    )


def try_basic(backend: Backend, evidence: Evidence, *, fit_dark: bool) -> Candidate | str:
    """Flat-field by sorted BaSiC, or why there is none."""
    binned = evidence.binned
    images = _clean_images(backend, binned)
    if len(images) < MIN_IMAGES_BASIC or min(images.shape[1:]) < 2:
        return f"basic needs {MIN_IMAGES_BASIC} images and has {len(images)}"
    fields = fit_basic(backend, (images - evidence.offset_counts)[None], fit_dark=fit_dark)
    enlarged = enlarge(backend, fields.flat[0], binned.shape_px, 2 * binned.factor)
    flat, _ = finish(backend.to_numpy(enlarged))
    rest = round(float(fields.dark[0].mean()), 2)
    return Candidate(flat, evidence.score(flat), {"dark_rest_counts": rest})


def _clean_images(backend: Backend, binned: BinnedTiles) -> Array:
    """Images (n, h // 2, w // 2) of all planes, without those with over 1 % saturated."""
    planes, n, h, w = binned.images.shape
    images = binned.images[..., : h // 2 * 2, : w // 2 * 2]
    images = images.reshape(planes * n, h // 2, 2, w // 2, 2).mean(axis=(2, 4))
    if binned.valid is None:
        return images
    share = backend.to_numpy(binned.valid.mean(axis=(2, 3))).ravel()
    return images[backend.asarray(np.nonzero(share >= 0.99)[0], dtype=np.int64)]


def finish(flat: Plane) -> tuple[Plane, int]:
    """Mean 1 and nothing below 0.05; also the number of pixels clipped."""
    normal = flat / max(float(flat.mean(dtype=np.float64)), 1e-6)
    clipped = int((normal < MIN_FLAT).sum())
    normal = np.maximum(normal, MIN_FLAT)
    return (normal / normal.mean(dtype=np.float64)).astype(np.float32), clipped


def read_files(
    flat_file: str | Path | None,
    dark_file: str | Path | None,
    shape_px: tuple[int, int],
    offset: float,
) -> tuple[Plane, Plane | float]:
    """Return the given flat-field and dark-field, the offset where there is no dark-field."""
    fields: list[Plane | float] = []
    for path in (flat_file, dark_file):
        plane = None if path is None else read_plane(path)
        if plane is not None and plane.shape != shape_px:
            raise IlluminationFileError(
                f"{path} is {plane.shape} and tiles are {shape_px} pixels (y, x); "
                "give a field of the tiles' own size"
            )
        fields.append(offset if plane is None else plane)
    if np.median(fields[1]) < 0:
        raise IlluminationFileError(
            f"{dark_file} has a median of {np.median(fields[1]):g} counts; give the counts "
            "without light, of 0 or more"
        )
    flat = np.asarray(fields[0], dtype=np.float32)
    if flat.min() <= 0:
        raise IlluminationFileError(f"{flat_file} holds values of 0 or less; give a flat-field > 0")
    return flat, fields[1]
