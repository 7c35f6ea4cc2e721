"""Text of sacctmgr and scontrol to records (pure); a line that is none makes all unreadable.

Requests and traps of the texts were recorded on Slurm 22.05: memory comes as ``812G``, as
``312.50G``, as plain MB (assoc_mgr) and as ``1T``; a missing TRES, an empty field and ``N`` all
mean no limit; an account with partition associations is listed several times.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from ..errors import UnreadableError
from .records import (
    JOBS,
    OTHERS,
    WALL,
    Association,
    Partition,
    Qos,
    Tres,
    Usage,
    budget_name,
    of_association,
    on_qos,
    running_name,
    spent_name,
)

ASSOCIATION_FIELDS = (
    "account", "user", "partition", "qos", "defaultqos", "grptres", "maxtres", "grpjobs",
    "grpsubmit", "maxjobs", "maxsubmit", "maxwall", "cluster", "parentname", "grptresmins",
    "grptresrunmins", "maxtresmins", "grpwall",
)  # fmt: skip
QOS_FIELDS = (
    "name", "grptres", "maxtres", "maxtrespu", "grpjobs", "grpsubmit", "maxjobspu", "maxsubmitpu",
    "maxwall", "flags", "maxtrespa", "maxjobspa", "maxsubmitpa", "grptresmins", "grptresrunmins",
    "maxtresmins", "grpwall", "maxtresrunminspu", "maxtresrunminspa",
    "maxtrespernode", "mintres", "preempt",
)  # fmt: skip
#: What each partition says, in one word or the other; ``Exclusive`` is of 26.05.
_PARTITION_FIELDS = (
    "PartitionName", "State", "MaxTime", "TRES", "Default", "QoS", "AllowGroups", "TotalNodes",
    "AllowAccounts|DenyAccounts", "AllowQos|DenyQos", "OverSubscribe", "Exclusive|ExclusiveUser",
    "MaxCPUsPerNode", "MaxMemPerNode|MaxMemPerCPU", "DefMemPerNode|DefMemPerCPU", "MinNodes",
    "MaxNodes", "RootOnly", "ReqResv", "PriorityTier", "PreemptMode",
)  # fmt: skip
#: Cells of sacctmgr by a part of their field's name: TRES, minutes, numbers; the rest are words.
_CELLS = {"tres": r"([^,=]+=[\d.]+[KMGTP]?(,|$))*", "wall": r"[\d:-]*|UNLIMITED|INVALID",
          "grp": r"\d*", "max": r"\d*", "": ".*"}  # fmt: skip
#: What scontrol prints besides records.
_NO_RECORD = re.compile(
    r"Current Association Manager state|\w+ Records"
    r"|No [\w ]+ (in the system|configured in Slurm\.|currently cached in Slurm\.)"
)
#: One user's and one account's use in the record of a QOS; from 23.02 on names of users are there.
_EACH = {
    "PU": re.compile(r"(?<!\S)(?:[^={}]{0,256}\()?(\d+)\)?=\{([^{}]*)\}", re.A),
    "PA": re.compile(r"(?<!\S)(\S+?)=\{([^{}]*)\}"),
}
_UNIT_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


def require(pattern: str, text: str) -> None:
    """Raise :class:`UnreadableError` where a text has no such pattern."""
    if re.search(pattern, text) is None:
        raise UnreadableError(text)


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a line of scontrol, the first of each: people's words come last."""
    return dict(reversed(re.findall(r"(?<!\S)(\S+?)=(\S*)", line)))


