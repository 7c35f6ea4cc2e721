"""Estimate the flat-field and the camera offset of one cycle and channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tilewright.io.illumination import Illumination
from tilewright.kernels.backend import Backend
from tilewright.kernels.device_memory import Smallest, memory_noted
from tilewright.stages.illumination_methods import (
    Candidate,
    FlatEvidence,
    Plane,
    dark_field,
    finish,
    gather,
    overlap_candidate,
    read_files,
    try_basic,
)
from tilewright.stages.illumination_tiles import (
    BinnedTiles,
    TilePositions,
    enlarge_blocks,
    has_signal,
    less_structure,
    overlap_cells,
    read_binned,
)
from tilewright.stages.tile_source import TileSource

Method = Literal["auto", "overlap", "basic", "file", "none"]


class IlluminationError(ValueError):
    """The options of the illumination stage cannot be followed; the message names the fix."""


# Not done in parts: every fit looks at all binned tiles at once.
_SMALLEST = Smallest("illumination", "the binned tiles", "lower illumination.planes")


@memory_noted(_SMALLEST)
def estimate_illumination(
    tiles: TileSource,
    positions: TilePositions | None,
    *,
    backend: Backend,
    method: Method = "auto",
    offset_counts: float | None = None,
    flat_file: str | Path | None = None,
    dark_file: str | Path | None = None,
    planes: int = 5,
    order: int | None = None,
    saturation_counts: float | None = None,
    seed: int = 0,
    progress: bool = True,
) -> tuple[Illumination, dict[str, Any]]:
    """Estimate the illumination of one cycle and channel.

    Memory is bounded by tiles x planes x 256 x 256 float32.

    Parameters
    ----------
    tiles : TileSource
        Raw tiles.
    positions : TilePositions or None
        Where they lie, in the same order; None if unknown, which leaves no overlaps.
    backend : Backend
        Device to compute on.
    method : {"auto", "overlap", "basic", "file", "none"}
        ``overlap``: photometry of overlaps; ``basic``: sorted BaSiC; ``auto``: the one with the
        lower held-out overlap log-ratio; ``file``: given fields; ``none``: flat 1.
    offset_counts : float or None
        Camera offset in counts; None estimates it.
    flat_file, dark_file : path or None
        TIFFs for ``file``, of a tile's shape; without a dark file the offset is used.
    planes : int
        Number of evenly spaced z-planes pooled.
    order : int or None
        Largest Legendre order of ``overlap``, 1 to 14; None is 14.
    saturation_counts : float or None
        Counts from which pixels are left out; None finds it.
    seed : int
        Seed of the split into held-out edges.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    illumination : Illumination
        Fields at tile resolution; the flat-field has mean 1 and is >= 0.05.
    numbers : dict
        ``method``, ``reason``, ``offset_counts``, ``offset_method``, ``heldout_log_ratio`` (of the
        method used, rms), ``heldout_log_ratio_rms`` (uncorrected and each method), ``flat_error``
        (expected, relative rms), ``edges``, ``cells``, ``planes``, ``saturation_counts``,
        ``saturation_method``, ``flat_clipped_pixels``, and the fit's own numbers per method.

    Raises
    ------
    IlluminationError
        An option is out of range, or ``positions`` are of other tiles.
    IlluminationFileError
        A given file cannot be used.
    DeviceMemoryError
        The GPU's memory does not hold the binned tiles and the fits.
    """
    _check(tiles, positions, method, planes, flat_file)
    binned = read_binned(backend, tiles, planes, saturation_counts, progress=progress)
    evidence, structure = _gather(backend, binned, positions, offset_counts, order, seed)
    candidates = {"none": evidence.candidate(np.ones(binned.shape_px, dtype=np.float32))}
    reasons: list[str] = []
    dark: Plane | float = evidence.offset_counts
    if structure is not None:
        dark = dark + enlarge_blocks(backend, structure, binned)
    if method == "file":
        flat, dark = read_files(flat_file, dark_file, binned.shape_px, evidence.offset_counts)
        candidates["file"] = evidence.candidate(flat)
    elif method != "none" and not has_signal(
        backend, evidence.binned, evidence.offset_counts, offset_known=offset_counts is not None
    ):
        reasons.append("no signal above the camera offset")
    else:
        attempts: dict[str, Candidate | str] = {}
        if method in ("auto", "overlap"):
            attempts["overlap"] = overlap_candidate(evidence)
        if method in ("auto", "basic"):
            attempts["basic"] = try_basic(backend, evidence, fit_dark=offset_counts is None)
        candidates |= {k: v for k, v in attempts.items() if isinstance(v, Candidate)}
        reasons += [v for v in attempts.values() if isinstance(v, str)]
    chosen = _choose(method, candidates, reasons)
    flat, clipped = finish(candidates[chosen].flat)
    numbers = _report(chosen, candidates, reasons, evidence)
    return Illumination.from_fields(flat, dark), numbers | {"flat_clipped_pixels": clipped}


def _gather(
    backend: Backend,
    binned: BinnedTiles,
    positions: TilePositions | None,
    offset_counts: float | None,
    order: int | None,
    seed: int,
) -> tuple[FlatEvidence, NDArray[np.float64] | None]:
    """Fit the overlaps; where empty tiles show a dark-field, once more without it."""
    cells = None if positions is None else overlap_cells(backend, binned, positions, seed)
    known = None if offset_counts is None else (float(offset_counts), 0.0, "given")
    evidence = gather(backend, binned, cells, known, order=order, seed=seed)
    empty = dark_field(backend, evidence) if known is None else None
    if empty is None or positions is None:
        return evidence, None
    offset = round(empty.offset_counts, 1)
    known = (offset, empty.error_counts, "empty tiles: what makes them even")
    even = less_structure(backend, binned, empty.structure_counts)
    cells = overlap_cells(backend, even, positions, seed)
    again = gather(backend, even, cells, known, order=order, seed=seed)
    return again, empty.structure_counts


def _check(
    tiles: TileSource,
    positions: TilePositions | None,
    method: str,
    planes: int,
    flat_file: str | Path | None,
) -> None:
    if method not in get_args(Method):
        raise IlluminationError(
            f"illumination.method is {method!r}; give one of {', '.join(get_args(Method))}"
        )
    if planes < 1:
        raise IlluminationError(f"illumination.planes is {planes}; give at least 1")
    if method == "file" and flat_file is None:
        raise IlluminationError("illumination.method is file; give illumination.flat_file")
    if len(tiles.row) == 0:
        raise IlluminationError("there are no tiles to estimate the illumination from")
    if positions is not None and len(positions.y_px) != len(tiles.row):
        raise IlluminationError(
            f"{len(positions.y_px)} positions do not fit {len(tiles.row)} tiles; locate these tiles"
        )


def _choose(method: str, candidates: dict[str, Candidate], reasons: list[str]) -> str:
    """Lowest held-out rms of the methods asked for; the plain flat where nothing helps.

    ``basic`` must be clearly better than ``overlap``, and no correction than either: scores
    within 5 % are equal, and the fit to overlaps knows the interior better.
    """
    fitted = [name for name in ("overlap", "basic", "file") if name in candidates]
    if not fitted or method == "file":
        return fitted[0] if fitted else "none"
    best: str = fitted[0]
    for name in (*fitted[1:], "none"):
        if _clearly_better(candidates[name], candidates[best]):
            if name == "none":
                reasons.append(f"{best} does not make held-out overlaps agree better")
            best = name
    return best


def _clearly_better(one: Candidate, other: Candidate) -> bool:
    if one.held_out is None or other.held_out is None:
        return False
    return round(one.held_out, 4) < round(0.95 * other.held_out, 4)


def _report(
    chosen: str, candidates: dict[str, Candidate], reasons: list[str], evidence: FlatEvidence
) -> dict[str, Any]:
    scores = {
        "uncorrected" if name == "none" else name: round(candidate.held_out, 6)
        for name, candidate in candidates.items()
        if candidate.held_out is not None
    }
    flat, valid = candidates[chosen].flat, evidence.binned.valid
    error = candidates[chosen].error
    saturation, known = evidence.binned.saturation
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
        "planes": list(evidence.binned.planes),
        "saturation_counts": saturation,
        "saturation_method": known,
        "saturated_share": 0.0 if valid is None else round(1.0 - float(valid.mean()), 6),
    }
