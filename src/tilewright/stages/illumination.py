"""Estimate the flat-field and the camera offset of one cycle and channel."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tilewright.io.illumination import Illumination, write_illumination
from tilewright.kernels.backend import Backend
from tilewright.kernels.device_memory import Smallest, memory_noted
from tilewright.stages.illumination_methods import (
    Candidate,
    Evidence,
    Plane,
    finish,
    gather,
    read_files,
    try_basic,
    try_overlap,
)
from tilewright.stages.illumination_tiles import (
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
    """The options of the illumination stage cannot be followed; the message names the mend."""


# Not done in parts: every fit looks at all binned tiles at once.
_SMALLEST = Smallest("illumination", "the binned tiles", "lower illumination.planes")


def fit(
    tiles: TileSource,
    positions: TilePositions | None,
    stem: str | Path,
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
) -> tuple[Path, Path, Path]:
    """Estimate and write ``{stem}-ffp.tif``, ``{stem}-dfp.tif`` and ``{stem}.json``.

    Parameters are those of :func:`estimate`.

    Returns
    -------
    tuple of Path
        The three files.
    """
    illumination, numbers = estimate(
        tiles,
        positions,
        backend=backend,
        method=method,
        offset_counts=offset_counts,
        flat_file=flat_file,
        dark_file=dark_file,
        planes=planes,
        order=order,
        saturation_counts=saturation_counts,
        seed=seed,
        progress=progress,
    )
    return write_illumination(stem, illumination, numbers)


@memory_noted(_SMALLEST)
def estimate(
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
        Legendre order of ``overlap``, 1 to 8; None chooses.
    saturation_counts : float or None
        Counts from which pixels are left out; None is the largest value of an integer type.
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
        method used, rms), ``heldout_log_ratio_rms`` (uncorrected and each method), ``edges``,
        ``cells``, ``planes``, ``flat_clipped_pixels``, and the fit's own numbers per method.

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
    cells = None if positions is None else overlap_cells(backend, binned, positions, seed)
    evidence = gather(backend, binned, cells, offset_counts, seed)
    structure = evidence.structure
    if structure is not None:
        binned = less_structure(backend, binned, structure)
        cells = None if positions is None else overlap_cells(backend, binned, positions, seed)
        again = gather(backend, binned, cells, evidence.offset_counts, seed)
        evidence = dataclasses.replace(again, offset_method=evidence.offset_method)
    flat_one = np.ones(binned.shape_px, dtype=np.float32)
    candidates = {"none": Candidate(flat_one, evidence.score(flat_one))}
    reasons: list[str] = []
    dark: Plane | float = evidence.offset_counts
    if structure is not None:
        dark = dark + enlarge_blocks(backend, structure, binned)
    if method == "file":
        flat, dark = read_files(flat_file, dark_file, binned.shape_px, evidence.offset_counts)
        candidates["file"] = Candidate(flat, evidence.score(flat))
    elif method != "none" and not has_signal(
        backend, binned, evidence.offset_counts, offset_known=offset_counts is not None
    ):
        reasons.append("no signal above the camera offset")
    else:
        attempts: dict[str, Candidate | str] = {}
        if method in ("auto", "overlap"):
            attempts["overlap"] = try_overlap(backend, evidence, order, seed)
        if method in ("auto", "basic"):
            attempts["basic"] = try_basic(backend, evidence, fit_dark=offset_counts is None)
        candidates |= {k: v for k, v in attempts.items() if isinstance(v, Candidate)}
        reasons += [v for v in attempts.values() if isinstance(v, str)]
    chosen = _choose(method, candidates, reasons)
    flat, clipped = finish(candidates[chosen].flat)
    numbers = _report(chosen, candidates, reasons, evidence)
    return Illumination.from_fields(flat, dark), numbers | {"flat_clipped_pixels": clipped}


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
    """Lowest held-out rms of the methods asked for; the plain flat where nothing helps."""
    fitted = [name for name in ("overlap", "basic", "file") if name in candidates]
    if not fitted or method == "file":
        return fitted[0] if fitted else "none"
    scored = [name for name in fitted if candidates[name].held_out is not None]
    if not scored:
        return fitted[0]
    score = {name: round(candidates[name].held_out or 0.0, 6) for name in (*scored, "none")}
    best = min(scored, key=lambda name: score[name])
    if score[best] >= score["none"]:
        reasons.append(f"{best} does not make held-out overlaps agree better than no correction")
        return "none"
    return best


def _report(
    chosen: str, candidates: dict[str, Candidate], reasons: list[str], evidence: Evidence
) -> dict[str, Any]:
    scores = {
        "uncorrected" if name == "none" else name: round(candidate.held_out, 6)
        for name, candidate in candidates.items()
        if candidate.held_out is not None
    }
    flat, valid = candidates[chosen].flat, evidence.binned.valid
    return {
        "method": chosen,
        "reason": "; ".join(reasons),
        "heldout_log_ratio": scores.get("uncorrected" if chosen == "none" else chosen),
        "heldout_log_ratio_rms": scores,
        "fits": {name: c.numbers for name, c in candidates.items() if c.numbers},
        "flat_range": [round(float(flat.min()), 5), round(float(flat.max()), 5)],
        "offset_counts": evidence.offset_counts,
        "offset_method": evidence.offset_method,
        "edges": evidence.edges,
        "cells": 0 if evidence.ratios is None else len(evidence.ratios.value),
        "planes": list(evidence.binned.planes),
        "saturated_share": 0.0 if valid is None else round(1.0 - float(valid.mean()), 6),
    }
