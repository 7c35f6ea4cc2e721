"""Estimate the flat-field and the camera offset of one cycle and channel.

The flat-field is fitted to overlaps and tiles, to tiles alone where too little overlaps, or given
as a file; no correction at all is scored on the same overlaps, and taken where it makes them agree
better.

Numbers of an estimate: ``method`` (``overlap``, ``tiles``, ``file`` or ``none``), ``reason``,
``offset_counts``, ``offset_method``, ``offset_excess`` (above the darkest tiles, in standard
deviations of their noise), ``heldout_log_ratio`` (of the method used, rms),
``heldout_log_ratio_rms`` (uncorrected and corrected), ``flat_error`` (expected, relative rms),
``edges``, ``cells``, ``planes``, ``saturation_counts``, ``saturation_method``,
``equal_neighbours``, ``flat_clipped_pixels``, and the fit's own numbers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tilewright.errors import RawDataError
from tilewright.io.formats.common import raw_file_errors
from tilewright.io.results.illumination import Illumination, read_plane
from tilewright.kernels.backend import Backend
from tilewright.kernels.camera import EmptyTiles
from tilewright.stages.illumination.binned_tiles import TileMeasures
from tilewright.stages.illumination.camera_offset import (
    MIN_CELLS,
    MIN_EDGES,
    Offset,
    camera_offsets,
)
from tilewright.stages.illumination.flat_evidence import (
    MIN_TILES,
    Candidate,
    FlatEvidence,
    Plane,
    dark_field,
    fitted_candidate,
    gather,
)

Method = Literal["auto", "file", "none"]
#: A flat-field below this share of its mean would multiply noise by more than 20.
MIN_FLAT = 0.05
#: Less sure than this, empty tiles are fitted without it: where stray light is uneven (brain
#: tiles) overlaps alone give 218 +- 63 counts, overlaps and tiles 433, and the empty ones 647.
_DOUBTED = 0.05


def estimate_channels(
    channels: Sequence[TileMeasures],
    files: Sequence[tuple[str | Path | None, str | Path | None]],
    *,
    backend: Backend,
    method: Method = "auto",
    offset_counts: float | None = None,
) -> list[tuple[Illumination, dict[str, Any]]]:
    """Estimate the illumination of the channels of a cycle; the offset comes from all of them.

    Parameters without a line here are keys of the configuration, see
    :mod:`tilewright.config.settings`; None is ``auto``.

    Parameters
    ----------
    channels : sequence of TileMeasures
        What the raw tiles of each channel measured.
    files : sequence of (path or None, path or None)
        For each channel, TIFFs for the method ``file``: flat-field and dark-field
        of a tile's shape; without a dark file the offset is used.

    Returns
    -------
    list of (Illumination, dict)
        Fields at tile resolution, the flat-field of mean 1 and >= 0.05; numbers: see the module.

    Raises
    ------
    RawDataError
        A given file cannot be used.
    """
    if find_offset := offset_counts is None:
        known = camera_offsets(channels)
    else:
        known = [(float(offset_counts), 0.0, "given")] * len(channels)
    return [
        _estimate(backend, of, offset, method, find_offset, *paths)
        for of, offset, paths in zip(channels, known, files, strict=True)
    ]


def _estimate(
    backend: Backend,
    measures: TileMeasures,
    offset: Offset | None,
    method: Method,
    find_dark: bool,
    flat_file: str | Path | None,
    dark_file: str | Path | None,
) -> tuple[Illumination, dict[str, Any]]:
    evidence, empty = _evidence(measures, offset, find_dark)
    offset_known = offset is not None or empty is not None
    shape_px = measures.shape_px
    candidates = {"none": evidence.candidate(np.ones(shape_px, dtype=np.float32))}
    reasons: list[str] = []
    dark: Plane | float = evidence.offset_counts
    if empty is not None:
        dark = dark + measures.at_pixels(backend, empty.structure_counts)
    if method == "file":
        flat, dark = read_files(flat_file, dark_file, shape_px, evidence.offset_counts)
        candidates["file"] = evidence.candidate(flat)
    elif method == "auto":
        candidates |= _fitted(evidence, reasons, offset_known=offset_known)
    name = _choose(candidates, reasons)
    flat, clipped = finish(candidates[name].flat)
    numbers = _report(name, candidates, reasons, evidence)
    return Illumination.from_fields(flat, dark), numbers | {"flat_clipped_pixels": clipped}


def _evidence(
    measures: TileMeasures, offset: Offset | None, find_dark: bool
) -> tuple[FlatEvidence, EmptyTiles | None]:
    """Return the evidence of the flat-field, and of the dark-field where empty tiles show it."""
    evidence = gather(measures, offset)
    empty = dark_field(evidence) if find_dark else None
    if find_dark and empty is None and offset and offset[1] > _DOUBTED * measures.darkest_counts:
        empty = dark_field(gather(measures, None))
    if empty is not None:
        counts = round(empty.offset_counts, 1)
        offset = (counts, empty.error_counts, "empty tiles: what makes them even")
        evidence = gather(measures.less(empty.structure_counts), offset)
    return evidence, empty


def _fitted(
    evidence: FlatEvidence, reasons: list[str], *, offset_known: bool
) -> dict[str, Candidate]:
    """Return the fitted flat-field by its method, or none; add to the reasons why."""
    if not evidence.measures.has_signal(evidence.offset_counts, offset_known=offset_known):
        reasons.append("no signal above the camera offset")
        return {}
    by_overlaps = evidence.edges >= MIN_EDGES and evidence.cells >= MIN_CELLS
    if not by_overlaps:
        reasons.append(
            f"overlap needs {MIN_EDGES} overlaps and {MIN_CELLS} cells with signal and has "
            f"{evidence.edges} and {evidence.cells}"
        )
    if evidence.fit is None:
        reasons.append(f"the fit to tiles alone needs {MIN_TILES} unsaturated ones")
        return {}
    name = "overlap" if by_overlaps else "tiles"
    return {name: fitted_candidate(evidence.fit, evidence.measures.shape_px)}


def _choose(candidates: dict[str, Candidate], reasons: list[str]) -> str:
    """Return the first method that gave a flat-field; "none" where that is better by over 5 %."""
    best = next((name for name in candidates if name != "none"), "none")
    fit_score, plain_score = candidates[best].held_out, candidates["none"].held_out
    if best == "file" or fit_score is None or plain_score is None:
        return best
    if round(plain_score, 4) < round(0.95 * fit_score, 4):
        reasons.append(f"{best} does not make held-out overlaps agree better")
        return "none"
    return best


def _report(
    name: str, candidates: dict[str, Candidate], reasons: list[str], evidence: FlatEvidence
) -> dict[str, Any]:
    scores = {
        "uncorrected" if name == "none" else name: round(candidate.held_out, 6)
        for name, candidate in candidates.items()
        if candidate.held_out is not None
    }
    flat, error = candidates[name].flat, candidates[name].error
    measures = evidence.measures
    saturation, known = measures.saturation
    return {
        "method": name,
        "reason": "; ".join(reasons),
        "heldout_log_ratio": scores.get("uncorrected" if name == "none" else name),
        "heldout_log_ratio_rms": scores,
        "flat_error": None if error is None else round(error, 5),
        "fits": {name: c.numbers for name, c in candidates.items() if c.numbers},
        "flat_range": [round(float(flat.min()), 5), round(float(flat.max()), 5)],
        "offset_counts": evidence.offset_counts,
        "offset_method": evidence.offset_method,
        "offset_excess": round(measures.offset_excess(evidence.offset_counts), 2),
        "edges": evidence.edges,
        "cells": evidence.cells,
        "planes": list(measures.planes),
        "equal_neighbours": measures.equal_neighbours,
        "saturation_counts": saturation,
        "saturation_method": known,
        "saturated_share": measures.saturated_share,
    }


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
        with raw_file_errors(str(path)):
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
