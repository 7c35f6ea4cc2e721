"""What the commands of Slurm print of the simulated cluster, as three releases word it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

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


@lru_cache(maxsize=4096)
def _time(seconds: int) -> str:
    return datetime.fromtimestamp(EPOCH_S + seconds).isoformat()


def time_text(at_s: float | None) -> str:
    """Return a time of the run as Slurm prints it."""
    return "N/A" if at_s is None else _time(int(at_s))


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


def job_text(world: Scheduler, job: SlurmJob) -> str:
    """Return a job as ``scontrol -o show job`` does."""
    of, new = _job_fields(world), world.scenario.release > "23"
    tres = f"ReqTRES={_billed(job.tres)} AllocTRES={_billed(job.tres) if job.node else '(null)'}"
    derived = "" if job.active else f" DerivedExitCode={job.derived}"
    code = "0:0" if job.active or job.state == "CANCELLED" else job.exit
    return (
        f"JobId={job.id} JobName={job.name} UserId={job.user}({of['userid'](job)}) GroupId=lab(100)"
        f" MCS_label=N/A Priority={of['prioritylong'](job)} Nice=0 Account={of['account'](job)}"
        f" QOS={of['qos'](job)} JobState={job.state} Reason={_reason(job, world).replace(' ', '_')}"
        f" Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}{derived}"
        f" RunTime={span_text((_until(job, world) - (job.start_s or 0)) / 60 if job.node else 0)}"
        f" TimeLimit={span_text(job.request.minutes)} TimeMin=N/A"
        f" SubmitTime={time_text(job.submit_s)} EligibleTime={time_text(job.submit_s)}"
        f" StartTime={of['starttime'](job)} EndTime={of['endtime'](job)} Deadline=N/A"
        f" Partition={job.partition} ExcNodeList={','.join(sorted(job.exclude)) or '(null)'}"
        f" NodeList={job.node or '(null)'} NumNodes=1 NumCPUs={job.request.cpus} NumTasks=1"
        f" {tres if new else f'TRES={_billed(job.tres)}'} MinCPUsNode={job.request.cpus}"
        f" MinMemoryNode={mem_text(job.request.mem_mb)} Features=(null) Licenses=(null)"
        f" Comment={of['comment'](job)} WorkDir={job.workdir} StdErr= StdIn=/dev/null"
        f" StdOut={job.workdir}/slurm-{job.id}.out\n"
    )


def _until(job: SlurmJob, world: Scheduler) -> float:
    return world.clock_s if job.active else job.end_s or world.clock_s


def partition_text(world: Scheduler, where: Partition) -> str:
    """Return a partition as ``scontrol -o show partition`` does."""
    nodes = [one for one in world.scenario.nodes if one.name in where.nodes]
    cpus, gpus = sum(n.cpus for n in nodes), sum(n.gpus for n in nodes)
    tres = f"cpu={cpus},mem={sum(n.mem_mb for n in nodes)}M,node={len(nodes)},billing={cpus}"
    exclusive = "Exclusive" if world.scenario.release > "26" else "ExclusiveUser"
    return (
        f"PartitionName={where.name} AllowGroups=ALL AllowAccounts={_names(where.accounts)}"
        f" AllowQos={_names(where.qos)} AllocNodes=ALL Default={'YES' if where.default else 'NO'}"
        f" QoS=N/A DefaultTime=00:10:00 DisableRootJobs=NO {exclusive}=NO GraceTime=0 Hidden=NO"
        f" MaxNodes=UNLIMITED MaxTime={span_text(where.longest_min)} MinNodes=0 LLN=NO"
        f" MaxCPUsPerNode=UNLIMITED Nodes={','.join(where.nodes)} PriorityJobFactor=1"
        f" PriorityTier={where.tier} RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE"
        f" PreemptMode=REQUEUE State=UP TotalCPUs={cpus} TotalNodes={len(nodes)}"
        f" SelectTypeParameters=NONE JobDefaults=(null) DefMemPerCPU=1000 MaxMemPerNode=UNLIMITED"
        f" TRES={tres}{f',gres/gpu={gpus}' if gpus else ''}\n"
    )


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
    gpus = room.total.get("gres/gpu", 0)
    own = ",".join(p.name for p in world.scenario.partitions if name in p.nodes)
    total = f"cpu={room.total['cpu']},mem={room.total['mem']}M,billing={room.total['cpu']}"
    total += f",gres/gpu={gpus}" if gpus else ""
    gres = f"gpu:{gpus}" if gpus else "(null)"
    return (
        f"NodeName={name} Arch=x86_64 CPUAlloc={used.get('cpu', 0)} CPUTot={room.total['cpu']}"
        f" AvailableFeatures=(null) ActiveFeatures=(null) Gres={gres}"
        f" GresDrain=N/A GresUsed=gpu:{used.get('gres/gpu', 0)} NodeAddr={name} NodeHostName={name}"
        f" Version={world.scenario.release} RealMemory={room.total['mem']}"
        f" AllocMem={used.get('mem', 0)} State={node_state(world, name)} ThreadsPerCore=1 Weight=1"
        f" Owner=N/A MCS_label=N/A Partitions={own} "
        f" CfgTRES={total} AllocTRES={tres_text(used)}\n"
    )


def _limits(use: Mapping[str, int], limit: Tres) -> str:
    return ",".join(f"{t}={limit.get(t, 'N')}({use.get(t, 0)})" for t in _ALL_TRES)


def _numbers(use: Mapping[str, int], limit: Tres, *names: str) -> str:
    return " ".join(f"{name}={limit.get(tres, 'N')}({use.get(tres, 0)})"
                    for name, tres in zip(names, ("jobs", "submit"), strict=True))  # fmt: skip


def qos_use_text(world: Scheduler, qos: str) -> str:
    """Return a QOS as ``scontrol -o show assoc_mgr flags=qos`` does."""
    spec, use = world.limits.qos[qos], world.limits.use["qos", qos]
    limit, each = world.limits.group[qos], []
    for key, own in list(world.limits.use.items()):
        if key[:2] == ("qos", qos) and len(key) == 3 and own["submit"]:
            uid = str(UIDS.get(key[2], 1002))
            who = f"{key[2]}({uid})" if world.scenario.release > "23" else uid
            numbers = _numbers(own, spec.user, "MaxJobsPU", "MaxSubmitJobsPU")
            each.append(f"{who}={{{numbers} MaxTRESPU={_limits(own, spec.user)}}}")
    accounts = Counter[str]()
    for job in world.jobs.values():
        if job.active and job.qos == qos:
            accounts[job.account] += 1
    of = " ".join(f"{a}={{MaxJobsPA=N(0) MaxSubmitJobsPA=N({n})}}" for a, n in accounts.items())
    return (
        f"QOS={qos}({len(qos)}) UsageRaw=0.000000"
        f" {_numbers(use, limit, 'GrpJobs', 'GrpSubmitJobs')}"
        f" GrpWall=N(0.00) GrpTRES={_limits(use, limit)} MaxWallPJ= MaxTRESPJ= MaxTRESPN="
        f" MaxTRESMinsPJ= MinPrioThresh=  MinTRESPJ= PreemptMode=OFF Priority={spec.priority}"
        f" Account Limits={f' {of}' if of else 'No Accounts'}"
        f" User Limits={' ' + ' '.join(each) if each else 'No Users'}\n"
    )


def account_use_text(world: Scheduler, account: str, user: str = "") -> str:
    """Return an association as ``scontrol -o show assoc_mgr flags=assoc`` does."""
    spec, use = world.limits.accounts[account], world.limits.use["account", account]
    if user:
        use = Counter[str]()
        for job in world.jobs.values():
            if job.active and (job.user, job.account) == (user, account):
                use["submit"] += 1
                if job.state == "RUNNING":
                    use.update({**job.tres, "jobs": 1})
    limit = {} if user else spec.group
    who = f"{user}({UIDS[user]})" if user else ""
    return (
        f"ClusterName=simulated Account={account} UserName={who} Partition= Priority=0 ID=1"
        f" ParentAccount={'' if user else f'{spec.parent}(1)'} DefAssoc=No"
        f" {_numbers(use, limit, 'GrpJobs', 'GrpSubmitJobs')} GrpWall=N(0.00)"
        f" GrpTRES={_limits(use, limit)} MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ="
        " MaxTRESPJ= MaxTRESPN= MaxTRESMinsPJ= MinPrioThresh= Comment=(null)\n"
    )


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
    values: Sequence[tuple[str, str]] = (
        ("AccountingStorageEnforce", "associations,limits,qos" if limited else "none"),
        ("AccountingStorageTRES", "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu"),
        ("ClusterName", "simulated"), ("MinJobAge", f"{one.forget_s:.0f} sec"),
        ("PreemptType", f"preempt/{'partition_prio' if tiers else 'none'}"),
        ("PriorityFlags", ""), ("SchedulerType", "sched/backfill"),
        ("SelectType", "select/cons_tres"), ("SelectTypeParameters", "CR_CORE_MEMORY"),
        ("SLURM_VERSION", one.release),
    )  # fmt: skip
    return "".join(f"{name:24}= {value}\n" for name, value in values)
