import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.config.rules import STAGES
from tilewright.errors import QualityError
from tilewright.io.results.result_file import checksum_path
from tilewright.quality.evaluate import QcRecord, apply_thresholds, read_qc, write_qc
from tilewright.quality.results import (
    METRICS,
    REASONS,
    QcContext,
    QcResult,
    Threshold,
    resolve_thresholds,
)
from tilewright.quality.summary import (
    stop_on_failure,
    trusted_markers,
    verdict_line,
    write_summary,
    write_trusted_markers,
)

LIMITS = resolve_thresholds({})
CHANNELS = [{"cycle": c, "channel": k, "marker": f"M{c}{k}"} for c in (1, 2) for k in ("1", "2")]


def item(metric: str, value: float | None, detail: str = "", **subject: Any) -> QcResult:
    base = {"sample": "s", "cycle": 1, "stage": "stitch"}
    return QcContext(**{**base, **subject}, thresholds=LIMITS).evaluate(metric, value, detail)


def test_the_table_holds_every_reason_and_no_other() -> None:
    assert set(REASONS) == {metric.reason for metric in METRICS.values()} | {"unknown"}
    assert {stage for metric in METRICS.values() for stage in metric.stages} == set(STAGES)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_fails_beyond_its_limit_and_says_so(name: str) -> None:
    limits = METRICS[name].threshold
    assert limits.fail is not None
    bad = limits.fail * 2 + 1 if limits.direction == "above" else limits.fail / 2
    found = item(name, bad)
    assert (found.verdict, found.reason) == ("fail", METRICS[name].reason)
    assert METRICS[name].bad in found.sentence
    at_the_limit = item(name, limits.warn if limits.warn is not None else limits.fail)
    assert (at_the_limit.verdict, at_the_limit.reason) == ("pass", "")
    if limits.warn is not None:
        assert item(name, (limits.warn + limits.fail) / 2).verdict == "warn"


@pytest.mark.parametrize("value", [None, math.nan])
def test_an_unknown_number_is_a_warning_with_its_reason(value: float | None) -> None:
    found = item("focus", value, "no tissue in view")
    assert (found.verdict, found.reason, found.value) == ("warn", "unknown", None)
    assert "no tissue in view" in found.sentence


def test_overrides_keep_what_they_do_not_name() -> None:
    limits = resolve_thresholds({"contrast": {"fail": 1.0}, "focus": {"warn": None}})
    assert limits["contrast"] == Threshold(METRICS["contrast"].threshold.warn, 1.0, "below")
    assert limits["focus"].warn is None
    assert limits["focus"].direction == "below"


def test_what_compares_tiles_does_not_apply_to_a_single_one() -> None:
    """Where limits are applied once more neither."""
    one = QcContext("tonsil", 1, "stitch", resolve_thresholds({}), tiles=1)
    found = one.evaluate("unlike_overlaps", None, "there is a single tile")
    assert (found.verdict, found.reason, found.value) == ("pass", "not_applicable", None)
    assert found.sentence.endswith("not applicable, there is a single tile.")
    assert one.evaluate("contrast", None).reason == "unknown"
    assert replace(one, tiles=2).evaluate("unlike_overlaps", None).reason == "unknown"
    record = QcRecord("tonsil", 1, "stitch", (found,), {}, "")
    assert apply_thresholds(record, {}, []).items == (found,)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"contrasts": {"fail": 1.0}}, "did you mean 'contrast'"),
        ({"saturated": {"warn": 9.0, "fail": 2.0}}, r"fail \(2.0\) must lie above warn \(9.0\)"),
    ],
)
def test_wrong_thresholds_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_thresholds(overrides)


def test_quality_files_come_back_as_they_were_written(tmp_path: Path) -> None:
    items = (item("hot_pixels", 0.005), item("focus", None))
    quality = QcRecord("s", 1, "stitch", items, {"planes": [1, 2.5, math.nan]}, "caption")
    path = tmp_path / "qc" / "stitch.json"
    write_qc(path, quality)
    back = read_qc(path)
    assert back.items == items
    assert back.numbers == {"planes": [1, 2.5, None]}
    assert json.loads(path.read_text())["verdict"] == "warn"
    first = path.read_bytes()
    write_qc(path, back)
    assert path.read_bytes() == first
    checksum_path(path).unlink()
    path.write_text('{"items": []}')
    with pytest.raises(ValueError, match=r"stitch\.json is no quality file"):
        read_qc(path)


def test_the_end_of_a_run_counts_its_channels() -> None:
    rows = [{"verdict": verdict} for verdict in ("fail", "pass", "pass")]
    line = verdict_line(rows, Path("trusted_markers.csv"), Path("report.html"))
    assert line == "quality by channel: 2 pass, 1 fail; see trusted_markers.csv and report.html"


