"""Text of sacctmgr and scontrol to records (pure); a line that is none makes all unreadable.

Memory comes as ``812G``, as ``312.50G``, as plain MB (assoc_mgr) and as ``1T``; a missing TRES, an
empty field and ``N`` all mean no limit; an account with partition associations is listed several
times (recorded on Slurm 22.05, 24.11 and 26.05).
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping

from ..runtime.errors import UnreadableError
from .records import JOBS, Association, Partition, Qos, Tres, Usage, of_association, on_qos

ASSOCIATION_FIELDS = (
    "account", "user", "partition", "qos", "defaultqos", "grptres", "maxtres", "grpjobs",
    "grpsubmit", "maxjobs", "maxsubmit", "maxwall", "cluster", "parentname",
)  # fmt: skip
QOS_FIELDS = (
    "name", "grptres", "maxtres", "maxtrespu", "grpjobs", "grpsubmit", "maxjobspu", "maxsubmitpu",
    "maxwall", "flags", "maxtrespa", "maxjobspa", "maxsubmitpa", "maxtrespernode", "preempt",
)  # fmt: skip
#: What each partition says, in one word or the other.
_PARTITION_FIELDS = (
    "PartitionName", "State", "MaxTime", "TRES", "Default",
    "AllowAccounts|DenyAccounts", "AllowQos|DenyQos",
)  # fmt: skip
#: Cells of sacctmgr by a part of their field's name: TRES, minutes, numbers; the rest are words.
_CELLS = {"tres": r"([^,=]+=[\d.]+[KMGTP]?(,|$))*", "wall": r"[\d:-]*|UNLIMITED|INVALID",
          "grp": r"\d*", "max": r"\d*", "": ".*"}  # fmt: skip
#: What scontrol prints besides records.
_NO_RECORD = re.compile(r"Current Association Manager state|\w+ Records|No [\w ]+[.]?")
#: One user's and one account's use in the record of a QOS; from 23.02 on names of users are there.
_EACH = {
    "PU": re.compile(r"(?<!\S)(?:[^={}]{0,256}\()?(\d+)\)?=\{([^{}]*)\}", re.A),
    "PA": re.compile(r"(?<!\S)(\S+?)=\{([^{}]*)\}"),
}
#: Slurm has no more nodes (MAX_SLURM_NODES, 65,533): what names more is damaged.
_MOST_NODES = 65_536
_UNIT_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


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


def parse_sacctmgr(text: str) -> tuple[list[Association], list[Qos]]:
    """Return what one sacctmgr process printed for associations and for QOS.

    The two differ in their number of columns (:data:`ASSOCIATION_FIELDS`, :data:`QOS_FIELDS`);
    sacctmgr's echo of its commands has neither.
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
        form = next(form for part, form in _CELLS.items() if part in name)
        if not re.fullmatch(form, cell, re.A):
            raise UnreadableError("|".join(cells), name)
    return row


def _is_echo(line: str) -> bool:
    """Return whether a line is of the questions, of which some terminals show sacctmgr a part."""
    part = re.sub(r"\x1b\[[\d;?]*\w|[\x00-\x1f]", "", line).removeprefix("sacctmgr:").strip(" <>")
    fields = f"{','.join(ASSOCIATION_FIELDS)} {','.join(QOS_FIELDS)}"
    return part.startswith("show ") or part in fields


def _association(row: dict[str, str]) -> Association:
    return Association(
        row["account"], row["user"], row["partition"],
        _words(row["qos"]), row["defaultqos"],
        parse_tres(row["grptres"]) | _jobs(row["grpjobs"], row["grpsubmit"]),
        parse_tres(row["maxtres"]), _jobs(row["maxjobs"], row["maxsubmit"]),
        parse_minutes(row["maxwall"]), row["cluster"], row["parentname"],
    )  # fmt: skip


