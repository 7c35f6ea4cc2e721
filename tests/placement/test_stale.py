"""Jobs that write into a folder before a run begins there: whose they are, and what is done."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from snakemake_scheduler_plugin_tilewright.placement.jobs import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.ledger import LEDGER, STATE
from snakemake_scheduler_plugin_tilewright.placement.site import Site
from snakemake_scheduler_plugin_tilewright.placement.stale import (
    before_run,
    deal_with_stale,
    sender_of,
)
from snakemake_scheduler_plugin_tilewright.runtime.run_state import RunState, write_state
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient, Unknown
from tests.support.recorded import HERE, OTHERS, cluster_with, queue_line

ENDING = queue_line(JobID="7", State="COMPLETING", WorkDir="/data/run", Comment="rule_a")
PENDING = queue_line(JobID="5", State="PENDING", WorkDir="/data/run", Comment="group_b")


@dataclass
class Slurm:
    """Answers of squeue one after the other, the last for ever; what was cancelled."""

    answers: list[str | Unknown]
    cancelled: list[tuple[str, ...]] = field(default_factory=list)
    cancelling: str | Unknown = ""
    slept_s: list[float] = field(default_factory=list)
    now_s: float = 0.0

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str | Unknown:
        if argv[0] == "scancel":
            self.cancelled.append(tuple(argv[1:]))
            return self.cancelling
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


def deal(slurm: Slurm, choice: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(time, "sleep", slurm.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: slurm.now_s)
    said: list[str] = []
    client = SlurmClient("ada", folder, run=slurm, clock=lambda: 1000.0)
    deal_with_stale(client, "/data/run", choice, said.append)
    return said


@pytest.mark.parametrize("choice", ["refuse", "wait", "cancel"])
def test_nothing_stale_needs_nothing(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(["\n".join(OTHERS)])
    assert deal(slurm, choice, tmp_path, monkeypatch) == []
    assert (slurm.cancelled, slurm.slept_s) == ([], [])


def test_refusing_names_the_jobs_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(["\n".join([HERE, PENDING, *OTHERS])])
    with pytest.raises(PlacementError) as caught:
        deal(slurm, "refuse", tmp_path, monkeypatch)
    text = str(caught.value)
    assert text.startswith("2 jobs of an earlier run may still write into /data/run:")
    assert "7  RUNNING    rule_stitch_wildcards_a" in text
    assert "5  PENDING    group_b" in text
    assert "tilewright-placement stale --wait" in text
    assert "--unlock" in text
    assert slurm.cancelled == []


def test_cancelling_waits_until_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(["\n".join([HERE, PENDING]), ENDING, ENDING, "\n".join(OTHERS)])
    said = deal(slurm, "cancel", tmp_path, monkeypatch)
    assert slurm.cancelled == [("7", "5")]
    assert slurm.slept_s == [1.0, 1.0]
    assert said[1:] == ["cancelled; waiting until they are gone", *["waiting for 1: 7"] * 2]


def test_waiting_cancels_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm([HERE, HERE, PENDING, ""])
    said = deal(slurm, "wait", tmp_path, monkeypatch)
    assert (slurm.cancelled, slurm.slept_s) == ([], [10.0, 10.0])
    assert said[1:] == ["waiting for 1: 7", "waiting for 1: 5"]


@pytest.mark.parametrize("choice", ["wait", "cancel"])
def test_nothing_is_waited_for_or_cancelled_behind_a_lock_that_stays(
    choice: Literal["wait", "cancel"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = queue_line(JobID="7", State="RUNNING", WorkDir=str(Path.cwd()), Comment="rule_a")
    cluster = replace(cluster_with(here, tmp_path)[0], site=Site(stale=choice))
    lock = tmp_path / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    with pytest.raises(PlacementError, match="run it with --unlock first"):
        before_run(cluster, ["snakemake", "qc"])


def test_the_lock_of_the_run_itself_is_none_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WaitsError(Exception):
        pass

    def wait(seconds: float) -> None:
        raise WaitsError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("snakemake_scheduler_plugin_tilewright.placement.stale.time.sleep", wait)
    here = queue_line(JobID="7", State="RUNNING", WorkDir=str(Path.cwd()), Comment="rule_a")
    cluster = replace(cluster_with(here, tmp_path)[0], site=Site(stale="wait"))
    lock = tmp_path / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    with pytest.raises(WaitsError):
        before_run(cluster, ["snakemake", "qc"], has_lock=True)


def test_jobs_that_are_being_ended_are_waited_for_and_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm([ENDING, ENDING, ""])
    said = deal(slurm, "refuse", tmp_path, monkeypatch)
    assert said == ["waiting for a job that is being ended"] * 2
    for_ever = Slurm([ENDING])
    with pytest.raises(PlacementError, match="7  COMPLETING rule_a"):
        deal(for_ever, "refuse", tmp_path, monkeypatch)
    assert 100 < for_ever.now_s < 130


@pytest.mark.parametrize("choice", ["refuse", "wait", "cancel"])
def test_a_queue_that_is_not_known_stops_the_run(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PlacementError, match="is not known: squeue did not answer: refused"):
        deal(Slurm([Unknown("squeue", "refused")]), choice, tmp_path, monkeypatch)


def test_only_a_run_looks_for_stale_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = queue_line(JobID="7", State="RUNNING", WorkDir=str(Path.cwd()), Comment="rule_a")
    cluster, _ = cluster_with(here, tmp_path)
    assert cluster.site == Site()
    before_run(cluster, ["snakemake", "-n"])
    before_run(None, ["snakemake"])
    for argv in (["snakemake"], ["snakemake", "--unlock"]):
        with pytest.raises(PlacementError, match="still write into"):
            before_run(cluster, argv)


def test_a_folder_that_squeue_cannot_show_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a\nb"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(PlacementError, match="has a line break in its name"):
        before_run(cluster_with("", tmp_path)[0], ["snakemake"])


def test_jobs_that_cannot_be_cancelled_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm([HERE], cancelling=Unknown("scancel", "Invalid user"))
    with pytest.raises(PlacementError, match=r"could not be cancelled: scancel .* Invalid user"):
        deal(slurm, "cancel", tmp_path, monkeypatch)


def test_waiting_outlasts_a_slurmctld_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Unknown("squeue", "Unable to contact slurm controller")
    slurm = Slurm([HERE, HERE, *4 * [away], HERE, ""])  # each question is asked twice
    said = deal(slurm, "wait", tmp_path, monkeypatch)
    assert sum("Unable to contact" in line for line in said) == 2
    assert len(slurm.slept_s) == 4
    with pytest.raises(PlacementError, match="Unable to contact"):
        deal(Slurm([HERE, HERE, away]), "wait", tmp_path, monkeypatch)


def said_here(folder: Path, **values: Any) -> RunState:
    """Write what a run of another process says in its working directory."""
    state = RunState(time.time() - 60, time.time() - 20, {"a": 2}, {}, **values)
    write_state(folder / LEDGER.with_name(STATE), state)
    return state


def locked(folder: Path) -> None:
    lock = folder / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()


def ended_pid() -> int:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def test_a_run_says_itself_that_it_is_active_and_the_lock_says_less(tmp_path: Path) -> None:
    assert sender_of(tmp_path).active is False
    locked(tmp_path)
    assert sender_of(tmp_path).active is None
    assert sender_of(tmp_path, has_lock=True).active is False
    state = said_here(tmp_path, pid=os.getppid())
    active = sender_of(tmp_path, has_lock=True)
    assert active.active is True
    assert active.words == (
        f"of the run that is active now (process {state.pid} on {state.host}, seen 20 s ago)"
    )
    assert f"`kill -INT {state.pid}` on {state.host}" in active.advice
    said_here(tmp_path, pid=ended_pid())
    assert sender_of(tmp_path).active is False
    said_here(tmp_path, pid=os.getppid(), ended=True)
    assert sender_of(tmp_path).active is None
    said_here(tmp_path, pid=os.getpid())
    assert sender_of(tmp_path, has_lock=True).active is False


def test_a_run_on_another_machine_is_active_while_it_writes(tmp_path: Path) -> None:
    state = said_here(tmp_path, host="another", pid=7)
    assert sender_of(tmp_path).active is True
    write_state(tmp_path / LEDGER.with_name(STATE), replace(state, at_s=time.time() - 7200))
    silent = sender_of(tmp_path)
    assert silent.active is None
    assert "process 7 on another was last heard of 2.0 h ago" in silent.words
    assert "only where that run is not active" in silent.advice


def test_a_state_that_is_damaged_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / LEDGER.with_name(STATE)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert sender_of(tmp_path).active is False


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Return what deals with one job there that is gone when it was asked for twice."""
    here = queue_line(JobID="7", State="RUNNING", WorkDir=str(folder), Comment="rule_a")

    def deal(choice: str) -> list[str]:
        slurm = Slurm([here, ""])
        monkeypatch.setattr(time, "sleep", slurm.sleep)
        said: list[str] = []
        client = SlurmClient("ada", folder, run=slurm, clock=lambda: 1000.0)
        deal_with_stale(client, str(folder), choice, said.append)
        return [*said, *(" ".join(("scancel", *argv)) for argv in slurm.cancelled)]

    return deal


