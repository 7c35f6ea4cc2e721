import csv
import itertools
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.report.gantt import IDLE, colours_of, draw_gantt, lanes
from snakemake_scheduler_plugin_tilewright.report.page import write_run_report
from snakemake_scheduler_plugin_tilewright.report.runs import (
    Row,
    Run,
    Try,
    busy_s,
    cluster_runs,
    rows_of,
)
from tests.support.report_pages import Page, report
from tilewright.config.layout import Layout

T0 = 1_795_252_000.0
POOLS = {
    "lab_gpu": ["lab", "gpu", 2],
    "lab_cpu": ["lab", "cpu", 3],
    "guest_gpu": ["guest", "gpu", 1],
}


def event(at_s: float, name: str, **values: Any) -> dict[str, Any]:
    return {"time_s": T0 + at_s, "event": name, **values}


def start(at_s: float = 0) -> dict[str, Any]:
    return event(at_s, "run", pools=POOLS)


def named(name: str, pool: str = "lab_gpu", rule: str = "stitch") -> dict[str, Any]:
    account, kind = pool.split("_")
    job = f"rule_{rule}_wildcards_{name}"
    return {"job": job, "rule": rule, "pool": pool, "account": account, "kind": kind}


def done(
    name: str, pool: str, sent_s: float, start_s: float, end_s: float, **values: Any
) -> dict[str, Any]:
    times = {"start_s": T0 + start_s, "end_s": T0 + end_s, "sent_s": T0 + sent_s}
    return event(end_s, "done", **named(name, pool), **times, **values)


def failure(name: str, at_s: float, cause: str, **values: Any) -> dict[str, Any]:
    return event(at_s, "fail", **{**named(name), "cause": cause, **values})


#: 100 s; GPUs of lab: 40 + 60 of 200 slot-seconds, its CPUs: 30 of 300.
SMALL = [
    start(),
    done("a", "lab_gpu", 0, 10, 50),
    done("b", "lab_gpu", 0, 20, 80),
    done("c", "lab_cpu", 0, 70, 100),
]


def write(path: Path, events: list[dict[str, Any]], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(e) + "\n" for e in events) + tail)
    return path


def written(folder: Path, *events: dict[str, Any]) -> str:
    """Return the page of a run by itself."""
    write_run_report(write(folder / "ledger.jsonl", [*events]), folder / "run.html")
    return (folder / "run.html").read_text(encoding="utf-8")


def rows(*events: dict[str, Any]) -> list[Row]:
    return rows_of(cluster_runs(events), ["stitch", "register"])


def one_run(*events: dict[str, Any]) -> Run:
    (run,) = cluster_runs([start(), *events])
    return run


def test_the_table_of_a_small_run_is_exact(tmp_path: Path) -> None:
    late = event(100, "done", **named("d", "lab_gpu", "register"), start_s=T0 + 90, end_s=T0 + 99)
    failed = failure("e", 100, "memory", start_s=T0 + 98, end_s=T0 + 100)
    assert rows(*SMALL, late, failed, failure("e", 100, "memory")) == [
        Row("lab", "gpu", 2, 0.555, "stitch", 4, 0.0283, 15.0, 2, "memory 2"),
        Row("lab", "gpu", 2, 0.555, "register", 1, 0.0025, None, 0, ""),
        Row("guest", "gpu", 1, 0.0, "", 0, 0.0, None, 0, ""),
        Row("lab", "cpu", 3, 0.1, "stitch", 1, 0.0083, 70.0, 0, ""),
    ]
    page = Page(written(tmp_path, *SMALL))
    assert {"href": "run.jobs.csv"} in [attributes for _, attributes in page.tags]
    with (tmp_path / "run.jobs.csv").open(newline="") as stream:
        first, *others = csv.DictReader(stream)
    assert len(others) == 2
    assert first == {
        "account": "lab", "device": "gpu", "slots": "2", "utilisation": "0.5", "rule": "stitch",
        "jobs": "2", "hours": "0.0278", "mean_wait_s": "15.0", "failed": "0", "causes": "",
    }  # fmt: skip


def test_device_kinds_that_no_job_may_use_are_left_out(tmp_path: Path) -> None:
    cpus = [{**start(), "kinds": ["cpu"]}, done("c", "lab_cpu", 0, 70, 100)]
    assert "GPU" not in written(tmp_path, *cpus)
    more = [*cpus, event(100, "kinds", kinds=["cpu", "gpu"])]
    assert {row.account for row in rows(*more)} == {"lab", "guest"}
    assert {row.account for row in rows(*cpus, done("b", "lab_gpu", 0, 20, 80))} == {"lab"}


def test_slots_are_those_of_each_run_and_never_busier_than_they_can_be() -> None:
    second = {**start(1000), "pools": {"lab_gpu": ["lab", "gpu", 4]}}
    row = rows(*SMALL, second, done("e", "lab_gpu", 1000, 1000, 1050))[0]
    assert (row.slots, row.jobs, row.utilisation) == (4, 3, 150 / (200 + 4 * 50))
    many = (done(str(k), "guest_gpu", 0, 0, 50) for k in range(5))
    assert [row.utilisation for row in rows(start(), *many) if row.account == "guest"] == [1]


tries_by_start = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 60)).map(
        lambda t: Try("j", "stitch", ("a", "gpu"), float(t[0]), float(t[0] + t[1]))
    ),
    max_size=60,
).map(lambda tries: sorted(tries, key=lambda one: one.start_s or 0.0))