def summarise(folder: Path, items: list[QcResult]) -> list[dict[str, str]]:
    paths = []
    for n, found in enumerate(items):
        paths.append(folder / f"{n}.json")
        write_qc(paths[-1], QcRecord(found.sample, found.cycle, found.stage, (found,), {}, ""))
    outputs = [folder / name for name in ("qc.json", "qc.csv", "trusted_markers.csv")]
    returned = write_summary(paths, *outputs[:2])
    assert write_trusted_markers(outputs[0], CHANNELS, outputs[2])[0] == returned
    assert sorted(i.metric for i in returned) == sorted(i.metric for i in items)
    with outputs[1].open() as file:
        assert len(list(csv.DictReader(file))) == len(items)
    assert len(json.loads(outputs[0].read_text())["items"]) == len(items)
    with outputs[2].open() as file:
        return list(csv.DictReader(file))


def test_markers_are_as_trusted_as_their_worst_item(tmp_path: Path) -> None:
    rows = summarise(
        tmp_path,
        [
            item("hot_pixels", 0.0, channel="1"),
            item("hot_pixels", 1.0, channel="2"),
            item("poor_blocks", 0.9, cycle=2, stage="register"),
            item("saturated", 1.0, sample="other", channel="1"),
        ],
    )
    verdicts = {(r["sample"], r["marker"]): (r["verdict"], r["reasons"]) for r in rows}
    assert verdicts["s", "M11"] == ("pass", "")
    assert verdicts["s", "M12"] == ("fail", "hot_pixels")
    # The registration of a cycle concerns each of its markers.
    assert verdicts["s", "M21"] == verdicts["s", "M22"] == ("fail", "poor_overlap")
    assert verdicts["other", "M11"] == ("fail", "saturated")
    assert verdicts["other", "M22"] == ("warn", "not_looked_at")


BLANK: dict[str, Any] = {"cycle": 2, "channel": "2"}


@pytest.mark.parametrize(
    ("of_background", "verdict", "reasons"),
    [
        ([item("poor_blocks", 0.9, cycle=2, stage="register")], "fail", "poor_overlap"),
        ([item("saturated", 0.5, **BLANK)], "fail", "saturated"),
        ([item("focus", 0.001, **BLANK)], "warn", "out_of_focus"),
        ([item("damaged_planes", 0.2, **BLANK, stage="edf")], "warn", "damaged_planes"),
        ([item("tile_brightness", None, **BLANK)], "warn", "unknown:tile_brightness"),
        ([item("saturated", 0.5, cycle=2, channel="1")], "pass", ""),
        ([item("oversubtracted", 0.5, **BLANK, stage="subtract")], "pass", ""),
        # Little autofluorescence is no fault, none at all is: nothing is known of the background.
        ([item("contrast", 4.2, **BLANK), item("focus", None, **BLANK)], "pass", ""),
        ([item("contrast", 1.2, **BLANK), item("focus", None, **BLANK)], "fail", "no_signal"),
        ([item("contrast", 4.2, **BLANK), item("hot_pixels", 0.5, **BLANK)], "fail", "hot_pixels"),
    ],
)
def test_a_marker_is_no_better_than_its_background(
    of_background: list[QcResult], verdict: str, reasons: str
) -> None:
    background = {**BLANK, "marker": "M22", "factor": 1.0}
    channels: list[dict[str, Any]] = [{**CHANNELS[0], "background": background}, CHANNELS[1]]
    good = [item("hot_pixels", 0.0, channel=channel) for channel in ("1", "2")]
    subtracted, other = trusted_markers([*good, *of_background], channels)
    assert (subtracted["verdict"], subtracted["reasons"]) == (verdict, reasons)
    assert other["verdict"] == "pass"


def test_a_background_of_the_same_cycle_counts() -> None:
    background = {"cycle": 1, "channel": "2", "marker": "M12", "factor": 1.0}
    items = [item("hot_pixels", 0.0, channel="1"), item("saturated", 0.5, channel="2")]
    (row,) = trusted_markers(items, [{**CHANNELS[0], "background": background}])
    assert (row["verdict"], row["reasons"]) == ("fail", "saturated")


def test_on_fail_stops_only_when_asked_and_names_the_items() -> None:
    items = [item("hot_pixels", 1.0, channel="2", marker="CD3"), item("hot_pixels", 0.0)]
    stop_on_failure(items, "continue")
    stop_on_failure(items[1:], "stop")
    with pytest.raises(QualityError, match=r"1 quality items failed.*\n.*cycle 1 CD3.*above 1 %"):
        stop_on_failure(items, "stop")