def test_the_jobs_of_an_active_run_are_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deal = in_folder(tmp_path, monkeypatch)
    said_here(tmp_path, pid=os.getppid())
    with pytest.raises(PlacementError, match="while that run is active; stop it first: Ctrl-C"):
        deal("cancel")
    with pytest.raises(PlacementError) as caught:
        deal("refuse")
    assert "1 job of the run that is active now (process" in str(caught.value)
    assert "--cancel" not in str(caught.value)
    assert deal("wait")[0].startswith("1 job of the run that is active now")


def test_where_it_is_not_known_that_is_said_and_what_was_asked_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deal = in_folder(tmp_path, monkeypatch)
    locked(tmp_path)
    said = deal("cancel")
    assert said[0].startswith("1 job of a run that may be active (the folder is locked, by a run")
    assert said[-1] == "scancel 7"


def test_a_site_that_cancels_spares_the_active_run_that_took_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = queue_line(JobID="7", State="RUNNING", WorkDir=str(Path.cwd()), Comment="rule_a")
    cluster, recorded = cluster_with(here, tmp_path)
    said_here(tmp_path, pid=os.getppid())
    for has_lock in (True, False):
        with pytest.raises(PlacementError, match="not cancelled while that run is active"):
            before_run(
                replace(cluster, site=Site(stale="cancel")), ["snakemake"], has_lock=has_lock
            )
    assert not any(word.startswith("scancel") for word in recorded.asked)


