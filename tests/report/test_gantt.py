from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.ledger import read_ledger
from snakemake_scheduler_plugin_tilewright.report.gantt import draw_gantt
from snakemake_scheduler_plugin_tilewright.report.ledger import cluster_runs, read_events
from snakemake_scheduler_plugin_tilewright.report.page import write_run_report
from snakemake_scheduler_plugin_tilewright.report.palette import IDLE, palette_of
from snakemake_scheduler_plugin_tilewright.report.run_section import run_section
from snakemake_scheduler_plugin_tilewright.report.runs import (
    JobBar,
    Use,
    busy_s,
    lanes,
    mean_wait_s,
    use_of,
)
from snakemake_scheduler_plugin_tilewright.slurm.jobs import Cause
from tests.support.report_pages import Page, report
from tilewright.report.rule_colours import PALETTE

T0 = 1_795_252_000.0
POOLS = {
    "lab_gpu": ["lab", "gpu", 2],
    "lab_cpu": ["lab", "cpu", 3],
    "guest_gpu": ["guest", "gpu", 1],
}


def event(at_s: float, name: str, **values: Any) -> dict[str, Any]:
    return {"time_s": T0 + at_s, "event": name, **values}


def start(at_s: float = 0) -> dict[str, Any]:
    return event(at_s, "run", pools=POOLS, left_out={"old-b": "burst account"})


def named(name: str, pool: str = "lab_gpu") -> dict[str, Any]:
    return {"job": f"rule_stitch_wildcards_{name}", "rule": "stitch", "pool": pool}


def job(name: str, pool: str, sent_s: float, start_s: float, end_s: float) -> list[dict[str, Any]]:
    here = named(name, pool)
    times = {"start_s": T0 + start_s, "end_s": T0 + end_s, "sent_s": T0 + sent_s}
    return [
        event(sent_s, "place", **here, reason="it fits"),
        event(end_s, "done", **here, account="lab", kind=pool[-3:], **times),
    ]


def failure(name: str, at_s: float, cause: str, **values: Any) -> dict[str, Any]:
    return event(at_s, "fail", **named(name), cause=cause, account="lab", kind="gpu", **values)


#: 100 s; GPUs of lab: 40 + 60 of 200 slot-seconds, its CPUs: 30 + 90 of 300.
SMALL = [
    start(),
    *job("a", "lab_gpu", 0, 10, 50),
    *job("b", "lab_gpu", 0, 20, 80),
    *job("c", "lab_cpu", 0, 70, 100),
    *job("d", "lab_cpu", 5, 5, 95),
]


def write(path: Path, events: list[dict[str, Any]], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(e) + "\n" for e in events) + tail)
    return path


def written(folder: Path, *events: dict[str, Any]) -> str:
    """Return the page of a run by itself."""
    write_run_report(write(folder / "ledger.jsonl", [*events]), folder / "run.html")
    return (folder / "run.html").read_text(encoding="utf-8")


def uses_of(*events: dict[str, Any]) -> dict[str, Use]:
    return {use.pool.name: use for use in use_of(cluster_runs([*events]))}


def test_use_of_a_small_run_is_exact() -> None:
    uses = uses_of(*SMALL)
    assert list(uses) == ["lab_gpu", "guest_gpu", "lab_cpu"]
    gpu, guest, cpu = uses.values()
    assert (gpu.jobs, gpu.busy_s, gpu.idle_s, gpu.utilisation, gpu.wait_s) == (2, 100, 100, 0.5, 15)
    assert (guest.jobs, guest.busy_s, guest.idle_s, guest.utilisation) == (0, 0, 100, 0)
    assert guest.wait_s is None
    assert (cpu.jobs, cpu.busy_s, cpu.utilisation, cpu.wait_s) == (2, 120, 0.4, 35)


