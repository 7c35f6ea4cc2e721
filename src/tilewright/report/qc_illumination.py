"""Quality of the illumination correction: the flat-fields, and held-out overlaps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.illumination import read_plane
from tilewright.report.figures import new_figure, save_png, show
from tilewright.report.places import zip_channels
from tilewright.report.quality_file import Quality, write_quality
from tilewright.report.verdict import Item, Subject, judge, resolve_thresholds


def qc_illumination(
    flats: Sequence[str | Path],
    numbers_json: Sequence[str | Path],
    output_json: Path,
    output_png: Path,
    *,
    sample: str,
    cycle: int,
    channels: Sequence[str],
    markers: Sequence[str],
    thresholds: Mapping[str, Mapping[str, Any]],
) -> None:
    """Judge the flat-fields of one cycle.

    Parameters
    ----------
    flats, numbers_json : sequences of path
        Flat-field and numbers that ``illumination`` wrote for each channel.
    output_json, output_png : Path
        Verdicts and picture.
    sample : str
    cycle : int
    channels, markers : sequences of str
        Channel tokens and marker names, parallel to the files.
    thresholds : mapping
        ``qc.thresholds`` of the config.
    """
    limits = resolve_thresholds(thresholds)
    items: list[Item] = []
    numbers: dict[str, Any] = {}
    fields: list[tuple[str, NDArray[np.float32], str]] = []
    for files in zip_channels(channels, markers, flats, numbers_json):
        flat = read_plane(files.paths[0])
        found = json.loads(files.paths[1].read_text(encoding="utf-8"))
        subject = Subject(sample, cycle, "illumination", files.channel, files.marker)
        ratio = found.get("heldout_log_ratio")
        items += [
            judge(
                subject,
                "heldout_log_ratio",
                ratio,
                limits,
                detail=f"method {_how(found)}"
                if ratio is not None
                else "too few overlaps with tissue",
            ),
            judge(
                subject,
                "flat_error",
                found.get("flat_error"),
                limits,
                detail="" if found.get("flat_error") is not None else "no overlaps to judge it by",
            ),
            # The 1st percentile: a speck of dust is no vignetting.
            judge(subject, "flat_minimum", float(np.percentile(flat, 1)), limits),
        ]
        numbers[files.channel] = {
            **found,
            "flat_range": [float(flat.min()), float(flat.max())],
        }
        fields.append((files.marker, flat, _how(found)))
    caption = (
        f"Flat-field of each channel of cycle {cycle}: sensitivity relative to the mean, on one "
        "scale for all channels, with the method and the camera offset in counts (at most: from "
        "the darkest pixels, which may hold some light)."
    )
    _draw(fields, output_png)
    quality = Quality(sample, cycle, "illumination", tuple(items), numbers, caption)
    write_quality(output_json, quality)


def _how(numbers: Mapping[str, Any]) -> str:
    """Return the method and what zero light is taken for."""
    bound = "at most " if "upper bound" in str(numbers.get("offset_method")) else ""
    offset = numbers.get("offset_counts")
    zero = f", offset {bound}{offset:g}" if isinstance(offset, int | float) else ""
    clips = ""
    if "piles up" in str(numbers.get("saturation_method")):
        clips = f", saturates at {numbers['saturation_counts']:g}: set camera.saturation_counts"
    return f"{numbers.get('method', 'unknown')}{zero}{clips}"


def _draw(fields: Sequence[tuple[str, NDArray[np.float32], str]], output_png: Path) -> None:
    columns = min(len(fields), 4)
    rows = -(-len(fields) // columns)
    figure = new_figure(10, 2.9 * rows)
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    spread = max(float(np.abs(np.percentile(flat, (0.5, 99.5)) - 1).max()) for _, flat, _ in fields)
    spread = max(spread, 0.02)
    for ax, (marker, flat, method) in zip(axes, fields, strict=False):
        step = max(1, max(flat.shape) // 400)
        title = f"{marker} ({method})" if method else marker
        limits = (1 - spread, 1 + spread)
        show(ax, flat[::step, ::step], title, limits, cmap="viridis")
    for ax in axes[len(fields) :]:
        ax.set_axis_off()
    bar = figure.colorbar(axes[0].images[0], ax=axes.tolist(), shrink=0.8, pad=0.01)
    bar.ax.tick_params(labelsize=7)
    save_png(figure, output_png)
