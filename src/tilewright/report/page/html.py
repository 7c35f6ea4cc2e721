"""The report: one HTML file that needs nothing else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from snakemake_scheduler_plugin_tilewright import environment, run_section
from tilewright.config.rules import STAGES
from tilewright.io.results.result_file import result_file_errors, write_result
from tilewright.quality.evaluate import QcRecord, apply_thresholds, read_qc
from tilewright.quality.results import RANK, worst
from tilewright.quality.summary import trusted_markers
from tilewright.report.page.parts import anchor, marker_tables, number_table, problem_part
from tilewright.report.page.problems import Pixels, problems
from tilewright.report.pictures import Rendering, embed_png, render
from tilewright.runtime.text import count

_TITLE = "tilewright report"
#: Problems that are shown, and lines of each; the rest is folded.
_SHOWN, _LINES = 12, 2
#: Area in px of all figures, of all pictures of channels and of all composites of a page.
_FIGURES_PX, _CHANNELS_PX, _COMPOSITES_PX = 70e6, 9e6, 4e6


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """Inputs of the report.

    Attributes
    ----------
    quality_paths, picture_paths : Sequence[Path]
        JSON and PNG of each quality stage, in the same order.
    images : Mapping[str, Path]
        Sample → registered OME-Zarr; samples without one show no image.
    channels : Sequence[Mapping[str, Any]]
        cycle, channel, marker of each channel, in the order of the registered image.
    reference_cycle : int
        The cycle that the others are registered to.
    reference_channels : Mapping[int, str]
        The nuclear channel of each cycle.
    software : Mapping[str, str]
        Name → version, shown at the end.
    config_text : str
        The configuration as YAML, shown at the end.
    thresholds : Mapping[str, Mapping[str, Any]]
        ``qc.thresholds`` of the config.
    ledger : Path | None
        The ledger of the runs on a cluster; without it the page has no such section.
    planes : Mapping[tuple[str, int, str], Path]
        (sample, cycle, channel) → in-focus plane; problems without theirs show no crop of it.
    waiting : Sequence[int]
        Cycles of the markers table that were not processed.
    """

    quality_paths: Sequence[Path]
    picture_paths: Sequence[Path]
    images: Mapping[str, Path]
    channels: Sequence[Mapping[str, Any]]
    reference_cycle: int
    reference_channels: Mapping[int, str]
    software: Mapping[str, str]
    config_text: str
    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ledger: Path | None = None
    planes: Mapping[tuple[str, int, str], Path] = field(default_factory=dict)
    waiting: Sequence[int] = ()


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
    sample: str, stage: str, records: Sequence[tuple[QcRecord, Path]], area_px: float
) -> dict[str, Any]:
    of_stage = [(record, png) for record, png in records if record.stage == stage]
    parts = [
        {
            "cycle": record.cycle,
            "anchor": anchor(sample, stage, record.cycle),
            "verdict": worst(item.verdict for item in record.items),
            "caption": record.caption + _legend(record),
            **_embedded(png, area_px),
        }
        for record, png in of_stage
    ]
    items = [item for record, _ in of_stage for item in record.items]
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


def _embedded(png: Path, area_px: float) -> dict[str, Any]:
    with result_file_errors(png, "picture"):
        return asdict(embed_png(png.read_bytes(), area_px))


def _legend(record: QcRecord) -> str:
    """Return which marker is which channel: pictures of a cycle's stages name channels."""
    names = {item.channel: item.marker for item in record.items if item.channel}
    if not names:
        return ""
    return f" Channels: {', '.join(f'{channel} {name}' for channel, name in names.items())}."