def test_device_kinds_that_no_job_may_use_are_left_out(tmp_path: Path) -> None:
    wait = event(0, "wait", ready=9, why={"no slot is free": 9}, free={})
    cpus = [{**start(), "kinds": ["cpu"]}, wait, *job("c", "lab_cpu", 0, 70, 100)]
    assert "GPU" not in written(tmp_path, *cpus)
    (run,) = cluster_runs(cpus)
    assert all("gpu" not in why for why in run.idle_slot_s)
    assert {"lab_gpu", "guest_gpu"} <= uses_of(
        *cpus, event(100, "kinds", kinds=["cpu", "gpu"])
    ).keys()
    assert uses_of(*cpus, *job("b", "lab_gpu", 0, 20, 80)).keys() == {"lab_gpu", "lab_cpu"}


@pytest.mark.parametrize("cause", get_args(Cause))
def test_every_cause_has_words(cause: str) -> None:
    (run,) = cluster_runs([start(), failure("a", 9, cause, words="said", next="is tried again")])
    (remark,) = run.remarks
    assert f": {cause} (" not in remark.text
    assert remark.text.endswith("(said); is tried again")


def test_a_group_is_one_bar_and_its_members_are_told(tmp_path: Path) -> None:
    place, done = job("c", "lab_cpu", 0, 70, 100)
    text = written(tmp_path, start(), place, {**done, "members": 3})
    assert "1 job (3 of Snakemake&#39;s, some in groups) in" in text


def test_jobs_beside_the_slots_do_not_make_them_busier_than_they_can_be() -> None:
    jobs = (e for k in range(5) for e in job(str(k), "guest_gpu", 0, 0, 50))
    use = uses_of(start(), *jobs)["guest_gpu"]
    assert (use.jobs, use.busy_s, use.utilisation) == (5, 50, 1)


def test_use_of_several_runs_counts_the_slots_of_each() -> None:
    second = {**start(1000), "pools": {"lab_gpu": ["lab", "gpu", 4]}}
    first, last = cluster_runs([*SMALL, second, *job("e", "lab_gpu", 1000, 1000, 1050)])
    use = use_of([first, last])[0]
    assert (first.number, last.number, use.pool.slots) == (1, 2, 4)
    assert (use.busy_s, use.busy_s + use.idle_s) == (150, 200 + 4 * 50)


bars_by_start = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 60)).map(
        lambda t: JobBar("j", "stitch", "p", float(t[0]), float(t[0] + t[1]))
    ),
    max_size=60,
).map(lambda bars: sorted(bars, key=lambda bar: bar.start_s))


@given(bars_by_start)
def test_bars_of_a_lane_do_not_overlap_and_lanes_are_as_few_as_can_be(bars: list[JobBar]) -> None:
    found = lanes(bars)
    assert len(found) == len(bars)
    by_lane = {lane: [b for b, k in zip(bars, found, strict=True) if k == lane] for lane in found}
    for row in by_lane.values():
        assert all(one.end_s <= two.start_s for one, two in itertools.pairwise(row))
    once = [sum(b.start_s <= at.start_s < b.end_s for b in bars) for at in bars]
    assert len(by_lane) <= max([1, *(n + 1 for n in once)])
    assert set(by_lane) == set(range(len(by_lane)))


@given(bars_by_start, st.integers(0, 70))
def test_busy_time_is_counted_as_second_by_second(bars: list[JobBar], slots: int) -> None:
    running = np.zeros(400)
    for bar in bars:
        running[int(bar.start_s) : int(bar.end_s)] += 1
    assert busy_s(bars, slots) == np.minimum(running, slots).sum()