def test_behind_a_lock_it_is_said_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = queue_line(JobID="7", State="RUNNING", WorkDir=str(Path.cwd()), Comment="rule_a")
    cluster = replace(cluster_with(here, tmp_path)[0], site=Site(stale="wait"))
    locked(tmp_path)
    said_here(tmp_path, pid=os.getppid())
    with pytest.raises(PlacementError, match="start it again after that run"):
        before_run(cluster, ["snakemake"])
    said_here(tmp_path, pid=ended_pid())
    with pytest.raises(PlacementError, match="it left the folder locked"):
        before_run(cluster, ["snakemake"])


def test_a_run_takes_options_for_slurm_out_of_its_environment_and_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SQUEUE_ACCOUNT", "SBATCH_QOS", "SLURM_CONF"):
        monkeypatch.setenv(name, "own")
    cluster, _ = cluster_with("", tmp_path)
    before_run(cluster, ["snakemake", "-n"])
    assert "SBATCH_QOS" in os.environ
    before_run(cluster, ["snakemake"])
    assert not {"SBATCH_QOS", "SQUEUE_ACCOUNT"} & os.environ.keys()
    assert os.environ["SLURM_CONF"] == "own"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("this run takes SBATCH_QOS, SQUEUE_ACCOUNT out of its environment: ")
    before_run(cluster, ["snakemake"])
    assert not capsys.readouterr().err
