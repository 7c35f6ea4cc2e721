"""What the commands of Slurm print of the simulated cluster, as three releases word it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from tests.support.recorded_texts import RELEASES

from .records import Partition, Tres
from .scheduler import Scheduler, SlurmJob

#: When a run starts, in seconds since the epoch.
EPOCH_S = 1_796_000_000.0
UIDS = {"root": 0, "ada": 1001}
#: Fields of ``-O`` by the letters of ``-o``.
_LETTERS = {
    "i": "jobid", "A": "jobid", "F": "jobid", "j": "name", "u": "username", "U": "userid",
    "a": "account", "q": "qos", "P": "partition", "T": "state", "t": "statecompact", "r": "reason",
    "R": "reasonlist", "C": "numcpus", "m": "minmemory", "b": "tres-per-node", "l": "timelimit",
    "M": "timeused", "L": "timeleft", "S": "starttime", "e": "endtime", "V": "submittime",
    "Z": "workdir", "k": "comment", "N": "nodelist", "Q": "prioritylong", "D": "numnodes",
}  # fmt: skip
COMPACT = {"PENDING": "PD", "RUNNING": "R", "COMPLETED": "CD", "FAILED": "F", "CANCELLED": "CA",
            "TIMEOUT": "TO", "NODE_FAIL": "NF", "PREEMPTED": "PR"}  # fmt: skip
_ALL_TRES = ("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages", "gres/gpu")


def time_text(at_s: float | None) -> str:
    """Return a time of the run as Slurm prints it with ``SLURM_TIME_FORMAT=%s``."""
    return "N/A" if at_s is None else str(int(EPOCH_S + at_s))


def span_text(minutes: float | None, *, hours: bool = True) -> str:
    """Return minutes as ``01:30:00``, as ``scontrol`` does, or squeue's ``1:30:00``."""
    if minutes is None:
        return "UNLIMITED"
    days, seconds = divmod(int(minutes * 60), 86400)
    h, rest = divmod(seconds, 3600)
    clock = f"{h:02}:{rest // 60:02}:{rest % 60:02}"
    if days:
        return f"{days}-{clock}"
    return clock if hours else (re.sub(r"^(00:)?0?", "", clock))


def mem_text(mem_mb: int, *, rounded: bool = False) -> str:
    """Return memory as Slurm prints it; slurmdbd rounds, slurmctld takes a smaller unit."""
    if mem_mb and mem_mb % 1024 == 0:
        return f"{mem_mb // 1024}G"
    return f"{mem_mb / 1024:.2f}G" if rounded and mem_mb > 1024 else f"{mem_mb}M"


def tres_text(tres: Tres, *, rounded: bool = False) -> str:
    """Return TRES in Slurm's order, with memory in units."""
    cells = [f"{t}={mem_text(tres[t], rounded=rounded) if t == 'mem' else tres[t]}"
             for t in ("cpu", "mem", "node") if t in tres]  # fmt: skip
    cells += [f"{t}={n}" for t, n in tres.items() if t.startswith("gres/")]
    return ",".join(cells)


def _reason(job: SlurmJob, world: Scheduler) -> str:
    long = world.scenario.release >= "24" and " " in job.reason
    return job.reason.replace(" ", "_") if long else job.reason


def _job_fields(world: Scheduler) -> Mapping[str, Callable[[SlurmJob], str]]:
    """Return what squeue prints in each field of a job."""
    now_s = world.clock_s
    gres = "gres/gpu" if world.scenario.release > "23" else "gres:gpu"

    def ran(job: SlurmJob) -> float:
        return 0 if job.start_s is None else (min(now_s, job.end_s or now_s) - job.start_s) / 60

    def start(job: SlurmJob) -> float | None:
        return job.planned_s if job.state == "PENDING" else job.start_s

    def end(job: SlurmJob) -> float | None:
        if job.state == "RUNNING":
            return job.limit_s
        at_s = start(job)
        return job.end_s if not job.active else None if at_s is None else (
            at_s + 60 * job.request.minutes)  # fmt: skip

    return {
        "jobid": lambda j: str(j.id), "jobarrayid": lambda j: str(j.id),
        "name": lambda j: j.name, "username": lambda j: j.user,
        "userid": lambda j: str(UIDS.get(j.user, 1002)),
        "account": lambda j: j.account or "(null)", "qos": lambda j: j.qos or "(null)",
        "partition": lambda j: j.partition, "state": lambda j: j.state,
        "statecompact": lambda j: COMPACT[j.state], "reason": lambda j: _reason(j, world),
        "reasonlist": lambda j: j.node or f"({_reason(j, world)})",
        "numcpus": lambda j: str(j.request.cpus), "minmemory": lambda j: mem_text(j.request.mem_mb),
        "numnodes": lambda j: "1", "nodelist": lambda j: j.node,
        "tres-alloc": lambda j: _billed(j.tres),
        "tres-per-node": lambda j: f"{gres}:{j.request.gpus}" if j.request.gpus else "N/A",
        "timelimit": lambda j: span_text(j.request.minutes, hours=False),
        "timeused": lambda j: span_text(ran(j), hours=False),
        "timeleft": lambda j: span_text(j.request.minutes - ran(j), hours=False),
        "starttime": lambda j: time_text(start(j)), "endtime": lambda j: time_text(end(j)),
        "submittime": lambda j: time_text(j.submit_s), "workdir": lambda j: j.workdir,
        "comment": lambda j: j.comment or "(null)", "command": lambda j: "(null)",
        "prioritylong": lambda j: str(int(world.priority(j))),
    }  # fmt: skip


