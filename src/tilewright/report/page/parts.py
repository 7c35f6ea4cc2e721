"""Parts of the page as plain values: the matrix of markers, problems, tables of numbers."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from markupsafe import Markup, escape

from tilewright.config.rules import STAGES
from tilewright.quality.metrics import METRICS, REASONS
from tilewright.quality.results import QcResult
from tilewright.report.page.problems import Problem

#: Markers in a row of the matrix, and up to how many have their names written level.
_COLUMNS, _FLAT_COLUMNS = 40, 14


def anchor(*parts: Any) -> str:
    """Return an id that parts of the page link to."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(str(p) for p in parts).lower())


def number_table(items: Sequence[QcResult]) -> dict[str, Any]:
    """Return numbers as a row per cycle and channel, and a column per metric with its limits."""
    metrics = list(dict.fromkeys(item.metric for item in items))
    columns = []
    for metric in metrics:
        first, kind = next(i for i in items if i.metric == metric), METRICS[metric]
        limits = [
            f"{word} {first.direction} {kind.format(limit)}"
            for word, limit in (("warn", first.warn), ("fail", first.fail))
            if limit is not None
        ]
        columns.append({"title": kind.title, "limits": limits})
    rows = []
    for cycle, channel in dict.fromkeys((item.cycle, item.channel) for item in items):
        by_metric = {i.metric: i for i in items if (i.cycle, i.channel) == (cycle, channel)}
        name = next(iter(by_metric.values())).marker or channel or "all"
        cells = [_cell(by_metric.get(metric)) for metric in metrics]
        rows.append({"cycle": cycle, "name": name, "cells": cells})
    return {"columns": columns, "rows": rows}


def _cell(item: QcResult | None) -> dict[str, str]:
    if item is None:
        return {"verdict": "pass", "shown": "", "sentence": ""}
    shown = "unknown" if item.value is None else METRICS[item.metric].format(item.value)
    sentence = "" if item.verdict == "pass" else item.sentence
    return {"verdict": item.verdict, "shown": shown, "sentence": sentence}


def problem_part(problem: Problem, several: bool) -> dict[str, Any]:
    """Return a problem with the texts that the page shows."""
    lines = [
        {
            "verdict": item.verdict,
            "anchor": anchor(item.sample, item.stage, item.cycle),
            "where": f"{STAGES[item.stage].title}, cycle {item.cycle}"
            + (f", {item.marker or item.channel}" if item.marker or item.channel else ""),
            "sentence": item.sentence,
        }
        for item in problem.items
    ]
    crop = problem.crop
    return {
        "sample": problem.sample if several else "",
        "anchor": _problem_anchor(problem),
        "verdict": problem.verdict,
        "title": REASONS[problem.reason].title,
        "who": _who(problem.items),
        "lines": lines,
        "remedy": _code(REASONS[problem.reason].remedy),
        "crop": {**asdict(crop.picture), "caption": crop.caption} if crop else None,
    }


def _who(items: Sequence[QcResult]) -> str:
    """Return the cycles of items, with the markers that they name."""
    names_of: dict[int, list[str]] = {}
    for item in sorted(items, key=lambda i: (i.cycle, i.channel)):
        names = names_of.setdefault(item.cycle, [])
        name = item.marker or item.channel
        if name and name not in names:
            names.append(name)
    listed = [
        (f"{cycle} ({', '.join(own)})" if own else str(cycle)) for cycle, own in names_of.items()
    ]
    return f"Cycle{'s' * (len(listed) > 1)} {', '.join(listed)}"


def _code(markdown: str) -> Markup:
    """Return HTML of a remedy: code in its element, links as their text."""
    text = escape(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown))
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(text)))


def marker_tables(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tables of samples and markers, of as many whole cycles as the page is wide."""
    rows = samples[0]["channels"] if samples else []
    cycles: dict[int, list[int]] = {}
    for k, row in enumerate(rows):
        cycles.setdefault(row["cycle"], []).append(k)
    tables: list[dict[int, list[int]]] = []
    for cycle, own in cycles.items():
        if not tables or sum(map(len, tables[-1].values())) + len(own) > _COLUMNS:
            tables.append({})
        tables[-1][cycle] = own
    return [
        {
            "cycles": [{"cycle": c, "count": len(own)} for c, own in table.items()],
            "upright": len(columns := list(itertools.chain(*table.values()))) > _FLAT_COLUMNS,
            "names": [
                {"marker": rows[k]["marker"], "first": k == cycles[rows[k]["cycle"]][0]}
                for k in columns
            ],
            "rows": [
                {
                    "name": sample["name"],
                    "anchor": sample["anchor"],
                    "cells": [
                        {
                            "verdict": sample["channels"][k]["verdict"],
                            "first": k == cycles[rows[k]["cycle"]][0],
                            "why": _why(sample["channels"][k]),
                            "anchor": _target(sample, sample["channels"][k]),
                        }
                        for k in columns
                    ],
                }
                for sample in samples
            ],
        }
        for table in tables
    ]


def _target(sample: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return where to read on: the worst problem of a marker, else its sample."""
    for problem in sample["problems"]:
        for item in problem.items:
            if item.cycle == row["cycle"] and item.channel in ("", row["channel"]):
                return _problem_anchor(problem)
    return str(sample["anchor"])


def _problem_anchor(problem: Problem) -> str:
    return anchor("problem", problem.sample, problem.reason, problem.items[0].stage)


def _why(row: Mapping[str, Any]) -> str:
    reasons = row["reasons"].replace(";", ", ").replace("_", " ")
    return f"{row['marker']}, cycle {row['cycle']}" + (f": {reasons}" if reasons else "")