def _qos(row: dict[str, str]) -> Qos:
    job, node = parse_tres(row["maxtres"]), parse_tres(row["maxtrespernode"])
    of_user, of_account = (
        parse_tres(row[f"maxtres{who}"]) | _jobs(row[f"maxjobs{who}"], row[f"maxsubmit{who}"])
        for who in ("pu", "pa")
    )
    return Qos(
        row["name"],
        parse_tres(row["grptres"]) | _jobs(row["grpjobs"], row["grpsubmit"]),
        job | {tres: min(n, job.get(tres, n)) for tres, n in node.items()},  # a job has one node
        of_user, of_account,
        parse_minutes(row["maxwall"]), _words(row["flags"]), _words(row["preempt"]),
    )  # fmt: skip


def parse_assoc_mgr(text: str, users: Mapping[str, str] | None = None) -> dict[str, Usage]:
    """Return the records of ``scontrol -o show assoc_mgr`` by name.

    Names are those of :func:`~snakemake_scheduler_plugin_tilewright.slurm.records.on_qos` and
    :func:`~snakemake_scheduler_plugin_tilewright.slurm.records.of_association`. ``users`` has
    names by number, by which the users of a QOS are found. What a record does not say is in none
    of them; on a QOS that lists its users, or says that it has none, others use nothing.
    """
    found: dict[str, Usage] = {}
    for line, pairs in records_of(text, "QOS|Account", "QOS|UserName", "QOS|Partition"):
        top, _, of_users = line.partition(" User Limits=")
        of_accounts = top.partition(" Account Limits=")[2]
        record = _usage(pairs, "GrpTRES", "GrpJobs", "GrpSubmitJobs")
        if "QOS" in pairs:
            name = pairs["QOS"].rpartition("(")[0]
            found[on_qos(name)] = record
            each = _usage_of_each(of_users, "PU")
            for uid, use in each.items():
                found[on_qos(name, (users or {}).get(uid, f"user {uid}"))] = use
            for one, use in _usage_of_each(of_accounts, "PA").items():
                found[on_qos(name, of_association(one))] = use
            if of_users.strip() and of_users.count("={") == len(each):  # else it may be theirs
                for who in (users or {}).values():
                    found.setdefault(on_qos(name, who), Usage({}, dict.fromkeys(record.used, 0)))
        else:
            user = pairs["UserName"].partition("(")[0]
            found[of_association(pairs["Account"], user, pairs["Partition"])] = record
    return found


def parse_associations(text: str) -> list[Association]:
    """Return the accounts in ``scontrol -o show assoc_mgr flags=assoc``, without their QOS."""
    return [
        Association(pairs["Account"], pairs["UserName"].partition("(")[0], pairs["Partition"])
        for _, pairs in records_of(text, "Account", "UserName", "Partition")
    ]


def parse_shares(text: str) -> list[Association]:
    r"""Return the accounts in ``sshare -n -P -o Account,User,Partition``.

    >>> [(one.account, one.user) for one in parse_shares("clive|ada|\n")]
    [('clive', 'ada')]
    """
    rows = [[cell.strip() for cell in line.split("|")] for line in text.split("\n") if line.strip()]
    if wrong := [row for row in rows if len(row) != 3]:
        raise UnreadableError("|".join(wrong[0]))
    return [Association(row[0], row[1], row[2]) for row in rows if row[0]]


def _usage_of_each(text: str, who: str) -> dict[str, Usage]:
    """Return the use in ``1001={MaxJobsPU=N(2) …} ada(1002)={…}``; ``who`` is ``PU`` or ``PA``."""
    names = f"MaxTRES{who}", f"MaxJobs{who}", f"MaxSubmitJobs{who}"
    return {name: _usage(fields_of(block), *names) for name, block in _EACH[who].findall(text)}


def _usage(pairs: dict[str, str], tres: str, *jobs: str) -> Usage:
    """Return limits and use of TRES, and of numbers of jobs in ``N(4)``, by names of fields."""
    numbers = (f"{name}={pairs.get(one, '')}" for name, one in zip(JOBS, jobs, strict=True))
    return Usage(*parse_tres_usage(",".join([pairs.get(tres, ""), *numbers])))


def _jobs(running: str, submitted: str) -> Tres:
    """Return how many jobs may run, and run or pend, as amounts besides TRES."""
    return parse_tres(f"{JOBS[0]}={running},{JOBS[1]}={submitted}")


