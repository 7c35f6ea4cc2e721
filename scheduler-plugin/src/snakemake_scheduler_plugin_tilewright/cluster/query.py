"""A Slurm cluster as one person sees it: accounts, limits, use, pools, and what is not known."""

import contextlib
import grp
import os
import pwd
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..errors import SlurmQueryError
from ..slurm import parse
from ..slurm.accounts import (
    NO_ACCOUNT,
    Account,
    LeftOut,
    LimitScope,
    lineage,
    names_of,
    usable_accounts,
    with_caps_alone,
)
from ..slurm.jobs import parse_queue, usage_of_queue
from ..slurm.nodes import (
    Node,
    before_reservations,
    open_to,
    parse_config,
    parse_licences,
    parse_nodes,
    parse_reservations,
)
from ..slurm.partitions import (
    cpu_partitions,
    gpu_partitions,
    why_not,
    with_accounts_below,
    with_preemption,
    with_qos,
    with_whole_nodes,
)
from ..slurm.query import SlurmClient
from ..slurm.records import JOBS, Partition, Tres, Usage, is_budget, of_association
from .database import Database, read_database
from .limits import may_use
from .request import KINDS, DeviceKind
from .site import Site
from .state import ClusterState, Note
from .tres import ON_NODES, why_not_counted


def query_cluster(client: SlurmClient, uid: int, site: Site) -> ClusterState:
    """Ask Slurm what a person may use.

    Raises
    ------
    PlacementError
        Slurm serves several clusters, and which this is is not known.
    """
    client.ask_at_once()
    config, lost = _config(client)
    nodes, unseen = _nodes(client, shares_memory="MEMORY" not in config["SelectTypeParameters"])
    names, all_, more = _partitions(client, site, _groups(client.user, uid), nodes, config)
    records = read_database(client, site, config)
    enforced = config["AccountingStorageEnforce"]
    limited = not {"limits", "safe"}.isdisjoint(enforced.split(","))
    wheres = _wheres(all_.values(), records, config, limited=limited)

    of_qos = records.qos if "qos" in config.get("PreemptType", "") else ()
    lose = {name for one in of_qos for name in one.preempts}

    def usable(usage: Mapping[str, Usage]) -> tuple[list[Account], list[LeftOut]]:
        found, left_out = usable_accounts(
            client.user, records.associations, records.qos, site.rules(), wheres, usage
        )
        found = [replace(one, preemptable=one.qos in lose) for one in found]
        return found if limited else [with_caps_alone(one) for one in found], left_out

    accounts, left_out = usable({}) if records.has_accounts else ([NO_ACCOUNT], [])
    of_use: list[Note] = []
    if records.has_accounts:
        accounts, of_use = _with_use(accounts, client, usable, records, wheres, uid)
        of_use += _not_counted(records, accounts, wheres, "" if limited else enforced)
    wrong = _wrong_names(client.user, site, accounts, left_out)
    named = {p.name: with_whole_nodes(p, nodes) for p in wheres}
    partitions = {kind: _open_to(accounts, [named[n] for n in own]) for kind, own in names.items()}
    kinds = KINDS if more or partitions["gpu"] else ("cpu",)
    largest = {kind: one for kind, one in site.largest_jobs().items() if kind in kinds}
    return ClusterState(
        tuple(accounts), partitions, named, nodes, _licences(client, lost),
        site.utilisation, largest,
        client.user, tuple(left_out),
        (*records.notes, *wrong, *of_use, *more, *lost, *unseen,
         *(Note("use", words) for words in client.slow())),
    )  # fmt: skip


