"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from snakemake_scheduler_plugin_tilewright import environment, run_section
from tilewright.config.rules import STAGES
from tilewright.report.devices import device_section
from tilewright.report.figures import Rendering, embed_png, render
from tilewright.report.judge import Quality, judge_again, read_quality
from tilewright.report.page.parts import anchor, marker_tables, number_table, problem_part
from tilewright.report.page.problems import Pixels, problems
from tilewright.report.page.summary import trusted_markers
from tilewright.report.rule_colours import PALETTE
from tilewright.report.verdict import RANK, worst
from tilewright.runtime.files import write_text_atomic
from tilewright.runtime.text import count

#: Problems that are shown, and lines of each; the rest is folded.
_SHOWN, _LINES = 12, 2
#: Area in px of all figures, of all pictures of channels and of all composites of a page.
_FIGURES_PX, _CHANNELS_PX, _COMPOSITES_PX = 70e6, 9e6, 4e6


def _sizes(figures: int, samples: int, channels: int) -> tuple[float, int, int]:
    """Return the area of a figure, and the sides of pictures of a channel and of a sample, in px.

    A page of any experiment stays below some 12 MB: WebP took 0.05 to 0.11 bytes a pixel.
    """
    return (
        _FIGURES_PX / max(figures, 1),
        int(np.clip(math.sqrt(_CHANNELS_PX / max(samples * channels, 1)), 120, 420)),
        int(np.clip(math.sqrt(_COMPOSITES_PX / max(samples, 1)), 320, 1600)),
    )


def _stage(
    sample: str, stage: str, found: Sequence[tuple[Quality, Path]], area_px: float
) -> dict[str, Any]:
    own = [(quality, png) for quality, png in found if quality.stage == stage]
    parts = [
        {
            "cycle": quality.cycle,
            "anchor": anchor(sample, stage, quality.cycle),
            "verdict": worst(item.verdict for item in quality.items),
            "caption": quality.caption + _legend(quality),
            **asdict(embed_png(png.read_bytes(), area_px)),
        }
        for quality, png in own
    ]
    items = [item for quality, _ in own for item in quality.items]
    wide = bool(parts) and median(part["width"] / part["height"] for part in parts) > 1.4
    return {
        "title": STAGES[stage].title,
        "about": STAGES[stage].about,
        "anchor": anchor(sample, stage),
        "verdict": worst(item.verdict for item in items),
        "parts": parts,
        "wide": wide,
        "checks": len(items),
        "table": number_table(items),
    }


def _legend(quality: Quality) -> str:
    """Return which marker is which channel: pictures of a cycle's stages name channels."""
    names = {item.channel: item.marker for item in quality.items if item.channel}
    if not names or quality.stage == "image":
        return ""
    return f" Channels: {', '.join(f'{channel} {name}' for channel, name in names.items())}."


def _matrix(
    sample: str, found: Sequence[Quality], cycles: Sequence[int], reference_cycle: int
) -> list[dict[str, Any]]:
    verdicts = {(q.stage, q.cycle): worst(item.verdict for item in q.items) for q in found}
    rows = []
    for stage in (stage for stage in STAGES if any(q.stage == stage for q in found)):
        cells = [
            {
                "verdict": verdicts.get((stage, cycle)),
                "anchor": anchor(sample, stage, cycle),
                "note": "reference" if stage == "register" and cycle == reference_cycle else "",
            }
            for cycle in cycles
        ]
        rows.append({"title": STAGES[stage].title, "cells": cells})
    return rows


def _picture(rendering: Rendering) -> dict[str, Any]:
    return {
        **asdict(rendering.composite),
        "key": [{"marker": name, "colour": colour} for name, colour in rendering.key],
        "alt": ", ".join(name for name, _ in rendering.key),
        "caption": "Each channel scaled for the eye, failed ones left out; intensities are in the "
        "OME-TIFF.",
    }


def _sample(
    name: str,
    found: Sequence[tuple[Quality, Path]],
    image: Path | None,
    channels: Sequence[Mapping[str, Any]],
    reference: tuple[int, str],
    planes: Mapping[tuple[int, str], Path],
    sizes: tuple[float, int, int],
) -> dict[str, Any]:
    qualities = [quality for quality, _ in found]
    items = [item for quality in qualities for item in quality.items]
    cycles = sorted({quality.cycle for quality in qualities})
    # The registered image holds the channels in the order of the marker table, but those removed.
    held = [entry for entry in channels if not entry.get("remove")]
    rows = [row for row in trusted_markers(items, held) if row["sample"] == name]
    order = [(row["cycle"], row["channel"]) for row in rows]
    nuclei = order.index(reference) if reference in order else 0
    # The nuclear stains of the other cycles would hide the markers.
    hidden = [row["verdict"] == "fail" or row["channel"] == reference[1] for row in rows]
    left_out = [k for k, hide in enumerate(hidden) if hide]
    rendering = None
    if image is not None:
        rendering = render(image, nuclei, left_out, *sizes[1:])
    pictures = rendering.channels if rendering and len(rendering.channels) == len(rows) else []
    for row, picture in zip(rows, pictures, strict=False):
        row.update(asdict(picture))
    stages = (_stage(name, stage, found, sizes[0]) for stage in STAGES)
    return {
        "name": name,
        "anchor": anchor("sample", name),
        "verdict": worst(item.verdict for item in items),
        "checks": items,
        "cycles": cycles,
        "matrix": _matrix(name, qualities, cycles, reference[0]),
        "problems": problems(qualities, Pixels(planes, image, order, reference)),
        "unregistered": [i for i in items if i.metric == "unregistered" and i.verdict == "fail"],
        "picture": _picture(rendering) if rendering else None,
        "channels": rows,
        "stages": [stage for stage in stages if stage["parts"]],
    }


