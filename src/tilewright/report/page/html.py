"""The report: one HTML file that needs nothing else."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from snakemake_scheduler_plugin_tilewright import environment, run_section
from tilewright.config.rules import STAGES
from tilewright.config.tables import cycles_text
from tilewright.io.results.result_file import result_file_errors, write_result
from tilewright.quality.evaluate import QcRecord, apply_thresholds, read_qc
from tilewright.quality.results import METRICS, RANK, REASONS, QcResult, Verdict, worst
from tilewright.quality.summary import trusted_markers
from tilewright.report.page.problems import Pixels, Problem, anchor, problems
from tilewright.report.pictures import Picture, Rendering, embed_png, render
from tilewright.runtime.text import count

_TITLE = "tilewright report"
#: Markers in a row of the matrix.
_COLUMNS = 40
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


class Figure(NamedTuple):
    """Quality of one stage of one cycle, with its picture."""

    record: QcRecord
    picture: Picture

    @property
    def caption(self) -> str:
        """What the picture shows, and which marker is which channel: pictures name channels."""
        names = {item.channel: item.marker for item in self.record.items if item.channel}
        listed = ", ".join(f"{channel} {name}" for channel, name in names.items())
        return self.record.caption + (f" Channels: {listed}." if names else "")


@dataclass(frozen=True)
class StageSection:
    """Quality of one stage of a sample, by cycle."""

    figures: Sequence[Figure]

    @property
    def checks(self) -> list[QcResult]:
        """All numbers with a verdict."""
        return [item for figure in self.figures for item in figure.record.items]

    @property
    def wide(self) -> bool:
        """Whether its pictures are."""
        return median(one.picture.width / one.picture.height for one in self.figures) > 1.4

    @property
    def rows(self) -> dict[tuple[int, str], dict[str, QcResult]]:
        """The numbers by cycle and name, and by metric."""
        rows: dict[tuple[int, str], dict[str, QcResult]] = {}
        for item in self.checks:
            rows.setdefault((item.cycle, item.name or "all"), {})[item.metric] = item
        return rows


@dataclass(frozen=True)
class SampleSection:
    """What the page shows of a sample.

    Attributes
    ----------
    records : sequence of QcRecord
        By cycle.
    problems : sequence of Problem
        The worst first.
    rendering : Rendering, optional
        Its final image.
    channels : sequence of dict
        The channels of that image: rows of the table of trusted markers, with a ``picture`` each,
        None where there is none.
    stages : dict of str to StageSection
        In the order of the workflow.
    """

    name: str
    records: Sequence[QcRecord]
    problems: Sequence[Problem]
    rendering: Rendering | None
    channels: Sequence[Mapping[str, Any]]
    stages: Mapping[str, StageSection]

    @property
    def anchor(self) -> str:
        """The id of its section."""
        return anchor("sample", self.name)

    @property
    def checks(self) -> list[QcResult]:
        """All numbers with a verdict."""
        return [item for record in self.records for item in record.items]

    @property
    def verdicts(self) -> dict[int, dict[str, Verdict]]:
        """The verdict by cycle and stage."""
        cycles: dict[int, dict[str, Verdict]] = {}
        for record in self.records:
            cycles.setdefault(record.cycle, {})[record.stage] = record.verdict
        return cycles

    def target(self, row: Mapping[str, Any]) -> str:
        """Return where to read on: the worst problem of a marker, else this section."""
        for problem in self.problems:
            for item in problem.items:
                if item.cycle == row["cycle"] and item.channel in ("", row["channel"]):
                    return problem.anchor
        return self.anchor


def _sizes(figures: int, samples: int, channels: int) -> tuple[float, int, int]:
    """Return the area of a figure, and the sides of pictures of a channel and of a sample, in px.

    A page of any experiment stays below some 12 MB: WebP took 0.05 to 0.11 bytes a pixel.
    """
    return (
        _FIGURES_PX / max(figures, 1),
        int(np.clip(math.sqrt(_CHANNELS_PX / max(samples * channels, 1)), 120, 420)),
        int(np.clip(math.sqrt(_COMPOSITES_PX / max(samples, 1)), 320, 1600)),
    )


def _figure(record: QcRecord, png: Path, area_px: float) -> Figure:
    with result_file_errors(png, "picture"):
        return Figure(record, embed_png(png.read_bytes(), area_px))


def _sample(
    name: str,
    pairs: Sequence[tuple[QcRecord, Path]],
    inputs: ReportInputs,
    sizes: tuple[float, int, int],
) -> SampleSection:
    records = [record for record, _ in pairs]
    # The registered image holds the channels in the order of the marker table, but those removed.
    in_image = [entry for entry in inputs.channels if not entry.get("remove")]
    rows = trusted_markers([item for record in records for item in record.items], in_image)
    order = [(row["cycle"], row["channel"]) for row in rows]
    nuclear = [(int(cycle), channel) for cycle, channel in inputs.reference_channels.items()]
    reference = next(one for one in nuclear if one[0] == inputs.reference_cycle)
    nuclei = order.index(reference) if reference in order else 0
    # Failed channels, and the nuclear stains of the other cycles, which would hide the markers.
    excluded = [k for k, row in enumerate(rows) if row["verdict"] == "fail" or order[k] in nuclear]
    image = inputs.images.get(name)
    rendering = render(image, nuclei, excluded, *sizes[1:]) if image is not None else None
    pictures: Sequence[Picture | None] = rendering.channels if rendering else []
    if len(pictures) != len(rows):
        pictures = [None] * len(rows)
    planes = {key[1:]: path for key, path in inputs.planes.items() if key[0] == name}
    figures = [_figure(record, png, sizes[0]) for record, png in pairs]
    stages = {
        stage: StageSection([one for one in figures if one.record.stage == stage])
        for stage in STAGES
    }
    return SampleSection(
        name,
        records,
        problems(records, Pixels(planes, image, order, reference[0], dict(nuclear))),
        rendering,
        [{**row, "picture": one} for row, one in zip(rows, pictures, strict=True)],
        {stage: section for stage, section in stages.items() if section.figures},
    )


def _headline(checks: Sequence[QcResult], samples: int, waiting: Sequence[int]) -> str:
    fails, warns = (sum(item.verdict == verdict for item in checks) for verdict in ("fail", "warn"))
    bad = [f"{fails} fail"] * bool(fails) + [f"{warns} warn"] * bool(warns)
    verdicts = ", ".join(bad) or "all within their limits"
    table = f" The markers table has {cycles_text(waiting)} too, not processed yet."
    without = table if waiting else ""
    return f"{count(samples, 'sample')}, {len(checks)} checks: {verdicts}.{without}"


def _marker_tables(channels: Sequence[Mapping[str, Any]]) -> list[dict[int, list[int]]]:
    """Return numbers of channels by cycle, in tables of as many cycles as the page is wide."""
    cycles: dict[int, list[int]] = {}
    for k, row in enumerate(channels):
        cycles.setdefault(row["cycle"], []).append(k)
    tables: list[dict[int, list[int]]] = []
    for cycle, own in cycles.items():
        if not tables or sum(map(len, tables[-1].values())) + len(own) > _COLUMNS:
            tables.append({})
        tables[-1][cycle] = own
    return tables


def _code(markdown: str) -> Markup:
    """Return HTML of a remedy: code in its element, links as their text."""
    text = escape(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown))
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(text)))


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
    listed = [problem for sample in samples for problem in sample.problems]
    listed.sort(key=lambda p: (-RANK[p.verdict], p.reason == "unknown"))
    pages = environment(Path(__file__).parent / "templates")
    pages.filters["code"] = _code
    tables = {"stage_of": STAGES, "metrics": METRICS, "reasons": REASONS}
    pages.globals.update(tables, anchor=anchor, worst=worst)
    pages.globals.update(vars(pages.get_template("macros.html").module))
    page = pages.get_template("report.html").render(
        title=_TITLE,
        inputs=inputs,
        headline=_headline(
            [i for one in samples for i in one.checks], len(samples), inputs.waiting
        ),
        samples=samples,
        tables=_marker_tables(samples[0].channels if samples else []),
        problems=listed,
        ran=run_section(inputs.ledger, output) if inputs.ledger else None,
    )
    write_result(output, page)
