"""Estimate the flat-field and the camera offset of one cycle and channel.

The flat-field is fitted to overlaps and tiles, or given as a file; no correction at all is scored
on the same overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import ProcessingError, RawDataError
from tilewright.io.conventions.common import readable
from tilewright.io.results.illumination import (
    OFFSET_BOUND,
    Illumination,
    read_plane,
)
from tilewright.io.results.positions import Positions
from tilewright.kernels.backend import Backend
from tilewright.kernels.camera import EmptyTiles, empty_tiles
from tilewright.kernels.device_memory import OomHint, track_device_memory
from tilewright.kernels.illumination.flat_basis import design_grid, flat_field
from tilewright.kernels.illumination.flat_posterior import FlatFit, fit_flat
from tilewright.kernels.illumination.overlap_cells import OverlapCells
from tilewright.kernels.illumination.overlap_photometry import relative_difference
from tilewright.stages.illumination.binned_tiles import TileMeasures, measure_tiles
from tilewright.stages.illumination.camera_offset import (
    MIN_CELLS,
    MIN_EDGES,
    Offset,
    camera_offsets,
    edges_and_cells,
)
from tilewright.stages.tile_source import TileSource

Method = Literal["auto", "file", "none"]
# Not done in parts: every fit looks at all binned tiles at once.
_OOM_HINT = OomHint("illumination", "the binned tiles", "lower illumination.planes")
Plane = NDArray[np.float32]
#: A flat-field below this share of its mean would multiply noise by more than 20.
MIN_FLAT = 0.05
#: Tiles that tell a flat-field where overlaps do not: of 8 tiles of three designs the median error
#: was 3 to 13 %, of 64 1 to 5 %, where BaSiC's was 14 and 7 % and vignetting 15 to 34.
MIN_TILES = 8
#: More of them add memory, 0.4 MB each, and no accuracy.
_MAX_TILES = 400
#: Standard error, as a share of the darkest counts, at which empty tiles are believed. Where
#: tissue is in most of them it is over 1 (syn10), where they are empty 0.044 to 0.058 (brain
#: tiles, by the order that they are read in and whether the lens was corrected).
_EMPTY_TOLERANCE = 0.1
#: An offset less sure than this share of its bound is not known: beside a ring the overlaps said
#: 31 +- 107 counts for 100, below 145. It is then fitted with the flat-field about a part of its
#: bound; from half of the bound a fit follows what dim places say of a ring, and does not see it.
_UNSURE = 0.2
_PART_OF_BOUND, _PART_ERROR = 0.8, 0.2
#: Less sure than this, empty tiles are looked at without it: where stray light is uneven (brain
#: tiles) overlaps alone say 218 +- 63 counts, overlaps and tiles 433, and the empty ones 647.
_DOUBTED = 0.05
#: A dark-field is taken from empty tiles if it is more than this share of their glow: a third on
#: the brain tiles. It is 0.02 on syn10, whose camera has none; taken off, it gave 1.5 % for 0.6 %.
_EMPTY_STRUCTURE = 0.05


def estimate_illumination(
    tiles: TileSource,
    positions: Positions | None,
    *,
    backend: Backend,
    method: Method = "auto",
    offset_counts: float | None = None,
    flat_file: str | Path | None = None,
    dark_file: str | Path | None = None,
    planes: int = 5,
    saturation_counts: float | None = None,
) -> tuple[Illumination, dict[str, Any]]:
    """Estimate the illumination of one cycle and channel.

    Memory is that of 1000 images of 256 x 256 px, or of one plane of more tiles.

    Parameters
    ----------
    tiles : TileSource
        Raw tiles.
    positions : Positions or None
        Where they lie, in the same order; None if unknown, which leaves no overlaps.
    backend : Backend
        Device to compute on.
    method : {"auto", "file", "none"}
        ``auto``: fitted to overlaps and tiles, to tiles alone where too little overlaps, and not
        corrected where held-out overlaps agree better without; ``file``: given fields; ``none``:
        flat 1.
    offset_counts : float or None
        Camera offset in counts; None estimates it.
    flat_file, dark_file : path or None
        TIFFs for ``file``, of a tile's shape; without a dark file the offset is used.
    planes : int
        Number of evenly spaced z-planes pooled.
    saturation_counts : float or None
        Counts from which pixels are left out; None finds it.

    Returns
    -------
    illumination : Illumination
        Fields at tile resolution; the flat-field has mean 1 and is >= 0.05.
    numbers : dict
        ``method``, ``reason``, ``offset_counts``, ``offset_method``, ``heldout_log_ratio`` (of the
        method used, rms), ``heldout_log_ratio_rms`` (uncorrected and corrected), ``flat_error``
        (expected, relative rms), ``edges``, ``cells``, ``planes``, ``saturation_counts``,
        ``saturation_method``, ``equal_neighbours``, ``flat_clipped_pixels``, and the fit's own
        numbers. ``method`` is ``overlap``, ``tiles``, ``file`` or ``none``.

    Raises
    ------
    ProcessingError
        There are no tiles, or ``positions`` are of other ones.
    RawDataError
        A given file cannot be used.
    DeviceMemoryError
        The GPU's memory does not hold the binned tiles and the fits.
    """
    files = [(flat_file, dark_file)]
    found = estimate_channels(
        [tiles], [0], positions, files, backend=backend, method=method,
        offset_counts=offset_counts, planes=planes, saturation_counts=saturation_counts,
    )  # fmt: skip
    return found[0]


@track_device_memory(_OOM_HINT)
def estimate_channels(
    channels: Sequence[TileSource],
    wanted: Iterable[int],
    positions: Positions | None,
    files: Sequence[tuple[str | Path | None, str | Path | None]],
    *,
    backend: Backend,
    method: Method = "auto",
    offset_counts: float | None = None,
    planes: int = 5,
    saturation_counts: float | None = None,
) -> list[tuple[Illumination, dict[str, Any]]]:
    """Estimate the illumination of some channels of a cycle; all of them tell the camera's offset.

    Parameters
    ----------
    channels : sequence of TileSource
        Raw tiles of all channels.
    wanted : iterable of int
        Indices of the channels whose illumination is returned.
    files : sequence of (path or None, path or None)
        Flat-field and dark-field of each channel that is wanted.
    positions, backend, method, offset_counts, planes, saturation_counts
        As of :func:`estimate_illumination`, which also says what is returned and raised.
    """
    wanted, find_offset = list(wanted), offset_counts is None
    measures: dict[int, TileMeasures] = {}
    for k, tiles in enumerate(channels):
        _check(tiles, positions)
        if find_offset or k in wanted:
            measures[k] = measure_tiles(backend, tiles, positions, planes, saturation_counts)
    given = None if offset_counts is None else (float(offset_counts), 0.0, "given")
    known = camera_offsets(measures) if find_offset else dict.fromkeys(measures, given)
    return [
        _estimate(backend, measures[k], known[k], method, find_offset, *paths)
        for k, paths in zip(wanted, files, strict=True)
    ]


def _estimate(
    backend: Backend,
    measures: TileMeasures,
    known: Offset | None,
    method: Method,
    find_dark: bool,
    flat_file: str | Path | None,
    dark_file: str | Path | None,
) -> tuple[Illumination, dict[str, Any]]:
    evidence = gather(measures, known)
    empty = dark_field(evidence) if find_dark else None
    if find_dark and empty is None and known and known[1] > _DOUBTED * measures.darkest_counts:
        empty = dark_field(gather(measures, None))
    if empty is not None:
        offset = round(empty.offset_counts, 1)
        known = (offset, empty.error_counts, "empty tiles: what makes them even")
        evidence = gather(measures.less(empty.structure_counts), known)
    shape_px = measures.shape_px
    candidates = {"none": evidence.candidate(np.ones(shape_px, dtype=np.float32))}
    reasons: list[str] = []
    dark: Plane | float = evidence.offset_counts
    if empty is not None:
        dark = dark + measures.at_pixels(backend, empty.structure_counts)
    if method == "file":
        flat, dark = read_files(flat_file, dark_file, shape_px, evidence.offset_counts)
        candidates["file"] = evidence.candidate(flat)
    elif method == "auto" and not evidence.measures.has_signal(
        evidence.offset_counts, offset_known=known is not None
    ):
        reasons.append("no signal above the camera offset")
    elif method == "auto":
        by_overlaps = evidence.edges >= MIN_EDGES and evidence.cells >= MIN_CELLS
        if not by_overlaps:
            reasons.append(
                f"overlap needs {MIN_EDGES} overlaps and {MIN_CELLS} cells with signal and has "
                f"{evidence.edges} and {evidence.cells}"
            )
        if evidence.fit is None:
            reasons.append(f"the fit to tiles alone needs {MIN_TILES} unsaturated ones")
        else:
            candidates["overlap" if by_overlaps else "tiles"] = fitted_candidate(
                evidence.fit, shape_px
            )
    chosen = _choose(candidates, reasons)
    flat, clipped = finish(candidates[chosen].flat)
    numbers = _report(chosen, candidates, reasons, evidence)
    return Illumination.from_fields(flat, dark), numbers | {"flat_clipped_pixels": clipped}


def _check(tiles: TileSource, positions: Positions | None) -> None:
    if len(tiles.row) == 0:
        raise ProcessingError("there are no tiles to estimate the illumination from")
    if positions is not None and len(positions.y_px) != len(tiles.row):
        raise ProcessingError(
            f"{len(positions.y_px)} positions do not fit {len(tiles.row)} tiles; locate these tiles"
        )


def _choose(candidates: dict[str, Candidate], reasons: list[str]) -> str:
    """Return the flat-field asked for; the plain one where that is fitted and does not help.

    Scores within 5 % are equal.
    """
    best = next((name for name in candidates if name != "none"), "none")
    fitted, plain = candidates[best].held_out, candidates["none"].held_out
    if best == "file" or fitted is None or plain is None:
        return best
    if round(plain, 4) < round(0.95 * fitted, 4):
        reasons.append(f"{best} does not make held-out overlaps agree better")
        return "none"
    return best


def _report(
    chosen: str, candidates: dict[str, Candidate], reasons: list[str], evidence: FlatEvidence
) -> dict[str, Any]:
    scores = {
        "uncorrected" if name == "none" else name: round(candidate.held_out, 6)
        for name, candidate in candidates.items()
        if candidate.held_out is not None
    }
    flat, error = candidates[chosen].flat, candidates[chosen].error
    measures = evidence.measures
    saturation, known = measures.saturation
    return {
        "method": chosen,
        "reason": "; ".join(reasons),
        "heldout_log_ratio": scores.get("uncorrected" if chosen == "none" else chosen),
        "heldout_log_ratio_rms": scores,
        "flat_error": None if error is None else round(error, 5),
        "fits": {name: c.numbers for name, c in candidates.items() if c.numbers},
        "flat_range": [round(float(flat.min()), 5), round(float(flat.max()), 5)],
        "offset_counts": evidence.offset_counts,
        "offset_method": evidence.offset_method,
        "edges": evidence.edges,
        "cells": evidence.cells,
        "planes": list(measures.planes),
        "equal_neighbours": measures.equal_neighbours,
        "saturation_counts": saturation,
        "saturation_method": known,
        "saturated_share": measures.saturated_share,
    }


@dataclass(frozen=True)
class Candidate:
    """A flat-field, what it leaves in held-out overlaps, its expected error, numbers of its fit."""

    flat: Plane
    held_out: float | None
    error: float | None = None
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FlatEvidence:
    """What the methods estimate from.

    Attributes
    ----------
    measures : TileMeasures
    offset_counts : float
        Camera offset.
    offset_method : str
        How it was found.
    fit : FlatFit or None
        Flat-field and offset from overlaps and tiles, or tiles alone; None if there are too few
        of both.
    edges, cells : int
        Overlaps, and cells in them, with signal.
    """

    measures: TileMeasures
    offset_counts: float
    offset_method: str
    fit: FlatFit | None
    edges: int
    cells: int

    def candidate(self, flat: Plane) -> Candidate:
        """Score a flat-field that was not fitted to the overlaps, and compare it with the fit."""
        if self.fit is None:
            return Candidate(flat, None)
        cells = self.fit.found.cells
        apart = relative_difference(cells, *cells.sampled(flat), self.offset_counts)
        fitted = self.fit.flat((flat.shape[0], flat.shape[1]))
        differs = float(np.mean((flat / fitted - 1.0) ** 2, dtype=np.float64))
        error = float(np.sqrt(self.fit.error**2 + differs))
        return Candidate(flat, _known(self.fit.found.rms(apart)), error)


def gather(measures: TileMeasures, known: Offset | None) -> FlatEvidence:
    """Fit the flat-field to overlaps and tiles, or to tiles alone.

    Where the offset is not known well it is fitted too, between 0 and the darkest counts.
    """
    bound = measures.darkest_counts
    if known is None and not measures.has_signal(bound, offset_known=False):
        dark = round(measures.median_counts, 1)
        how = "median: the tiles show no light above the noise"
        return FlatEvidence(measures, dark, how, None, 0, 0)
    offset, error, how = known or (bound, np.inf, OFFSET_BOUND)
    free = error > _UNSURE * bound
    if free:
        offset, error = _PART_OF_BOUND * bound, _PART_ERROR * bound
    images, cells = _some(measures.blocks[measures.unsaturated]), measures.cells
    fit, edges, count = None, 0, 0
    if len(cells) >= MIN_CELLS:
        fit = fit_flat(cells, images, offset, error, free=free)
        edges, count = edges_and_cells(fit)
    if edges < MIN_EDGES or count < MIN_CELLS:
        fit = None
        if len(images) >= MIN_TILES:
            fit = fit_flat(OverlapCells.none(), images, offset, error, free=free)
    if fit is None:
        offset = known[0] if known else round(bound, 1)
    elif free:
        offset = round(fit.offset_counts, 1)
        how = f"overlaps and tiles: to {fit.offset_error_counts:.1f} counts"
    return FlatEvidence(measures, offset, how, fit, edges, count)


def _some(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tiles, or as many of them, evenly spaced, as are enough."""
    chosen = np.linspace(0, len(images) - 1, min(len(images), _MAX_TILES))
    return images[chosen.round().astype(np.int64)]


