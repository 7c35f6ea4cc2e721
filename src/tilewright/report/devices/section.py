"""The report's section on devices, from the lines of evidence that jobs leave."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from snakemake_scheduler_plugin_tilewright.report.gantt import draw_gantt
from snakemake_scheduler_plugin_tilewright.report.runs import ClusterRun, Use, percent, use_of
from snakemake_scheduler_plugin_tilewright.runtime.run_state import span_text
from snakemake_scheduler_plugin_tilewright.runtime.words import count, printable
from tilewright.devices.evidence import CONTEXT_B
from tilewright.report.devices.use import (
    ENOUGH,
    GAP_S,
    MARGIN_PERCENT,
    MIB,
    STEP_MIB,
    DeviceJob,
    device_runs,
    failures,
    idle_fraction,
    jobs_of,
    read_evidence,
    since_s,
    slot_of,
)
from tilewright.report.rule_colours import PALETTE

_NONE = "–"  # noqa: RUF001
#: Runs in pictures and tables, kinds of failures, and letters of a reason.
_RUNS, _FAILURES, _WORDS = 3, 12, 160


def device_section(evidence: Path | None) -> dict[str, Any] | None:
    """Return what the page says of the devices; None where no job left a line.

    Parameters
    ----------
    evidence : Path or None
        The lines of evidence of the experiment; need not exist.
    """
    # jobs on a cluster write to one file for each node
    files = sorted(evidence.parent.glob(f"{evidence.stem}*{evidence.suffix}")) if evidence else []
    read = [read_evidence(path) for path in files]
    everything = jobs_of(line for lines in read for line in lines)
    runs = device_runs(everything)
    shown = runs[-_RUNS:]
    if not shown:
        return None
    jobs = [job for job in everything if since_s(job) >= shown[0].start_s]
    rules = sorted({job.rule for job in jobs}, key=PALETTE.rank)
    of_rule = {rule: [job for job in jobs if job.rule == rule] for rule in rules}
    failed = [(rule, *failure) for rule, own in of_rule.items() for failure in failures(own)]
    failed.sort(key=lambda failure: -failure[-1])
    uses = use_of(shown)
    lead = _lead(len(shown), uses, jobs)
    picture = draw_gantt(shown, uses, PALETTE, lead) if uses else ""
    return {
        "lead": lead,
        "caption": " ".join(
            [_caption(shown, len(runs), jobs), *(lines.note for lines in read if lines.note)]
        ),
        # The picture of runs on a cluster has a pattern of the same name.
        "picture": picture.replace("gantt-", "devices-"),
        "rules": [_row(rule, own) for rule, own in of_rule.items()],
        "failures": [_failure(*failure) for failure in failed[:_FAILURES]],
        "more_failures": len(failed[_FAILURES:]),
        "slots": [_slot(rule, own) for rule, own in of_rule.items()],
        "margin": MARGIN_PERCENT,
        "step": STEP_MIB,
        "enough": ENOUGH,
    }


def _lead(runs: int, uses: Sequence[Use], jobs: Sequence[DeviceJob]) -> str:
    texts = [f"{count(len(jobs), 'job')} on {count(len(uses), 'device')} in {count(runs, 'run')}"]
    total_s = sum(use.busy_s + use.idle_s for use in uses)
    if total_s > 0:
        leased = percent(sum(use.busy_s for use in uses) / total_s)
        texts.append(f"a device that was used was leased {leased} of the time")
    waited_s = [job.waited_s for job in jobs if job.waited_s is not None]
    if waited_s:
        typical, longest = span_text(median(waited_s)), span_text(max(waited_s))
        texts.append(f"a job waited {typical} in the median, {longest} at most")
    failed = sum(job.outcome == "failed" for job in jobs)
    none = sum(not job.granted for job in jobs)
    texts += [f"{failed} failed"] * (failed > 0) + [f"{none} got no device"] * (none > 0)
    return "; ".join(texts) + "."


def _caption(shown: Sequence[ClusterRun], runs: int, jobs: Sequence[DeviceJob]) -> str:
    """Return when the runs were, how to read their picture, and what it does not show."""
    texts = []
    for run in shown:
        began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.start_s))
        name = f"Run {run.number}" if len(shown) > 1 else "The run"
        texts.append(f"{name} began {began} and took {span_text(run.span_s)}.")
    texts.append(
        "Each row is a device, each bar a job. Jobs that shared a device lie above its line. Grey "
        "is time in which no job of this experiment held the device. Devices without a job are "
        f"not shown; leases more than {GAP_S / 60:.0f} min apart are taken for two runs."
    )
    hidden = sum(job.granted and not job.on_device for job in jobs)
    if hidden:
        texts.append(f"Not drawn: {count(hidden, 'job')} of unknown device or time.")
    if runs > _RUNS:
        texts.append(f"Earlier runs, {runs - _RUNS} in number, are not counted.")
    return " ".join(texts)


def _row(rule: str, jobs: Sequence[DeviceJob]) -> dict[str, str | int]:
    granted = [job for job in jobs if job.granted]
    idle = idle_fraction(granted)
    return {
        "rule": rule,
        "jobs": len(jobs),
        "waited": _pair((job.waited_s for job in jobs), span_text),
        "held": _pair((job.held_s for job in granted), span_text),
        "idle": _NONE if idle is None else f"{100 * idle:.0f} %",
        "asked": _pair((job.asked_b for job in jobs), _mib),
        "granted": _pair((job.granted_b for job in granted), _mib),
        "peak": _pair((job.peak_b for job in granted), _mib),
        "splits": sum(job.splits for job in jobs),
    }


def _failure(rule: str, outcome: str, reason: str, count: int) -> dict[str, str | int]:
    cut = printable(reason, _WORDS)
    return {"rule": rule, "count": count, "outcome": outcome or "unknown", "reason": cut or _NONE}


def _slot(rule: str, jobs: Sequence[DeviceJob]) -> dict[str, str]:
    slot = slot_of(jobs)
    asked = [job.asked_b for job in jobs if job.asked_b is not None]
    why = f"{count(slot.measured, 'job')} measured"
    if slot.measured:
        why += f", largest peak {_mib(slot.peak_b)} MiB"
    if slot.short:
        most = f" with up to {_mib(slot.short_b)} MiB" if math.isfinite(slot.short_b) else ""
        why += f"; {slot.short} halved tiles or ran out of memory{most}"
    return {
        "rule": rule,
        "asked": _mib(max(asked) - CONTEXT_B) if asked else _NONE,
        "value": _NONE if slot.mib is None else str(slot.mib),
        "key": f"resources.{rule}.gpu_mem_mb",
        "why": why,
    }


def _pair(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    """Return the median and the largest of what is known."""
    known = [value for value in values if value is not None]
    return f"{text(median(known))} / {text(max(known))}" if known else _NONE


def _mib(bytes_: float) -> str:
    return str(math.ceil(bytes_ / MIB))