def records_of(text: str, *keys: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the lines of ``scontrol -o`` and their fields; each has all keys, or ``one|other``."""
    lines = [line for line in text.split("\n") if line.strip()]
    for line in lines or [""]:
        if not _NO_RECORD.fullmatch(line.strip()):
            fields = fields_of(line)
            if lacks := [key for key in keys if fields.keys().isdisjoint(key.split("|"))]:
                raise UnreadableError(line, *(lacks[:3] if fields else ()))
            yield line, fields


def parse_tres(text: str) -> Tres:
    """Return the limits in ``cpu=104,mem=812G,gres/gpu=3``; what has no number has no limit.

    >>> parse_tres("cpu=104,gres/gpu=3,mem=312.50G,node=N")
    {'cpu': 104, 'gres/gpu': 3, 'mem': 320000}
    """
    limits: Tres = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        number = _number(value, "M" if name == "mem" else "") if equals else None
        if number is not None:
            limits[name] = number
    return limits


def parse_tres_usage(text: str) -> tuple[Tres, Tres]:
    """Return limits and use in ``cpu=104(56),mem=831488(385024),node=N(2)``; see `parse_tres`."""
    found = re.findall(r"(?<![^,\s])([^,=\s]+)=([^,()\s]*)\(([^()]*)\)", text)
    limits, used = (",".join(f"{row[0]}={row[at]}" for row in found) for at in (1, 2))
    return parse_tres(limits), parse_tres(used)


def _group_limits(row: dict[str, str]) -> Tres:
    """Return what all jobs of a row of sacctmgr may hold, their number, and its budgets."""
    found = parse_tres(row["grptres"]) | _jobs(row["grpjobs"], row["grpsubmit"])
    found |= _budgets(parse_tres(row["grptresmins"]), parse_tres(row["grptresrunmins"]))
    wall = parse_minutes(row["grpwall"])
    return found if wall is None else found | {WALL: wall}


def _budgets(used_up: Tres, running: Mapping[str, int] = {}) -> Tres:
    found = {budget_name(tres): n for tres, n in used_up.items()}
    return found | {running_name(budget_name(tres)): n for tres, n in running.items()}


def _budget_usage(pairs: dict[str, str]) -> tuple[Tres, Tres]:
    """Return limits and use of the budgets of a record of assoc_mgr."""
    minutes = f"{pairs.get('GrpTRESMins', '')},wall={pairs.get('GrpWall', '')}"
    limits, used = parse_tres_usage(minutes)
    run_limits, run = parse_tres_usage(pairs.get("GrpTRESRunMins", ""))
    # of jobs on one node their minutes are what they hold of it
    run |= {"wall": run["node"]} if "node" in run else {}
    return (
        _budgets(limits, run_limits),
        {budget_name(t): n + run[t] for t, n in used.items() if t in run}
        | {spent_name(budget_name(t)): n for t, n in used.items()}
        | _budgets({}, run),
    )


def parse_minutes(text: str) -> int | None:
    """Return the minutes of what :func:`parse_seconds` reads; None is no limit.

    >>> parse_minutes("31-00:00:00"), parse_minutes("01:30:00"), parse_minutes("UNLIMITED")
    (44640, 90, None)
    """
    seconds = parse_seconds(text)
    return None if seconds is None else seconds // 60


def parse_seconds(text: str) -> int | None:
    """Return the seconds of ``days-hours:minutes:seconds`` and its short forms, else None."""
    match = re.fullmatch(
        r"(?:(\d{1,6})-)?(\d{1,8})(?::(\d{1,8}))?(?::(\d{1,8}))?", text.strip(), re.A
    )
    if match is None:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:  # minutes[:seconds], not days-hours[:minutes[:seconds]]
        numbers.insert(0, 0)
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_time_s(text: str) -> float | None:
    """Return ``2026-11-21T08:55:54`` (local time) in seconds since the epoch, else None."""
    if "T" not in text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()  # strptime takes ten times as long
    except (ValueError, OverflowError):
        return None


def parse_sacctmgr(text: str) -> tuple[list[Association], list[Qos]]:
    """Return what one sacctmgr process printed for associations and for QOS.

    The two differ in their number of columns (:data:`ASSOCIATION_FIELDS`,
    :data:`QOS_FIELDS`); sacctmgr's echo of its commands has neither.
    """
    associations: list[Association] = []
    qos: list[Qos] = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == len(ASSOCIATION_FIELDS) and cells[0]:
            found = _association(_row(ASSOCIATION_FIELDS, cells))
            if found not in associations:
                associations.append(found)
        elif len(cells) == len(QOS_FIELDS) and cells[0]:
            qos.append(_qos(_row(QOS_FIELDS, cells)))
        elif not _is_echo(line):
            raise UnreadableError(line)
    if not associations and not qos:
        raise UnreadableError("")
    return associations, qos


def _row(fields: Iterable[str], cells: list[str]) -> dict[str, str]:
    """Return the cells of a line by field, each as such a field looks."""
    row = dict(zip(fields, cells, strict=True))
    for name, cell in row.items():
        if not re.fullmatch(
            next(form for part, form in _CELLS.items() if part in name), cell, re.A
        ):
            raise UnreadableError("|".join(cells), name)
    return row


def _is_echo(line: str) -> bool:
    """Return whether a line is of the questions, of which some terminals show sacctmgr a part."""
    part = re.sub(r"\x1b\[[\d;?]*\w|[\x00-\x1f]", "", line).removeprefix("sacctmgr:").strip(" <>")
    fields = f"{','.join(ASSOCIATION_FIELDS)} {','.join(QOS_FIELDS)}"
    return part.startswith("show ") or part in fields


def parse_assoc_mgr(text: str, users: Mapping[str, str] | None = None) -> dict[str, Usage]:
    """Return the records of ``scontrol -o show assoc_mgr flags=qos`` or ``flags=assoc``.

    Each has the name of :func:`~snakemake_scheduler_plugin_tilewright.slurm.records.on_qos` or
    :func:`~snakemake_scheduler_plugin_tilewright.slurm.records.of_association`. ``users`` has
    names by number, by which the users of a QOS are found. What a record does not say is in none
    of them.
    """
    found: dict[str, Usage] = {}
    for line, pairs in records_of(text, "QOS|Account", "QOS|UserName", "QOS|Partition"):
        top, _, of_users = line.partition(" User Limits=")
        of_accounts = top.partition(" Account Limits=")[2]
        limit, used = _usage(pairs, "GrpTRES", "GrpJobs", "GrpSubmitJobs")
        budgets, minutes = _budget_usage(pairs)
        record = Usage(limit | budgets, used | minutes)
        if "QOS" in pairs:
            name = pairs["QOS"].rpartition("(")[0]
            found[on_qos(name)] = record
            nothing = Usage({}, dict.fromkeys(record.used, 0))
            for uid, use in _usage_of_each(of_users, "PU", nothing).items():
                found[on_qos(name, (users or {}).get(uid, f"user {uid}"))] = use
            for one, use in _usage_of_each(of_accounts, "PA", nothing).items():
                found[on_qos(name, of_association(one))] = use
        else:
            user = pairs["UserName"].partition("(")[0]
            found[of_association(pairs["Account"], user, pairs["Partition"])] = record
    return found


def _usage_of_each(text: str, who: str, nothing: Usage) -> dict[str, Usage]:
    """Return the use in ``1001={MaxJobsPU=N(2) …} ada(1002)={…}``; ``who`` is ``PU`` or ``PA``."""
    found = {}
    for name, block in _EACH[who].findall(text):
        pairs = fields_of(block)
        limit, used = _usage(pairs, f"MaxTRES{who}", f"MaxJobs{who}", f"MaxSubmitJobs{who}")
        run_limit, run = parse_tres_usage(pairs.get(f"MaxTRESRunMins{who}", ""))
        found[name] = Usage(limit | _budgets({}, run_limit), used | _budgets({}, run))
    # Slurm lists all who have jobs there, or says that there are none: only then others use nothing
    rest = _EACH[who].sub("", text).strip()
    if (found and not rest) or rest in ("No Users", "No Accounts"):
        found[OTHERS] = nothing
    return found


def _usage(pairs: dict[str, str], tres: str, *jobs: str) -> tuple[Tres, Tres]:
    """Return limits and use of TRES, and of numbers of jobs in ``N(4)``, by names of fields."""
    numbers = (f"{name}={pairs.get(one, '')}" for name, one in zip(JOBS, jobs, strict=True))
    return parse_tres_usage(",".join([pairs.get(tres, ""), *numbers]))


def _jobs(running: str, submitted: str) -> Tres:
    """Return how many jobs may run, and run or pend, as amounts besides TRES."""
    return parse_tres(f"{JOBS[0]}={running},{JOBS[1]}={submitted}")


def parse_partitions(text: str) -> list[Partition]:
    """Return the records of ``scontrol -o show partition``."""
    found = []
    for _, pairs in records_of(text, *_PARTITION_FIELDS):
        qos, shares, groups = pairs["QoS"], pairs["OverSubscribe"], pairs["AllowGroups"]
        found.append(
            Partition(
                pairs["PartitionName"],
                None if qos in ("N/A", "") else qos,
                parse_minutes(pairs["MaxTime"]),
                parse_tres(pairs["TRES"]),
                pairs["State"] == "UP",
                pairs["Default"] == "YES",
                _names(pairs.get("AllowAccounts", "ALL")),
                _names(pairs.get("AllowQos", "ALL")),
                _number(pairs["TotalNodes"]) or 1,
                allow_groups=None if groups == "ALL" else tuple(groups.split(",")),
                deny_accounts=_names(pairs.get("DenyAccounts", "")) or (),
                deny_qos=_names(pairs.get("DenyQos", "")) or (),
                whole_nodes=shares == "EXCLUSIVE" or pairs.get("Exclusive") == "NODE",
                cpus_a_node=_number(pairs["MaxCPUsPerNode"]),
                mem_a_node=_number(pairs.get("MaxMemPerNode", "")) or None,
                mem_a_cpu=_number(pairs.get("MaxMemPerCPU", "")) or None,
                default_mem_a_node=_number(pairs.get("DefMemPerNode", "")) or 0,
                default_mem_a_cpu=_number(pairs.get("DefMemPerCPU", "")) or 0,
                closed=_why_closed(pairs),
                tier=_number(pairs["PriorityTier"]),
                preempt_mode=pairs["PreemptMode"],
                billing=_weights(pairs.get("TRESBillingWeights", "")),
            )
        )
    return found


def _weights(text: str) -> tuple[tuple[str, float], ...]:
    """Return what ``CPU=1.0,Mem=0.25G`` bills for one of each, memory in MB."""
    pairs = re.findall(r"([^,=\s]+)=(-?[0-9]+(?:\.[0-9]+)?)([KMGTP]?)", text)
    return tuple((name.lower(), float(n) / _UNIT_MB.get(unit, 1)) for name, n, unit in pairs)


def _why_closed(pairs: dict[str, str]) -> str:
    """Return why no job of one node may go to a partition; empty where it may."""
    least, most = _number(pairs["MinNodes"]), pairs["MaxNodes"]
    why = {
        f"it takes jobs of {least} nodes at least (MinNodes)": (least or 0) > 1,
        "it takes jobs of no node (MaxNodes=0)": most == "0",
        "only root may use it (RootOnly)": pairs["RootOnly"] == "YES",
        "it takes jobs of a reservation only (ReqResv)": pairs["ReqResv"] == "YES",
    }
    return next((words for words, holds in why.items() if holds), "")


def _names(text: str) -> tuple[str, ...] | None:
    """Return names of accounts or QOS, which Slurm compares in any case; None is all."""
    return None if text in ("ALL", "") else tuple(text.lower().split(","))


def _association(row: dict[str, str]) -> Association:
    return Association(
        row["account"],
        row["user"],
        row["partition"],
        tuple(filter(None, row["qos"].split(","))),
        row["defaultqos"],
        _group_limits(row),
        parse_tres(row["maxtres"]) | _budgets(parse_tres(row["maxtresmins"])),
        _jobs(row["maxjobs"], row["maxsubmit"]),
        parse_minutes(row["maxwall"]),
        row["cluster"],
        row["parentname"],
    )


def _qos(row: dict[str, str]) -> Qos:
    job, node = parse_tres(row["maxtres"]), parse_tres(row["maxtrespernode"])
    job |= {tres: min(n, job.get(tres, n)) for tres, n in node.items()}  # a job has one node
    return Qos(
        row["name"],
        _group_limits(row),
        job | _budgets(parse_tres(row["maxtresmins"])),
        _limits_of_each(row, "pu"),
        _limits_of_each(row, "pa"),
        parse_minutes(row["maxwall"]),
        tuple(filter(None, row["flags"].split(","))),
        parse_tres(row["mintres"]),
        tuple(filter(None, row["preempt"].split(","))),
    )


def _limits_of_each(row: dict[str, str], who: str) -> Tres:
    """Return what a QOS allows each user (``pu``) or account (``pa``)."""
    jobs = _jobs(row[f"maxjobs{who}"], row[f"maxsubmit{who}"])
    held, running = (parse_tres(row[f"{name}{who}"]) for name in ("maxtres", "maxtresrunmins"))
    return held | jobs | _budgets({}, running)


def _number(text: str, unit: str = "") -> int | None:
    """Return a whole number, memory in MB; None for ``N``, nothing, and anything else."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)([KMGTP]?)", text.strip(), re.A)
    if match is None:
        return None
    value, suffix = match.groups()
    if unit:
        return math.floor(float(value) * _UNIT_MB[suffix or unit])
    return math.floor(float(value)) if not suffix else None
