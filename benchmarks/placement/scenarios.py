"""Random clusters, workflows and what happens to both, by seed."""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from .records import (
    Account,
    Change,
    Kind,
    Node,
    OtherJob,
    Partition,
    Qos,
    Request,
    Scenario,
    Seen,
    Task,
    Tres,
)

RULES = ("tile_positions", "stitch", "deconvolve", "edf_plane", "register", "assemble")
#: Estimates are off by up to this: half of it by rule and device, half by job, as logarithms.
MOST_OFF = 2.0
#: Jobs of others are of users of the same accounts, and of accounts that the user does not have.
_LABMATES, _STRANGERS = ("bob", "cleo"), ("dan", "eve", "fay")
_RELEASES = ("22.05.8", "24.11.5", "26.05.5")
_SEEN: tuple[tuple[Seen, float], ...] = (
    ("all", 0.55), ("no live use", 0.15), ("no limits", 0.12), ("old limits", 0.12),
    ("no accounts", 0.06),
)  # fmt: skip
_Shape = list[tuple[str, str, tuple[str, ...]]]


def pipeline(rng: random.Random, count: int) -> _Shape:
    """Return about ``count`` jobs of whole samples, QC included: name, rule and needs."""
    jobs: _Shape = []
    cycles, channels = rng.randint(1, 6), rng.randint(1, 4)
    sample = 0
    while len(jobs) < count:
        ends: list[str] = []
        for cycle in range(cycles):
            group = f"s{sample}c{cycle}"

            def add(rule: str, part: str, needs: Iterable[str], group: str = group) -> str:
                name = f"rule_{rule}_wildcards_{group}_{part}"
                jobs.append((name, rule, tuple(needs)))
                return name

            places, planes = add("tile_positions", "", ()), []
            for channel in range(channels):
                last = places
                for rule in RULES[1:4]:
                    last = add(rule, str(channel), (last,))
                    add("qc", f"{rule}{channel}", (last,))
                planes.append(last)
            ends.append(add("register", "", [*planes, *ends[:1]]))
        add("assemble", "", ends)
        sample += 1
    return jobs[:count]


def independent(rng: random.Random, count: int) -> _Shape:
    """Return jobs that wait for nothing, of one to five rules."""
    rules = rng.sample(RULES, rng.randint(1, 5))
    picked = [rng.choice(rules) for _ in range(count)]
    return [(f"rule_{rule}_wildcards_{i}", rule, ()) for i, rule in enumerate(picked)]


def layered(rng: random.Random, count: int) -> _Shape:
    """Return jobs that each need up to three earlier ones."""
    jobs: _Shape = []
    reach = rng.randint(3, 60)
    for i in range(count):
        near = [name for name, *_ in jobs[-reach:]]
        needs = rng.sample(near, min(len(near), rng.randint(0, 3)))
        rule = "qc" if rng.random() < 0.1 else rng.choice(RULES)
        jobs.append((f"rule_{rule}_wildcards_{i}", rule, tuple(needs)))
    return jobs


def make_scenario(seed: int) -> Scenario:
    """Return one random scenario, in which some place may ever run each job."""
    rng, tags = random.Random(seed), set[str]()
    nodes, partitions = _cluster(rng, tags)
    seen = rng.choices([name for name, _ in _SEEN], [weight for _, weight in _SEEN])[0]
    qos, accounts = _accounts(rng, tags, partitions)
    release, forget_s = rng.choice(_RELEASES), rng.choice((300.0, 300.0, 60.0))
    bare = Scenario(seed, nodes, partitions, qos, accounts, seen=seen, release=release,
                    forget_s=forget_s)  # fmt: skip
    bare = _workflow(rng, tags, bare)
    if seen == "old limits":
        old = {one.name: {t: max(1, int(n * rng.choice((0.5, 2.0)))) for t, n in one.group.items()}
               for one in qos if one.group and rng.random() < 0.7}  # fmt: skip
        bare = replace(bare, old_limits=old)
    tags.add({"all": "limits known", "no live use": "use hidden", "no limits": "limits hidden",
              "old limits": "limits wrong", "no accounts": "no accounts"}[seen])  # fmt: skip
    return replace(bare, others=_others(rng, tags, bare), changes=_changes(rng, tags, bare),
                   tags=frozenset(tags))  # fmt: skip


