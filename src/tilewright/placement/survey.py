"""What a person may use on a cluster now: accounts, use, pools, and what is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.placement.jobs import Kind
from tilewright.placement.pools import Pool, Sharing, make_pools, sharing
from tilewright.placement.site import Site
from tilewright.slurm.accounts import Account, LeftOut, usable_accounts, with_usage
from tilewright.slurm.jobs import SlurmJob, parse_queue, usage_of_queue
from tilewright.slurm.parse import parse_assoc_mgr, parse_partitions, parse_sacctmgr
from tilewright.slurm.partitions import cpu_partition, gpu_partition, with_qos, with_use
from tilewright.slurm.query import SlurmClient, Unknown
from tilewright.slurm.records import Association, Partition, Qos, Usage


class SurveyError(RuntimeError):
    """Nothing is known of the accounts; the message says what did not answer."""


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
    notes : tuple of str
        What is old or unknown.
    """

    user: str
    accounts: tuple[Account, ...]
    left_out: tuple[LeftOut, ...]
    pools: Mapping[Sharing, tuple[Pool, ...]]
    sharing: Sharing
    sharing_reason: str
    partitions: Mapping[Kind, Partition | None]
    notes: tuple[str, ...]


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
    answer = client.limits()
    if isinstance(answer, Unknown):
        raise SurveyError(f"the accounts are not known: {answer}")
    old = f"limits are {_age(answer.age_s)} old: {answer.failure}"
    associations, qos = parse_sacctmgr(answer.text)
    here = _of_this_cluster(client, associations)
    accounts, left_out = usable_accounts(client.user, here, qos, site.rules())
    partitions, more = _partitions(client, site, qos)
    use, said = _live_use(client, accounts, partitions, uid)
    if use is not None:
        accounts = with_usage(accounts, use.qos, use.accounts, uid)
        partitions = {k: p and with_use(p, use.partitions, uid) for k, p in partitions.items()}
    unknown = [
        f"use of {', '.join(account.unknown_use)} on {account.name} is not known"
        for account in accounts
        if use is not None and account.unknown_use
    ]
    how, why = sharing(site.pools, partitions)
    return Survey(
        client.user,
        tuple(accounts),
        tuple(left_out),
        _pools(accounts, site, partitions, with_gpu=bool(more) or partitions["gpu"] is not None),
        how,
        why,
        partitions,
        (*([old] if answer.failure else []), *said, *unknown, *more),
    )


def _pools(
    accounts: list[Account],
    site: Site,
    partitions: Mapping[Kind, Partition | None],
    *,
    with_gpu: bool,
) -> dict[Sharing, tuple[Pool, ...]]:
    """Return the pools counted either way."""
    shapes = {kind: s for kind, s in site.shapes().items() if kind == "cpu" or with_gpu}
    modes: tuple[Sharing, ...] = ("independent", "shared")
    return {
        mode: tuple(
            make_pools(
                accounts, shapes, mode=mode, utilisation=site.utilisation, partitions=partitions
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
) -> tuple[_Use | None, list[str]]:
    """Return live use; where Slurm refuses to say it, what the jobs that squeue shows use."""
    own = {p.qos for p in partitions.values() if p is not None and p.qos}
    names = sorted({account.qos for account in accounts} | own)
    if not names:
        return None, []
    live = client.usage(names)
    if isinstance(live, Unknown):
        seen = client.everybodys_queue() if live.refused else live
        if isinstance(seen, Unknown):
            return None, [f"use is not known: {live}"]
        note = f"use is a lower bound, from the jobs that squeue shows: {live}"
        return _use_of_queue(parse_queue(seen), accounts, partitions, {client.user: uid}), [note]
    of_qos = parse_assoc_mgr(live)
    bound = [a.name for a in accounts if "association" in a.limit_from.values()]
    said = client.account_usage(bound) if bound else ""
    if isinstance(said, Unknown):
        return _Use(of_qos, [], of_qos), [f"use of {', '.join(bound)} is not known: {said}"]
    return _Use(of_qos, parse_assoc_mgr(said), of_qos), []


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


def _partitions(
    client: SlurmClient, site: Site, qos: list[Qos]
) -> tuple[dict[Kind, Partition | None], list[str]]:
    """Return the partition of each device kind: named by the site, or else the one that fits."""
    text = client.partitions()
    if isinstance(text, Unknown):
        return {"gpu": None, "cpu": None}, [f"the partitions are not known: {text}"]
    known = {p.name: with_qos(p, qos) for p in parse_partitions(text) if p.up}
    chosen = {"gpu": gpu_partition(known.values()), "cpu": cpu_partition(known.values())}
    found: dict[Kind, Partition | None] = {}
    notes = []
    wanted: dict[Kind, str | None] = {"gpu": site.partitions.gpu, "cpu": site.partitions.cpu}
    for kind, name in wanted.items():
        found[kind] = chosen[kind] if name is None else known.get(name)
        if name is not None and name not in known and (kind, name) != ("gpu", "none"):
            notes.append(f"partition {name} is not up; up are {', '.join(sorted(known))}")
    return found, notes


def _age(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
