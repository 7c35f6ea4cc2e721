"""Runs on a cluster as a picture: pools as bands, their slots as lanes, jobs as bars."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tilewright.config.rules import QUALITY_RULES, RULES
from tilewright.report.figures import BLUE, GREY, ORANGE, RED, new_figure

#: Okabe–Ito, in the order of the rules; the quality rule of one stage has its rule's colour, paler.
_COLOURS = (ORANGE, "#56B4E9", BLUE, RED, "#009E73", "#CC79A7", "#E6D800")
_OTHERS = {"qc_cycle": "#52616f", "report": "#4a4f57", "summary": "#767c86", "verdict": "#a3a9b2"}
_COLOUR_OF = dict(
    zip(
        (name for name in RULES if not name.startswith("qc_") and name not in _OTHERS),
        itertools.cycle(_COLOURS),
        strict=False,
    )
)
_RULE_OF = {
    quality: name
    for quality, stages in QUALITY_RULES.items()
    for name, rule in RULES.items()
    if rule.stage and stages == (rule.stage.name,)
}
IDLE = "#e9ecf0"
#: Inches: the figure, all slots together, the small jobs and the least height of a pool.
_WIDTH_IN, _SLOTS_IN, _SMALL_IN, _BAND_IN, _GAP_IN = 10.0, 6.5, 0.9, 0.36, 0.13
#: Inches: the lowest and highest lane, those that touch, and the thinnest bar.
_LOW_IN, _HIGH_IN, _TOUCH_IN, _THIN_IN = 0.019, 0.15, 0.05, 0.012
#: Share of the width between two runs, and of the shortest bar.
_PAUSE, _SHORTEST = 0.04, 0.0015
#: Bars that no longer get a white border.
_MANY = 600
_STEPS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 240, 480, 1440)


@dataclass(frozen=True)
class PoolBand:
    """Slots of one account and device kind, as counted when a run began."""

    name: str
    account: str
    kind: str
    slots: int


@dataclass(frozen=True)
class JobBar:
    """One try of a job on a pool; times in seconds since the epoch.

    Attributes
    ----------
    job, rule, pool : str
    start_s, end_s : float
    sent_s : float or None
        When it was handed to Slurm.
    small : bool
        It took no slot.
    failed : bool
        It failed or was cancelled.
    """

    job: str
    rule: str
    pool: str
    start_s: float
    end_s: float
    sent_s: float | None = None
    small: bool = False
    failed: bool = False

    @property
    def wait_s(self) -> float | None:
        """Time in the queue in seconds; Slurm cuts its times to whole seconds."""
        return None if self.sent_s is None else max(0.0, self.start_s - self.sent_s)


@dataclass(frozen=True)
class Remark:
    """Something that the ledger says beside the bars; ``time_s`` since the epoch."""

    time_s: float
    what: Literal["move", "fail", "hold"]
    text: str


@dataclass(frozen=True)
class ClusterRun:
    """One run of the workflow on a cluster; times in seconds since the epoch.

    Attributes
    ----------
    number : int
        Its place in the ledger, from 1.
    start_s, end_s : float
        ``end_s`` is the last that the ledger knows of it.
    pools : dict of str to Pool
    bars : tuple of JobBar
        By start.
    remarks : tuple of Remark
    causes : dict of str to int
        Failures by cause.
    unfinished : tuple of str
        Jobs without an end in the ledger.
    left_out : dict of str to str
        Account to why it was not used.
    sharing : str
        Which limits GPU and CPU jobs draw on.
    idle_slot_s : dict of str to float
        Slot-seconds that idled while jobs were ready, by reason.
    """

    number: int
    start_s: float
    end_s: float
    pools: Mapping[str, PoolBand]
    bars: tuple[JobBar, ...]
    remarks: tuple[Remark, ...] = ()
    causes: Mapping[str, int] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    sharing: str = ""
    idle_slot_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def span_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Use:
    """What runs made of a pool; small jobs take no slot and count for ``jobs`` and ``wait_s``.

    Attributes
    ----------
    pool : PoolBand
        With the most slots it had.
    jobs, small : int
        Tries, and those of them that took no slot.
    busy_s, idle_s : float
        Slot-seconds.
    wait_s : float or None
        Mean time in the queue.
    """

    pool: PoolBand
    jobs: int
    small: int
    busy_s: float
    idle_s: float
    wait_s: float | None

    @property
    def utilisation(self) -> float | None:
        """Busy slot-seconds over slots × length of the runs; None without slots."""
        total_s = self.busy_s + self.idle_s
        return self.busy_s / total_s if total_s > 0 else None


def lanes(bars: Sequence[JobBar]) -> list[int]:
    """Return for each bar, given by start, the lowest lane that is free from its start on."""
    ends: list[float] = []
    found = []
    for bar in bars:
        lane = next((k for k, end_s in enumerate(ends) if end_s <= bar.start_s), len(ends))
        ends[lane : lane + 1] = [bar.end_s]
        found.append(lane)
    return found


def busy_s(bars: Iterable[JobBar], slots: int) -> float:
    """Return slot-seconds in use: running jobs integrated over time, at most ``slots`` at once."""
    steps = sorted(step for bar in bars for step in ((bar.start_s, 1), (bar.end_s, -1)))
    total_s, running, last_s = 0.0, 0, 0.0
    for time_s, change in steps:
        total_s += min(running, slots) * (time_s - last_s)
        running, last_s = running + change, time_s
    return total_s


def use_of(runs: Sequence[ClusterRun]) -> list[Use]:
    """Return what the runs made of each pool: GPUs first, then in the ledger's order.

    Pools without slots and jobs are left out.
    """
    pools: dict[str, PoolBand] = {}
    for pool in (pool for run in runs for pool in run.pools.values()):
        if pool.name not in pools or pool.slots > pools[pool.name].slots:
            pools[pool.name] = pool
    found = []
    for pool in sorted(pools.values(), key=lambda pool: pool.kind != "gpu"):
        bars = [bar for run in runs for bar in run.bars if bar.pool == pool.name]
        busy, total = 0.0, 0.0
        for run in runs:
            slots = run.pools[pool.name].slots if pool.name in run.pools else 0
            busy += busy_s((b for b in run.bars if b.pool == pool.name and not b.small), slots)
            total += slots * run.span_s
        if not bars and not total:
            continue
        found.append(
            Use(pool, len(bars), sum(b.small for b in bars), busy, total - busy, mean_wait_s(bars))
        )
    return found


def mean_wait_s(bars: Iterable[JobBar]) -> float | None:
    """Return the mean time in the queue in seconds, None where it is not known."""
    waits = [bar.wait_s for bar in bars if bar.wait_s is not None]
    return sum(waits) / len(waits) if waits else None


@dataclass(frozen=True)
class _Band:
    """Lanes of a pool; all heights in inches.

    ``y`` is the foot, ``lane`` and ``small`` the height of a lane below and above number
    ``first``.
    """

    use: Use
    y: float
    lane: float
    small: float
    first: int
    lanes: int
    of_bar: dict[JobBar, int]

    def at(self, lane: int) -> float:
        """Return the foot of a lane."""
        return self.y + self.lane * min(lane, self.first) + self.small * max(0, lane - self.first)


def colour_of(rule: str) -> str:
    """Return the colour of a rule's bars."""
    if rule in _RULE_OF:
        return pale(_COLOUR_OF[_RULE_OF[rule]])
    return _COLOUR_OF.get(rule) or _OTHERS.get(rule, GREY)