def _matrix(
    sample: str, records: Sequence[QcRecord], cycles: Sequence[int], reference_cycle: int
) -> list[dict[str, Any]]:
    verdicts = {(r.stage, r.cycle): worst(item.verdict for item in r.items) for r in records}
    rows = []
    for stage in (stage for stage in STAGES if any(r.stage == stage for r in records)):
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
    records: Sequence[tuple[QcRecord, Path]],
    inputs: ReportInputs,
    sizes: tuple[float, int, int],
) -> dict[str, Any]:
    of_sample = [record for record, _ in records]
    items = [item for record in of_sample for item in record.items]
    cycles = sorted({record.cycle for record in of_sample})
    # The registered image holds the channels in the order of the marker table, but those removed.
    in_image = [entry for entry in inputs.channels if not entry.get("remove")]
    rows = [row for row in trusted_markers(items, in_image) if row["sample"] == name]
    order = [(row["cycle"], row["channel"]) for row in rows]
    nuclear = [(int(cycle), channel) for cycle, channel in inputs.reference_channels.items()]
    reference = next(one for one in nuclear if one[0] == inputs.reference_cycle)
    nuclei = order.index(reference) if reference in order else 0
    # The nuclear stains of the other cycles would hide the markers.
    hidden = [row["verdict"] == "fail" for row in rows]
    excluded = [k for k, at in enumerate(order) if hidden[k] or at in nuclear]
    image = inputs.images.get(name)
    rendering = render(image, nuclei, excluded, *sizes[1:]) if image is not None else None
    pictures = rendering.channels if rendering and len(rendering.channels) == len(rows) else []
    for row, picture in zip(rows, pictures, strict=False):
        row.update(asdict(picture))
    planes = {key[1:]: path for key, path in inputs.planes.items() if key[0] == name}
    stages = (_stage(name, stage, records, sizes[0]) for stage in STAGES)
    return {
        "name": name,
        "anchor": anchor("sample", name),
        "verdict": worst(item.verdict for item in items),
        "checks": items,
        "cycles": cycles,
        "matrix": _matrix(name, of_sample, cycles, reference[0]),
        "problems": problems(of_sample, Pixels(planes, image, order, reference[0], dict(nuclear))),
        "unregistered": [i for i in items if i.metric == "unregistered" and i.verdict == "fail"],
        "picture": _picture(rendering) if rendering else None,
        "channels": rows,
        "stages": [stage for stage in stages if stage["parts"]],
    }


def _headline(samples: Sequence[Mapping[str, Any]], waiting: Sequence[int]) -> str:
    items = [item for sample in samples for item in sample["checks"]]
    fails, warns = (sum(i.verdict == v for i in items) for v in ("fail", "warn"))
    bad = [f"{fails} fail"] * bool(fails) + [f"{warns} warn"] * bool(warns)
    verdicts = ", ".join(bad) or "all within their limits"
    cycles = f"cycle{'s' * (len(waiting) > 1)} {', '.join(map(str, waiting))}"
    without = f" The markers table has {cycles} too, not processed yet." if waiting else ""
    return f"{count(len(samples), 'sample')}, {len(items)} checks: {verdicts}.{without}"


def write_report(inputs: ReportInputs, output: Path) -> None:
    """Write the report of all samples, with the table of jobs next to it where there is a ledger.

    Raises
    ------
    ValueError
        A quality file cannot be read, or there is not a picture for each.
    """
    pairs = [
        (apply_thresholds(read_qc(Path(q)), inputs.thresholds, inputs.channels), Path(p))
        for q, p in zip(inputs.quality_paths, inputs.picture_paths, strict=True)
    ]
    pairs.sort(key=lambda pair: (pair[0].sample, pair[0].cycle))
    names = sorted({record.sample for record, _ in pairs})
    sizes = _sizes(len(pairs), len(names), len(inputs.channels))
    samples = [
        _sample(name, [pair for pair in pairs if pair[0].sample == name], inputs, sizes)
        for name in names
    ]
    listed = [problem for sample in samples for problem in sample["problems"]]
    listed.sort(key=lambda p: (-RANK[p.verdict], p.reason == "unknown"))
    pages = environment(Path(__file__).parent / "templates")
    pages.globals.update(vars(pages.get_template("macros.html").module))
    page = pages.get_template("report.html").render(
        title=_TITLE,
        headline=_headline(samples, inputs.waiting),
        samples=samples,
        tables=marker_tables(samples),
        problems=[problem_part(problem, len(samples) > 1) for problem in listed],
        shown=_SHOWN,
        lines=_LINES,
        software=inputs.software,
        config=inputs.config_text,
        ran=run_section(inputs.ledger, output) if inputs.ledger else None,
    )
    write_result(output, page)
