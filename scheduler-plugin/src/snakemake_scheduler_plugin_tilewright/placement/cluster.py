"""A Slurm cluster as one person sees it: accounts, limits, use, pools, and what is not known.

A profile evaluates ``cluster.limits("site.yaml")`` in Snakemake's main process and the Snakefile
is read later in the same process, with nothing that Snakemake passes from one to the other; so
the cluster of the process is kept here. Inside jobs no profile is evaluated, so nothing is asked
there.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import platformdirs

from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    Pool,
    Sharing,
    make_pools,
    sharing,
    unknown_use,
)
from snakemake_scheduler_plugin_tilewright.placement.site import Site, SiteError, read_site
from snakemake_scheduler_plugin_tilewright.runtime.run_state import span_text
from snakemake_scheduler_plugin_tilewright.runtime.snakemake_command import beside_profile, command
from snakemake_scheduler_plugin_tilewright.slurm.accounts import (
    NO_ACCOUNT,
    Account,
    LeftOut,
    usable_accounts,
    with_usage,
)
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob, parse_queue, usage_of_queue
from snakemake_scheduler_plugin_tilewright.slurm.nodes import (
    Node,
    before_reservations,
    open_to,
    parse_nodes,
    parse_reservations,
)
from snakemake_scheduler_plugin_tilewright.slurm.parse import (
    parse_assoc_mgr,
    parse_licences,
    parse_partitions,
    parse_sacctmgr,
)
from snakemake_scheduler_plugin_tilewright.slurm.partitions import (
    cpu_partition,
    gpu_partition,
    gpu_type_of,
    why_not,
    with_qos,
    with_use,
    with_whole_nodes,
)
from snakemake_scheduler_plugin_tilewright.slurm.query import NO_ACCOUNTING, SlurmClient, Unknown
from snakemake_scheduler_plugin_tilewright.slurm.records import Association, Partition, Qos, Usage


class SurveyError(RuntimeError):
    """Nothing is known of the accounts; the message says what did not answer."""


@dataclass(frozen=True)
class Note:
    """What is old or unknown, and what it is about."""

    about: Literal["limits", "types", "use", "partitions", "nodes", "site"]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Survey:
    """A cluster as one person may use it.

    Attributes
    ----------
    user : str
    accounts : tuple of Account
        By name, with live use where Slurm said it.
    left_out : tuple of LeftOut
    pools : dict of {"independent", "shared"} to tuple of Pool
        Slots counted either way.
    sharing, sharing_reason : str
        The way that holds here, and why.
    partitions : dict of {"gpu", "cpu"} to Partition or None
    notes : tuple of Note
        What is old or unknown.
    nodes : tuple of Node or None
        None where Slurm did not say.
    licences : dict of str to int or None
        How many of each there are; None where Slurm did not say.
    """

    user: str
    accounts: tuple[Account, ...]
    left_out: tuple[LeftOut, ...]
    pools: Mapping[Sharing, tuple[Pool, ...]]
    sharing: Sharing
    sharing_reason: str
    partitions: Mapping[Kind, Partition | None]
    notes: tuple[Note, ...]
    nodes: tuple[Node, ...] | None = None
    licences: Mapping[str, int] | None = None

    def unknown(self) -> Unknown | None:
        """Return what keeps every job from being placed: nobody knows partitions, or any use."""
        about = {note.about: note.text for note in self.notes}
        if "partitions" in about:
            return Unknown("scontrol show partition", about["partitions"])
        if all(account.used is None for account in self.accounts):
            return Unknown("scontrol show assoc_mgr", about.get("use", "use is not known"))
        return None


def survey(client: SlurmClient, uid: int, site: Site) -> Survey:
    """Ask Slurm what a person may use.

    Parameters
    ----------
    client : SlurmClient
    uid : int
        Number of the user, by which live use is listed.
    site : Site
        The site's profile.

    Raises
    ------
    SurveyError
        Limits were never known: sacctmgr fails and no good answer is on disk.
    """
    partitions, more = _partitions(client, site, _groups(client.user, uid))
    accounts, left_out, qos, old = _accounts(client, site, partitions["gpu"])
    partitions = {k: p and with_qos(p, qos) for k, p in partitions.items()}
    use, said = _live_use(client, accounts, partitions, uid)
    if use is not None:
        accounts = with_usage(accounts, use.qos, use.accounts, uid)
        partitions = {k: p and with_use(p, use.partitions, uid) for k, p in partitions.items()}
    unknown = [
        Note("use", f"use of {', '.join(unknown)} on {account.name} is not known")
        for account in accounts
        if use is not None and (unknown := unknown_use(account))
    ]
    nodes, lost = _nodes(client)
    licences = client.licences()
    partitions = {k: p and with_whole_nodes(p, nodes) for k, p in partitions.items()}
    how, why = sharing(site.pools, partitions)
    return Survey(
        client.user,
        tuple(accounts),
        tuple(left_out),
        _pools(accounts, site, partitions, nodes, bool(more) or partitions["gpu"] is not None),
        how,
        why,
        partitions,
        (*old, *said, *unknown, *more, *lost),
        nodes,
        None if isinstance(licences, Unknown) else parse_licences(licences),
    )


def _accounts(
    client: SlurmClient, site: Site, gpus: Partition | None
) -> tuple[list[Account], list[LeftOut], list[Qos], list[Note]]:
    """Return the accounts, those left out, all QOS, and what is old, absent or not looked at.

    A Slurm that keeps no accounts has one, without a name and without limits.
    """
    answer = client.limits()
    if isinstance(answer, Unknown):
        if NO_ACCOUNTING not in answer.reason:
            raise SurveyError(f"the accounts are not known: {answer}")
        note = "this Slurm keeps no accounts: jobs are bounded by its nodes alone"
        return [NO_ACCOUNT], [], [], [Note("limits", note)]
    notes = []
    if answer.failure:
        notes.append(Note("limits", f"limits are {span_text(answer.age_s)} old: {answer.failure}"))
    gpu_type = gpu_type_of(gpus)
    associations, qos = parse_sacctmgr(answer.text, gpu_type)
    here = _of_this_cluster(client, associations)
    accounts, left_out = usable_accounts(client.user, here, qos, site.rules())
    typed = [
        a.name
        for a in accounts
        if any(t.startswith("gres/gpu:") for t in a.limit | a.limit_per_user | a.limit_per_account)
    ]
    if gpus is not None and not gpu_type and typed:
        text = (
            f"limits of GPU types on {', '.join(typed)} are not looked at: Slurm does not count "
            f"the GPUs of partition {gpus.name} as of one type"
        )
        notes.append(Note("types", text))
    return accounts, left_out, qos, notes


def _nodes(client: SlurmClient) -> tuple[tuple[Node, ...] | None, list[Note]]:
    """Return the nodes; where Slurm does not say them, whether they are free is not looked at."""
    text = client.nodes()
    if isinstance(text, Unknown):
        return None, [Note("nodes", f"the nodes are not known: {text}")]
    nodes, said = open_to(client.user, parse_nodes(text)), client.reservations()
    if isinstance(said, Unknown):
        return tuple(nodes), [Note("nodes", f"reservations are not known: {said}")]
    return tuple(before_reservations(nodes, parse_reservations(said), client.clock())), []


def _pools(
    accounts: list[Account],
    site: Site,
    partitions: Mapping[Kind, Partition | None],
    nodes: tuple[Node, ...] | None,
    with_gpu: bool,
) -> dict[Sharing, tuple[Pool, ...]]:
    """Return the pools counted either way."""
    shapes = {kind: s for kind, s in site.shapes().items() if kind == "cpu" or with_gpu}
    modes: tuple[Sharing, ...] = ("independent", "shared")
    return {
        mode: tuple(
            make_pools(
                accounts,
                shapes,
                mode=mode,
                utilisation=site.utilisation,
                partitions=partitions,
                nodes=nodes,
            )
        )
        for mode in modes
    }


def _of_this_cluster(client: SlurmClient, associations: list[Association]) -> Iterable[Association]:
    """Return the associations of this cluster, where slurmdbd serves several."""
    clusters = {association.cluster for association in associations}
    if len(clusters) < 2:
        return associations
    said = client.config()
    if isinstance(said, Unknown):
        raise SurveyError(f"which of {', '.join(sorted(clusters))} this is is not known: {said}")
    found = re.search(r"^ClusterName\s*=\s*(\S+)", said, re.M)
    name = found.group(1) if found else ""
    return [association for association in associations if association.cluster == name]


class _Use(NamedTuple):
    """Live limits and use by name."""

    qos: list[Usage]
    accounts: list[Usage]
    partitions: list[Usage]


def _live_use(
    client: SlurmClient,
    accounts: list[Account],
    partitions: Mapping[Kind, Partition | None],
    uid: int,
) -> tuple[_Use | None, list[Note]]:
    """Return live use; where Slurm refuses to say it, what the jobs that squeue shows use."""
    own = {p.qos for p in partitions.values() if p is not None and p.qos}
    names = sorted({account.qos for account in accounts if account.qos} | own)
    if not names:
        return None, []
    live = client.usage(names)
    if isinstance(live, Unknown):
        seen = client.everybodys_queue() if live.refused else live
        if isinstance(seen, Unknown):
            return None, [Note("use", f"use is not known: {live}")]
        note = Note("use", f"use is a lower bound, from the jobs that squeue shows: {live}")
        return _use_of_queue(parse_queue(seen), accounts, partitions, {client.user: uid}), [note]
    gpu_type = gpu_type_of(partitions["gpu"])
    of_qos = parse_assoc_mgr(live, gpu_type)
    bound = {a.name for a in accounts if "association" in a.limit_from.values()}
    bound |= {above.name for a in accounts for above in a.above}
    said = client.account_usage(sorted(bound)) if bound else ""
    if isinstance(said, Unknown):
        note = Note("use", f"use of {', '.join(sorted(bound))} is not known: {said}")
        return _Use(of_qos, [], of_qos), [note]
    return _Use(of_qos, parse_assoc_mgr(said, gpu_type), of_qos), []


def _use_of_queue(
    jobs: list[SlurmJob],
    accounts: list[Account],
    partitions: Mapping[Kind, Partition | None],
    uids: Mapping[str, int],
) -> _Use:
    named = {p.name: p.qos for p in partitions.values() if p is not None and p.qos}
    return _Use(
        usage_of_queue(jobs, uids, [a.qos for a in accounts], lambda job: job.qos),
        usage_of_queue(jobs, uids, [a.name for a in accounts], lambda job: job.account),
        usage_of_queue(
            jobs, uids, filter(None, named.values()), lambda job: named.get(job.partition) or ""
        ),
    )


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
) -> tuple[dict[Kind, Partition | None], list[Note]]:
    """Return the partition of each device kind: named by the site, or else the one that fits."""
    text = client.partitions()
    if isinstance(text, Unknown):
        note = Note("partitions", f"the partitions are not known: {text}")
        return {"gpu": None, "cpu": None}, [note]
    all_ = parse_partitions(text)
    known = {p.name: p for p in all_ if not why_not(p, groups)}
    chosen = {"gpu": gpu_partition(known.values()), "cpu": cpu_partition(known.values())}
    found: dict[Kind, Partition | None] = {}
    notes = []
    wanted: dict[Kind, str | None] = {"gpu": site.partitions.gpu, "cpu": site.partitions.cpu}
    for kind, name in wanted.items():
        found[kind] = chosen[kind] if name is None else known.get(name)
        if name is not None and name not in known and (kind, name) != ("gpu", "none"):
            why = next((why_not(p, groups) for p in all_ if p.name == name), "is not up")
            there = ", ".join(sorted(known))
            notes.append(Note("site", f"partition {name} {why}; up are {there}"))
    return found, notes


#: Calls in one look at the cluster: queue, live use and nodes, and two in which the executor looks
#: at its jobs and asks for Slurm's config; limits and partitions every tenth time.
_CALLS_A_LOOK = 5
_MIN_TTL_S = 5.0
_current: Cluster | None = None


@dataclass
class Cluster:
    """A Slurm cluster as one person sees it.

    Attributes
    ----------
    site : Site
    client : SlurmClient
    uid : int
    survey : Survey
        The last look.
    """

    site: Site
    client: SlurmClient
    uid: int
    survey: Survey
    #: What squeue said and what it means: asked for each job that ended, 10 µs a line.
    _parsed: tuple[str, list[SlurmJob]] | None = field(default=None, init=False, repr=False)
    _looked: dict[tuple[str, ...], float] | None = field(default=None, init=False, repr=False)

    def look(self) -> Survey:
        """Look again; what is younger than its time to live is not asked, nor read, again."""
        if self._looked is None or self._looked != self.client.answered_s():
            self.survey = survey(self.client, self.uid, self.site)
            self._looked = self.client.answered_s()
        return self.survey

    def queue(self) -> list[SlurmJob] | Unknown:
        """Return this person's jobs, those that ended in the last minutes too."""
        said = self.client.queue()
        if isinstance(said, Unknown):
            return said
        if self._parsed is None or self._parsed[0] is not said:
            self._parsed = (said, parse_queue(said))
        return list(self._parsed[1])

    @property
    def durations_file(self) -> Path:
        """Where learned durations are kept, one file for each set of partitions."""
        names = ",".join(sorted({p.name for p in self.survey.partitions.values() if p}))
        return self.client.cache_dir / f"durations-{zlib.crc32(names.encode()):08x}.json"

    def partition(self, kind: Kind) -> str | None:
        """Return the name of the partition of a device kind."""
        chosen = self.survey.partitions[kind]
        return chosen.name if chosen else None

    def max_times_min(self) -> dict[Kind, int | None]:
        """Return the longest job of each device kind's partition, where it has a limit."""
        return {kind: p.max_time_min if p else None for kind, p in self.survey.partitions.items()}


