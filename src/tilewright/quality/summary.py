"""All verdicts of a run in three tables, and what to do when one is ``fail``."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

from tilewright.errors import QualityError
from tilewright.io.results.result_file import (
    read_json,
    result_file_errors,
    write_json,
    write_result,
)
from tilewright.quality.evaluate import apply_thresholds, read_qc
from tilewright.quality.results import RANK, QcResult, worst
from tilewright.runtime.files import csv_text

#: Numbers that need something to see: where nothing stands out of a background they are bad or
#: unknown, which `contrast` says for all of them.
_NEEDS_SIGNAL = {"focus", "focus_edge", "unlike_overlaps"}
_COLUMNS = ("sample", "cycle", "channel", "marker", "verdict", "reasons")


def trusted_markers(
    items: Sequence[QcResult], channels: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return sample, cycle, channel, marker, verdict and reasons of every channel.

    The verdict is the worst of the channel's own items, those of its whole cycle (tile positions,
    registration), and those of the background that is subtracted from it and of that one's cycle.
    ``channels`` holds the entries of ``Experiment.channel_table``, in the order of the image.
    """
    rows = []
    for sample in sorted({item.sample for item in items}):
        for entry in channels:
            cycle, channel = int(entry["cycle"]), str(entry["channel"])
            own, background = {(cycle, ""), (cycle, channel)}, entry.get("background")
            of_sample = [item for item in items if item.sample == sample]
            of_marker = [item for item in of_sample if (item.cycle, item.channel) in own]
            if of_marker and background:
                of = int(background["cycle"]), str(background["channel"])
                others = {(of[0], ""), of} - own
                of_marker += _subtracted([i for i in of_sample if (i.cycle, i.channel) in others])
            verdict = worst(item.verdict for item in of_marker)
            codes = sorted({_reason(item) for item in of_marker if item.verdict != "pass"})
            reasons = ";".join(codes) if of_marker else "not_looked_at"
            row = (sample, cycle, channel, str(entry["marker"]), verdict, reasons)
            rows.append(dict(zip(_COLUMNS, row, strict=True)))
    return rows


def _subtracted(of_background: Sequence[QcResult]) -> list[QcResult]:
    """Return the items of a background that concern what it is subtracted from."""
    bad = {item.metric for item in of_background if item.verdict != "pass"}
    none = _NEEDS_SIGNAL if "contrast" in bad else set()
    # Its own channel of the final image is not what is subtracted; little autofluorescence, for
    # which contrast warns, is no fault.
    return [
        i
        for i in of_background
        if i.stage != "subtract"
        and i.metric not in none
        and (i.metric, i.verdict) != ("contrast", "warn")
    ]


def _reason(item: QcResult) -> str:
    """Return the reason of an item that is not ``pass``, with the metric of an unknown number."""
    return f"{item.reason}:{item.metric}" if item.value is None else item.reason


def write_summary(
    quality_paths: Iterable[Path],
    qc_json: Path,
    qc_csv: Path,
    *,
    channels: Sequence[Mapping[str, Any]] = (),
    thresholds: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[QcResult]:
    """Write all items and numbers as JSON, and the items as a table; return the items.

    The quality files are those of all stages, cycles and samples; parent folders of the outputs are
    made. Other arguments as for :func:`tilewright.quality.evaluate.apply_thresholds`.
    """
    records = [apply_thresholds(read_qc(p), thresholds or {}, channels) for p in quality_paths]
    records.sort(key=lambda r: (r.sample, r.cycle, r.stage))
    items = [item for record in records for item in record.items]
    content = {
        "verdict": worst(item.verdict for item in items),
        "counts": {v: sum(i.verdict == v for i in items) for v in ("pass", "warn", "fail")},
        "items": [asdict(item) for item in items],
        "numbers": [
            {"sample": r.sample, "cycle": r.cycle, "stage": r.stage, **r.numbers} for r in records
        ],
    }
    write_json(qc_json, content)
    columns = [f.name for f in fields(QcResult) if f.name != "detail"]  # the sentence holds it
    rows = [{name: getattr(item, name) for name in columns} for item in items]
    write_result(qc_csv, csv_text(columns, rows))
    return items


def write_trusted_markers(
    qc_json: Path, channels: Sequence[Mapping[str, Any]], output: Path
) -> tuple[list[QcResult], list[dict[str, Any]]]:
    """Write :func:`trusted_markers` of a :func:`write_summary`; return all items, and the rows.

    Raises
    ------
    ResultFileError
        The summary is not what was written.
    """
    with result_file_errors(qc_json, "summary of quality"):
        items = [QcResult(**row) for row in read_json(qc_json)["items"]]
    rows = trusted_markers(items, channels)
    write_result(output, csv_text(_COLUMNS, rows))
    return items, rows


def verdict_line(rows: Iterable[Mapping[str, Any]], trusted: Path, report: Path) -> str:
    """Return how many channels of :func:`trusted_markers` pass, warn and fail, and where it is."""
    found = Counter(row["verdict"] for row in rows)
    numbers = [f"{found[verdict]} {verdict}" for verdict in RANK if found[verdict]]
    return f"quality by channel: {', '.join(numbers)}; see {trusted} and {report}"


def stop_on_failure(items: Iterable[QcResult], on_fail: Literal["stop", "continue"]) -> None:
    """Raise when an item failed and ``on_fail`` is ``stop``.

    Raises
    ------
    QualityError
        With one line per failed item.
    """
    failed = [item for item in items if item.verdict == "fail"]
    if failed and on_fail == "stop":
        lines = [
            f"  {item.sample} cycle {item.cycle} {item.name or 'all channels'}: {item.sentence}"
            for item in failed
        ]
        raise QualityError(
            f"{len(failed)} quality items failed and qc.on_fail is 'stop':\n" + "\n".join(lines)
        )
