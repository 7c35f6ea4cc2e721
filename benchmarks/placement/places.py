"""A round of placing at a large site: ``python -m benchmarks.placement.places``.

60 accounts on 4 QOS each may use 12 partitions; 10,000 jobs of 30 shapes are ready, and nodes have
room for a few of them.
"""

import random
import resource
import time
from dataclasses import replace

from snakemake_scheduler_plugin_tilewright.cluster.request import DeviceKind, ResourceRequest
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.placement.estimates import Durations, Estimates
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, JobState, ResourceModel
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.placement.workload import GpuSlots
from snakemake_scheduler_plugin_tilewright.slurm.accounts import SiteRules, usable_accounts
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.partitions import cpu_partitions, gpu_partitions
from snakemake_scheduler_plugin_tilewright.slurm.records import (
    JOBS,
    Association,
    Partition,
    Qos,
    Usage,
)

ACCOUNTS, SHAPES, READY = 60, 30, 10_000
#: QOS by length, as centres have them: most minutes, CPUs of one user.
LENGTHS = {"debug": (30, 64), "short": (240, 400), "regular": (2880, 800), "long": (20160, 200)}
_WALLS = (30, 240, 1440, 2880, 10080, 20160)


def large_site(rng: random.Random) -> ClusterState:
    """Return a site where some nodes of each partition have room."""
    gpus = (8, 4, 2)
    partitions = [
        Partition(
            f"p{k}", None, _WALLS[k % 6], {"cpu": 1280, "mem": 10**7, "node": 20}
            | ({"gres/gpu": 20 * gpus[k]} if k < len(gpus) else {}),
            up=True, default=k == 5, allow_accounts=None, allow_qos=None, nodes=20,
        )
        for k in range(12)
    ]  # fmt: skip
    nodes = []
    for k, where in enumerate(partitions):
        for n in range(20):
            total = {"cpu": 64, "mem": 500_000, "gres/gpu": gpus[k] if k < len(gpus) else 0}
            held = {tres: amount if n > 1 else amount // 2 for tres, amount in total.items()}
            free = {tres: amount - held[tres] for tres, amount in total.items()}
            nodes.append(Node(f"{where.name}n{n}", (where.name,), True, total, free))
    qos = [
        Qos(name, tres_per_user={"cpu": cpus}, max_wall_min=wall)
        for name, (wall, cpus) in LENGTHS.items()
    ]
    rows, usage = [], dict[str, Usage]()
    for a in range(ACCOUNTS):
        name = f"lab{a:02d}"
        limit = {"cpu": rng.randrange(100, 1000), "mem": 4_000_000, "gres/gpu": 8}
        rows += [
            Association(name, "ada", "", tuple(LENGTHS), "regular"),
            Association(name, "", "", tuple(LENGTHS), "regular", tres=limit, parent="root"),
        ]
        used = {
            "cpu": rng.randrange(0, limit["cpu"]),
            "mem": 1_000_000,
            "gres/gpu": rng.randrange(9),
        }
        usage[f"account {name}"] = Usage({}, {**used, "jobs": 9, "submit": 9})
    nothing = dict.fromkeys(("cpu", "mem", "gres/gpu", *JOBS), 0)
    usage |= {f"ada on QOS {name}": Usage({}, nothing) for name in LENGTHS}
    accounts, _ = usable_accounts("ada", rows, qos, SiteRules(), partitions, usage)
    places: dict[DeviceKind, tuple[Partition, ...]] = {
        "gpu": gpu_partitions(partitions), "cpu": cpu_partitions(partitions)
    }  # fmt: skip
    named = {p.name: p for p in partitions}
    return ClusterState(tuple(accounts), places, named, tuple(nodes), user="ada")


def ready_jobs(rng: random.Random) -> list[JobState]:
    """Return jobs of all shapes, a third of which may use a GPU."""
    models = []
    for n in range(SHAPES):
        minutes, mem_mb = rng.choice((20, 200, 1200, 2000)), 1000 * rng.choice((2, 8, 32, 128))
        cpu = ResourceRequest(rng.choice((1, 4, 16)), mem_mb, 0, minutes, required_min=minutes)
        shapes: dict[DeviceKind, ResourceRequest] = {"cpu": cpu}
        if n % 3 == 0:
            shapes = {"gpu": replace(cpu, gpus=1), **shapes}
        models.append(_model(shapes, 30.0 * minutes))
    return [
        JobState(
            Job(f"j{k}", f"r{k % SHAPES}", model.devices, (), model.cpu_seconds({}), model=model)
        )
        for k in range(READY)
        for model in [models[k % SHAPES]]
    ]


def _model(shapes: dict[DeviceKind, ResourceRequest], seconds: float) -> ResourceModel:
    return ResourceModel(tuple(shapes), lambda _, kind: shapes[kind], lambda _: seconds)


def main() -> None:
    """Time rounds, and measure what one needs of memory."""
    rng = random.Random(44)
    state, ready = large_site(rng), ready_jobs(rng)
    estimates = Estimates(Durations())
    work = estimates.workload(task.job for task in ready)

    def one_round() -> Round:
        found = Round(work, estimates, replace(state), [], {"gpu": (), "cpu": ()}, 5000.0)
        found.place(ready, [], GpuSlots())
        return found

    times, before_kb = [], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        begin = time.process_time()
        found = one_round()
        times.append(1e3 * (time.process_time() - begin))
    more_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    targets = len(list(state.targets()))
    print(
        f"{targets} places, {READY} ready jobs of {SHAPES} shapes: {min(times):.0f} ms (least of "
        f"{len(times)}), {len(found.assignments)} start, {more_mb:.0f} MB more"
    )


if __name__ == "__main__":
    main()
