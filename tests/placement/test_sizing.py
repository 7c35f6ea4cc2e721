"""How long rules take: configured, learned, kept, and shared by the runs of one person."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.cluster.request import KINDS, DeviceKind
from snakemake_scheduler_plugin_tilewright.declared import declared_model
from snakemake_scheduler_plugin_tilewright.placement.estimates import (
    Durations,
    Estimates,
    margin_of,
)
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job


def factors(durations: Durations, rule: str = "stitch") -> dict[DeviceKind, float]:
    return {kind: durations.factor(rule, kind) for kind in KINDS}


def learn(durations: Durations, kind: DeviceKind, *took_s: float, rule: str = "stitch") -> None:
    for seconds in took_s:
        durations.learn(rule, kind, 100.0, seconds)


def test_one_device_informs_the_other_until_it_ran_itself() -> None:
    durations = Durations(slowdown=4.0, slowdowns={"edf": 2.0})
    assert factors(durations) == {"cpu": 1.0, "gpu": 0.25}  # nothing is learned yet
    assert factors(durations, "edf") == {"cpu": 1.0, "gpu": 0.5}
    learn(durations, "cpu", 300.0)
    assert factors(durations) == pytest.approx({"cpu": 3.0, "gpu": 0.75})
    learn(durations, "gpu", 30.0, rule="edf")
    assert factors(durations, "edf") == pytest.approx({"cpu": 0.6, "gpu": 0.3})
    learn(durations, "gpu", 10.0)
    assert factors(durations) == pytest.approx({"cpu": 3.0, "gpu": 0.1})


def test_a_job_that_states_a_gpu_alone_is_not_taken_for_one_that_was_slower_on_cpus() -> None:
    estimates = Estimates(Durations())
    asked = SimpleNamespace(resources={"gpu": 1, "runtime": 60}, threads=1)
    job = Job("train", "train", ("gpu",), cpu_seconds=1800.0, model=declared_model(asked))
    assert estimates.seconds(job, "gpu") == 1800
    estimates.durations.learn("train", "gpu", 1800.0, 900.0)
    assert estimates.seconds(job, "gpu") == 900


def test_the_median_of_what_finished_counts_and_one_odd_job_does_not() -> None:
    durations = Durations()
    learn(durations, "cpu", 50.0, 60.0, 9000.0)
    assert durations.factor("stitch", "cpu") == 0.6
    assert durations.factor("edf", "cpu") == 1.0
    learn(durations, "cpu", *[200.0] * 100)
    assert durations.factor("stitch", "cpu") == 2.0


def test_the_margin_of_a_rule_follows_how_its_jobs_scatter() -> None:
    rng, durations = random.Random(3), Durations()
    assert durations.margin("stitch") == pytest.approx(0.4, abs=0.01)
    for rule, sd in (("steady", 0.02), ("uneven", 0.5)):
        for _ in range(30):
            learn(durations, "cpu", 100.0 * rng.lognormvariate(0, sd), rule=rule)
            learn(durations, "gpu", 20.0 * rng.lognormvariate(0, 1.0), rule=rule)
    assert durations.margin("steady") < 0.1
    assert 0.5 < durations.margin("uneven") < 1.0


@given(st.lists(st.floats(1e-3, 1e6), max_size=40))
def test_a_margin_is_a_share_whatever_was_measured(measured: list[float]) -> None:
    assert 0 < margin_of(measured) <= 1
    assert margin_of(measured) == pytest.approx(margin_of([7 * factor for factor in measured]))


@given(st.floats(-1, 1e6), st.integers(-1, 10**6))
def test_a_factor_stays_above_zero_whatever_was_measured(cpu_seconds: float, took_s: int) -> None:
    durations = Durations()
    durations.learn("stitch", "cpu", cpu_seconds, took_s)
    assert min(factors(durations).values()) > 0


def test_what_another_run_wrote_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "cache/durations.json"
    mine, other = Durations(path), Durations(path)
    learn(mine, "cpu", 100.0)
    learn(other, "cpu", 300.0)
    learn(other, "gpu", 20.0, rule="edf")
    other.save()
    mine.save()
    found = Durations(path)
    assert (found.factor("stitch", "cpu"), found.factor("edf", "gpu")) == (2.0, 0.2)
    mine.save()
    assert json.loads(path.read_text())["stitch cpu"] == [3.0, 1.0]
    assert [file.name for file in path.parent.iterdir()] == ["durations.json"]


def test_a_file_holds_the_last_jobs_of_all_runs(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    for run in range(4):
        durations = Durations(path)
        learn(durations, "cpu", *[100.0 * (run + 1)] * 20)
        durations.save()
    assert json.loads(path.read_text())["stitch cpu"] == [3.0] * 10 + [4.0] * 20


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[1]", b'"text"', b'{"stitch cpu": 3}', b'{"stitch cpu": ["3", null, -1, 0]}',
        b'{"stitch cpu": [NaN]}', b"\x00", b"\xff\xfe{}",
    ],
)  # fmt: skip
def test_a_damaged_file_holds_nothing_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "durations.json"
    path.write_bytes(content)
    durations = Durations(path)
    assert durations.factor("stitch", "cpu") == 1.0
    learn(durations, "cpu", 200.0)
    durations.save()
    assert Durations(path).factor("stitch", "cpu") == 2.0


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    durations = Durations(tmp_path / "file/durations.json")
    learn(durations, "cpu", 200.0)
    durations.save()
    assert durations.factor("stitch", "cpu") == 2.0
