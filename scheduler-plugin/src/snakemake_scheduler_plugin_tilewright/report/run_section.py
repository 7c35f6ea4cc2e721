"""The report's section on where jobs ran, from the ledger of a cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright.report.gantt import draw_gantt
from snakemake_scheduler_plugin_tilewright.report.ledger import cluster_runs, read_events
from snakemake_scheduler_plugin_tilewright.report.palette import Palette, palette_of
from snakemake_scheduler_plugin_tilewright.report.runs import (
    ClusterRun,
    Remark,
    Use,
    mean_wait_s,
    percent,
    use_of,
)
from snakemake_scheduler_plugin_tilewright.runtime.files import JsonLines
from snakemake_scheduler_plugin_tilewright.runtime.run_state import span_text
from snakemake_scheduler_plugin_tilewright.runtime.words import count_jobs

_NONE = "–"  # noqa: RUF001
#: Runs in the picture, lines of a list, and jobs that are named.
_RUNS, _LINES, _NAMES = 6, 20, 4


def run_section(ledger: Path | None, palette: Palette | None = None) -> dict[str, Any] | None:
    """Return what the page says of the runs on a cluster; None where no job ended on one.

    Parameters
    ----------
    ledger : Path or None
        Need not exist.
    palette : Palette, optional
        Without one rules have colours in the order in which they began.
    """
    events = read_events(ledger) if ledger is not None else JsonLines()
    everything = cluster_runs(events)
    runs = [run for run in everything if run.bars]
    shown = runs[-_RUNS:]
    if not shown:
        return None
    uses = use_of(shown)
    lead = _lead(shown, uses)
    palette = palette or palette_of(bar.rule for run in shown for bar in run.bars)
    remarks = [(run, remark) for run in shown for remark in run.remarks]
    bad = [(run, remark) for run, remark in remarks if remark.what != "hold"]
    return {
        "lead": lead,
        "caption": _caption(shown, len(runs) - len(shown), everything[-1], events.note),
        "picture": draw_gantt(shown, uses, palette, lead),
        "pools": [_row(use) for use in uses],
        "bad": _lines(bad, len(shown) > 1),
        "held": _lines([pair for pair in remarks if pair[1].what == "hold"], len(shown) > 1),
        "idle": _idle(shown),
        "lines": _LINES,
        "left_out": dict(shown[-1].left_out),
    }


def _lead(runs: Sequence[ClusterRun], uses: Sequence[Use]) -> str:
    bars = [bar for run in runs for bar in run.bars]
    busy = []
    for kind in ("gpu", "cpu"):
        here = [use for use in uses if use.pool.kind == kind]
        total_s = sum(use.busy_s + use.idle_s for use in here)
        if total_s:
            share = percent(sum(use.busy_s for use in here) / total_s)
            busy.append(f"{kind.upper()} slots were busy {share} of the time")
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(runs[-1].start_s))
    count = "The run" if len(runs) == 1 else f"{len(runs)} runs, the last of which"
    texts = [
        f"{count} began {began}: {count_jobs(len(bars), sum(bar.members for bar in bars))} in "
        f"{span_text(sum(run.span_s for run in runs))}",
        *busy,
    ]
    wait_s = mean_wait_s(bars)
    if wait_s is not None:
        texts.append(f"a job waited {span_text(wait_s)} in the queue on average")
    causes: Counter[str] = Counter()
    for run in runs:
        causes.update(run.causes)
    failed = ", ".join(f"{cause} {n}" for cause, n in sorted(causes.items()))
    return "; ".join(texts) + "." + (f" Failed tries by cause: {failed}." if failed else "")


def _caption(runs: Sequence[ClusterRun], earlier: int, last: ClusterRun, note: str) -> str:
    """Return how to read the picture, and what it does not show."""
    both = len({pool.kind for pool in runs[-1].pools.values()}) > 1
    first = " (GPU jobs first, CPU jobs in what they leave)" if both else ""
    texts = [
        "Each row is a slot, each bar a job, coloured by rule; grey is a slot without work. Slots "
        f"are those counted when a run began, for its largest jobs or the site file's{first}. Jobs "
        "above the line are small enough to run beside them."
    ]
    if any(bar.failed for run in runs for bar in run.bars):
        texts.append("Hatched bars failed or were cancelled.")
    if len(runs) > 1:
        texts.append("Runs stand one after the other; the time between them is left out.")
    if earlier:
        texts.append(f"{earlier} earlier run{'s are' if earlier > 1 else ' is'} not shown.")
    cut = sum(len(run.unfinished) for run in runs if run is not last)
    if cut:
        texts.append(f"The end of {cut} job{'s' * (cut > 1)} of earlier runs is not known.")
    if last.unfinished:
        names = ", ".join(last.unfinished[:_NAMES])
        more = len(last.unfinished) - _NAMES
        texts.append(
            f"Not ended when this page was made: {names}{f' and {more} more' * (more > 0)}."
        )
    texts += [note] * bool(note)
    return " ".join(texts)


def _row(use: Use) -> dict[str, str | int]:
    hours = use.busy_s / 3600
    return {
        "name": f"{use.pool.account} {use.pool.kind.upper()}",
        "slots": use.pool.slots,
        "jobs": use.jobs,
        "busy": f"{hours:.1f}" if hours >= 10 else f"{hours:.2f}",
        "utilisation": _NONE if use.utilisation is None else percent(use.utilisation),
        "wait": _NONE if use.wait_s is None else span_text(use.wait_s),
    }


def _idle(runs: Sequence[ClusterRun]) -> list[dict[str, str]]:
    """Return why slots idled while jobs were ready, with the share of all slot time."""
    seconds: Counter[str] = Counter()
    for run in runs:
        seconds.update(run.idle_slot_s)
    total_s = sum(pool.slots * run.span_s for run in runs for pool in run.pools.values())
    return [
        {"why": why, "time": span_text(idle_s), "share": f"{100 * idle_s / total_s:.1f} %"}
        for why, idle_s in seconds.most_common(_LINES)
    ]


def _lines(said: Iterable[tuple[ClusterRun, Remark]], several: bool) -> list[dict[str, str]]:
    """Return remarks with the time since the start of their run; equal ones once."""
    times: Counter[str] = Counter()
    first: dict[str, str] = {}
    for run, remark in said:
        times[remark.text] += 1
        when = span_text(max(0.0, remark.time_s - run.start_s))
        first.setdefault(remark.text, f"run {run.number}, {when}" if several else when)
    return [
        {"when": first[text], "text": text + (f" ({n} times)" if n > 1 else "")}
        for text, n in times.items()
    ]
