"""Picture of the devices in one run: a row for each, jobs as bars as high as their memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from snakemake_scheduler_plugin_tilewright.report.gantt import time_step
from snakemake_scheduler_plugin_tilewright.report.palette import IDLE, pale
from tilewright.report.devices.use import DeviceJob, DeviceRun, idle_spans, stacked
from tilewright.report.figures import new_figure
from tilewright.report.rule_colours import PALETTE

_GIB = 2**30
#: Inches: the figure, all rows together, the lowest and highest row.
_WIDTH_IN, _ROWS_IN, _LOW_IN, _HIGH_IN = 10.0, 5.6, 0.4, 1.5
#: Share of the width of the shortest bar, and bars of a row whose white border is thinner.
_SHORTEST, _MANY = 0.0015, 300
#: Characters of a UUID that tell devices apart: GPU- and eight digits.
_SHORT = 12

#: From when on, and the bytes below.
Steps = Sequence[tuple[float, float]]


def draw_devices(run: DeviceRun) -> Figure:
    """Draw what each device of a run was leased for; one scale of memory for all.

    Parameters
    ----------
    run : DeviceRun
        With a job on a device at least.
    """
    devices = run.devices
    jobs = [job for row in devices.values() for job in row]
    rules = sorted({job.rule for job in jobs}, key=PALETTE.rank)
    shortest_s = _SHORTEST * (run.span_s or 1.0)
    below = {uuid: stacked(row, shortest_s) for uuid, row in devices.items()}
    top = max(
        foot + (job.granted_b or 0)
        for uuid, row in devices.items()
        for job, steps in zip(row, below[uuid], strict=True)
        for _, foot in steps
    )
    row_in = float(np.clip(_ROWS_IN / len(devices), _LOW_IN, _HIGH_IN))
    figure = new_figure(_WIDTH_IN, row_in * len(devices) + 0.75 + 0.2 * (len(rules) // 4 + 1))
    rows = figure.subplots(len(devices), sharex=True, sharey=True, squeeze=False)[:, 0]
    names = short_names(devices)
    span_s = run.span_s or 1.0
    for axes, (uuid, row) in zip(rows, devices.items(), strict=True):
        for start_s, end_s in idle_spans(row, run.start_s, run.end_s):
            axes.axvspan(start_s - run.start_s, end_s - run.start_s, color=IDLE, lw=0, zorder=0)
        _bars(axes, row, below[uuid], run.start_s, shortest_s)
        axes.set_ylabel(names[uuid], fontsize=8, rotation=0, ha="right", va="center")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    rows[0].set_ylim(0, 1.03 * top / _GIB)
    rows[0].yaxis.set_major_locator(MaxNLocator(2 if row_in < 0.9 else 4, steps=[1, 2, 4, 5, 10]))
    _time_axis(rows[-1], span_s)
    figure.supylabel("memory leased, GiB", fontsize=9)
    _legend(figure, rules, jobs)
    return figure


def short_names(uuids: Collection[str]) -> dict[str, str]:
    """Return the beginnings of the UUIDs, as long as it takes to tell them apart."""
    length = _SHORT
    while len({uuid[:length] for uuid in uuids}) < len(set(uuids)):
        length += 1
    return {uuid: uuid[:length] for uuid in uuids}


def _bars(
    axes: Axes, jobs: Sequence[DeviceJob], below: Sequence[Steps], start_s: float, shortest_s: float
) -> None:
    """Draw what each job was granted, paler where its peak did not reach."""
    for failed in (False, True):
        drawn = [
            (job, steps)
            for job, steps in zip(jobs, below, strict=True)
            if (job.outcome == "failed") == failed
        ]
        for part in ("granted", "used", "edge"):
            style: dict[str, Any] = {"linewidths": 0.0}
            if part != "edge":
                shade = pale if part == "granted" else str
                style["facecolors"] = [shade(PALETTE.of(job.rule)) for job, _ in drawn]
            elif failed:
                style = {"facecolors": "none", "edgecolors": "black", "linewidths": 0.8}
                style["hatch"] = "//////"
            else:
                style = {"facecolors": "none", "edgecolors": "white"}
                style["linewidths"] = 0.5 if len(jobs) < _MANY else 0.2
            shapes = [
                _shape(job, steps, shortest_s, part == "used") - (start_s, 0)
                for job, steps in drawn
            ]
            axes.add_collection(PolyCollection(shapes, zorder=3 if failed else 2, **style))


def _shape(job: DeviceJob, steps: Steps, shortest_s: float, used: bool) -> NDArray[np.float64]:
    """Return the corners (s, GiB) of a bar: along its foot, and back along its top."""
    granted_b = job.granted_b or 0.0
    height = granted_b if job.peak_b is None or not used else min(job.peak_b, granted_b)
    times = [time_s for time_s, _ in steps]
    times.append(max(times[-1] + shortest_s, job.end_s))
    x = np.repeat(times, 2)[1:-1]
    y = np.repeat([foot for _, foot in steps], 2)
    corners = np.column_stack([np.r_[x, x[::-1]], np.r_[y, y[::-1] + height] / _GIB])
    return np.asarray(corners, np.float64)


def _time_axis(axes: Axes, span_s: float) -> None:
    unit_s, unit, step_s = time_step(span_s)
    places = [k * step_s for k in range(int(span_s / step_s) + 1)]
    axes.set_xticks(places, [f"{place / unit_s:g}" for place in places])
    axes.set_xlim(-0.005 * span_s, 1.01 * span_s)
    axes.set_xlabel(f"{unit} from the start of the run", fontsize=9)


def _legend(figure: Figure, rules: Sequence[str], jobs: Sequence[DeviceJob]) -> None:
    """Draw the key of the rules' colours, of failed bars where there are any, and of the rest."""
    handles = [Patch(facecolor=PALETTE.of(rule), label=rule) for rule in rules]
    if any(job.outcome == "failed" for job in jobs):
        handles.append(
            Patch(facecolor="white", edgecolor="black", hatch="//////", label="failed or cancelled")
        )
    handles.append(Patch(facecolor=IDLE, label="nothing leased"))
    if any(job.peak_b is not None for job in jobs):
        first = min((job.rule for job in jobs if job.peak_b is not None), key=PALETTE.rank)
        shade = pale(PALETTE.of(first))
        handles.append(Patch(facecolor=shade, label="paler: granted, not used"))
    figure.legend(
        handles=handles, loc="outside lower center", fontsize=8, frameon=False,
        ncols=max(4, -(-len(handles) // 4)), handlelength=1.4, columnspacing=1.4,
    )  # fmt: skip