def test_a_job_that_failed_and_was_placed_again_has_two_bars() -> None:
    times = {"start_s": T0 + 5, "end_s": T0 + 20, "next": "gets twice the memory", "node": "c3"}
    failed = failure("a", 22, "memory", words="OUT_OF_MEMORY", **times)
    again = job("a", "lab_gpu", 0, 25, 60)
    (run,) = cluster_runs([start(), event(0, "place", **named("a")), failed, *again])
    assert [(b.failed, b.start_s - T0, b.end_s - T0, b.wait_s) for b in run.bars] == [
        (True, 5, 20, 5),
        (False, 25, 60, 25),
    ]
    assert run.causes == {"memory": 1}
    (remark,) = run.remarks
    assert remark.text == (
        "stitch a, lab_gpu on c3: ran out of memory (OUT_OF_MEMORY); gets twice the memory"
    )


def test_a_job_that_was_moved_while_it_waited_is_no_failure_and_has_no_bar() -> None:
    moved = {"job": "rule_stitch_wildcards_a", "reason": "QOSGrpGRES", "sooner": "guest gpu"}
    again = failure("a", 70, "memory", start_s=T0 + 40, next="gets twice the memory")
    events = [start(), event(30, "move", **moved), failure("a", 31, "cancelled", end_s=T0 + 30)]
    (run,) = cluster_runs([*events, again])
    assert [r.what for r in run.remarks] == ["move", "fail"]
    assert run.causes == {"memory": 1}
    assert [(b.start_s - T0, b.end_s - T0) for b in run.bars] == [(40, 70)]


def test_jobs_without_an_end_are_named_and_withdrawn_ones_are_not() -> None:
    events = [*SMALL, *job("x", "lab_gpu", 0, 0, 0)[:1], *job("y", "lab_gpu", 0, 0, 0)[:1]]
    events.append(event(101, "withdraw", job="rule_stitch_wildcards_y"))
    assert cluster_runs(events)[0].unfinished == ("stitch x",)


def test_ends_that_squeue_only_foretold_are_cut_at_the_event() -> None:
    (run,) = cluster_runs([start(), failure("a", 30, "node", start_s=T0, end_s=T0 + 9000)])
    assert run.bars[0].end_s == T0 + 30
    assert run.span_s == 30


def test_events_are_read_as_placement_reads_them(tmp_path: Path) -> None:
    path = write(tmp_path / "ledger.jsonl", SMALL, '[1]\n{"event": "run"}\nnull\n{"time_s": 12, "e')
    assert read_events(path) == SMALL == list(read_ledger(path))
    assert read_events(tmp_path / "none") == []


@pytest.mark.parametrize("count", [60, 5000])
def test_every_job_is_a_bar_that_can_be_seen(count: int) -> None:
    jobs = (job(str(k), "lab_cpu", k, k, k + 4) for k in range(count))
    runs = cluster_runs([start(), *itertools.chain(*jobs)])
    drawn = ElementTree.fromstring(draw_gantt(runs, use_of(runs), PALETTE, "<words>"))
    assert drawn.get("aria-label") == "<words>"
    (wide, high) = (float(drawn.get(name, "")) for name in ("width", "height"))
    bars = [path for path in drawn if path.get("class") == "bar"]
    assert {path.get("fill") for path in bars} == {PALETTE.of("stitch")}
    number = r"(-?[0-9.]+)"
    shape = re.compile(rf"M{number} {number}h{number}v{number}h-{number}z")
    boxes = [[float(n) for n in box] for bar in bars for box in shape.findall(bar.get("d", ""))]
    assert len(boxes) == count
    assert min(min(w, h) for _, _, w, h, _ in boxes) > 0.9
    assert all(0 <= x <= x + w <= wide and 0 <= y <= y + h <= high for x, y, w, h, _ in boxes)
    names = [text.text for text in drawn.iter("text")]
    assert names[names.index("stitch") + 1] == "idle slot"
    assert sum(path.get("fill") == IDLE for path in drawn) == len(POOLS) + 1


