"""A recorded cluster on which some jobs fail, for Snakefiles of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.placement_rules import Rules
from tests.support.recorded import PARTITIONS, Recorded, cluster_with, details, queue_line
from tilewright.placement.cluster import Cluster
from tilewright.placement.jobs import Shape
from tilewright.slurm.query import Unknown

RULES = Rules(
    {"good": {"gpu": Shape(8, 5000, 1, 60), "cpu": Shape(6, 3000, 0, 90)},
     "bad": {"cpu": Shape(2, 100, 0, 5)}, "lost": {"cpu": Shape(2, 100, 0, 5)}}
)  # fmt: skip


class FailingSlurm(Recorded):
    """Recorded answers; ``bad`` jobs end with exit code 1, a first ``lost`` one with its node."""

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str | Unknown:
        if "job" in argv:
            died = details("NODE_FAIL", "NodeDown", "0:0", "0:0")
            return died if argv[-1] == "200" else details("FAILED", "NonZeroExitCode", "1:0", "0:0")
        path = Path("dispatched.jsonl")
        if argv[0] == "squeue":
            text = path.read_text() if path.exists() else ""
            ended = [(100 + n, "FAILED", "rule_bad") for n in range(text.count('["bad"'))]
            ended += [(200, "NODE_FAIL", "rule_lost")] * ('["lost"' in text)
            return "\n".join(
                queue_line(JobID=str(number), State=state, Comment=name, WorkDir=str(Path.cwd()))
                for number, state, name in ended
            )
        return super().__call__(argv, stdin)


def recorded_cluster() -> Cluster:
    """Return a cluster on recorded answers; each look asks again."""
    found, recorded = cluster_with("", Path("cache"))
    found.client.ttl_s = 0
    larger = PARTITIONS.replace(" TRES=", " TotalNodes=4 TRES=")
    found.client.run = FailingSlurm({**recorded.answers, "partition": larger})
    return found