def pale(colour: str) -> str:
    """Return a colour mixed with white."""
    red, green, blue = (0.4 * part + 0.6 for part in to_rgb(colour))
    return to_hex((red, green, blue))


def rank_of(rule: str) -> tuple[int, bool, str]:
    """Return a rule's place in the legend: the workflow's order, each with its quality rule."""
    known = [*_COLOUR_OF, *_OTHERS]
    name = _RULE_OF.get(rule, rule)
    return (known.index(name) if name in known else len(known), name != rule, rule)


def draw_gantt(runs: Sequence[ClusterRun], uses: Sequence[Use]) -> Figure:
    """Draw runs one after the other; the time between them is cut out.

    Parameters
    ----------
    runs : sequence of ClusterRun
        In the order of time.
    uses : sequence of Use
        The pools in the order of the bands.
    """
    bands = _bands(runs, uses)
    top = bands[0].at(bands[0].lanes) + _GAP_IN
    rules = sorted({bar.rule for run in runs for bar in run.bars}, key=rank_of)
    figure = new_figure(_WIDTH_IN, top + 0.75 + 0.2 * min(4, len(rules) // 4 + 1))
    axes = figure.subplots()
    total_s = sum(run.span_s for run in runs) or 1.0
    pause_s = _PAUSE * total_s
    starts = [0.0, *itertools.accumulate(run.span_s + pause_s for run in runs)][: len(runs)]
    for run, left_s in zip(runs, starts, strict=True):
        for band in bands:
            _slots(axes, band, run, left_s)
        _bars(axes, bands, run, left_s, _SHORTEST * total_s)
    _time_axis(axes, runs, starts, pause_s, total_s)
    axes.set_xlim(-0.005 * total_s, starts[-1] + runs[-1].span_s + 0.01 * total_s)
    axes.set_ylim(0, top)
    axes.set_yticks([(b.y + b.at(b.lanes)) / 2 for b in bands], [_label(b.use) for b in bands])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    _legend(figure, rules, bands, any(bar.failed for run in runs for bar in run.bars))
    return figure


def _bands(runs: Sequence[ClusterRun], uses: Sequence[Use]) -> list[_Band]:
    """Return the bands from top to bottom; small jobs lie above the slots, however many."""
    placed: list[tuple[Use, dict[JobBar, int], int, int]] = []
    for use in uses:
        bars = [bar for run in runs for bar in run.bars if bar.pool == use.pool.name]
        large, small_jobs = ([b for b in bars if b.small == one] for one in (False, True))
        of_bar = dict(zip(large, lanes(large), strict=True))
        first = max([use.pool.slots, *(lane + 1 for lane in of_bar.values())])
        of_bar |= {b: first + k for b, k in zip(small_jobs, lanes(small_jobs), strict=True)}
        placed.append((use, of_bar, first, max([first, *(k + 1 for k in of_bar.values())])))
    total = max(1, sum(first for _, _, first, _ in placed))
    lane = float(np.clip(_SLOTS_IN / total, _LOW_IN, _HIGH_IN))
    found: list[_Band] = []
    y = _GAP_IN
    for use, of_bar, first, count in reversed(placed):
        small = min(lane, _SMALL_IN / max(1, count - first))
        stretch = max(1.0, _BAND_IN / (lane * first + small * (count - first)))
        band = _Band(use, y, lane * stretch, small * stretch, first, count, of_bar)
        found.append(band)
        y = band.at(count) + _GAP_IN
    return found[::-1]


def _slots(axes: Axes, band: _Band, run: ClusterRun, left_s: float) -> None:
    """Shade the slots that a pool had in a run, with a line on top."""
    pool = run.pools.get(band.use.pool.name)
    if pool is None or not pool.slots:
        return
    right_s, head = left_s + run.span_s, band.at(pool.slots)
    axes.fill_between([left_s, right_s], band.y, head, color=IDLE, lw=0, zorder=0)
    if band.lane > _TOUCH_IN:
        between = [band.at(k) for k in range(1, pool.slots)]
        axes.hlines(between, left_s, right_s, color="white", lw=0.8, zorder=1)
    axes.plot([left_s, right_s], [head, head], color="#1b1f24", lw=0.9, zorder=4)


def _bars(
    axes: Axes, bands: Iterable[_Band], run: ClusterRun, left_s: float, shortest_s: float
) -> None:
    for band, failed in itertools.product(bands, (False, True)):
        bars = [b for b in run.bars if b in band.of_bar and b.failed == failed]
        apart = band.lane > _TOUCH_IN and len(run.bars) < _MANY
        boxes = []
        for bar in bars:
            lane = band.of_bar[bar]
            x0 = left_s + bar.start_s - run.start_s
            x1 = x0 + max(bar.end_s - bar.start_s, shortest_s)
            height = band.at(lane + 1) - band.at(lane)
            y0 = band.at(lane) + 0.08 * height * apart
            y1 = y0 + max(height * (0.84 if apart else 1), _THIN_IN)
            boxes.append([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
        axes.add_collection(
            PolyCollection(
                boxes,
                facecolors=[colour_of(bar.rule) for bar in bars],
                edgecolors="black" if failed else "white",
                hatch="//////" if failed else None,
                linewidths=0.8 if failed else 0.4 * apart,
                zorder=3 if failed else 2,
            )
        )


def _time_axis(
    axes: Axes, runs: Sequence[ClusterRun], starts: Sequence[float], pause_s: float, total_s: float
) -> None:
    """Label the time from the start of each run; two strokes mark what is cut out between."""
    unit_s, unit, step_s = time_step(total_s)
    places: list[tuple[float, str]] = []
    across = axes.get_xaxis_transform()
    for run, left_s in zip(runs, starts, strict=True):
        for k in range(int(run.span_s / step_s) + 1):
            places.append((left_s + k * step_s, f"{k * step_s / unit_s:g}"))
        if len(runs) > 1:
            axes.text(left_s, 1.0, f"run {run.number}", transform=across, fontsize=8, va="bottom")
        if run is not runs[0]:
            axes.text(
                left_s - pause_s / 2, 0, "//", transform=across, fontsize=9, ha="center",
                va="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )  # fmt: skip
    axes.set_xticks([x for x, _ in places], [text for _, text in places])
    axes.tick_params(axis="x", labelsize=8)
    which = "each run" if len(runs) > 1 else "the run"
    axes.set_xlabel(f"{unit} from the start of {which}", fontsize=9)


def time_step(total_s: float) -> tuple[float, str, float]:
    """Return the unit of a time axis in seconds and by name, and the seconds between its ticks."""
    unit_s, unit = (3600.0, "hours") if total_s > 2 * 3600 else (60.0, "minutes")
    if total_s < 120:
        unit_s, unit = 1.0, "seconds"
    step = next((s for s in _STEPS if s * unit_s >= total_s / 10), _STEPS[-1])
    return unit_s, unit, step * unit_s


def legend(
    figure: Figure, rules: Iterable[str], failed: bool, others: Iterable[Patch | Line2D]
) -> None:
    """Draw the key of the rules' colours, of failed bars where there are any, and of others."""
    handles: list[Patch | Line2D] = [Patch(facecolor=colour_of(r), label=r) for r in rules]
    if failed:
        handles.append(
            Patch(facecolor="white", edgecolor="black", hatch="//////", label="failed or cancelled")
        )
    handles += others
    figure.legend(
        handles=handles, loc="outside lower center", fontsize=8, frameon=False,
        ncols=max(4, -(-len(handles) // 4)), handlelength=1.4, columnspacing=1.4,
    )  # fmt: skip


def _label(use: Use) -> str:
    kind = use.pool.kind.upper()
    if use.utilisation is None:
        return f"{use.pool.account} {kind}\nno slots"
    slots = f"{use.pool.slots} slot{'s' * (use.pool.slots != 1)}"
    return f"{use.pool.account} {kind}\n{slots}, {100 * use.utilisation:.0f} % busy"


def _legend(figure: Figure, rules: Sequence[str], bands: Sequence[_Band], failed: bool) -> None:
    others: list[Patch | Line2D] = [Patch(facecolor=IDLE, label="idle slot")]
    if any(band.lanes > max(1, band.use.pool.slots) for band in bands):
        line = "number of slots; jobs above it fitted in beside them"
        others.append(Line2D([], [], color="#1b1f24", lw=0.9, label=line))
    legend(figure, rules, failed, others)
