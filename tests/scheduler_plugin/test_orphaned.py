"""``tilewright-placement orphaned`` on recorded queues, and without Slurm."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from snakemake_scheduler_plugin_tilewright import orphaned
from snakemake_scheduler_plugin_tilewright.cli import app
from snakemake_scheduler_plugin_tilewright.orphaned import before_run
from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError, SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.support.recorded import HERE, OTHERS, Queue, client

Show = Callable[..., tuple[str | int | None, str]]


@pytest.fixture
def show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Show:
    """Run the command in a folder on a recorded queue; return its end and what it printed."""

    def show(asking: SlurmClient, *, cancel: bool = False) -> tuple[str | int | None, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(orphaned, "own_client", lambda: asking)
        monkeypatch.setattr(orphaned, "has_slurm", lambda: True)
        try:
            orphaned.show_orphaned(cancel=cancel)
        except SystemExit as end:
            return end.code, capsys.readouterr().out
        return 0, capsys.readouterr().out

    return show


@pytest.mark.parametrize("cancel", [False, True])
def test_jobs_of_this_folder_are_listed_or_cancelled(
    cancel: bool, tmp_path: Path, show: Show
) -> None:
    lines = [line.replace("/data/run", str(tmp_path)) for line in (HERE, *OTHERS)]
    recorded = Queue({"squeue": "\n".join(lines)})
    status, text = show(client(recorded), cancel=cancel)
    assert status == (not cancel)
    assert "7  RUNNING    rule_stitch_wildcards_a" in text
    assert not any(job in text for job in ("8  ", "9  ", "6  "))
    assert ("scancel 7" in recorded.asked) == cancel
    end = "cancelled; Slurm ends them soon" if cancel else "wait until they have ended (`tilew"
    assert text.splitlines()[-1].startswith(end)


def test_the_commands_that_go_on_are_said_where_the_folder_is_locked(
    tmp_path: Path, show: Show
) -> None:
    lock = tmp_path / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True)
    asking = client(Queue({"squeue": ""}))
    assert show(asking, cancel=True) == (0, f"no job of Snakemake writes into {tmp_path}\n")
    lock.touch()
    _, text = show(asking, cancel=True)
    unlock, again = text.splitlines()[-2:]
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
    queue: str | SlurmQueryError, tmp_path: Path, show: Show
) -> None:
    words = "holds no record" if isinstance(queue, str) else "squeue did not answer"
    asking = client(Queue({"squeue": queue}))
    end, _ = show(asking)
    assert re.search(rf"^orphaned: .*is not known: .*{words}", str(end))
    assert str(end).isprintable()
    with pytest.raises(PlacementError, match=words):
        before_run(asking, tmp_path)


def test_nothing_is_left_where_there_is_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["orphaned"])
    assert (done.exit_code, done.output.count("\n")) == (0, 1)