def use(site: str | Path | None = None) -> Cluster:
    """Make a site's cluster the one of this process.

    Parameters
    ----------
    site : path, optional
        The site file, beside the profile that the command names or in the working directory;
        ``TILEWRIGHT_SITE`` wins over it. Without either, the defaults.

    Raises
    ------
    SiteError
        The site file is wrong, or names accounts or partitions that the cluster does not have.
    SurveyError
        The accounts are not known.
    """
    global _current
    named = os.environ.get("TILEWRIGHT_SITE")
    path = Path(named) if named else beside_profile(Path(site), command()) if site else None
    read = read_site(path)
    client = own_client(read.calls_per_min)
    found = survey(client, os.getuid(), read)
    _check_names(read, found, str(path))
    _current = Cluster(read, client, os.getuid(), found)
    return _current


def of_command(argv: Sequence[str], site: Path | None = None) -> Cluster:
    """Return the cluster of a ``snakemake`` command.

    It is the one of ``site``, else the one that the profile named, else that of a ``site.yaml``
    beside the profile, else the one that is there. Errors are those of :func:`use`.
    """
    beside = beside_profile(Path("site.yaml"), argv)
    return (
        use(site)
        if site is not None
        else current() or use(beside.absolute() if beside.is_file() else None)
    )


def own_client(calls_per_min: float = 60.0) -> SlurmClient:
    """Return a client that asks for the person who runs this process."""
    user, cache = pwd.getpwuid(os.getuid()).pw_name, platformdirs.user_cache_path("tilewright")
    ttl_s = max(_MIN_TTL_S, 60.0 * _CALLS_A_LOOK / calls_per_min)
    return SlurmClient(user, cache, ttl_s=ttl_s, shared_dir=cache / "answers")


