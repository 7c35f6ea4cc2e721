"""Quality of the illumination correction: the flat-fields, and held-out overlaps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.illumination import CLIPPED_BELOW, OFFSET_BOUND, read_illumination
from tilewright.io.results.positions import read_positions
from tilewright.quality.evaluate import Files, StageQc
from tilewright.quality.figures import save_png, show, small_multiples
from tilewright.quality.results import QcContext

CAPTION = (
    "Flat-field of each channel of cycle {cycle}: sensitivity relative to the mean, on one "
    "scale for all channels, with the method and the camera offset in counts (at most: from "
    "the darkest pixels, which may hold some light)."
)


def evaluate(context: QcContext, files: Files) -> StageQc:
    """Evaluate the flat-field of one channel by the files of ``illumination``."""
    fields, record = read_illumination(
        files["flat"], files["dark"], files["numbers"], context.channel
    )
    flat = fields.flat
    if "positions" in files:
        positions = read_positions(Path(files["positions"]), context.sample)
        context = replace(context, tiles=len(positions.row))
    rms, error = record.get("heldout_difference"), record.get("flat_error")
    held_out = f"method {_method(record)}" if rms is not None else "too few overlaps with tissue"
    missing = "" if error is not None else "too few overlaps and tiles with light to estimate it by"
    items = [
        context.evaluate("heldout_difference", rms, held_out),
        context.evaluate("flat_error", error, missing),
        context.evaluate("offset_excess", record.get("offset_excess")),
        context.evaluate("equal_neighbours", record.get("equal_neighbours")),
    ]
    shown = {key: value for key, value in record.items() if key not in ("defects", "samples")}
    numbers = {**shown, "flat_range": [float(flat.min()), float(flat.max())]}
    return StageQc(items, numbers, (context.name, flat, _method(record)))


def _method(numbers: Mapping[str, Any]) -> str:
    """Return the method, the offset of zero light, where the camera saturates, and dust."""
    bound = "at most " if numbers.get("offset_method") == OFFSET_BOUND else ""
    offset = numbers.get("offset_counts")
    zero = f", offset {bound}{offset:g}" if isinstance(offset, int | float) else ""
    clips = ""
    if numbers.get("saturation_method") == CLIPPED_BELOW:
        clips = f", saturates at {numbers['saturation_counts']:g}"
    dust = numbers.get("dust_share")
    spots = f", dust corrected on {100 * dust:.1f} %" if dust else ""
    return f"{numbers.get('method', 'unknown')}{zero}{clips}{spots}"


def draw(fields: Sequence[tuple[str, NDArray[np.float32], str]], path: Path) -> None:
    """Draw the flat-field of each channel."""
    figure, axes = small_multiples(len(fields), 4, 3.6, 2.9)
    spread = max(float(np.abs(np.percentile(flat, (0.5, 99.5)) - 1).max()) for _, flat, _ in fields)
    spread = max(spread, 0.02)
    for ax, (marker, flat, method) in zip(axes, fields, strict=True):
        step = max(1, max(flat.shape) // 400)
        limits = (1 - spread, 1 + spread)
        show(ax, flat[::step, ::step], f"{marker} ({method})", limits, cmap="viridis")
    bar = figure.colorbar(axes[0].images[0], ax=figure.axes, shrink=0.8, pad=0.01)
    bar.ax.tick_params(labelsize=7)
    save_png(figure, path)