@given(tries_by_start)
def test_bars_of_a_lane_do_not_overlap_and_lanes_are_as_few_as_can_be(tries: list[Try]) -> None:
    found = lanes(tries)
    assert len(found) == len(tries)
    spans = [(one.start_s or 0.0, one.end_s) for one in tries]
    for lane in set(found):
        row = [span for span, k in zip(spans, found, strict=True) if k == lane]
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(row))
    once = [sum(start_s <= at_s < end_s for start_s, end_s in spans) for at_s, _ in spans]
    assert len(set(found)) <= max([1, *(n + 1 for n in once)])
    assert set(found) == set(range(len(set(found))))


@given(tries_by_start, st.integers(0, 70))
def test_busy_time_is_counted_as_second_by_second(tries: list[Try], slots: int) -> None:
    running = np.zeros(400)
    for one in tries:
        running[int(one.start_s or 0) : int(one.end_s)] += 1
    assert busy_s(tries, slots) == np.minimum(running, slots).sum()


def test_a_job_that_failed_and_was_placed_again_has_two_tries() -> None:
    times = {"start_s": T0 + 5, "end_s": T0 + 20, "next": "gets twice the memory", "node": "c3"}
    failed = failure("a", 22, "memory", words="OUT_OF_MEMORY", **times)
    run = one_run(failed, done("a", "lab_gpu", 0, 25, 60))
    assert [(one.cause, one.ran_s, one.wait_s) for one in run.tries] == [
        ("memory", 15, None),
        ("", 35, 25),
    ]


def test_a_job_that_was_moved_while_it_waited_is_neither_a_failure_nor_a_try() -> None:
    moved = {"job": "rule_stitch_wildcards_a", "reason": "QOSGrpGRES", "sooner": "guest gpu"}
    again = failure("a", 70, "memory", start_s=T0 + 40, next="gets twice the memory")
    run = one_run(event(30, "move", **moved), again)
    assert [(one.cause, one.ran_s) for one in run.tries] == [("memory", 30)]


def test_ends_that_squeue_only_foretold_are_cut_at_the_event() -> None:
    run = one_run(failure("a", 30, "node", start_s=T0, end_s=T0 + 9000))
    assert (run.tries[0].ran_s, run.span_s) == (30, 30)


@pytest.mark.parametrize("count", [60, 5000])
def test_every_job_is_a_bar_that_can_be_seen(count: int) -> None:
    jobs = (done(str(k), "lab_cpu", k, k, k + 4) for k in range(count))
    drawn = ElementTree.fromstring(draw_gantt(one_run(*jobs), {"stitch": "#E69F00"}, "<words>"))
    assert drawn.get("aria-label") == "<words>"
    (wide, high) = (float(drawn.get(name, "")) for name in ("width", "height"))
    bars = [path for path in drawn if path.get("class") == "bar"]
    assert {path.get("fill") for path in bars} == {"#E69F00"}
    number = r"(-?[0-9.]+)"
    shape = re.compile(rf"M{number} {number}h{number}v{number}h-{number}z")
    boxes = [[float(n) for n in box] for bar in bars for box in shape.findall(bar.get("d", ""))]
    assert len(boxes) == count
    assert min(min(w, h) for _, _, w, h, _ in boxes) > 0.9
    assert all(0 <= x <= x + w <= wide and 0 <= y <= y + h <= high for x, y, w, h, _ in boxes)
    names = [text.text for text in drawn.iter("text")]
    assert names[names.index("stitch") + 1] == "free slot"
    assert sum(path.get("fill") == IDLE for path in drawn) == len(POOLS) + 1


def test_rules_have_colours_of_their_own() -> None:
    rules = [f"rule{k}" for k in range(14)]
    colours = colours_of(rules)
    assert list(colours) == rules
    assert len(set(colours.values())) == 14


def test_without_a_ledger_the_page_does_not_change(tmp_path: Path) -> None:
    plain = report(tmp_path)
    assert "Where it ran" not in plain
    assert report(tmp_path, ledger=tmp_path / "absent.jsonl") == plain
    assert report(tmp_path, ledger=write(tmp_path / "begun.jsonl", SMALL[:1])) == plain
    assert not (tmp_path / "report.jobs.csv").exists()
    section = re.compile(
        r'<section class="detail" aria-labelledby="where-it-ran">.*?</section>', re.S
    )
    full = report(tmp_path, ledger=write(tmp_path / "ledger.jsonl", SMALL))
    assert section.sub("", full) == plain != full


def test_the_report_shows_where_it_ran(tmp_path: Path) -> None:
    events = [*SMALL, failure("e", 96, "time", words="<TIMEOUT>", next="gets twice the time")]
    ledger = write(tmp_path / "ledger.jsonl", events, '{"time_s": 1, "ev')
    text = report(tmp_path, ledger=ledger)
    beside = Layout(str(tmp_path)).report_jobs
    table = beside.read_bytes()
    assert report(tmp_path, ledger=ledger) == text
    assert beside.read_bytes() == table
    shown = Page(text)
    (alt,) = [str(a["aria-label"]) for tag, a in shown.tags if tag == "svg"]
    assert alt == "4 jobs in 1 run that took 1.7 min."
    for words in (
        "lab GPU", "50.0 %", "15 s", "time 1", f"1 damaged line of {ledger} is ignored",
        "report.jobs.csv",
    ):  # fmt: skip
        assert words in shown.text


def test_the_last_run_is_drawn_and_all_are_counted(tmp_path: Path) -> None:
    failures = [failure(str(k), 50 + k, "error", next="is tried again") for k in range(30)]
    shown = Page(written(tmp_path, *SMALL, {**start(-9000)}, *failures, start(500)))
    assert "33 jobs in 2 runs that took " in shown.text
    assert "error 30" in shown.text
    assert "Run 2. Each row is a slot" in re.sub(r"\s+", " ", shown.text)