def _cluster(rng: random.Random, tags: set[str]) -> tuple[tuple[Node, ...], tuple[Partition, ...]]:
    cpus = rng.choice((32, 64, 128))
    cpu_nodes = [Node(f"c{i}", cpus, cpus * 4096) for i in range(rng.randint(2, 10))]
    per = rng.choice((2, 4, 8))
    gpu_nodes = [Node(f"g{i}", 12 * per, 12 * per * 8192, per) for i in range(rng.randint(1, 5))]
    all_cpu, all_gpu = tuple(n.name for n in cpu_nodes), tuple(n.name for n in gpu_nodes)
    partitions = [Partition("cpu", all_cpu, rng.choice((None, 2880, 10080)), default=True)]
    if rng.random() < 0.4:
        partitions.append(Partition("short", all_cpu, rng.choice((60, 240))))
        tags.add("partitions share nodes")
    if rng.random() < 0.85:
        cut = rng.randint(1, len(all_gpu))
        partitions.append(Partition("gpu", all_gpu[:cut], rng.choice((None, 2880))))
        if cut < len(all_gpu):
            partitions.append(Partition("gpu2", all_gpu[cut:], 1440))
    else:
        gpu_nodes = []
        tags.add("no GPUs")
    if rng.random() < 0.25:
        names = (*all_cpu, *(n.name for n in gpu_nodes)) if rng.random() < 0.5 else all_cpu
        partitions.append(Partition("scavenge", names, 1440, tier=0))
        tags.add("preemption")
    return (*cpu_nodes, *gpu_nodes), tuple(partitions)


def _accounts(
    rng: random.Random, tags: set[str], partitions: tuple[Partition, ...]
) -> tuple[tuple[Qos, ...], tuple[Account, ...]]:
    """Return QOS and accounts: each its own QOS, or QOS by length with limits of each user."""
    count, gpus = rng.randint(1, 6), any(one.name.startswith("gpu") for one in partitions)

    def group(first: bool) -> Tres:
        cpus = rng.randint(16, 256) if first else rng.choice((8, 16, 32, 64, 128, 256))
        limit = {"cpu": cpus, "mem": cpus * rng.choice((2048, 4096, 8192))}
        if first:
            limit["mem"] = max(limit["mem"], 131072)
        return limit | ({"gres/gpu": rng.randint(1 if first else 0, 8)} if gpus else {})

    if rng.random() < 0.55:
        tags.add("a QOS an account")
        qos, accounts = list[Qos](), list[Account]()
        for a in range(count):
            name = f"lab{a}"
            own = [Qos(name, group(a == 0), priority=50)]
            for extra in range(rng.randint(0, 3)):
                user = {"jobs": rng.randint(2, 20), "submit": rng.randint(20, 200)}
                wall = rng.choice((60, 240, None))
                own.append(Qos(f"{name}-q{extra}", group(False), user, wall, rng.randint(0, 100)))
            qos += own
            accounts.append(Account(name, tuple(one.name for one in own)))
        return tuple(qos), tuple(accounts)
    tags.add("QOS by length")
    lengths = [Qos("regular", {}, _each(rng, gpus, sure=True), None, 50)]
    for name, wall in (("debug", 30), ("short", 240), ("long", 10080)):
        if rng.random() < 0.6:
            lengths.append(Qos(name, {}, _each(rng, gpus), wall, rng.randint(0, 100)))
    names = tuple(one.name for one in lengths)
    above = Account("dept", (), {"cpu": rng.randint(128, 512)}) if rng.random() < 0.4 else None
    accounts = [Account(f"lab{a}", names, group(a == 0), "dept" if above else "root")
                for a in range(count)]  # fmt: skip
    return tuple(lengths), ((above, *accounts) if above else tuple(accounts))


def _each(rng: random.Random, gpus: bool, *, sure: bool = False) -> Tres:
    """Return what a QOS by length allows each user."""
    least = 32 if sure else 8
    limit = {"cpu": rng.randint(least, 256), "submit": rng.choice((50, 200, 1000))}
    if rng.random() < 0.4:
        limit["jobs"] = rng.randint(4, 60)
    if gpus:
        limit["gres/gpu"] = rng.randint(1 if sure else 0, 8)
    return limit