def _billed(tres: Tres) -> str:
    gpus = f",gres/gpu={tres['gres/gpu']}" if "gres/gpu" in tres else ""
    text = tres_text({t: n for t, n in tres.items() if not t.startswith("gres/")})
    return f"{text},billing={tres['cpu']}{gpus}"


def queue_text(world: Scheduler, jobs: Iterable[SlurmJob], long: str, short: str) -> str:
    """Return the lines of squeue, by its formats ``-O`` or ``-o``."""
    fields, columns = _job_fields(world), list[tuple[str, str, int, str]]()
    if long:
        for part in long.split(","):
            name, _, rest = part.partition(":")
            found = re.fullmatch(r"(\.?)(\d*)(.*)", rest)
            assert found is not None
            right, width, after = found.groups()
            columns.append((name.lower(), right, int(width or 20), after))
    else:
        for width, letter, after in re.findall(r"%(\.?\d*)([A-Za-z])([^%]*)", short):
            columns.append((_LETTERS[letter], width[:1] * (width[:1] == "."),
                            int(width.lstrip(".") or 0), after))  # fmt: skip
    lines = []
    for job in jobs:
        cells = []
        for name, right, width, after in columns:
            cell = fields[name](job) if name in fields else "N/A"
            if width:
                cell = cell[:width].rjust(width) if right else cell[:width].ljust(width)
            cells.append(cell + after)
        lines.append("".join(cells) + "\n")
    return "".join(lines)


@lru_cache
def _recorded(release: str, question: str, start: str) -> str:
    """Return the line that a real Slurm of a release printed."""
    return next(one for one in RELEASES[release][question].splitlines() if one.startswith(start))


def _filled(line: str, **values: object) -> str:
    """Return a line of scontrol with other values."""
    return re.sub(r"(?<!\S)([A-Za-z/]+)=(\S*)", lambda m: f"{m[1]}={values.get(m[1], m[2])}", line)


def job_text(world: Scheduler, job: SlurmJob) -> str:
    """Return a job as ``scontrol -o show job`` does."""
    of = _job_fields(world)
    ran_s = 0 if job.start_s is None else (job.end_s if not job.active else world.clock_s) or 0
    tres = _billed(job.tres)
    return _filled(
        _recorded(world.scenario.release, "job", "JobId="),
        JobId=job.id, JobName=job.name, UserId=f"{job.user}({of['userid'](job)})",
        Priority=of["prioritylong"](job), Account=of["account"](job), QOS=of["qos"](job),
        JobState=job.state, Reason=_reason(job, world).replace(" ", "_"), Requeue=0,
        ExitCode="0:0" if job.active or job.state == "CANCELLED" else job.exit,
        DerivedExitCode=job.derived, RunTime=span_text(max(0, ran_s - (job.start_s or 0)) / 60),
        TimeLimit=span_text(job.request.minutes), SubmitTime=time_text(job.submit_s),
        EligibleTime=time_text(job.submit_s), StartTime=of["starttime"](job),
        EndTime=of["endtime"](job), Partition=job.partition,
        ExcNodeList=",".join(sorted(job.exclude)) or "(null)", NodeList=job.node or "(null)",
        NumCPUs=job.request.cpus, TRES=tres, ReqTRES=tres, AllocTRES=tres if job.node else "(null)",
        MinCPUsNode=job.request.cpus, MinMemoryNode=mem_text(job.request.mem_mb),
        WorkDir=f"{job.workdir} Comment={of['comment'](job)}",
        StdOut=f"{job.workdir}/slurm-{job.id}.out",
    ) + "\n"  # fmt: skip


