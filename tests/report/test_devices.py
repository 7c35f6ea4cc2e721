import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright import append_json
from tests.support.report_pages import Page, report
from tilewright.config.layout import Layout
from tilewright.report.devices import ENOUGH, device_section, suggested_mib
from tilewright.runtime.gpu import UsageRecord

MIB, GIB = 2**20, 2**30


def line(job: str, held_s: float = 1, **values: Any) -> dict[str, Any]:
    return {
        "time_s": 1.0, "job": job, "uuid": "GPU-1", "requested_b": 2 * GIB, "granted_b": 2 * GIB,
        "waited_s": 0.0, "held_s": held_s, "peak_b": None, "splits": 0, "outcome": "done",
        "reason": "", **values,
    }  # fmt: skip


SMALL = [
    line("stitch/a", 400, peak_b=GIB),
    line("stitch/b", 300, peak_b=GIB // 2, waited_s=10.0),
    line("deconvolve/a", 36, granted_b=4 * GIB, waited_s=4.0, splits=2),
    line("stitch/c", 20),
]


def write(path: Path, lines: list[dict[str, Any]], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + tail)
    return path


def measured(count: int, peak_mib: float, **values: Any) -> list[dict[str, Any]]:
    return [line(f"edf/{k}", peak_b=int(peak_mib * MIB), **values) for k in range(count)]


def section_of(folder: Path, lines: list[dict[str, Any]], tail: str = "") -> dict[str, Any]:
    section = device_section(write(folder / "devices.jsonl", lines, tail))
    assert section is not None
    return dict(section)


def test_the_row_of_each_rule_is_exact(tmp_path: Path) -> None:
    none = line("stitch/d", 0, waited_s=50.0, outcome="not granted", granted_b=0, uuid="")
    failures = [
        line("stitch/e", 0, outcome="failed", reason=why) for why in ("GPU is lost", "x", "y")
    ]
    stitch, deconvolve = section_of(tmp_path, [*SMALL, none, *failures])["rules"]
    assert stitch == {
        "rule": "stitch", "jobs": 7, "hours": 0.2, "waits": (0.0, 50.0), "peak_mib": 1024,
        "halved": 0, "causes": "device 1, no device 1, other 2", "gpu_mem_mb": None,
    }  # fmt: skip
    assert deconvolve == {
        "rule": "deconvolve", "jobs": 1, "hours": 0.01, "waits": (4.0, 4.0), "peak_mib": None,
        "halved": 2, "causes": "", "gpu_mem_mb": None,
    }  # fmt: skip


def test_the_suggestion_is_the_largest_peak_with_a_margin_in_whole_steps() -> None:
    # 1000 MiB and 20 % are 1200 MiB, and 19 steps of 64 MiB are 1216 MiB
    jobs = [*measured(ENOUGH - 1, 10), *measured(1, 1000)]
    assert suggested_mib(jobs) == 1216
    assert suggested_mib(measured(ENOUGH, 160)) == 192
    assert suggested_mib(jobs[1:]) is None
    failed = measured(1, 9000, outcome="failed", reason="ValueError: x")
    assert suggested_mib([*jobs[1:], *failed]) is None
    assert suggested_mib([*jobs, *failed]) == 1216


@pytest.mark.parametrize(
    "values",
    [
        {"splits": 1},
        {"outcome": "failed", "reason": "OutOfMemoryError: Out of memory allocating 5 bytes"},
    ],
)
def test_a_rule_that_was_short_of_memory_needs_more(values: dict[str, Any]) -> None:
    short = measured(1, 2048, **values)
    assert suggested_mib([*measured(9, 1000), *short]) is None
    more = measured(ENOUGH, 3000, granted_b=4 * GIB)
    assert suggested_mib([*measured(9, 1000), *short, *more]) == 3648
    assert suggested_mib([*more, *measured(1, 2048, **values, granted_b=None)]) is None


def test_lines_that_are_damaged_are_counted_and_nulls_do_no_harm(tmp_path: Path) -> None:
    nulls = {key: None for key in SMALL[0] if key != "job"}
    no_job = [{**SMALL[0], "job": None}, {**SMALL[0], "job": ""}]
    bad = [{**SMALL[0], "held_s": -4}, {**SMALL[0], "granted_b": "much"}, *no_job]
    section = section_of(tmp_path, [*SMALL, {**SMALL[0], **nulls}, *bad], '[3]\nnull\n{"t')
    assert section["notes"] == [f"7 damaged lines of {tmp_path / 'devices.jsonl'} are ignored"]
    assert section["rules"][0]["jobs"] == 4


def test_the_report_has_the_section_only_where_there_is_evidence(tmp_path: Path) -> None:
    plain = report(tmp_path)
    assert 'id="devices"' not in plain
    assert report(tmp_path, devices=tmp_path / "absent.jsonl") == plain
    assert report(tmp_path, devices=write(tmp_path / "empty", [], '{"job"')) == plain
    path = write(tmp_path / "devices.jsonl", SMALL)
    full = report(tmp_path, devices=path)
    assert report(tmp_path, devices=path) == full
    section = re.compile(r'<section class="detail" aria-labelledby="devices">.*?</section>', re.S)
    assert section.sub("", full) == plain != full


def test_the_report_shows_the_table_and_no_markup_of_a_line(tmp_path: Path) -> None:
    lines = [*SMALL, *measured(ENOUGH, 1000), line("<b>/x")]
    shown = Page(report(tmp_path, devices=write(tmp_path / "d.jsonl", lines)))
    text = re.sub(r"\s+", " ", shown.text)
    for words in (
        "resources.edf.gpu_mem_mb: 1216", "resources.", "<b>", "10 s", "0.20",
        "the largest peak and 20 %, rounded up to 64 MiB, where 5 jobs",
    ):  # fmt: skip
        assert words in text, words


def test_what_a_job_writes_is_what_is_read(tmp_path: Path) -> None:
    record = UsageRecord(
        "edf/s_cycle1",
        2 * GIB,
        "GPU-1",
        3 * GIB,
        waited_s=1.5,
        peak_b=GIB,
        splits=1,
        outcome="done",
    )
    path = Path(Layout(str(tmp_path)).device_evidence)
    append_json(path, asdict(record))
    assert path == tmp_path / "placement/devices.jsonl"
    section = device_section(path)
    assert section is not None
    assert section["notes"] == []
    (row,) = section["rules"]
    assert (row["rule"], row["waits"], row["peak_mib"], row["halved"]) == (
        "edf", (1.5, 1.5), 1024, 1,
    )  # fmt: skip
