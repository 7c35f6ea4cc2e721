from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.report.runs import lanes, use_of
from snakemake_scheduler_plugin_tilewright.runtime.files import append_json
from tests.support.report_pages import Page, report
from tilewright.config.layout import Layout
from tilewright.devices.budget import Request
from tilewright.devices.evidence import Held
from tilewright.report.devices.section import device_section
from tilewright.report.devices.use import (
    ENOUGH,
    GAP_S,
    DeviceJob,
    Slot,
    device_runs,
    failures,
    idle_fraction,
    jobs_of,
    slot_of,
)

T0 = 1_795_252_000.0
MIB, GIB = 2**20, 2**30
GPU = {k: f"GPU-0000000{k}-1111-2222-3333-444444444444" for k in (1, 2)}


def line(job: str, at_s: float, held_s: float, device: int = 1, **values: Any) -> dict[str, Any]:
    return {
        "time_s": T0 + at_s, "job": job, "group": "s1c1", "uuid": GPU[device], "driver": "1",
        "requested_b": 2 * GIB, "whole": False, "granted_b": 2 * GIB, "waited_s": 0.0,
        "held_s": held_s, "idle_fraction": None, "peak_b": None, "splits": 0, "outcome": "done",
        "reason": "", **values,
    }  # fmt: skip