def current() -> Cluster | None:
    """Return the cluster of this process, None where no profile named one."""
    return _current


def limits(site: str | Path | None = None) -> dict[str, int]:
    """Return the slots of each pool, for ``resources`` of a profile; see :func:`use`.

    Where not even one job of the site's sizes fits, a name that no job asks for: Snakemake wants
    one. Jobs are then placed by their own sizes alone.
    """
    found = use(site).survey
    return {pool.name: pool.slots for pool in found.pools[found.sharing]} or {"no_slots": 1}


def _check_names(site: Site, found: Survey, path: str) -> None:
    """Refuse a site that names what the cluster does not have."""
    known = sorted([a.name for a in found.accounts] + [left.account for left in found.left_out])
    named: list[tuple[str, Sequence[str]]] = [
        ("allowed", site.allowed or ()),
        ("caps", tuple(site.caps)),
    ]
    for key, accounts in named:
        for account in accounts:
            if account not in known:
                raise SiteError(
                    f"{path}: '{key}' names account {account}, which {found.user} does not have; "
                    f"there are {', '.join(known)}"
                )
    absent = [note for note in found.notes if note.about == "site"]
    if absent:
        raise SiteError(f"{path}: {absent[0]}")
    if not found.accounts:
        reasons = "; ".join(f"{left.account}: {left.reason}" for left in found.left_out)
        raise SiteError(f"no account is left to place jobs on ({reasons or 'there are none'})")