def partition_text(world: Scheduler, where: Partition) -> str:
    """Return a partition as ``scontrol -o show partition`` does."""
    nodes = [one for one in world.scenario.nodes if one.name in where.nodes]
    cpus, gpus = sum(n.cpus for n in nodes), sum(n.gpus for n in nodes)
    tres = f"cpu={cpus},mem={sum(n.mem_mb for n in nodes)}M,node={len(nodes)},billing={cpus}"
    return _filled(
        _recorded(world.scenario.release, "partition", "PartitionName="),
        PartitionName=where.name, AllowAccounts=_names(where.accounts), AllowQos=_names(where.qos),
        Default="YES" if where.default else "NO", MaxTime=span_text(where.longest_min),
        Nodes=",".join(where.nodes), PriorityTier=where.tier, TotalCPUs=cpus,
        TotalNodes=len(nodes), TRES=tres + (f",gres/gpu={gpus}" if gpus else ""),
    ) + "\n"  # fmt: skip


def _names(own: tuple[str, ...] | None) -> str:
    return "ALL" if own is None else ",".join(own)


def node_state(world: Scheduler, name: str) -> str:
    """Return the state of a node in Slurm's words."""
    room = world.rooms[name]
    used = "ALLOCATED" if room.free["cpu"] == 0 else "MIXED" if room.jobs else "IDLE"
    return {"DOWN": "DOWN*", "DRAIN": f"{used}+DRAIN"}.get(room.state, used)


def node_text(world: Scheduler, name: str) -> str:
    """Return a node as ``scontrol -d -o show node`` does."""
    room = world.rooms[name]
    used = {tres: n - room.free[tres] for tres, n in room.total.items() if n > room.free[tres]}
    gpus, cpus = room.total.get("gres/gpu", 0), room.total["cpu"]
    total = f"cpu={cpus},mem={room.total['mem']}M,billing={cpus}"
    return _filled(
        _recorded(world.scenario.release, "node", f"NodeName={'b' if gpus else 'c'}1"),
        NodeName=name, CPUAlloc=used.get("cpu", 0), CPUEfctv=cpus, CPUTot=cpus,
        Gres=f"gpu:{gpus}" if gpus else "(null)", GresUsed=f"gpu:{used.get('gres/gpu', 0)}",
        NodeAddr=name, NodeHostName=name, RealMemory=room.total["mem"],
        AllocMem=used.get("mem", 0), Sockets=cpus, State=node_state(world, name),
        Partitions=",".join(p.name for p in world.scenario.partitions if name in p.nodes),
        CfgTRES=total + (f",gres/gpu={gpus}" if gpus else ""), AllocTRES=tres_text(used),
    ) + "\n"  # fmt: skip


def idle_text(world: Scheduler, where: Partition, name: str, form: str) -> str:
    """Return a node of a partition as ``sinfo -O`` does, each as a group of its own."""
    room = world.rooms[name]
    cpus, gpus = room.total["cpu"], room.total.get("gres/gpu", 0)
    idle = room.free["cpu"] if room.state not in ("DOWN", "DRAIN") else 0
    cells = {
        "partitionname": where.name, "nodes": "1",
        "cpusstate": f"{cpus - room.free['cpu']}/{idle}/{room.free['cpu'] - idle}/{cpus}",
        "gres": f"gpu:{gpus}" if gpus else "(null)",
        "gresused": f"gpu:{gpus - room.free.get('gres/gpu', 0)}",
    }  # fmt: skip
    fields = (one.partition(":") for one in form.split(","))
    return "".join(
        f"{cells[field.lower()]:<{int(width.rstrip('|'))}}|" for field, _, width in fields if field
    ) + "\n"  # fmt: skip


def _uses(use: Mapping[str, int], limit: Tres, kind: str = "Grp", end: str = "") -> dict[str, str]:
    """Return limits and use by the fields of assoc_mgr."""
    tres = ",".join(f"{t}={limit.get(t, 'N')}({use.get(t, 0)})" for t in _ALL_TRES)
    jobs, sent = (f"{limit.get(t, 'N')}({use.get(t, 0)})" for t in ("jobs", "submit"))
    return {f"{kind}Jobs{end}": jobs, f"{kind}SubmitJobs{end}": sent, f"{kind}TRES{end}": tres}


