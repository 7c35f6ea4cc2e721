"""The report's section on devices, by the records of their use by jobs."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from snakemake_scheduler_plugin_tilewright import colours_of, read_json_lines
from tilewright.devices.health import classify
from tilewright.report.rule_colours import RULE_COLOURS
from tilewright.runtime.json_values import ValueCheck, is_number, is_text, object_reader

#: The memory to ask for is the largest peak of at least so many jobs, and a margin, up to steps.
ENOUGH, _MARGIN_PERCENT, _STEP_MIB = 5, 20, 64
_MIB = 2**20

Line = Mapping[str, Any]
#: The values of a ``UsageRecord``; unknown ones are null.
_LINE: dict[str, ValueCheck] = {
    "job": lambda value: is_text(value) and value != "",
    **dict.fromkeys(("outcome", "reason"), lambda value: value is None or is_text(value)),
    **dict.fromkeys(
        ("waited_s", "held_s", "granted_b", "peak_b", "splits"),
        lambda value: value is None or (is_number(value) and value >= 0),
    ),
}


def device_section(usage_log: Path | None) -> dict[str, Any] | None:
    """Return the values of the section on devices; None without a record."""
    log = usage_log or Path()
    # jobs on a cluster write to one file for each node
    paths = sorted(log.parent.glob(f"{log.stem}*{log.suffix}")) if usage_log else []
    files = [read_json_lines(path, object_reader(_LINE, ("job",))) for path in paths]
    of_rule: dict[str, list[Line]] = {}
    for line in (line for lines in files for line in lines):
        of_rule.setdefault(line["job"].split("/")[0], []).append(line)
    if not of_rule:
        return None
    return {
        "rules": [_row(rule, of_rule[rule]) for rule in colours_of(of_rule, RULE_COLOURS)],
        "notes": [lines.note for lines in files if lines.note],
        "margin": _MARGIN_PERCENT,
        "step": _STEP_MIB,
        "enough": ENOUGH,
    }


def _row(rule: str, lines: Sequence[Line]) -> dict[str, Any]:
    """Return the numbers of a rule's jobs; None is not known."""
    waits = _known(lines, "waited_s")
    causes = Counter(filter(None, map(_cause, lines)))
    return {
        "rule": rule,
        "jobs": len(lines),
        "hours": sum(_known(lines, "held_s")) / 3600,
        "waits": (median(waits), max(waits)) if waits else None,
        "peak_mib": max((math.ceil(b / _MIB) for b in _known(lines, "peak_b")), default=None),
        "halved": int(sum(_known(lines, "splits"))),
        "causes": ", ".join(f"{cause} {n}" for cause, n in sorted(causes.items())),
        "gpu_mem_mb": suggested_mib(lines),
    }


def _known(lines: Sequence[Line], key: str) -> list[float]:
    return [line[key] for line in lines if line.get(key) is not None]


def _cause(line: Line) -> str:
    """Return why a job failed, empty where it did not."""
    match line.get("outcome"):
        case "not granted":
            return "no device"
        case "failed":
            return classify(line.get("reason") or "")
        case _:
            return ""


def suggested_mib(lines: Sequence[Line]) -> int | None:
    """Return the memory in MiB that jobs of one rule should request, None where it is unknown.

    A job that halved tiles or ran out of memory does not show how much it needed, so only jobs
    with more than that count.
    """
    short = [line for line in lines if line.get("splits") or _cause(line) == "memory"]
    memory_b = [line.get("granted_b") for line in short]
    short_b = max((math.inf if b is None else b for b in memory_b), default=-1.0)
    done = [line for line in lines if line.get("outcome") == "done"]
    peaks = _known([line for line in done if (line.get("granted_b") or 0) > short_b], "peak_b")
    steps = -(-int(max(peaks, default=0)) * (100 + _MARGIN_PERCENT) // (100 * _STEP_MIB * _MIB))
    return max(1, steps) * _STEP_MIB if len(peaks) >= ENOUGH else None