def dark_field(evidence: FlatEvidence) -> EmptyTiles | None:
    """Return offset and dark-field that empty tiles show, None unless they tell both well."""
    if evidence.fit is None:
        return None
    blocks = evidence.measures.blocks
    shape = (blocks.shape[1], blocks.shape[2])
    flat = flat_field(evidence.fit.coefficient, shape).astype(np.float64)
    empty = empty_tiles(blocks, flat)
    # An error of the flat-field that looks like the flat-field itself tilts the line of counts
    # over flat-field, and its intercept with it.
    design = design_grid(shape, evidence.fit.order)
    apart = (flat - flat.mean()).ravel()
    tilt = (flat.ravel()[:, None] * design).T @ apart / float(apart @ apart + 1e-12)
    covariance = evidence.fit.posterior.covariance[:-1, :-1]
    flat_error = abs(empty.glow_counts) * float(np.sqrt(tilt @ covariance @ tilt))
    tolerance = _EMPTY_TOLERANCE * evidence.measures.darkest_counts
    error = float(np.hypot(empty.error_counts, flat_error))
    shown = float(empty.structure_counts.std()) > _EMPTY_STRUCTURE * abs(empty.glow_counts)
    return replace(empty, error_counts=error) if shown and error <= tolerance else None


def fitted_candidate(fit: FlatFit, shape_px: tuple[int, int]) -> Candidate:
    """Return the flat-field of the fit."""
    numbers = {
        "order": fit.order,
        "fall": round(fit.posterior.fall, 3),
        "interior": round(fit.posterior.interior, 3),
    }
    return Candidate(fit.flat(shape_px), _known(fit.held_out), fit.error, numbers)


def _known(rms: float) -> float | None:
    return None if np.isnan(rms) else rms


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
        with readable(str(path)):
            plane = None if path is None else read_plane(path)
        if plane is not None and plane.shape != shape_px:
            raise RawDataError(
                f"{path} is {plane.shape} and tiles are {shape_px} pixels (y, x); "
                "give a field of the tiles' own size"
            )
        fields.append(offset if plane is None else plane)
    if np.median(fields[1]) < 0:
        raise RawDataError(
            f"{dark_file} has a median of {np.median(fields[1]):g} counts; give the counts "
            "without light, of 0 or more"
        )
    flat = np.asarray(fields[0], dtype=np.float32)
    if flat.min() <= 0:
        raise RawDataError(f"{flat_file} holds values of 0 or less; give a flat-field > 0")
    return flat, fields[1]
