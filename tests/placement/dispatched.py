"""Runs with jobs that were sent, on recorded answers of a cluster."""

from __future__ import annotations

from pathlib import Path

from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, Place
from snakemake_scheduler_plugin_tilewright.placement.ledger import Ledger
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.slurm.query import Unknown
from tests.support.placement_rules import CPU, GPU, Rules
from tests.support.recorded import USE, Recorded, cluster_with, queue_line

RULES = Rules({"work": {"gpu": GPU, "cpu": CPU}}, seconds=600)
DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


def dispatcher(queue: str | Unknown, folder: Path, sent: int, ready: int) -> Dispatcher:
    """Return a run with jobs sent to GPUs, of which ``queue`` tells, and ready ones."""
    cluster, _ = cluster_with(queue, folder)
    plan = Plan(RULES, cluster=cluster)
    made = Dispatcher(cluster, plan, Ledger(folder / "ledger.jsonl"), "/data/run", lambda: 5000.0)
    made.load(
        Job(
            f"rule_work_wildcards_{i}",
            "work",
            ("gpu", "cpu"),
            nominal_s=600.0,
            wildcards={"i": i},
        )
        for i in range(sent + ready)
    )
    for task in list(made.tasks.values())[:sent]:
        task.place = Place("clive", None, "hpg-b200", "gpu", GPU, "clive_gpu")
        task.sent_s = 4900.0
    return made


def full(run: Dispatcher) -> Dispatcher:
    """Have others hold the GPUs of the account that jobs were sent to."""
    recorded = run.cluster.client.run
    assert isinstance(recorded, Recorded)
    recorded.answers["flags=qos"] = USE.replace("gres/gpu=3(1)", "gres/gpu=3(3)")
    run.cluster.client.forget()
    return run


def pending(count: int, reason: str) -> str:
    return "\n".join(
        queue_line(JobID=str(20 + i), State="PENDING", Account="clive", Partition="hpg-b200",
                   WorkDir="/data/run", Comment=f"rule_work_wildcards_{i}", Reason=reason,
                   **{"tres-alloc": "cpu=8,mem=100M,node=1,gres/gpu=1"})
        for i in range(count)
    )  # fmt: skip


def nodes(gpus_free: int, state: str = "MIXED") -> str:
    """Return what scontrol says of one node of each partition; the other's CPUs are free."""
    lines = (
        ("b1", "hpg-b200", state, "cpu=112,mem=2000G,gres/gpu=8", f"gres/gpu={8 - gpus_free}"),
        ("c1", "hpg-default", "IDLE", "cpu=256,mem=2000G", ""),
    )
    return "\n".join(
        f"NodeName={n} State={s} Partitions={p} CfgTRES={total} AllocTRES={used}"
        for n, p, s, total, used in lines
    )


def with_nodes(run: Dispatcher, said: str) -> Dispatcher:
    recorded = run.cluster.client.run
    assert isinstance(recorded, Recorded)
    recorded.answers["node"] = said
    run.cluster.client.forget()
    return run
