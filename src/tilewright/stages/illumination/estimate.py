"""Estimate the flat-field and the camera offset of one cycle and channel.

The flat-field is fitted to overlaps and tiles, to tiles alone where too little overlaps, or given
as a file; no correction at all is scored on the same overlaps, and taken where it makes them agree
better.

Numbers of an estimate: ``method`` (``overlap``, ``tiles``, ``file`` or ``none``), ``reason``,
``offset_counts``, ``offset_method``, ``offset_excess`` (above the darkest tiles, in standard
deviations of their noise), ``heldout_log_ratio`` (of the method used, rms),
``heldout_log_ratio_rms`` (uncorrected and corrected), ``flat_error`` (expected, relative rms),
``edges``, ``cells``, ``planes``, ``saturation_counts``, ``saturation_method``,
``equal_neighbours``, ``flat_clipped_pixels`` and ``dust_share`` (of pixels with dust on the
sensor, which is corrected).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tilewright.errors import RawDataError
from tilewright.io.formats.common import raw_file_errors
from tilewright.io.results.illumination import Illumination, read_plane
from tilewright.stages.illumination.binned_tiles import TileMeasures
from tilewright.stages.illumination.flat_evidence import ChannelFit, Plane, fit_channels

Method = Literal["auto", "file", "none"]
#: A flat-field below this share of its mean would multiply noise by more than 20.
MIN_FLAT = 0.05


def estimate_channels(
    channels: Sequence[TileMeasures],
    files: Sequence[tuple[str | Path | None, str | Path | None]],
    *,
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
    return [
        _estimate(fit, method, *paths)
        for fit, paths in zip(fit_channels(channels, offset_counts), files, strict=True)
    ]


def _estimate(
    found: ChannelFit,
    method: Method,
    flat_file: str | Path | None,
    dark_file: str | Path | None,
) -> tuple[Illumination, dict[str, Any]]:
    measures, fit = found.measures, found.fit
    even = np.ones(measures.shape_px, dtype=np.float32)
    name, reason, flat, error = "none", found.reason, even, found.error_of(even)
    dark: Plane | float = found.offset_counts
    if found.dark is not None:
        dark = dark + measures.at_pixels(found.dark.structure_counts, measures.block_px)
    scores, dust_share = {"uncorrected": found.rms_difference(even)}, 0.0
    if method == "file":
        flat, dark = read_files(flat_file, dark_file, measures.shape_px, found.offset_counts)
        name, error = "file", found.error_of(flat)
        scores[name] = found.rms_difference(flat)
    elif method == "auto" and fit is not None:
        name = "overlap" if found.by_overlaps else "tiles"
        flat, error = fit.flat(measures.shape_px), found.error
        scores[name] = None if np.isnan(fit.held_out) else fit.held_out
        if _is_worse(scores[name], scores["uncorrected"]):
            reason = f"{name} does not make held-out overlaps agree better"
            name, flat, error = "none", even, found.error_of(even)
        if (dust := found.dust()) is not None and error is not None:
            flat = flat * measures.at_pixels(dust.gain, measures.factor)
            error, dust_share = float(np.hypot(error, dust.error)), dust.share
    flat, clipped = finish(flat)
    known = {key: round(rms, 6) for key, rms in scores.items() if rms is not None}
    numbers = {
        "method": name,
        "reason": reason,
        "heldout_log_ratio": known.get("uncorrected" if name == "none" else name),
        "heldout_log_ratio_rms": known,
        "flat_error": None if error is None else round(error, 5),
        "flat_clipped_pixels": clipped,
        "dust_share": round(dust_share, 5),
    }
    return Illumination.from_fields(flat, dark), numbers | _measured(found)


def _is_worse(fitted: float | None, uncorrected: float | None) -> bool:
    """Whether held-out overlaps agree better by over 5 % without the flat-field."""
    if fitted is None or uncorrected is None:
        return False
    return round(uncorrected, 4) < round(0.95 * fitted, 4)


def _measured(found: ChannelFit) -> dict[str, Any]:
    measures = found.measures
    saturation, known = measures.saturation
    return {
        "offset_counts": found.offset_counts,
        "offset_method": found.offset_method,
        "offset_excess": round(measures.offset_excess(found.offset_counts), 2),
        "edges": found.edges,
        "cells": found.cells,
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
