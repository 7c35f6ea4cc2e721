"""Random clusters with what runs on them, what is estimated of it, and what will happen."""

import math
import random
from collections.abc import Iterable
from dataclasses import replace

from benchmarks.placement.bound import Bound, Scenario
from snakemake_scheduler_plugin_tilewright.cluster.request import KINDS, DeviceKind
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job
from snakemake_scheduler_plugin_tilewright.placement.workload import Slots
from tests.support.simulated_cluster import Change

CPUS_PER_JOB, GPU_JOB_GB, CPU_JOB_GB = 8, 16, 48
#: Rules in the order of the pipeline; the small ones never take a GPU.
RULES = ("tile_positions", "stitch", "deconvolve", "edf_plane", "register", "assemble")


# fmt: off
def pipeline(rng: random.Random, count: int) -> list[Job]:
    """Return about ``count`` jobs of whole samples, QC included."""
    jobs: list[Job] = []
    cycles, channels = rng.randint(1, 8), rng.randint(1, 5)
    sample = 0
    while len(jobs) < count:
        ends: list[str] = []
        work = math.exp(rng.uniform(-0.7, 0.7))
        for cycle in range(cycles):
            group = f"s{sample}c{cycle}"

            def add(rule: str, part: str, needs: Iterable[str], small: bool = False,
                    group: str = group, work: float = work) -> str:
                name = f"{rule}_{group}_{part}"
                kinds: tuple[DeviceKind, ...] = ("cpu",) if small else KINDS
                jobs.append(Job(name, rule, kinds, tuple(needs), work))
                return name

            places = add("tile_positions", "", ())
            planes = []
            for channel in range(channels):
                last = places
                for rule in RULES[1:4]:
                    last = add(rule, str(channel), (last,))
                    add("qc", f"{rule}{channel}", (last,), small=True)
                planes.append(last)
            ends.append(add("register", "", [*planes, *ends[:1]]))
        add("assemble", "", ends)
        sample += 1
    return jobs


def independent(rng: random.Random, count: int) -> list[Job]:
    """Return jobs that wait for nothing, of one to five rules."""
    rules = rng.sample(RULES, rng.randint(1, 5))
    return [Job(f"j{i}", rng.choice(rules), KINDS, (), math.exp(rng.uniform(-0.5, 0.5)))
            for i in range(count)]


def layered(rng: random.Random, count: int) -> list[Job]:
    """Return jobs that each need up to three earlier ones."""
    jobs: list[Job] = []
    reach = rng.randint(3, 60)
    for i in range(count):
        near = [job.name for job in jobs[-reach:]]
        needs = rng.sample(near, min(len(near), rng.randint(0, 3)))
        kinds = ("cpu",) if rng.random() < 0.1 else KINDS
        rule = "qc" if len(kinds) == 1 else rng.choice(RULES)
        jobs.append(Job(f"j{i}", rule, kinds, tuple(needs), math.exp(rng.uniform(-0.5, 0.5))))
    return jobs
# fmt: on


def make_scenario(seed: int) -> Scenario:
    """Return one random scenario."""
    rng = random.Random(seed)
    count = round(math.exp(rng.uniform(math.log(5), math.log(2000))))
    shape = rng.choice([pipeline, pipeline, independent, layered])
    jobs = shape(rng, count)[:count]
    tags = {shape.__name__, "<= 40 jobs" if count <= 40 else "> 40 jobs"}
    ratio = math.exp(rng.uniform(math.log(1.5), math.log(25)))
    estimates: dict[tuple[str, DeviceKind], float] = {("qc", "cpu"): rng.uniform(10, 60)}
    for rule in RULES:
        gpu_s = math.exp(rng.uniform(math.log(30), math.log(600)))
        own = min(25.0, max(1.5, ratio * math.exp(rng.uniform(-0.5, 0.5))))
        estimates[rule, "gpu"], estimates[rule, "cpu"] = gpu_s, gpu_s * own
    exact = rng.random() < 0.25
    tags.add("durations known" if exact else "durations off")
    half = 0.0 if exact else math.log(2) / 2
    off = {key: math.exp(rng.uniform(-half, half)) for key in estimates}
    true = {
        (job.name, kind): estimates[job.rule, kind]
        * job.cpu_seconds
        * off[job.rule, kind]
        * math.exp(rng.uniform(-half, half))
        for job in jobs
        for kind in job.kinds
    }
    scenario = Scenario(jobs, make_pools(rng, tags), estimates, true)
    scenario.changes = make_changes(rng, scenario, tags)
    scenario.tags = frozenset(tags)
    return scenario