def _workflow(rng: random.Random, tags: set[str], bare: Scenario) -> Scenario:
    """Return a scenario with a workflow whose jobs the first account may ever run on CPUs."""
    shape = rng.choice((pipeline, pipeline, independent, layered))
    count = round(math.exp(rng.uniform(math.log(20), math.log(600))))
    tags |= {shape.__name__, "<= 60 jobs" if count <= 60 else "> 60 jobs"}
    first = next(one for one in bare.accounts if one.qos)
    gpus = any(one.gpus for one in bare.nodes)
    ratio = math.exp(rng.uniform(math.log(1.5), math.log(25)))
    requests, estimates = dict[str, dict[Kind, Request]](), dict[tuple[str, Kind], float]()
    for rule in (*RULES, "qc"):
        gpu_s = rng.uniform(20, 90) if rule == "qc" else math.exp(rng.uniform(3.7, 6.4))
        speed = min(25.0, max(1.5, ratio * math.exp(rng.uniform(-0.5, 0.5))))
        seconds: dict[Kind, float] = {"gpu": gpu_s, "cpu": gpu_s * (1 if rule == "qc" else speed)}
        kinds: tuple[Kind, ...] = ("cpu",)
        if rule != "qc" and gpus:
            kinds = ("gpu",) if rng.random() < 0.1 else ("gpu", "cpu")
        own: dict[Kind, Request] = {}
        for kind in kinds:
            cpus, mem = rng.choice((1, 2, 4, 8)), rng.choice((2, 4, 8, 16, 32, 64)) * 1024
            minutes = math.ceil(2 * 2 * seconds[kind] / 60)  # sizes are up to twice the mean
            own[kind] = Request(cpus, mem, int(kind == "gpu"), minutes)
        if "cpu" not in own and not bare.places(first, own["gpu"]):
            own = {"cpu": replace(own["gpu"], gpus=0, minutes=math.ceil(seconds["cpu"] / 15))}
        if "cpu" in own and not bare.places(first, own["cpu"]):
            own["cpu"] = replace(own["cpu"], cpus=2, mem_mb=4096)
        requests[rule] = own
        estimates |= {(rule, kind): seconds[kind] for kind in own}
    half = math.log(MOST_OFF) / 2 * (rng.random() > 0.25)
    tags.add("durations off" if half else "durations known")
    off = {key: math.exp(rng.uniform(-half, half)) for key in estimates}
    failing = rng.random() < 0.3
    if failing:
        tags.add("jobs fail")
    tasks = []
    for name, rule, needs in shape(rng, count):
        size = math.exp(rng.uniform(-0.7, 0.7))
        by_job = math.exp(rng.uniform(-half, half))
        true = {kind: estimates[rule, kind] * size * off[rule, kind] * by_job
                for kind in requests[rule]}  # fmt: skip
        fails = failing and rng.random() < 0.05
        memory = rng.uniform(1.1, 1.8) if failing and rng.random() < 0.05 else 0.7
        tasks.append(Task(name, rule, needs, requests[rule], size, true, memory, int(fails)))
    bare = replace(bare, tasks=tuple(tasks), estimates_s=estimates)
    most_s = math.exp(rng.uniform(math.log(1200), math.log(10800)))
    return _shortened(bare, min(1.0, most_s / _span_s(bare, first)), first)


def _shortened(one: Scenario, factor: float, first: Account) -> Scenario:
    """Return a scenario whose jobs take less time, so that it ends within hours."""
    tasks = [
        replace(
            task, true_s={kind: seconds * factor for kind, seconds in task.true_s.items()},
            requests={kind: replace(asked, minutes=max(2, math.ceil(asked.minutes * factor)))
                      for kind, asked in task.requests.items()},
        )
        for task in one.tasks
    ]  # fmt: skip
    estimates = {key: seconds * factor for key, seconds in one.estimates_s.items()}
    one = replace(one, tasks=tuple(tasks), estimates_s=estimates)
    return replace(one, span_s=_span_s(one, first))


def _span_s(one: Scenario, first: Account) -> float:
    """Return about how long the workflow takes: what its jobs hold, over what there is of it."""
    held = dict.fromkeys(("cpu", "gres/gpu"), 0.0)
    for task in one.tasks:
        kind: Kind = "gpu" if "gpu" in task.requests and len(task.name) % 2 else "cpu"
        kind = kind if kind in task.requests else next(iter(task.requests))
        for tres in held:
            held[tres] += task.true_s[kind] * task.requests[kind].tres.get(tres, 0)
    group = {**next(q for q in one.qos if q.name == first.qos[0]).user, **first.group,
             **next(q for q in one.qos if q.name == first.qos[0]).group}  # fmt: skip
    chain: dict[str, float] = {}
    for task in one.tasks:
        before = max((chain[need] for need in task.needs), default=0.0)
        chain[task.name] = before + min(task.true_s.values())
    parts = [held[tres] / max(1, group.get(tres, 64)) for tres in held]
    return max(300.0, *chain.values(), *parts)


