"""``tilewright stale`` on recorded queues, and without Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from typer.testing import CliRunner

from tests.test_survey import LIMITS, PARTITIONS, USE, Recorded, client
from tilewright.cli import app
from tilewright.commands.stale import stale
from tilewright.placement.cluster import Cluster, survey
from tilewright.placement.jobs import PlacementError
from tilewright.placement.site import Site
from tilewright.slurm.jobs import JOB_FIELDS
from tilewright.slurm.query import Unknown


def queue_line(**values: str) -> str:
    return "|".join(values.get(name, "") for name in JOB_FIELDS) + "|"


HERE = queue_line(
    JobID="7", State="RUNNING", WorkDir="/data/run", Comment="rule_stitch_wildcards_a"
)
OTHERS = [
    queue_line(
        JobID="8", State="RUNNING", WorkDir="/data/other", Comment="rule_stitch_wildcards_a"
    ),
    queue_line(JobID="9", State="RUNNING", WorkDir="/data/run", Comment="my own job"),
    queue_line(JobID="6", State="COMPLETED", WorkDir="/data/run", Comment="rule_edf_wildcards_a"),
]


class Queue(Recorded):
    """Recorded answers with a queue whose jobs are gone once they were cancelled."""

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str | Unknown:
        if argv[0] == "scancel":
            self.asked.append(" ".join(argv))
            self.answers["squeue"] = "\n".join(OTHERS)
            return ""
        return super().__call__(argv, stdin)


def cluster_with(queue: str | Unknown, folder: Path) -> tuple[Cluster, Queue]:
    answers = {"sacctmgr": LIMITS, "flags=qos": USE, "partition": PARTITIONS, "squeue": queue}
    recorded = Queue(answers)
    asking = replace(client(recorded, folder), run=recorded)
    return Cluster(Site(), asking, 1001, survey(asking, 1001, Site())), recorded


@pytest.mark.parametrize(("choice", "left"), [("list", 1), ("cancel", 0)])
def test_jobs_of_this_folder_are_listed_or_cancelled(
    choice: Literal["list", "cancel"], left: int, tmp_path: Path
) -> None:
    cluster, recorded = cluster_with("\n".join([HERE, *OTHERS]), tmp_path)
    said: list[str] = []
    assert stale(cluster.client, "/data/run", choice, said.append) == left
    text = "\n".join(said)
    assert "7  RUNNING    rule_stitch_wildcards_a" in text
    assert not any(job in text for job in ("8  ", "9  ", "6  "))
    assert ("scancel 7" in recorded.asked) == (choice == "cancel")


def test_a_queue_that_is_not_known_is_not_an_empty_one(tmp_path: Path) -> None:
    cluster, _ = cluster_with(Unknown("squeue", "no answer within 15 s"), tmp_path)
    with pytest.raises(PlacementError, match="is not known: squeue did not answer"):
        stale(cluster.client, "/data/run", "list", print)


def test_nothing_is_left_where_there_is_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_SITE", raising=False)
    done = CliRunner().invoke(app, ["stale"])
    assert (done.exit_code, done.output.count("\n")) == (0, 1)
    both = CliRunner().invoke(app, ["stale", "--wait", "--cancel"])
    assert both.exit_code == 1
