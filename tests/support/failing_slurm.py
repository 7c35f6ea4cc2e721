"""A recorded cluster on which some jobs fail, for Snakefiles of the tests."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.cluster.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.cluster.request import ResourceRequest
from tests.support.placement_rules import Rules
from tests.support.recorded import (
    PARTITIONS,
    Recorded,
    cluster_with,
    details,
    named_qos,
    queue_line,
)

RULES = Rules(
    {"good": {"gpu": ResourceRequest(8, 5000, 1, 60), "cpu": ResourceRequest(6, 3000, 0, 90)},
     **{rule: {"cpu": ResourceRequest(2, 100, 0, 5)} for rule in ("lost", "gone")}}
)  # fmt: skip


#: Rules whose first job does not end well: its number, state and what Slurm says of it.
_NODE = ("NODE_FAIL", details("NODE_FAIL", "NodeDown", "0:0", "0:0"))
_MEMORY = ("OUT_OF_MEMORY", details("OUT_OF_MEMORY", "OutOfMemory", "0:125", "0:0"))
_ENDED = {
    **{rule: (200 + k, *_NODE) for k, rule in enumerate(("lost", "gone"))},
    **{rule: (300 + k, *_MEMORY) for k, rule in enumerate(("hungry", "starved", "growing",
                                                           "per_cpu"))},
}  # fmt: skip


class FailingSlurm(Recorded):
    """Recorded answers; ``bad`` jobs end with exit code 1, others as they do in ``_ENDED``."""

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str:
        if "job" in argv:
            said = {str(number): words for number, _, words in _ENDED.values()}
            if argv[-1] not in said:  # the log that is read is that of before
                Path("bad.log").write_text("ValueError: no nuclei\n", encoding="utf-8")
            return said.get(argv[-1], details("FAILED", "NonZeroExitCode", "1:0", "0:0"))
        path = Path("dispatched.jsonl")
        if argv[0] == "squeue":
            text = path.read_text() if path.exists() else ""
            ended = [(100 + n, "FAILED", "rule_bad") for n in range(text.count('["bad"'))]
            for rules, _, given in map(json.loads, text.splitlines()):
                for rule in _ENDED.keys() & set(re.split(r"[ +]", rules)):
                    number, state, _ = _ENDED[rule]
                    ended.append((number, state, given.get("comment", f"rule_{rule}")))
            return "\n".join(
                queue_line(JobID=str(number), State=state, Comment=name, WorkDir=str(Path.cwd()))
                for number, state, name in ended
            )
        return super().__call__(argv, stdin)


def recorded_cluster() -> Cluster:
    """Return a cluster on recorded answers; each look asks again."""
    return _failing(cluster_with("", Path("cache"))[0])


def cluster_with_qos() -> Cluster:
    """Return the same where the jobs of account maigan must name their QOS."""
    return _failing(named_qos(Path("cache")))


def _failing(found: Cluster) -> Cluster:
    found.client.ttl_s = 0
    assert isinstance(found.client.run, Recorded)
    larger = PARTITIONS.replace(" TRES=", " TotalNodes=4 TRES=")
    found.client.run = FailingSlurm({**found.client.run.answers, "partition": larger})
    return found