def _wheres(
    found: Iterable[Partition], records: Database, config: Mapping[str, str], *, limited: bool
) -> list[Partition]:
    """Return the partitions with what QOS and accounts above bound of them."""
    wheres = [with_qos(p, records.qos) if limited else p for p in found]
    version = re.match(r"(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    if version and (int(version[1]), int(version[2])) >= (24, 5):
        rows = {row.account: row for row in records.associations if not row.user}
        lines = {name: lineage(name, rows) for name in rows}
        return [with_accounts_below(p, lines) for p in wheres]
    return wheres


def _open_to(accounts: Sequence[Account], found: Sequence[Partition]) -> tuple[Partition, ...]:
    """Return the partitions that any account may use; all, where none may use one."""
    return tuple(p for p in found if any(may_use(one, p) for one in accounts)) or tuple(found)


def _config(client: SlurmClient) -> tuple[dict[str, str], list[Note]]:
    """Return how Slurm is set up; as most are, with a note, where it does not say."""
    try:
        return parse_config(client.show("config")), []
    except SlurmQueryError as error:
        usual = {"SelectTypeParameters": "CR_CORE_MEMORY", "AccountingStorageEnforce": "limits"}
        note = "Slurm's configuration is not known, so memory and limits are taken to count"
        return {"ClusterName": "", **usual}, [Note("nodes", f"{note}: {error}")]


def _licences(client: SlurmClient, notes: list[Note]) -> dict[str, int] | None:
    """Return how many of each licence there are; None, and a note, where Slurm does not say."""
    try:
        return parse_licences(client.show("licenses"))
    except SlurmQueryError as error:
        notes.append(Note("nodes", f"licences are not known: {error}"))
        return None


def _not_counted(
    records: Database, accounts: Sequence[Account], partitions: Iterable[Partition], enforced: str
) -> list[Note]:
    """Return which limits of jobs are not looked at, and why; all, where none is enforced."""
    if enforced:
        note = f"this Slurm enforces no limits (AccountingStorageEnforce={enforced})"
        return [Note("use", f"{note}, so none is looked at")]
    rows = {row.account: row for row in records.associations if not row.user}
    known = {one.name: "in percent" if "Relative" in one.flags else "" for one in records.qos}
    qos = {p.qos for p in partitions if p.qos} | {one.qos for one in accounts}
    why = {f"QOS {name}": known.get(name, "sacctmgr does not list it") for name in qos if name}
    for one in accounts:
        above = [name for name in lineage(one.name, rows) if name not in rows]
        why |= {f"account {name}": "sacctmgr does not list it" for name in above}
        for where in partitions:
            tres = {tres for scope in one.within(where).scopes for tres in scope.limit}
            whys = {f"{name} of {one.name}": why_not_counted(name, where) for name in tres}
            why |= {name: reason for name, reason in whys.items() if reason}
    text = ", ".join(f"{name} ({reason})" for name, reason in sorted(why.items()) if reason)
    return [Note("limits", f"limits that are not looked at: {text}")] if text else []


def _wrong_names(
    user: str, site: Site, accounts: Iterable[Account], left_out: Iterable[LeftOut]
) -> list[Note]:
    """Return what the site says of accounts that the user does not have."""
    known = sorted([one.name for one in accounts] + [one.account for one in left_out])
    there = ", ".join(filter(None, known)) or "none"
    named: tuple[tuple[str, Literal["site", "blocked"], Iterable[str]], ...] = (
        ("allowed", "site", site.allowed or ()),
        ("caps", "site", site.caps),
        # a file for several people may well block what only some of them have
        ("blocked", "blocked", site.blocked),
    )
    return [
        Note(about, f"'{key}' names account {name}, which {user} does not have; there are {there}")
        for key, about, names in named
        for name in names
        if name not in known
    ]


def _nodes(
    client: SlurmClient, *, shares_memory: bool
) -> tuple[tuple[Node, ...] | None, list[Note]]:
    """Return the nodes; where Slurm does not say them, whether they are free is not looked at."""
    try:
        nodes = open_to(client.user, parse_nodes(client.show("node")))
        nodes = [replace(node, shares_memory=shares_memory) for node in nodes]
    except SlurmQueryError as error:
        return None, [Note("nodes", f"the nodes are not known: {error}")]
    if not nodes:
        return None, [Note("nodes", "the nodes are not known: scontrol shows none")]
    try:
        reservations = parse_reservations(client.show("reservation"))
    except SlurmQueryError as error:
        return tuple(nodes), [Note("nodes", f"reservations are not known: {error}")]
    return tuple(before_reservations(nodes, reservations, client.clock())), []


def _with_use(
    accounts: Sequence[Account],
    client: SlurmClient,
    usable: Callable[[Mapping[str, Usage]], tuple[list[Account], list[LeftOut]]],
    records: Database,
    partitions: Iterable[Partition],
    uid: int,
) -> tuple[list[Account], list[Note]]:
    """Return accounts with live use; of what Slurm refuses to say, that of jobs squeue shows."""
    where = {p.name: p.qos for p in partitions if p.qos}
    qos = sorted({account.qos for account in accounts if account.qos}.union(where.values()))
    rows = {of_association(a.account, a.user, a.partition): a for a in records.associations}
    parents = {row.account: row for row in rows.values() if not row.user}
    limiting = {scope.name for scope in _scopes(accounts)}
    usage: dict[str, Usage] = {}
    failures = []
    for of, names in (
        ("qos", qos),
        ("account", sorted({rows[name].account for name in limiting & rows.keys()})),
    ):
        if not names:
            continue
        try:
            usage |= parse.parse_assoc_mgr(client.usage(of, names), {str(uid): client.user})
        except SlurmQueryError as error:
            failures.append(error)
    unknown, lacks = dict[str, Tres](), set[str]()
    found, _ = usable(usage)
    for scope in _scopes(found):
        counted = {tres for tres in scope.limit if not why_not_counted(tres, None)}
        if missing := counted - (scope.used or {}).keys():
            unknown[scope.name] = scope.used or {}
            lacks |= missing
    if not unknown:
        return found, []
    why = "; ".join(map(str, failures)) or f"scontrol does not say {', '.join(sorted(lacks))} of it"
    about = f"use of {', '.join(sorted(unknown))} is"
    try:
        queue = client.everybodys_queue() if all(one.refused for one in failures) else None
    except SlurmQueryError:
        queue = None
    if queue is None:
        return found, [Note("use", f"{about} not known: {why}")]
    shown = usage_of_queue(parse_queue(queue), lambda job: names_of(job, rows, parents, where))
    for name, known in unknown.items():
        limit, used = usage.get(name, Usage()).limit, shown.get(name, Usage()).used
        nothing = {tres: 0 for tres in lacks | {*ON_NODES, *JOBS} if not is_budget(tres)}
        usage[name] = Usage(limit, nothing | used | known)
    note = Note("use", f"{about} a lower bound, from the jobs that squeue shows: {why}")
    return usable(shown | usage)[0], [note]


def _scopes(accounts: Iterable[Account]) -> Iterator[LimitScope]:
    """Yield all that limits the jobs of these accounts."""
    return (scope for one in accounts for at in one.limits.values() for scope in at.scopes)


def _groups(user: str, uid: int) -> frozenset[str] | None:
    """Return a user's groups; None of root, who may use all partitions, and if not known."""
    try:
        numbers = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return None
    found = set()
    for number in numbers:
        with contextlib.suppress(KeyError):
            found.add(grp.getgrgid(number).gr_name)
    return None if uid == 0 else frozenset(found)


def _with_nodes(
    partition: Partition, nodes: Iterable[Node], config: Mapping[str, str]
) -> Partition:
    """Return a partition with the default memory of a job, and GPUs that are no TRES."""
    own = [node for node in nodes if partition.name in node.partitions]
    gpus = partition.tres.get("gres/gpu") or sum(node.total.get("gres/gpu", 0) for node in own)
    a_node, a_cpu = partition.default_mem_a_node, partition.default_mem_a_cpu
    if "MEMORY" not in config["SelectTypeParameters"]:
        a_node = a_cpu = 0
    elif not a_node and not a_cpu:
        numbers = [config.get(name, "") for name in ("DefMemPerNode", "DefMemPerCPU")]
        a_node, a_cpu = (int(text) if text.isdecimal() else 0 for text in numbers)
        if not a_node and not a_cpu:  # all of its node
            a_node = min((node.total.get("mem", 0) for node in own), default=0)
    tres = partition.tres | ({"gres/gpu": gpus} if gpus else {})
    given = config.get("PriorityFlags")
    flags = None if given is None else tuple(given.split(","))
    partition = replace(partition, priority_flags=flags if partition.billing else ())
    return replace(partition, tres=tres, default_mem_a_node=a_node, default_mem_a_cpu=a_cpu)


def _hidden_partitions(
    site: Site, why: SlurmQueryError
) -> tuple[dict[DeviceKind, list[str]], dict[str, Partition], list[Note]]:
    """Return the partitions that the site file names, else Slurm's default, of unknown size."""
    named = site.partitions.names()
    names: dict[DeviceKind, list[str]] = {
        kind: [name for name in named.get(kind, [""]) if name != "none"] for kind in KINDS
    }
    found = {
        name: Partition(name, None, None, {}, True, not name, None, None)
        for own in names.values() for name in own
    }  # fmt: skip
    note = (
        f"the partitions are not seen, so jobs go to the default one, or as site.yaml says: {why}"
    )
    return names, found, [Note("nodes", note)]


def _partitions(
    client: SlurmClient,
    site: Site,
    groups: frozenset[str] | None,
    nodes: Collection[Node] | None,
    config: Mapping[str, str],
) -> tuple[dict[DeviceKind, list[str]], dict[str, Partition], list[Note]]:
    """Return the partitions of each device kind, all or those that the site names; and all."""
    try:
        found_ = parse.parse_partitions(client.show("partition"))
        all_ = [_with_nodes(one, nodes or (), config) for one in found_]
        if "partition_prio" in config.get("PreemptType", ""):
            all_ = with_preemption(all_, nodes)
        if not all_:
            raise SlurmQueryError("scontrol show partition", "it shows none: permission denied")
    except SlurmQueryError as error:
        if "permission denied" in error.reason:
            return _hidden_partitions(site, error)
        note = Note("partitions", f"the partitions are not known: {error}")
        return {"gpu": [], "cpu": []}, {}, [note]
    known = {p.name: p for p in all_ if not why_not(p, groups)}
    found: dict[DeviceKind, list[str]] = {
        "gpu": [p.name for p in gpu_partitions(known.values())],
        "cpu": [p.name for p in cpu_partitions(known.values())],
    }
    notes = []
    for kind, names in site.partitions.names().items():
        found[kind] = [name for name in names if name in known]
        for name in names:
            if name not in known and (kind, name) != ("gpu", "none"):
                why = next((why_not(p, groups) for p in all_ if p.name == name), "does not exist")
                there = ", ".join(sorted(known))
                notes.append(Note("site", f"partition {name} {why}; up are {there}"))
    return found, known, notes