def parse_partitions(text: str) -> list[Partition]:
    """Return the records of ``scontrol -o show partition``."""
    found = []
    for _, pairs in records_of(text, *_PARTITION_FIELDS):
        found.append(
            Partition(
                pairs["PartitionName"],
                parse_minutes(pairs["MaxTime"]),
                parse_tres(pairs["TRES"]),
                pairs["Default"] == "YES",
                pairs.get("Nodes", ""),
                _names(pairs.get("AllowAccounts", "ALL")),
                _names(pairs.get("AllowQos", "ALL")),
                _names(pairs.get("DenyAccounts", "")) or (),
                _names(pairs.get("DenyQos", "")) or (),
                pairs["State"] == "UP",
                _number(pairs.get("PriorityTier", "")),
                pairs.get("PreemptMode", "OFF"),
            )
        )
    return found


#: What sinfo says of the nodes of a partition that are alike, with room for long lists of GRES.
IDLE_FORMAT = "PartitionName:64|,CPUsState:40|,Gres:200|,GresUsed:200|,Nodes:12|"


def parse_idle(text: str) -> dict[str, Tres]:
    """Return the idle CPUs and GPUs of each partition, by sinfo with :data:`IDLE_FORMAT`.

    A GPU of a node without an idle CPU is not idle.

    >>> parse_idle("gpu|3/5/0/8|gpu:a100:4(S:0)|gpu:a100:1(IDX:0)|2|")
    {'gpu': {'cpu': 5, 'gres/gpu': 6}}
    """
    found: dict[str, Tres] = {}
    for line in filter(str.strip, text.split("\n")):
        cells = [cell.strip() for cell in line.split("|")]
        cpus = re.fullmatch(r"\d+/(\d+)/\d+/\d+", cells[1]) if len(cells) > 4 else None
        if cpus is None or not cells[4].isdecimal():
            raise UnreadableError(line)
        idle = int(cpus[1])
        gpus = (_gpus(cells[2]) - _gpus(cells[3])) * int(cells[4]) if idle else 0
        known = found.setdefault(cells[0], {"cpu": 0, "gres/gpu": 0})
        known["cpu"] += idle
        known["gres/gpu"] += max(0, gpus)
    return found


def _gpus(gres: str) -> int:
    """Return the GPUs in ``gpu:a100:2(IDX:0-1),shard:4``.

    >>> _gpus("gpu:a100:2(IDX:0-1),gpu:1,shard:4"), _gpus("(null)")
    (3, 0)
    """
    return sum(map(int, re.findall(r"(?<![^,])gpu(?::[^:,()]+)?:(\d{1,9})", gres)))


def node_names(text: str) -> list[str]:
    """Return the nodes of Slurm's short form.

    >>> node_names("rack[1-2]node[01-02],b1"), node_names("(null)")
    (['rack1node01', 'rack1node02', 'rack2node01', 'rack2node02', 'b1'], [])
    """
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text.replace("(null)", "")):
        # "rack", "1-2", "node", "01-02", ""
        words = [
            _numbers(one) if i % 2 else [one]
            for i, one in enumerate(re.split(r"\[([^\]]*)\]", part))
        ]
        found += map("".join, itertools.islice(itertools.product(*words), _MOST_NODES))
    return [*filter(None, found)]


def _numbers(ranges: str) -> list[str]:
    """Return the numbers in ``01-02,5``, as wide as the first of each."""
    found: list[str] = []
    for one in ranges.split(","):
        first, _, last = one.partition("-")
        if re.fullmatch(r"\d{1,6}-\d{1,6}", one, re.A):
            found += (f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1))
        else:
            found.append(one)
    return found


def _names(text: str) -> tuple[str, ...] | None:
    """Return names of accounts or QOS, which Slurm compares in any case; None is all."""
    return None if text in ("ALL", "") else tuple(text.lower().split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _number(text: str, unit: str = "") -> int | None:
    """Return a whole number, memory in MB; None for ``N``, nothing, and anything else."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)([KMGTP]?)", text.strip(), re.A)
    if match is None:
        return None
    value, suffix = match.groups()
    if unit:
        return math.floor(float(value) * _UNIT_MB[suffix or unit])
    return math.floor(float(value)) if not suffix else None