def _headline(samples: Sequence[Mapping[str, Any]], waiting: Sequence[int]) -> str:
    items = [item for sample in samples for item in sample["checks"]]
    fails, warns = (sum(i.verdict == v for i in items) for v in ("fail", "warn"))
    bad = [f"{fails} fail"] * bool(fails) + [f"{warns} warn"] * bool(warns)
    said = ", ".join(bad) or "all within their limits"
    cycles = f"cycle{'s' * (len(waiting) > 1)} {', '.join(map(str, waiting))}"
    without = f" The markers table has {cycles} too, not processed yet." if waiting else ""
    return f"{count(len(samples), 'sample')}, {len(items)} checks: {said}.{without}"


def write_report(
    quality_paths: Sequence[Path],
    picture_paths: Sequence[Path],
    images: Mapping[str, Path],
    channels: Sequence[Mapping[str, Any]],
    output: Path,
    *,
    title: str,
    reference_cycle: int,
    reference_channel: str,
    software: Mapping[str, str],
    config_text: str,
    thresholds: Mapping[str, Mapping[str, Any]] | None = None,
    ledger: Path | None = None,
    devices: Path | None = None,
    planes: Mapping[tuple[str, int, str], Path] | None = None,
    waiting: Sequence[int] = (),
) -> None:
    """Write the report of all samples.

    Parameters
    ----------
    quality_paths, picture_paths : sequences of Path
        JSON and PNG of each quality stage, in the same order.
    images : mapping
        Sample → registered OME-Zarr; samples without one show no image.
    channels : sequence of mappings
        cycle, channel, marker of each channel, in the order of the registered image.
    output : Path
        The HTML file; beside it the table of jobs, where there is a ledger.
    title : str
        Name of the experiment.
    reference_cycle : int
        The cycle that the others are registered to.
    reference_channel : str
        The nuclear channel of every cycle.
    software : mapping
        Name → version, shown at the end.
    config_text : str
        The configuration as YAML, shown at the end.
    thresholds : mapping, optional
        ``qc.thresholds`` of the config.
    ledger : Path, optional
        The ledger of the runs on a cluster; where there is none the page says nothing of it.
    devices : Path, optional
        The evidence of jobs that held a device; likewise.
    planes : mapping, optional
        (sample, cycle, channel) → in-focus plane; problems without theirs show no crop of it.
    waiting : sequence of int, optional
        Cycles of the markers table that were not processed.

    Raises
    ------
    ValueError
        A quality file cannot be read, or the two lists differ in length.
    """
    pairs = [
        (judge_again(read_quality(Path(q)), thresholds or {}, channels), Path(p))
        for q, p in zip(quality_paths, picture_paths, strict=True)
    ]
    pairs.sort(key=lambda pair: (pair[0].sample, pair[0].cycle))
    names = sorted({quality.sample for quality, _ in pairs})
    sizes = _sizes(len(pairs), len(names), len(channels))
    samples = [
        _sample(
            name,
            [pair for pair in pairs if pair[0].sample == name],
            Path(images[name]) if name in images else None,
            channels,
            (reference_cycle, reference_channel),
            {key[1:]: path for key, path in (planes or {}).items() if key[0] == name},
            sizes,
        )
        for name in names
    ]
    found = [problem for sample in samples for problem in sample["problems"]]
    found.sort(key=lambda p: (-RANK[p.verdict], p.reason == "unknown"))
    pages = environment(Path(__file__).parent / "templates")
    pages.globals.update(vars(pages.get_template("macros.html").module))
    page = pages.get_template("report.html").render(
        title=title,
        headline=_headline(samples, waiting),
        samples=samples,
        tables=marker_tables(samples),
        problems=[problem_part(problem, len(samples) > 1) for problem in found],
        shown=_SHOWN,
        lines=_LINES,
        software=software,
        config=config_text,
        ran=run_section(ledger, output, PALETTE) if ledger else None,
        devices=device_section(devices),
    )
    write_text_atomic(output, page)
