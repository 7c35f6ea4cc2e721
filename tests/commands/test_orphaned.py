"""``tilewright-placement orphaned`` on recorded queues, and without Slurm."""

from pathlib import Path
from typing import Literal

import pytest
from typer.testing import CliRunner

from snakemake_scheduler_plugin_tilewright.cli import app
from snakemake_scheduler_plugin_tilewright.commands.orphaned import list_orphaned
from snakemake_scheduler_plugin_tilewright.errors import PlacementError, SlurmQueryError
from snakemake_scheduler_plugin_tilewright.placement.orphaned import before_run
from tests.support.recorded import HERE, OTHERS, cluster_with


@pytest.mark.parametrize(("choice", "left"), [("list", 1), ("cancel", 0)])
def test_jobs_of_this_folder_are_listed_or_cancelled(
    choice: Literal["list", "cancel"], left: int, tmp_path: Path
) -> None:
    cluster, recorded = cluster_with("\n".join([HERE, *OTHERS]), tmp_path)
    said: list[str] = []
    assert list_orphaned(cluster.client, "/data/run", choice, said.append) == left
    text = "\n".join(said)
    assert "7  RUNNING    rule_stitch_wildcards_a" in text
    assert not any(job in text for job in ("8  ", "9  ", "6  "))
    assert ("scancel 7" in recorded.asked) == (choice == "cancel")


def test_the_commands_that_go_on_are_said_where_the_folder_is_locked(tmp_path: Path) -> None:
    lock = tmp_path / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True)
    cluster, _ = cluster_with("", tmp_path)
    said: list[str] = []
    list_orphaned(cluster.client, str(tmp_path), "cancel", said.append)
    assert len(said) == 1
    lock.touch()
    list_orphaned(cluster.client, str(tmp_path), "cancel", said.append)
    unlock, again = said[-1].splitlines()[-2:]
    assert (unlock.split()[-1], again.split()[-1]) == ("--unlock", "--rerun-incomplete")


@pytest.mark.parametrize(
    "queue",
    [SlurmQueryError("squeue", "no answer within 15 s")]
    + [
        f"{line}\n{queue}"
        for line in ("Welcome! Maintenance on Friday.", HERE[:20], "\x00\x7fELF")
        for queue in ("", HERE)
    ],
)
def test_a_queue_that_is_not_known_or_cannot_be_read_is_not_an_empty_one(
    queue: str | SlurmQueryError, tmp_path: Path
) -> None:
    words = "holds no record" if isinstance(queue, str) else "squeue did not answer"
    cluster, _ = cluster_with(queue, tmp_path)
    with pytest.raises(PlacementError, match=rf"is not known: .*{words}") as said:
        list_orphaned(cluster.client, "/data/run", "list", print)
    assert str(said.value).isprintable()
    with pytest.raises(PlacementError, match=words):
        before_run(cluster, ["snakemake"])


def test_nothing_is_left_where_there_is_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_SITE", raising=False)
    done = CliRunner().invoke(app, ["orphaned"])
    assert (done.exit_code, done.output.count("\n")) == (0, 1)
    assert CliRunner().invoke(app, ["orphaned", "--wait", "--cancel"]).exit_code == 1
