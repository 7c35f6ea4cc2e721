"""Runs with jobs that were sent, on recorded answers of a cluster."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright.cluster.request import Target
from snakemake_scheduler_plugin_tilewright.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.jobs import Assignment, Job
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.runtime.ledger import Ledger, read_ledger
from tests.support.placement_rules import BOTH, CPU, GPU, Rules
from tests.support.recorded import NODE, USE, Recorded, cluster_with, queue_line

RULES = Rules({"work": {"gpu": GPU, "cpu": CPU}}, seconds=600)
DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


class Everything(set[Any]):
    """Holds whatever is looked for."""

    def __contains__(self, item: object) -> bool:
        return True


def gpus_in_use(**used: int) -> dict[str, str]:
    """Return live use with so many GPUs of each account in use."""
    text = USE.replace("gres/gpu=3(1)", "gres/gpu=3(0)")
    for name, most in (("clive", 3), ("maigan", 2), ("brusko", 1)):
        text = text.replace(f"gres/gpu={most}(0)", f"gres/gpu={most}({used.get(name, 0)})")
    return {"flags=qos": text}


#: Where jobs were sent.
CLIVE_GPU = Target("clive", "clive", "hpg-b200", "gpu")
#: Others hold the GPUs of the account that jobs were sent to.
FULL = gpus_in_use(clive=3)


def dispatcher(
    queue: str | SlurmQueryError,
    folder: Path,
    sent: int = 0,
    ready: int = 0,
    answers: Mapping[str, str] = {},
    **of: Any,
) -> Dispatcher:
    """Return a run with jobs sent to GPUs, of which ``queue`` tells, and ready ones."""
    cluster, recorded = cluster_with(queue, folder)
    recorded.answers |= answers
    estimates = Placement(cluster=cluster).estimates
    ledger = Ledger(folder / "ledger.jsonl")
    made = Dispatcher(cluster, estimates, ledger, "/data/run", clock=lambda: 5000.0)
    of = {"kinds": BOTH, "cpu_seconds": 600.0, "model": RULES.models["work"], **of}
    names = [(f"rule_work_wildcards_{i}", {"i": i}) for i in range(sent + ready)]
    made.admission.taken = Everything()  # but where a test is about the first job of a rule
    made.load(Job(name, "work", wildcards=wildcards, **of) for name, wildcards in names)
    for task in list(made.tasks.values())[:sent]:
        task.assignment = Assignment(CLIVE_GPU, GPU)
        task.sent_s = 4900.0
    cluster.client.forget()
    return made


def pends(folder: Path, reason: str, sent: int = 1, *of: Any, **job: Any) -> Dispatcher:
    """Return a run whose jobs that were sent pend for a reason."""
    return dispatcher(pending(sent, reason), folder, sent, *of, **job)


def recorded_by(run: Dispatcher) -> Recorded:
    assert isinstance(run.cluster.client.run, Recorded)
    return run.cluster.client.run


def answer(run: Dispatcher, answers: Mapping[str, str] = {}, **more: str) -> None:
    """Change what Slurm says from now on."""
    recorded_by(run).answers |= {**answers, **more}
    run.cluster.client.forget(limits=True)


def change_jobs(run: Dispatcher, **values: Any) -> None:
    for task in run.tasks.values():
        task.job = replace(task.job, **values)


def events(run: Dispatcher, name: str) -> list[dict[str, Any]]:
    return [event for event in read_ledger(run.ledger.path) if event["event"] == name]


def pending(count: int, reason: str) -> str:
    return "\n".join(
        queue_line(JobID=str(20 + i), State="PENDING", Account="clive", Partition="hpg-b200",
                   WorkDir="/data/run", Comment=f"rule_work_wildcards_{i}", Reason=reason,
                   **{"tres-alloc": "cpu=8,mem=100M,node=1,gres/gpu=1"})
        for i in range(count)
    )  # fmt: skip


def nodes(gpus_free: int, state: str = "MIXED") -> dict[str, str]:
    """Return what scontrol says of one node of each partition; the other's CPUs are free."""
    lines = (
        ("b1", "hpg-b200", state, "cpu=112,mem=2000G,gres/gpu=8", f"gres/gpu={8 - gpus_free}"),
        ("c1", "hpg-default", "IDLE", "cpu=256,mem=2000G", ""),
    )
    said = "".join(
        f"NodeName={n} State={s} Partitions={p} CfgTRES={total} AllocTRES={used}{NODE}"
        for n, p, s, total, used in lines
    )
    return {"node": said}