def _others(rng: random.Random, tags: set[str], one: Scenario) -> tuple[OtherJob, ...]:
    """Return jobs of others that come in time, so that a share of what there is is in use."""
    if rng.random() < 0.25:
        tags.add("no others")
        return ()
    tags.add("other users")
    found, nodes = list[OtherJob](), {node.name: node for node in one.nodes}
    for where in (p for p in one.partitions if p.tier and p.name != "short"):
        own = [nodes[name] for name in where.nodes]
        load = rng.choice((0.2, 0.5, 0.8, 0.95))
        most = Request(own[0].cpus // 2, own[0].mem_mb // 2, own[0].gpus // 2, 0)
        found += _arrivals(rng, one, _STRANGERS, ("", "", where.name), most,
                           load * sum(node.cpus for node in own))  # fmt: skip
    for account in one.accounts if one.seen != "no accounts" else ():
        share = rng.choice((0.0, 0.0, 0.3, 0.6))
        if account.qos and share:
            qos = next(qos for qos in one.qos if qos.name == account.qos[0])
            group = {**account.group, **qos.group}
            least = min(node.cpus for node in one.nodes)
            cpus = max(1, min(group["cpu"], least) // 4)
            most = Request(cpus, min(cpus * 4096, group["mem"] // 4), 0, 0)
            found += _arrivals(rng, one, _LABMATES, (account.name, qos.name, "cpu"), most,
                               share * group["cpu"])  # fmt: skip
            if (gpus := group.get("gres/gpu", 0)) and any(n.gpus for n in one.nodes):
                found += _arrivals(rng, one, _LABMATES, (account.name, qos.name, "gpu"),
                                   replace(most, cpus=1, gpus=1), share * gpus)  # fmt: skip
    return tuple(sorted(found, key=lambda job: job.at_s))


def _arrivals(
    rng: random.Random,
    one: Scenario,
    users: tuple[str, ...],
    where: tuple[str, str, str],
    most: Request,
    cpus: float,
) -> list[OtherJob]:
    """Return jobs of half as much to so much each, that hold about so many CPUs in all."""
    account, qos, partition = where
    mean_s, at_s = math.exp(rng.uniform(math.log(600), math.log(7200))), -5400.0
    found = list[OtherJob]()
    while (at_s := at_s + rng.expovariate(cpus / (0.75 * max(1, most.cpus) * mean_s))) < (
        4 * one.span_s
    ) and len(found) < 2000:
        run_s = min(mean_s * rng.lognormvariate(-0.3, 0.8), 4 * mean_s)
        half, minutes = rng.choice((1, 2)), math.ceil(run_s / 60 * rng.uniform(1.2, 4))
        request = Request(max(1, most.cpus // half), max(500, most.mem_mb // half),
                          math.ceil(most.gpus / half), minutes)  # fmt: skip
        found.append(OtherJob(at_s, rng.choice(users), account, qos, partition, request, run_s))
    return found


def _changes(rng: random.Random, tags: set[str], one: Scenario) -> tuple[Change, ...]:
    """Return limits that an administrator changes, and nodes that drain or fail; all come back."""
    found = list[Change]()
    grouped = [qos for qos in one.qos if qos.group]
    if grouped and one.seen != "no accounts" and rng.random() < 0.35:
        tags.add("limits change")
        for qos in rng.sample(grouped, min(len(grouped), rng.randint(1, 2))):
            at_s, share = rng.uniform(0.05, 0.8) * one.span_s, rng.choice((0.0, 0.25, 0.5, 2.0))
            less: Mapping[str, int] = {t: int(n * share) for t, n in qos.group.items()}
            found.append(Change(at_s, "limit", qos.name, less))
            found.append(Change(at_s + rng.uniform(0.2, 1) * one.span_s, "limit", qos.name,
                                qos.group))  # fmt: skip
    if rng.random() < 0.3:
        tags.add("nodes drain")
        for node in rng.sample(one.nodes, max(1, len(one.nodes) // 3)):
            at_s = rng.uniform(0.05, 0.7) * one.span_s
            what = "fail" if rng.random() < 0.4 else "drain"
            found.append(Change(at_s, "fail" if what == "fail" else "drain", node.name))
            found.append(Change(at_s + rng.uniform(0.2, 1) * one.span_s, "resume", node.name))
    if not found:
        tags.add("nothing changes")
    return tuple(sorted(found, key=lambda change: change.at_s))