#: 100 s on two devices: the first is leased for 60 s, the second for 100 s.
SMALL = [
    line("stitch/a", 0, 40, idle_fraction=0.5, peak_b=GIB),
    line("stitch/b", 20, 30, idle_fraction=0.1, peak_b=GIB // 2, waited_s=10.0),
    line("deconvolve/a", 90, 10, granted_b=4 * GIB, requested_b=3 * GIB, waited_s=4.0, splits=2),
    line("stitch/c", 0, 100, device=2, waited_s=0.0),
]


def test_what_is_asked_for_a_whole_device_tells_nothing() -> None:
    jobs = jobs_of([line("stitch/a", 0, 9, whole=True), line("stitch/b", 1, 9)])
    assert [job.asked_b for job in jobs] == [None, 2 * GIB]


def small(**values: Any) -> list[DeviceJob]:
    return jobs_of([{**each, **values} for each in SMALL])


def write(path: Path, lines: list[dict[str, Any]], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + tail)
    return path


def measured(count: int, peak_mib: float, **values: Any) -> list[DeviceJob]:
    lines = (line(f"edf/{k}", k, 1, peak_b=int(peak_mib * MIB), **values) for k in range(count))
    return jobs_of(lines)


def section_of(folder: Path, lines: list[dict[str, Any]], tail: str = "") -> dict[str, Any]:
    section = device_section(write(folder / "devices.jsonl", lines, tail))
    assert section is not None
    return dict(section)


def test_use_of_each_rule_is_exact(tmp_path: Path) -> None:
    stitch, deconvolve = section_of(tmp_path, SMALL)["rules"]
    assert stitch == {
        "rule": "stitch", "jobs": 3, "waited": "0 s / 10 s", "held": "40 s / 1.7 min",
        "idle": "33 %", "asked": "2048 / 2048", "granted": "2048 / 2048", "peak": "768 / 1024",
        "splits": 0,
    }  # fmt: skip
    assert idle_fraction(small()) == pytest.approx((0.5 * 40 + 0.1 * 30) / 70)
    assert deconvolve == {
        "rule": "deconvolve", "jobs": 1, "waited": "4 s / 4 s", "held": "10 s / 10 s",
        "idle": "–", "asked": "3072 / 3072", "granted": "4096 / 4096", "peak": "–",  # noqa: RUF001
        "splits": 2,
    }  # fmt: skip


def test_jobs_without_a_device_wait_and_ask_but_hold_nothing(tmp_path: Path) -> None:
    none = line("stitch/d", 50, 0, waited_s=50.0, outcome="not granted", granted_b=0, uuid="")
    none["requested_b"] = 8 * GIB
    stitch = section_of(tmp_path, [*SMALL, none])["rules"][0]
    assert (stitch["jobs"], stitch["waited"], stitch["asked"]) == (4, "5 s / 50 s", "2048 / 8192")
    assert (stitch["held"], stitch["granted"]) == ("40 s / 1.7 min", "2048 / 2048")
    (run,) = device_runs(jobs_of([*SMALL, none]))
    assert set(run.pools) == set(GPU.values())
    assert len(run.bars) == 4


def test_a_device_is_leased_while_any_job_holds_it() -> None:
    first, second = use_of(device_runs(small()))
    assert (first.busy_s, first.idle_s) == pytest.approx((60, 40))
    assert (second.busy_s, second.idle_s) == pytest.approx((100, 0))
    within = jobs_of([line("edf/a", 0, 50), line("edf/b", 10, 5)])
    (use,) = use_of(device_runs(within))
    assert (use.busy_s, use.idle_s) == pytest.approx((50, 0))


def test_leases_far_apart_are_two_runs_and_the_wait_belongs_to_its_run() -> None:
    after_s = 100 + GAP_S + 1
    apart = [*SMALL, line("edf/a", after_s, 1)]
    first, second = device_runs(jobs_of(apart))
    assert (first.number, first.span_s, second.number, second.span_s) == (1, 100, 2, 1)
    waiting = [*SMALL, line("edf/a", after_s, 1, waited_s=5.0)]
    (run,) = device_runs(jobs_of(waiting))
    assert (len(run.bars), run.span_s) == (5, after_s + 1)
    # A long job keeps its run together.
    lines = [line("edf/a", 0, 4 * GAP_S), line("edf/b", 1, 1), line("edf/c", 3 * GAP_S, 1)]
    assert len(device_runs(jobs_of(lines))) == 1


def test_a_slot_is_the_largest_peak_with_a_margin_in_whole_steps() -> None:
    # 1000 MiB and 20 % are 1200 MiB, and 19 steps of 64 MiB are 1216 MiB
    jobs = [*measured(ENOUGH - 1, 10), *measured(1, 1000)]
    assert slot_of(jobs) == Slot(1216, 1000 * MIB, ENOUGH, 0, 0)
    assert slot_of(measured(ENOUGH, 160)).mib == 192
    assert slot_of(jobs[1:]).mib is None
    failed = measured(1, 9000, outcome="failed", reason="ValueError: x")
    assert slot_of([*jobs[1:], *failed]).mib is None
    assert slot_of([*jobs, *failed]).mib == 1216


@pytest.mark.parametrize(
    "values",
    [
        {"splits": 1},
        {"outcome": "failed", "reason": "OutOfMemoryError: Out of memory allocating 5 bytes"},
    ],
)
def test_a_rule_that_was_short_of_memory_needs_more(values: dict[str, Any]) -> None:
    short = measured(1, 2048, **values)
    assert slot_of([*measured(9, 1000), *short]) == Slot(None, 0, 0, 1, 2 * GIB)
    more = measured(ENOUGH, 3000, granted_b=4 * GIB)
    assert slot_of([*measured(9, 1000), *short, *more]).mib == 3648
    unknown = measured(1, 2048, **values, granted_b=None)
    assert slot_of([*more, *unknown]).mib is None
    other = measured(1, 2048, outcome="failed", reason="ValueError: bad pixel")
    assert slot_of([*measured(9, 1000), *other]).short == 0


def test_reasons_that_differ_in_numbers_are_counted_together() -> None:
    reasons = ["no memory for 1,024 bytes", "no memory for 77 bytes", "job edf/2 broke"]
    jobs = jobs_of(
        line(f"edf/{k}", k, 1, outcome="failed", reason=r) for k, r in enumerate(reasons)
    )
    found = failures([*jobs, *measured(2, 1)])
    assert found == [("failed", reasons[0], 2), ("failed", "job … broke", 1)]


def test_lines_that_are_damaged_or_hold_nulls_do_no_harm(tmp_path: Path) -> None:
    nulls = {key: None for key in SMALL[0] if key not in ("time_s", "job")}
    no_job = [{**SMALL[0], "job": None}, {**SMALL[0], "job": ""}]
    lines = [*SMALL, {**SMALL[0], **nulls}, {**SMALL[0], "time_s": None}, *no_job]
    lines.append({**SMALL[0], "held_s": -4, "granted_b": "much", "uuid": 7})
    section = section_of(tmp_path, lines, '[3]\nnull\n{"time_s": NaN, "job": "a/b"}\n{"t')
    assert section["lead"].startswith("6 jobs on 2 devices in 1 run; ")
    assert "Not drawn: 2 jobs of unknown" in section["caption"]
    (stitch,) = [rule for rule in section["rules"] if rule["rule"] == "stitch"]
    assert (stitch["jobs"], stitch["held"]) == (5, "40 s / 1.7 min")


def test_where_no_job_got_a_device_there_is_no_picture(tmp_path: Path) -> None:
    none = line(
        "edf/a", 0, 0, outcome="not granted", uuid="", granted_b=0, reason="none is visible"
    )
    section = section_of(tmp_path, [none])
    assert section["picture"] == ""
    assert section["lead"].endswith("1 got no device.")


@pytest.mark.parametrize("name", ["GPU-{:08d}", "MIG-GPU-1111/{}/0"])
def test_every_job_is_drawn_and_devices_are_named_as_short_as_they_differ(
    tmp_path: Path, name: str
) -> None:
    lines = [line(f"stitch/{k}", k, 30, uuid=name.format(k % 8) + "-1111") for k in range(500)]
    section = section_of(tmp_path, lines)
    bars = re.findall(r'<path class="bar" d="([^"]*)"', section["picture"])
    assert sum(bar.count("z") for bar in bars) == 500
    for device in range(8):
        label = name.format(device).removesuffix("/0")
        assert f">{label} GPU<" in section["picture"], label


def test_jobs_that_did_not_share_a_device_are_not_drawn_so() -> None:
    waits = line("stitch/a", 10, 10, waited_s=10.0)
    passed = line("stitch/b", 1, 8, waited_s=0.5)
    successor = line("stitch/c", 19.9994, 5)
    (run,) = device_runs(jobs_of([waits, passed, successor]))
    assert lanes(run.bars) == [0, 0, 0]


def test_the_report_has_the_section_only_where_there_is_evidence(tmp_path: Path) -> None:
    plain = report(tmp_path)
    assert 'id="devices"' not in plain
    assert report(tmp_path, devices=tmp_path / "absent.jsonl") == plain
    assert report(tmp_path, devices=write(tmp_path / "empty", [], '{"time_s"')) == plain
    path = write(tmp_path / "devices.jsonl", SMALL)
    full = report(tmp_path, devices=path)
    assert report(tmp_path, devices=path) == full
    section = re.compile(r'<section class="detail" aria-labelledby="devices">.*?</section>', re.S)
    assert section.sub("", full) == plain != full


def test_the_report_shows_pictures_numbers_failures_and_slots(tmp_path: Path) -> None:
    why: dict[str, Any] = {"outcome": "failed", "reason": "ValueError: <bad>"}
    many = [line(f"edf/{k}", 5000 + k, 1, peak_b=1000 * MIB) for k in range(ENOUGH)]
    path = write(tmp_path / "d.jsonl", [*SMALL, *many, line("edf/x", 5000, 1, **why)])
    shown = Page(report(tmp_path, devices=path))
    (picture,) = (a for tag, a in shown.tags if tag == "svg")
    assert str(picture["aria-label"]).startswith("10 jobs on 2 devices in 2 runs; ")
    text = re.sub(r"\s+", " ", shown.text)
    for words in (
        "10 jobs on 2 devices in 2 runs; a device that was used was leased",
        "Run 2 began 2026-11-21 10:30 UTC and took 5 s.",
        "ValueError: <bad>", "40 s / 1.7 min", "33 %", "768 / 1024",
        "1216resources.edf.gpu_mem_mb 5 jobs measured, largest peak 1000 MiB",
        "0 jobs measured; 1 halved tiles or ran out of memory with up to 4096 MiB",
        "–resources.stitch.gpu_mem_mb 2 jobs measured, largest peak 1024 MiB",  # noqa: RUF001
        "the largest peak and 20 %, rounded up to 64 MiB, where 5 jobs",
    ):  # fmt: skip
        assert words in text, words


def test_only_the_last_runs_count(tmp_path: Path) -> None:
    lines = [line("edf/a", 5000 * k, 1) for k in range(5)]
    section = section_of(tmp_path, lines)
    assert [f">run {k}<" in section["picture"] for k in range(1, 6)] == [False, False, *[True] * 3]
    assert section["lead"].startswith("3 jobs")
    assert "Earlier runs, 2 in number, are not counted." in section["caption"]


def test_what_a_lease_writes_is_what_is_read(tmp_path: Path) -> None:
    held = Held(GPU[1], 3 * GIB, 1.5, "1", busy_s=0.0, peak_b=GIB, splits=1, reason="split")
    path = Path(Layout(str(tmp_path)).device_evidence)
    append_json(path, held.evidence(Request(2 * GIB, "edf/s_cycle1"), "done"))
    assert path == tmp_path / "placement/devices.jsonl"
    (job,) = jobs_of(json.loads(text) for text in path.read_text().splitlines())
    assert (job.rule, job.uuid, job.outcome, job.reason) == ("edf", GPU[1], "done", "split")
    assert (job.asked_b, job.granted_b, job.peak_b) == (2 * GIB, 3 * GIB, GIB)
    assert (job.waited_s, job.idle_fraction, job.splits) == (1.5, 1.0, 1)
    assert job.on_device