def by_length(scenario: Scenario, seed: int) -> Scenario:
    """Return a steady scenario in which each pool is parted into QOS for jobs of a length.

    A time limit is twice what a job is estimated to take; one QOS takes all, the default one those
    that are not among the longest fifth.
    """
    rng, pools, too_long = random.Random(seed), list[Slots](), dict[str, frozenset[str]]()
    minutes = {
        (job.name, kind): 2 * scenario.estimates_s[job.rule, kind] * job.cpu_seconds
        for job in scenario.jobs for kind in job.kinds
    }  # fmt: skip
    for pool in scenario.pools:
        times = sorted(n for (_, kind), n in minutes.items() if kind == pool.kind) or [0.0]
        shares = {"debug": rng.uniform(0.1, 0.5), "regular": rng.uniform(0.1, 0.5)}
        parts = {name: int(share * pool.slots) for name, share in shares.items()}
        parts["long"] = pool.slots - sum(parts.values())
        most = {"debug": times[int(rng.uniform(0.1, 0.5) * len(times))],
                "regular": times[int(0.8 * len(times))], "long": math.inf}  # fmt: skip
        for qos, slots in parts.items():
            name, rank = f"{pool.name}_{qos}", 0 if qos == "regular" else 2
            pools.append(replace(pool, name=name, slots=slots, free=slots, rank=rank))
            long = (
                job for (job, kind), n in minutes.items() if kind == pool.kind and n > most[qos]
            )
            too_long[name] = frozenset(long)
    return replace(
        scenario, pools=[pool for pool in pools if pool.slots], changes=[], too_long=too_long,
        tags=scenario.tags & {"pipeline", "independent", "layered", "<= 40 jobs", "> 40 jobs"},
    )  # fmt: skip


def make_pools(rng: random.Random, tags: set[str]) -> list[Slots]:
    """Return pools of one to six accounts; one of them has a CPU slot at least."""
    memory_bound = rng.random() < 0.33
    if memory_bound:
        tags.add("memory-bound")
    pools = []
    count = rng.randint(1, 6)
    sure = rng.randrange(count)
    for a in range(count):
        gpus, cpus = rng.randint(0, 8), rng.randint(0, 256)
        gpu_slots, cpu_slots = gpus, int(0.85 * cpus / CPUS_PER_JOB)
        if memory_bound:
            memory_gb = rng.randint(32, 800)
            gpu_slots = min(gpu_slots, memory_gb // GPU_JOB_GB)
            cpu_slots = min(cpu_slots, memory_gb // CPU_JOB_GB)
        if a == sure:
            cpu_slots = max(1, cpu_slots)
        for kind, slots in (("gpu", gpu_slots), ("cpu", cpu_slots)):
            if slots:
                pools.append(Slots(f"a{a}_{kind}", f"a{a}", kind, slots, slots))  # type: ignore[arg-type]
    return pools


def make_changes(rng: random.Random, scenario: Scenario, tags: set[str]) -> list[Change]:
    """Return what befalls the cluster: labmates, nodes, other accounts, an account's loss.

    One pool, any, keeps a slot for all but the account's loss; an account that has all CPUs is not
    lost.
    """
    span_s, sure = Bound(scenario).quick_s(), rng.choice(scenario.pools)
    changes: list[Change] = []
    if rng.random() < 0.4:
        tags.add("labmates")
        for pool in rng.sample(scenario.pools, max(1, len(scenario.pools) // 2)):
            at_s = 0.0
            while at_s < 1.5 * span_s:
                at_s += rng.uniform(0.05, 0.5) * span_s
                least = int(pool is sure)
                changes.append(Change(at_s, pool.name, rng.randint(least, pool.slots)))
            changes.append(Change(at_s, pool.name, pool.slots))
    changes += node_changes(rng, scenario.pools, sure, span_s, tags)
    with_cpus = {pool.account for pool in scenario.pools if pool.kind == "cpu"}
    accounts = sorted(a for a in {p.account for p in scenario.pools} if with_cpus - {a})
    fate = rng.random()
    if accounts and fate < 0.4:
        lost = fate < 0.15
        tags.add("account lost" if lost else "account throttled")
        account, at_s = rng.choice(accounts), rng.uniform(0.1, 0.7) * span_s
        own = [pool for pool in scenario.pools if pool.account == account]
        changes = [c for c in changes if c.pool not in {pool.name for pool in own}]
        for pool in own:
            left = 0 if lost else int(pool.slots * rng.uniform(0, 0.5))
            changes.append(Change(at_s, pool.name, left, kills=lost))
            if not lost:
                changes.append(Change(at_s + rng.uniform(0.1, 1) * span_s, pool.name, pool.slots))
    if not changes:
        tags.add("steady")
    return sorted(changes, key=lambda change: change.at_s)


def node_changes(
    rng: random.Random, pools: list[Slots], sure: Slots, span_s: float, tags: set[str]
) -> list[Change]:
    """Return nodes that drain, GPUs that other accounts hold, and jobs that are preempted.

    Each goes at a time and comes back at another. What runs on a node that drains, or where others
    take what is free, runs to its end; preempted jobs are killed and begin anew.
    """
    changes: list[Change] = []

    def away(pool: Slots, share: float, kills: bool = False) -> None:
        at_s = rng.uniform(0.05, 0.7) * span_s
        left = max(int(pool is sure), int(pool.slots * (1 - share)))
        changes.append(Change(at_s, pool.name, left, kills=kills))
        changes.append(Change(at_s + rng.uniform(0.1, 0.6) * span_s, pool.name, pool.slots))

    if rng.random() < 0.2:
        tags.add("nodes drain")
        kind = rng.choice(KINDS)
        for pool in pools:
            if pool.kind == kind:  # accounts share the nodes of a partition
                away(pool, rng.uniform(0.2, 1.0))
    if rng.random() < 0.2 and any(pool.kind == "gpu" for pool in pools):
        tags.add("GPUs held by others")
        for pool in pools:
            if pool.kind == "gpu":
                away(pool, rng.uniform(0.5, 1.0))
    if rng.random() < 0.2:
        tags.add("preempted")
        pool = rng.choice(pools)
        for _ in range(rng.randint(1, 3)):
            away(pool, rng.uniform(0.2, 1.0), kills=True)
    return changes
