"""What a person may use on a cluster now: accounts, use, pools, and what is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.placement.pools import Device, Pool, Sharing, make_pools, sharing
from tilewright.placement.site import Site
from tilewright.slurm.accounts import Account, LeftOut, usable_accounts, with_usage
from tilewright.slurm.jobs import parse_queue, usage_of_queue
from tilewright.slurm.parse import parse_assoc_mgr, parse_partitions, parse_sacctmgr
from tilewright.slurm.query import SlurmClient, Unknown
from tilewright.slurm.records import Partition, Usage


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
    partitions: Mapping[Device, Partition | None]
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
    notes = []
    if answer.failure is not None:
        notes.append(f"limits are {_age(answer.age_s)} old: {answer.failure}")
    associations, qos = parse_sacctmgr(answer.text)
    accounts, left_out = usable_accounts(client.user, associations, qos, site.rules())
    accounts, said = _with_live_use(client, accounts, uid)
    partitions, more = _partitions(client, site)
    shapes = site.shapes()
    if not more and partitions["gpu"] is None:
        del shapes["gpu"]
    modes: tuple[Sharing, ...] = ("independent", "shared")
    pools = {
        mode: tuple(
            make_pools(
                accounts,
                shapes,
                mode=mode,
                utilisation=site.utilisation,
                partitions=partitions,
            )
        )
        for mode in modes
    }
    how, why = sharing(site.pools, partitions)
    return Survey(
        client.user,
        tuple(accounts),
        tuple(left_out),
        pools,
        how,
        why,
        partitions,
        (*notes, *said, *more),
    )


def _with_live_use(
    client: SlurmClient, accounts: list[Account], uid: int
) -> tuple[list[Account], list[str]]:
    if not accounts:
        return accounts, []
    notes = []
    live = client.usage(sorted({account.qos for account in accounts}))
    if isinstance(live, Unknown):
        seen = client.everybodys_queue()
        if isinstance(seen, Unknown):
            return accounts, [f"use is not known: {live}"]
        lower = usage_of_queue(parse_queue(seen), {client.user: uid})
        lower += [Usage(a.qos, {}, {}) for a in accounts if a.qos not in {u.name for u in lower}]
        notes = [f"use is a lower bound, from the jobs that squeue shows: {live}"]
        return with_usage(accounts, lower, lower, uid), notes
    bound = [a.name for a in accounts if "association" in a.limit_from.values()]
    own: list[Usage] = []
    if bound:
        text = client.account_usage(bound)
        if isinstance(text, Unknown):
            notes.append(f"use of {', '.join(bound)} is not known: {text}")
        else:
            own = parse_assoc_mgr(text)
    found = with_usage(accounts, parse_assoc_mgr(live), own, uid)
    notes += [
        f"use of {', '.join(account.unknown_use)} on {account.name} is not known"
        for account in found
        if account.unknown_use
    ]
    return found, notes


def _partitions(
    client: SlurmClient, site: Site
) -> tuple[dict[Device, Partition | None], list[str]]:
    """Return the partition of each device kind: named by the site, or else the one that fits."""
    text = client.partitions()
    if isinstance(text, Unknown):
        return {"gpu": None, "cpu": None}, [f"the partitions are not known: {text}"]
    known = {partition.name: partition for partition in parse_partitions(text) if partition.up}
    with_gpu = [p for p in known.values() if p.tres.get("gres/gpu")]
    without = [p for p in known.values() if not p.tres.get("gres/gpu")] or list(known.values())
    chosen: dict[Device, Partition | None] = {
        "gpu": max(with_gpu, key=lambda p: p.tres["gres/gpu"], default=None),
        "cpu": max(without, key=lambda p: (p.default, p.tres.get("cpu", 0)), default=None),
    }
    notes = []
    wanted: dict[Device, str | None] = {"gpu": site.partitions.gpu, "cpu": site.partitions.cpu}
    for device, name in wanted.items():
        if name is not None:
            chosen[device] = known.get(name)
            if name not in known and (device, name) != ("gpu", "none"):
                notes.append(f"partition {name} is not up; up are {', '.join(sorted(known))}")
    return chosen, notes


def _age(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