def qos_use_text(world: Scheduler, qos: str) -> str:
    """Return a QOS as ``scontrol -o show assoc_mgr flags=qos`` does."""
    spec, use = world.limits.qos[qos], world.limits.use["qos", qos]
    each, accounts = list[str](), Counter[str]()
    for key, own in list(world.limits.use.items()):
        if key[:2] == ("qos", qos) and len(key) == 3 and own["submit"]:
            uid = str(UIDS.get(key[2], 1002))
            who = f"{key[2]}({uid})" if world.scenario.release > "23" else uid
            pairs = _uses(own, spec.user, "Max", "PU").items()
            each.append(f"{who}={{{' '.join(map('='.join, pairs))}}}")
    accounts.update(j.account for j in world.jobs.values() if j.active and j.qos == qos)
    of = " ".join(f"{a}={{MaxJobsPA=N(0) MaxSubmitJobsPA=N({n})}}" for a, n in accounts.items())
    head = _recorded(world.scenario.release, "use", "QOS=clive(").partition(" Account Limits=")[0]
    return (
        _filled(head, QOS=f"{qos}({len(qos)})", Priority=spec.priority,
                **_uses(use, world.limits.group[qos]))
        + f" Account Limits={f' {of}' if of else 'No Accounts'}"
        + f" User Limits={' ' + ' '.join(each) if each else 'No Users'}\n"
    )  # fmt: skip


def account_use_text(world: Scheduler, account: str, user: str = "") -> str:
    """Return an association as ``scontrol -o show assoc_mgr flags=assoc`` does."""
    spec, use = world.limits.accounts[account], world.limits.use["account", account]
    if user:
        use = Counter[str]()
        for job in world.jobs.values():
            if job.active and (job.user, job.account) == (user, account):
                use.update({"submit": 1} if job.state == "PENDING" else
                           {**job.tres, "jobs": 1, "submit": 1})  # fmt: skip
    return _filled(
        _recorded(world.scenario.release, "use", "ClusterName="),
        ClusterName="simulated", Account=account, UserName=f"{user}({UIDS[user]})" if user else "",
        ParentAccount="" if user else f"{spec.parent}(1)", **_uses(use, {} if user else spec.group),
    ) + "\n"  # fmt: skip


def database_text(world: Scheduler, question: str) -> str:
    """Return the rows of sacctmgr for ``show associations …`` or ``show qos …``."""
    asked = dict(re.findall(r"(\w+)=(\S*)", question))
    names = asked["format"].lower().split(",")
    rows: list[dict[str, str]] = []
    if re.match(r"(show|list) qos", question):
        for one in world.limits.qos.values():
            old = world.scenario.old_limits.get(one.name)
            group = world.limits.group[one.name] if old is None else old
            held = {t: n for t, n in one.user.items() if t not in ("jobs", "submit")}
            rows.append({
                "name": one.name, "priority": str(one.priority),
                "grptres": _database_tres(group), "maxtrespu": _database_tres(held),
                "grpjobs": str(group.get("jobs", "")), "grpsubmit": str(group.get("submit", "")),
                "maxjobspu": str(one.user.get("jobs", "")),
                "maxsubmitpu": str(one.user.get("submit", "")),
                "maxwall": "" if one.longest_min is None else span_text(one.longest_min),
            })  # fmt: skip
    else:
        who = asked.get("user")
        users = [""] if who == "" else [who] if who else [world.scenario.user, ""]
        for spec in world.limits.accounts.values():
            for user in users:
                group = {} if user else spec.group
                rows.append({
                    "account": spec.name, "user": user, "cluster": "simulated",
                    "qos": ",".join(spec.qos), "defaultqos": spec.qos[0] if spec.qos else "",
                    "grptres": _database_tres(group), "grpjobs": str(group.get("jobs", "")),
                    "grpsubmit": str(group.get("submit", "")),
                    "parentname": "" if user else spec.parent,
                })  # fmt: skip
        rows = [r for r in rows if r["user"] in ("", world.scenario.user)]
    return "".join("|".join(row.get(n, "") for n in names) + "\n" for row in rows)


def _database_tres(tres: Tres) -> str:
    held = {t: n for t, n in tres.items() if t not in ("jobs", "submit")}
    return tres_text(dict(sorted(held.items())), rounded=True)


def config_text(world: Scheduler) -> str:
    """Return what ``scontrol show config`` says that somebody asks for."""
    one = world.scenario
    limited = one.seen != "no accounts"
    tiers = len({where.tier for where in one.partitions}) > 1
    values = {
        "AccountingStorageEnforce": "associations,limits,qos" if limited else "none",
        "ClusterName": "simulated", "MinJobAge": f"{one.forget_s:.0f} sec",
        "PreemptType": f"preempt/{'partition_prio' if tiers else 'none'}", "PriorityFlags": "",
        "SelectTypeParameters": "CR_CORE_MEMORY", "SLURM_VERSION": one.release,
    }  # fmt: skip
    return "".join(f"{name:24}= {value}\n" for name, value in values.items())
