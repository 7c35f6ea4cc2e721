"""A Slurm cluster as one person sees it: accounts, limits, use, pools, and what is not known."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

from snakemake_scheduler_plugin_tilewright.errors import SurveyError
from snakemake_scheduler_plugin_tilewright.placement.capacity import (
    Capacity,
    Claim,
    capacity_now,
)
from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind, Place, Shape
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    Pool,
    make_pools,
    partition_of,
    unknown_use,
)
from snakemake_scheduler_plugin_tilewright.placement.site import Site
from snakemake_scheduler_plugin_tilewright.runtime.run_state import span_text
from snakemake_scheduler_plugin_tilewright.slurm import parse
from snakemake_scheduler_plugin_tilewright.slurm.accounts import (
    COUNTED,
    LIMITED,
    NO_ACCOUNT,
    Account,
    Holder,
    LeftOut,
    names_of,
    usable_accounts,
)
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob, parse_queue, usage_of_queue
from snakemake_scheduler_plugin_tilewright.slurm.nodes import (
    Node,
    before_reservations,
    open_to,
    parse_nodes,
    parse_reservations,
)
from snakemake_scheduler_plugin_tilewright.slurm.partitions import (
    cpu_partition,
    gpu_partition,
    gpu_type_of,
    why_not,
    with_qos,
    with_whole_nodes,
)
from snakemake_scheduler_plugin_tilewright.slurm.query import NO_ACCOUNTING, SlurmClient, Unknown
from snakemake_scheduler_plugin_tilewright.slurm.records import (
    JOBS,
    Association,
    Partition,
    Qos,
    Usage,
    of_association,
)


@dataclass(frozen=True)
class Note:
    """What is old or unknown, and what it is about."""

    about: Literal["limits", "types", "use", "partitions", "nodes", "site", "blocked"]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Survey:
    """A cluster as one person may use it.

    Attributes
    ----------
    accounts : tuple of Account
        By name, with live use where Slurm said it.
    notes : tuple of Note
        What is old or unknown.
    shapes : dict of {"gpu", "cpu"} to Shape
        Largest job of each device kind that there is a partition for.
    utilisation : float
        Share of CPUs that CPU slots are counted from.
    named : dict of str to Partition
        All partitions that the person may use.
    nodes : tuple of Node or None
        None where Slurm did not say.
    licences : dict of str to int or None
        How many of each there are; None where Slurm did not say.
    """

    user: str
    accounts: tuple[Account, ...]
    left_out: tuple[LeftOut, ...]
    partitions: Mapping[Kind, Partition | None]
    notes: tuple[Note, ...]
    shapes: Mapping[Kind, Shape]
    utilisation: float
    named: Mapping[str, Partition]
    nodes: tuple[Node, ...] | None = None
    licences: Mapping[str, int] | None = None

    def where(self, place: Place) -> Partition | None:
        """Return the partition of a place, None where nothing is known of it."""
        return partition_of(place.kind, place.partition, self.partitions, self.named)

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """Slots of each account alone, GPU jobs first and CPU jobs in what they leave."""
        return tuple(self.slots(self.shapes))

    def slots(self, kinds: Iterable[Kind], *, together: bool = False) -> list[Pool]:
        """Return the slots for jobs of these device kinds; see :func:`make_pools`."""
        return make_pools(
            self.accounts,
            {kind: self.shapes[kind] for kind in kinds if kind in self.shapes},
            utilisation=self.utilisation,
            partitions=self.partitions,
            nodes=self.nodes,
            together=together,
        )

    def capacity(
        self, waiting: Iterable[SlurmJob], sent: Iterable[Claim], workdir: str
    ) -> Capacity:
        """Return what fits now beside own jobs of a queue; see :func:`capacity_now`."""
        return capacity_now(
            self.accounts,
            waiting,
            sent,
            utilisation=self.utilisation,
            partitions=self.partitions,
            nodes=self.nodes,
            licences=self.licences,
            named=self.named,
            workdir=workdir,
        )

    def unknown(self) -> Unknown | None:
        """Return what keeps every job from being placed: nobody knows partitions, or any use."""
        about = {note.about: note.text for note in self.notes}
        if "partitions" in about:
            return Unknown("scontrol show partition", about["partitions"])
        where = self.partitions.values()
        if all(unknown_use(account, one) for account in self.accounts for one in where):
            return Unknown("scontrol show assoc_mgr", about.get("use", "use is not known"))
        return None


def survey(client: SlurmClient, uid: int, site: Site) -> Survey:
    """Ask Slurm what a person may use.

    Parameters
    ----------
    uid : int
        Number of the user, by which live use is listed.
    site : Site
        The site's profile.

    Raises
    ------
    SurveyError
        Limits were never known: sacctmgr fails and no good answer is on disk.
    """
    names, all_, more = _partitions(client, site, _groups(client.user, uid))
    gpus = all_.get(names["gpu"] or "")
    records = _records(client, gpus)
    wheres = [with_qos(p, records.qos) for p in all_.values()]
    usable = partial(
        usable_accounts, client.user, records.associations, records.qos, site.rules(), wheres
    )
    accounts, left_out = usable() if records.kept else ([NO_ACCOUNT], [])
    types = _types_not_counted(accounts, gpus, records.gpu_type)
    said: list[Note] = []
    if records.kept:
        usage, said = _live_use(client, usable, records, wheres, uid)
        accounts, _ = usable(usage)
    wrong, (nodes, lost) = _wrong_names(client.user, site, accounts, left_out), _nodes(client)
    licences = client.show("licenses")
    named = {p.name: with_whole_nodes(p, nodes) for p in wheres}
    partitions = {kind: named.get(name or "") for kind, name in names.items()}
    with_gpu = bool(more) or partitions["gpu"] is not None
    return Survey(
        client.user,
        tuple(accounts),
        tuple(left_out),
        partitions,
        (*records.notes, *wrong, *types, *said, *more, *lost),
        {kind: s for kind, s in site.shapes().items() if kind == "cpu" or with_gpu},
        site.utilisation,
        named,
        nodes,
        None if isinstance(licences, Unknown) else parse.parse_licences(licences),
    )


class _Database(NamedTuple):
    """What sacctmgr says; ``kept`` is false of a Slurm that keeps no accounts."""

    associations: list[Association]
    qos: list[Qos]
    gpu_type: str
    notes: list[Note]
    kept: bool = True


def _records(client: SlurmClient, gpus: Partition | None) -> _Database:
    """Return the associations of this cluster and all QOS, and what of them is old or absent."""
    answer, gpu_type = client.limits(), gpu_type_of(gpus)
    if isinstance(answer, Unknown):
        if NO_ACCOUNTING not in answer.reason:
            raise SurveyError(f"the accounts are not known: {answer}")
        note = "this Slurm keeps no accounts: jobs are bounded by its nodes alone"
        return _Database([], [], gpu_type, [Note("limits", note)], kept=False)
    notes = []
    if answer.failure:
        notes.append(Note("limits", f"limits are {span_text(answer.age_s)} old: {answer.failure}"))
    associations, qos = parse.parse_sacctmgr(answer.text, gpu_type)
    return _Database(_of_this_cluster(client, associations), qos, gpu_type, notes)


def _wrong_names(
    user: str, site: Site, accounts: Iterable[Account], left_out: Iterable[LeftOut]
) -> list[Note]:
    """Return what the site says of accounts that the user does not have.

    A file for several people may well block what only some of them have.
    """
    known = sorted([one.name for one in accounts] + [one.account for one in left_out])
    there = ", ".join(filter(None, known)) or "none"
    named: tuple[tuple[str, Literal["site", "blocked"], Iterable[str]], ...] = (
        ("allowed", "site", site.allowed or ()),
        ("caps", "site", site.caps),
        ("blocked", "blocked", site.blocked),
    )
    return [
        Note(about, f"'{key}' names account {name}, which {user} does not have; there are {there}")
        for key, about, names in named
        for name in names
        if name not in known
    ]


def _types_not_counted(
    accounts: Iterable[Account], gpus: Partition | None, gpu_type: str
) -> list[Note]:
    """Return that limits of GPU types are not looked at, where there are some."""
    typed = [
        account.name
        for account in accounts
        for holder in account.at("").holders
        if any(tres.startswith("gres/gpu:") for tres in holder.limit)
    ]
    if gpus is None or gpu_type or not typed:
        return []
    text = (
        f"limits of GPU types on {', '.join(dict.fromkeys(typed))} are not looked at: Slurm does "
        f"not count the GPUs of partition {gpus.name} as of one type"
    )
    return [Note("types", text)]


def _nodes(client: SlurmClient) -> tuple[tuple[Node, ...] | None, list[Note]]:
    """Return the nodes; where Slurm does not say them, whether they are free is not looked at."""
    text = client.show("node")
    if isinstance(text, Unknown):
        return None, [Note("nodes", f"the nodes are not known: {text}")]
    nodes, said = open_to(client.user, parse_nodes(text)), client.show("reservation")
    if isinstance(said, Unknown):
        return tuple(nodes), [Note("nodes", f"reservations are not known: {said}")]
    return tuple(before_reservations(nodes, parse_reservations(said), client.clock())), []


def _of_this_cluster(client: SlurmClient, associations: list[Association]) -> list[Association]:
    """Return the associations of this cluster, where slurmdbd serves several."""
    clusters = {association.cluster for association in associations}
    if len(clusters) < 2:
        return associations
    said = client.show("config")
    if isinstance(said, Unknown):
        raise SurveyError(f"which of {', '.join(sorted(clusters))} this is is not known: {said}")
    found = re.search(r"^ClusterName\s*=\s*(\S+)", said, re.M)
    name = found.group(1) if found else ""
    return [association for association in associations if association.cluster == name]


def _live_use(
    client: SlurmClient,
    usable: Callable[[Mapping[str, Usage]], tuple[list[Account], list[LeftOut]]],
    records: _Database,
    partitions: Iterable[Partition],
    uid: int,
) -> tuple[dict[str, Usage], list[Note]]:
    """Return live use by name; of what Slurm refuses to say, that of the jobs squeue shows."""
    where = {p.name: p.qos for p in partitions if p.qos}
    accounts, _ = usable({})
    qos = sorted({account.qos for account in accounts if account.qos}.union(where.values()))
    rows = {of_association(a.account, a.user, a.partition): a for a in records.associations}
    parents = {row.account: row for row in rows.values() if not row.user}
    limiting = {holder.name for holder in _holders(accounts)}
    usage: dict[str, Usage] = {}
    failures = []
    for asked, names in (
        (client.usage, qos),
        (client.account_usage, sorted({rows[name].account for name in limiting & rows.keys()})),
    ):
        said = asked(names) if names else None
        if isinstance(said, Unknown):
            failures.append(said)
        elif said is not None:
            usage |= parse.parse_assoc_mgr(said, records.gpu_type, {str(uid): client.user})
    unknown = {
        holder.name: holder.used or {}
        for holder in _holders(usable(usage)[0])
        if any(tres in LIMITED and tres not in (holder.used or {}) for tres in holder.limit)
    }
    if not unknown:
        return usage, []
    why = "; ".join(map(str, failures)) or "scontrol show assoc_mgr does not say all of it"
    about = f"use of {', '.join(sorted(unknown))} is"
    queue = client.everybodys_queue() if all(one.refused for one in failures) else None
    if queue is None or isinstance(queue, Unknown):
        return usage, [Note("use", f"{about} not known: {why}")]
    seen = usage_of_queue(parse_queue(queue), lambda job: names_of(job, rows, parents, where))
    nothing = dict.fromkeys((*COUNTED, *JOBS), 0)
    for name, known in unknown.items():
        limit, shown = usage.get(name, Usage()).limit, seen.get(name, Usage()).used
        usage[name] = Usage(limit, nothing | shown | known)
    note = Note("use", f"{about} a lower bound, from the jobs that squeue shows: {why}")
    return seen | usage, [note]


def _holders(accounts: Iterable[Account]) -> Iterator[Holder]:
    """Yield all that limits the jobs of these accounts."""
    return (h for one in accounts for at in one.limits.values() for h in at.holders)


def _groups(user: str, uid: int) -> frozenset[str] | None:
    """Return a user's groups; None of root, who may use all partitions, and where nobody says."""
    try:
        numbers = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return None
    found = set()
    for number in numbers:
        try:
            found.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return None if uid == 0 else frozenset(found)


def _partitions(
    client: SlurmClient, site: Site, groups: frozenset[str] | None
) -> tuple[dict[Kind, str | None], dict[str, Partition], list[Note]]:
    """Return the partition of each device kind, named by the site or the one that fits; and all."""
    text = client.show("partition")
    if isinstance(text, Unknown):
        note = Note("partitions", f"the partitions are not known: {text}")
        return {"gpu": None, "cpu": None}, {}, [note]
    all_ = parse.parse_partitions(text)
    known = {p.name: p for p in all_ if not why_not(p, groups)}
    chosen = {"gpu": gpu_partition(known.values()), "cpu": cpu_partition(known.values())}
    found: dict[Kind, str | None] = {}
    notes = []
    wanted: dict[Kind, str | None] = {"gpu": site.partitions.gpu, "cpu": site.partitions.cpu}
    for kind, name in wanted.items():
        best = chosen[kind] if name is None else known.get(name)
        found[kind] = best.name if best else None
        if name is not None and name not in known and (kind, name) != ("gpu", "none"):
            why = next((why_not(p, groups) for p in all_ if p.name == name), "does not exist")
            there = ", ".join(sorted(known))
            notes.append(Note("site", f"partition {name} {why}; up are {there}"))
    return found, known, notes