def test_rules_and_stages_have_colours_of_their_own() -> None:
    rules = [f"rule{k}" for k in range(14)]
    palette = palette_of(rules)
    assert len({palette.of(rule) for rule in [*rules, "another"]}) == 15
    assert sorted(sorted(rules), key=palette.rank) == rules
    stages = ["illumination", "tile_positions", "stitch", "deconvolve", "edf_plane", "register"]
    others = ["qc_cycle", "qc_register", "qc_image", "resample", "assemble", "report"]
    assert len({PALETTE.of(rule) for rule in [*stages, *others]}) == 12


def test_without_a_ledger_the_page_does_not_change(tmp_path: Path) -> None:
    plain = report(tmp_path)
    assert "Where it ran" not in plain
    assert report(tmp_path, ledger=tmp_path / "absent.jsonl") == plain
    assert report(tmp_path, ledger=write(tmp_path / "begun.jsonl", SMALL[:2])) == plain
    section = re.compile(
        r'<section class="detail" aria-labelledby="where-it-ran">.*?</section>', re.S
    )
    full = report(tmp_path, ledger=write(tmp_path / "ledger.jsonl", SMALL))
    assert section.sub("", full) == plain != full


def test_the_report_shows_where_it_ran(tmp_path: Path) -> None:
    events = [
        *SMALL,
        failure("e", 96, "time", words="<TIMEOUT>", next="gets twice the time"),
        event(97, "hold", reason="squeue: timed out"),
        event(98, "room", closed={"guest gpu": "your job 4 waits on guest: QOSGrpGRES"}),
        event(99, "room", closed={"guest gpu": "your job 5 waits on guest: QOSGrpGRES"}),
        event(99, "notes", notes=["limits are 3 hours old"]),
        event(99, "forgive", nodes=["b1", "b2"]),
        event(99, "cancel", slurm_ids=[7, 9], reason="an earlier try of a ready job"),
        event(100, "greedy", reason="KeyError('x')"),
    ]
    ledger = write(tmp_path / "ledger.jsonl", events, '{"time_s": 1, "ev')
    text = report(tmp_path, ledger=ledger)
    assert report(tmp_path, ledger=ledger) == text
    shown = Page(text)
    (alt,) = [str(a["aria-label"]) for tag, a in shown.tags if tag == "svg"]
    assert alt.endswith(
        "4 jobs in 1.7 min; GPU slots were busy 33 % of the time; CPU slots were busy 40 % of the "
        "time; a job waited 25 s in the queue on average. Failed tries by cause: time 1."
    )
    for words in (
        "lab GPU", "50 %", "ran out of time (<TIMEOUT>); gets twice the time",
        "nothing was started: squeue: timed out", "limits are 3 hours old", "KeyError('x')",
        "guest gpu was closed: a job waits on guest: QOSGrpGRES (2 times)", "burst account",
        "nothing else was left, so nodes that failed may be used again: b1, b2",
        "jobs of Slurm were cancelled (an earlier try of a ready job): 7, 9",
    ):  # fmt: skip
        assert words in shown.text


def test_long_lists_are_cut_and_early_runs_left_out(tmp_path: Path) -> None:
    failures = [failure(str(k), 50 + k, "error", next="is tried again") for k in range(30)]
    early = [e for k in range(7) for e in ({**start(), "time_s": T0 - 9000 + k}, SMALL[2])]
    ledger = write(tmp_path / "ledger.jsonl", [*early, *SMALL, *failures])
    shown = Page(report(tmp_path, ledger=ledger))
    assert "The last 20 of 30" in shown.text
    assert "2 earlier runs are not shown." in shown.text
    assert "run 8, 79 s" in shown.text
    assert shown.text.count("ended with an error") == 20


def test_a_run_in_which_nothing_ended_yet_leaves_those_before_it(tmp_path: Path) -> None:
    ledger = write(tmp_path / "l", [*SMALL, start(500), *job("r", "lab_cpu", 501, 0, 0)[:1]])
    section = run_section(ledger)
    assert section is not None
    assert section["caption"].endswith("Not ended when this page was made: stitch r.")
    assert mean_wait_s([]) is None
