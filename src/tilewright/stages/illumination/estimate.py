"""Estimate the flat-field and the camera offset of one cycle and channel.

The flat-field is fitted to overlaps and tiles, to tiles alone where too little overlaps, or given
as a file; no correction at all is scored on the same overlaps, and taken where it makes them agree
better.

Numbers of an estimate: ``method`` (``overlap``, ``tiles``, ``file`` or ``none``), ``reason``,
``offset_counts``, ``offset_method``, ``offset_excess`` (above the darkest tiles, in standard
deviations of their noise), ``heldout_difference`` (of the method used, rms),
``heldout_difference_rms`` (uncorrected and corrected), ``flat_error`` (expected, relative rms),
``edges``, ``cells``, ``planes``, ``saturation_counts``, ``saturation_method``,
``equal_neighbours``, ``flat_clipped_pixels`` and ``dust_share`` (of pixels with dust on the
sensor, which is corrected).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats.common import raw_file_errors
from tilewright.io.results.illumination import OFFSET_BOUND, Illumination, read_plane
from tilewright.kernels.illumination.fixed_pattern import (
    EmptyTiles,
    SensorDust,
    empty_tiles,
    find_dust,
)
from tilewright.kernels.illumination.flat_fit import (
    OFFSET_DIGIT_COUNTS,
    FlatFit,
    fit_flat,
    leave_one_out_mean,
)
from tilewright.kernels.illumination.overlap_cells import OverlapCells
from tilewright.kernels.illumination.overlap_photometry import relative_difference
from tilewright.kernels.illumination.tile_uniformity import MIN_TILES, tissue_and_background
from tilewright.stages.illumination.binned_tiles import MIN_EDGES, TileMeasures

Plane = NDArray[np.float32]
Method = Literal["auto", "file", "none"]
#: A flat-field below this share of its mean would multiply noise by more than 20.
MIN_FLAT = 0.05
#: Fewer cells of overlaps are no estimate.
MIN_CELLS = 300
#: More tiles add memory, 0.4 MB each, and no accuracy.
_MAX_TILES = 400
#: The camera offset and its standard error before it is fitted, as shares of the darkest counts.
_PART_OF_BOUND, _PART_ERROR = 0.8, 0.2
#: Errors of offsets by overlaps are raised by this: of 150 sets the true ones were 2 times those of
#: the fit.
_OFFSET_CAUTION = 2.0
#: A dark-field is taken from empty tiles if it is more than this share of their glow: a third on
#: the brain tiles. It is 0.02 on syn10, whose camera has none; taken off, it gave 1.5 % for 0.6 %.
_EMPTY_STRUCTURE = 0.05


@dataclass(frozen=True)
class ChannelFit:
    """What the tiles of a channel say of its flat-field and of the camera offset.

    Attributes
    ----------
    offset_counts : float
        Camera offset.
    offset_error_counts : float
        Its standard error; infinite where it is only bounded.
    offset_method : str
        How it was found.
    fit : FlatFit | None
        Flat-field by overlaps and tiles, or tiles alone; None if there are too few of both, or no
        light.
    error : float | None
        Expected relative rms error of that flat-field.
    edges, cells : int
        Overlaps, and cells in them, with signal.
    reason : str
        Why there is no fit, or none by overlaps.
    dark : EmptyTiles | None
        Dark-field by empty tiles.
    """

    measures: TileMeasures
    offset_counts: float
    offset_error_counts: float
    offset_method: str
    fit: FlatFit | None = None
    error: float | None = None
    edges: int = 0
    cells: int = 0
    reason: str = ""
    dark: EmptyTiles | None = None

    @property
    def by_overlaps(self) -> bool:
        """Whether overlaps were fitted."""
        return self.edges >= MIN_EDGES and self.cells >= MIN_CELLS

    @cached_property
    def shows_cores(self) -> bool:
        """Whether tissue has a preferred place in the tile, as dust has, and none is empty."""
        return tissue_and_background(_some(self.measures.blocks)) is not None

    def dust(self) -> SensorDust | None:
        """Return the dust on the sensor; None without any, or where tiles cannot tell."""
        if self.fit is None or self.shows_cores:
            return None
        height, width = self.measures.dust.shape[2:]
        return find_dust(self.measures.dust, self.fit.flat((height, width)), self.offset_counts)

    def rms_difference(self, flat: Plane) -> float | None:
        """Return the rms relative difference of overlaps under a flat-field that is not fitted."""
        if self.fit is None:
            return None
        compared = self.fit.differences
        sampled = compared.cells.sampled(flat)
        rms = compared.rms(relative_difference(compared.cells, *sampled, self.offset_counts))
        return None if np.isnan(rms) else rms

    def error_of(self, flat: Plane) -> float | None:
        """Return the expected relative rms error of a flat-field that is not fitted."""
        if self.fit is None or self.error is None:
            return None
        differs = np.std(flat / self.fit.flat((flat.shape[0], flat.shape[1])), dtype=np.float64)
        return float(np.hypot(self.error, differs))


def fit_channels(measures: Sequence[TileMeasures], offset_counts: float | None) -> list[ChannelFit]:
    """Fit the flat-field and the camera offset of each channel of a cycle.

    A camera has one offset, so those of the other channels are a prior of a channel's own, as far
    as they agree with one another (:func:`.leave_one_out_mean`) and know it better. Of a dim marker
    on glass its own was 2 to 4 counts off, and a grid was left along all tile borders; of dim
    nuclei next to a saturated marker it was right to 0.1, and the marker's 45 counts too high.
    Channels of two cameras do not agree, and each keeps its own. ``offset_counts`` of None is
    found.
    """
    if offset_counts is not None:
        known = float(offset_counts), 0.0, "given"
        return [_fit_channel(one, known) for one in measures]
    fits = [_fit_channel(one, None) for one in measures]
    found = np.array([fit.offset_counts for fit in fits])
    errors = [fit.offset_error_counts if fit.by_overlaps else np.inf for fit in fits]
    for k, (counts, error) in enumerate(leave_one_out_mean(found, np.array(errors))):
        # Light is never negative: a channel of another camera has its own offset.
        highest = measures[k].darkest_counts + 3 * measures[k].noise_counts
        if error < errors[k] and counts - 2 * error <= highest:
            fits[k] = _fit_channel(measures[k], (counts, error, "overlaps of all channels"))
    return [_with_dark_field(fit) for fit in fits]


def _fit_channel(measures: TileMeasures, known: tuple[float, float, str] | None) -> ChannelFit:
    """Fit one channel about what is known of its offset: counts, standard error, and how."""
    bound = measures.darkest_counts
    offset, error, how = known or (bound, np.inf, OFFSET_BOUND)
    if not measures.has_signal(offset, offset_known=known is not None):
        if known is None:
            offset, how = measures.median_counts, "median: the tiles show no light above the noise"
        none = ChannelFit(measures, round(offset, 1), error, how)
        return replace(none, reason="no signal above the camera offset")
    prior = (offset, error) if known else (_PART_OF_BOUND * bound, _PART_ERROR * bound)
    images, cells = _some(measures.blocks[measures.unsaturated]), measures.cells
    enough, regions = len(images) >= MIN_TILES, tissue_and_background(images)
    images = images if regions is None else regions
    found = ChannelFit(measures, round(offset, 1), error, how)
    if len(cells) >= MIN_CELLS:
        fit = fit_flat(cells, images, *prior)
        valid = fit.differences.has_signal
        edges = len(np.unique(fit.differences.cells.edge[valid]))
        found = replace(found, fit=fit, error=fit.error, edges=edges, cells=int(valid.sum()))
    if not found.by_overlaps:
        reason = (
            f"overlap needs {MIN_EDGES} overlaps and {MIN_CELLS} cells with signal and has "
            f"{found.edges} and {found.cells}"
        )
        if not enough:
            reason += f"; the fit to tiles alone needs {MIN_TILES} unsaturated ones"
            return replace(found, fit=None, error=None, reason=reason)
        fit, error_alone = _fit_tiles(images, prior, by_region=regions is not None)
        found = replace(found, fit=fit, error=error_alone, reason=reason)
    if how == "given" or found.fit is None:
        return found
    counts = max(_OFFSET_CAUTION * found.fit.offset_error_counts, OFFSET_DIGIT_COUNTS)
    if known is None:
        how = "overlaps" if found.by_overlaps else "tiles"
    return replace(
        found,
        offset_counts=round(found.fit.offset_counts, 1),
        offset_error_counts=counts,
        offset_method=f"{how}: to {counts:.1f} counts",
    )


def _fit_tiles(
    images: NDArray[np.float64], prior: tuple[float, float], *, by_region: bool
) -> tuple[FlatFit, float]:
    """Fit tiles alone; in the error is what the flat-field changes if the offset errs."""
    shape = (images.shape[1], images.shape[2])
    fit = fit_flat(OverlapCells.none(), images, *prior)
    # Regions do not tell the offset, although its error shrinks as smooth flat-fields are likelier.
    error = prior[1] if by_region else _OFFSET_CAUTION * fit.offset_error_counts
    other = fit_flat(OverlapCells.none(), images, fit.offset_counts + error, 0.0)
    change = other.flat(shape).astype(np.float64) / fit.flat(shape)
    return fit, float(np.hypot(fit.error, change.std()))


def _some(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tiles, or as many of them, evenly spaced, as are enough."""
    indices = np.linspace(0, len(images) - 1, min(len(images), _MAX_TILES))
    return images[indices.round().astype(np.int64)]


def _with_dark_field(found: ChannelFit) -> ChannelFit:
    """Fit once more with offset and dark-field by empty tiles, if both are known well."""
    measures = found.measures
    # The darkest tiles of cores of a tissue microarray are not empty.
    if found.fit is None or found.shows_cores:
        return found
    shape = (measures.blocks.shape[1], measures.blocks.shape[2])
    empty = empty_tiles(measures.blocks, found.fit.flat(shape).astype(np.float64))
    # Stray light of an empty tile is a part of its light.
    share = float(empty.structure_counts.std()) / max(empty.glow_counts, 1e-6)
    # Known better than before any fit. As a share of the darkest counts the error is over 1 where
    # tissue is in most tiles (syn10), and 0.044 to 0.058 where they are empty (brain tiles).
    sure = empty.error_counts <= _PART_ERROR * measures.darkest_counts
    if not sure or not _EMPTY_STRUCTURE < share < 1.0:
        return found
    known = empty.offset_counts, empty.error_counts, "empty tiles: what makes them even"
    return replace(_fit_channel(measures.less(empty.structure_counts), known), dark=empty)


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
        "heldout_difference": known.get("uncorrected" if name == "none" else name),
        "heldout_difference_rms": known,
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
