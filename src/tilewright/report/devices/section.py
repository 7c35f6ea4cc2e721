"""The report's section on devices, from the lines of evidence that jobs leave."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright.runtime.files import read_json_lines
from snakemake_scheduler_plugin_tilewright.runtime.run_state import span_text
from tilewright.devices.evidence import CONTEXT_B
from tilewright.report.devices.figure import draw_devices
from tilewright.report.devices.use import (
    ENOUGH,
    GAP_S,
    MARGIN_PERCENT,
    MIB,
    STEP_MIB,
    DeviceJob,
    DeviceRun,
    RuleUse,
    Spread,
    device_runs,
    jobs_of,
    leased_fraction,
    rules_of,
    spread,
)
from tilewright.report.figures import embed_figure
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
    runs = device_runs(jobs_of(line for path in files for line in read_json_lines(path)))
    shown = runs[-_RUNS:]
    if not shown:
        return None
    jobs = [job for run in shown for job in run.jobs]
    uses = rules_of(jobs, PALETTE.rank)
    failures = [(use.rule, *failure) for use in uses for failure in use.failures]
    failures.sort(key=lambda failure: -failure[-1])
    return {
        "lead": _lead(shown, jobs),
        "caption": _caption(len(runs), jobs),
        "pictures": [
            {"title": _title(run, len(shown)), **asdict(embed_figure(draw_devices(run)))}
            for run in shown
            if run.devices
        ],
        "rules": [_row(use) for use in uses],
        "failures": [_failure(*failure) for failure in failures[:_FAILURES]],
        "more_failures": len(failures[_FAILURES:]),
        "slots": [_slot(use) for use in uses],
        "margin": MARGIN_PERCENT,
        "step": STEP_MIB,
        "enough": ENOUGH,
    }


def _lead(runs: Sequence[DeviceRun], jobs: Sequence[DeviceJob]) -> str:
    devices = len({uuid for run in runs for uuid in run.devices})
    texts = [
        f"{_count(len(jobs), 'job')} on {_count(devices, 'device')} in {_count(len(runs), 'run')}"
    ]
    fraction = leased_fraction(runs)
    if fraction is not None:
        texts.append(f"a device that was used was leased {100 * fraction:.0f} % of the time")
    waited = spread(job.waited_s for job in jobs)
    if waited.median is not None and waited.largest is not None:
        texts.append(
            f"a job waited {span_text(waited.median)} in the median, "
            f"{span_text(waited.largest)} at most"
        )
    failed = sum(job.outcome == "failed" for job in jobs)
    none = sum(not job.granted for job in jobs)
    texts += [f"{failed} failed"] * (failed > 0) + [f"{none} got no device"] * (none > 0)
    return "; ".join(texts) + "."


def _title(run: DeviceRun, shown: int) -> str:
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.start_s))
    name = f"Run {run.number}" if shown > 1 else "The run"
    return f"{name} began {began} and took {span_text(run.span_s)}."


def _caption(runs: int, jobs: Sequence[DeviceJob]) -> str:
    """Return how to read the pictures, and what they do not show."""
    texts = [
        "Each row is a device, each bar a job: as high as the memory that it was granted, on top "
        "of those beside it, and paler where its peak did not reach. Grey is time in which no job "
        "of this experiment held the device. Devices without a job are not shown; "
        f"leases more than {GAP_S / 60:.0f} min apart are taken for two runs."
    ]
    hidden = sum(job.granted and not job.on_device for job in jobs)
    if hidden:
        texts.append(f"Not drawn: {_count(hidden, 'job')} of unknown device, time or memory.")
    if runs > _RUNS:
        texts.append(f"Earlier runs, {runs - _RUNS} in number, are not counted.")
    return " ".join(texts)


def _row(use: RuleUse) -> dict[str, str | int]:
    return {
        "rule": use.rule,
        "jobs": use.jobs,
        "waited": _pair(use.waited, span_text),
        "held": _pair(use.held, span_text),
        "idle": _NONE if use.idle_fraction is None else f"{100 * use.idle_fraction:.0f} %",
        "asked": _pair(use.asked, _mib),
        "granted": _pair(use.granted, _mib),
        "peak": _pair(use.peak, _mib),
        "splits": use.splits,
    }


def _failure(rule: str, outcome: str, reason: str, count: int) -> dict[str, str | int]:
    cut = reason[:_WORDS] + "…" * (len(reason) > _WORDS)
    return {"rule": rule, "count": count, "outcome": outcome or "unknown", "reason": cut or _NONE}


def _slot(use: RuleUse) -> dict[str, str]:
    slot = use.slot
    most_b = f"{_mib(slot.short_b)} MiB" if math.isfinite(slot.short_b) else "they had"
    if slot.mib is not None:
        value = str(slot.mib)
        why = f"largest peak of {_count(slot.measured, 'job')}: {_mib(slot.peak_b)} MiB"
        if slot.short:
            why += f"; {most_b} was too little"
    elif slot.short:
        value = f"more than {_mib(slot.short_b)}" if math.isfinite(slot.short_b) else "more"
        why = (
            f"given too little: {slot.short} of {_count(use.jobs, 'job')} halved tiles or ran out "
            f"of memory with up to {most_b}"
        )
    else:
        value = _NONE
        why = f"{_count(slot.measured, 'job')} measured, too few"
    return {
        "rule": use.rule,
        "asked": _NONE if use.asked.largest is None else _mib(use.asked.largest - CONTEXT_B),
        "value": value,
        "key": f"resources.{use.rule}.gpu_mem_mb",
        "why": why,
    }


def _pair(values: Spread, text: Callable[[float], str]) -> str:
    if values.median is None or values.largest is None:
        return _NONE
    return f"{text(values.median)} / {text(values.largest)}"


def _mib(bytes_: float) -> str:
    return str(math.ceil(bytes_ / MIB))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
