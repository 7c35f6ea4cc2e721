"""The accounts that a person may use, with limits and use; and why the others are left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from snakemake_scheduler_plugin_tilewright.slurm.records import (
    BUDGETS,
    GPU_TYPE,
    JOBS,
    Association,
    Qos,
    Tres,
    Usage,
    spent,
)

#: TRES that decide how many jobs fit.
COUNTED = ("cpu", "mem", "gres/gpu", GPU_TYPE)
#: The same with budgets and numbers of jobs.
LIMITED = (*COUNTED, *BUDGETS, *JOBS)


@dataclass(frozen=True)
class SiteRules:
    """What a site's profile says of accounts.

    Attributes
    ----------
    burst : str
        Regular expression; accounts and QOS that match lend what others leave, and end jobs
        when it is wanted back.
    blocked : mapping of str to str
        Account to the reason why it is not used.
    allowed : sequence of str or None
        The only accounts to use; None is all.
    caps : mapping of str to dict
        Account to TRES that are not exceeded there, below its own limits (mem in MB).
    """

    burst: str = r"-b$"
    blocked: Mapping[str, str] = field(default_factory=dict)
    allowed: Sequence[str] | None = None
    caps: Mapping[str, Tres] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """An account that is not used, and why."""

    account: str
    reason: str


@dataclass(frozen=True)
class Above:
    """An account above one: its own group limits, and what everybody below it uses.

    ``used`` is None where Slurm did not say it.
    """

    name: str
    limit: Tres
    used: Tres | None = None


@dataclass(frozen=True)
class Account:
    """An account with the QOS its jobs run on.

    Attributes
    ----------
    name, qos : str
    limit : dict
        Group TRES and budgets that bound its jobs, mem in MB; absent is no limit. Numbers of
        jobs (:data:`JOBS`) are among all limits and uses but those of one job.
    limit_from : dict of str to str
        For each limit: ``qos``, ``association`` or ``cap``.
    limit_per_user, limit_per_account, limit_per_job : dict
        TRES of one user's jobs on the QOS together, of one account's, and of one job.
    used, mine, ours : dict or None
        TRES in use by everybody, by this user, and by this account on the QOS; None, or without
        the TRES, where Slurm did not say.
    partitions : tuple of str
        Those that the association is bound to; empty is all.
    name_qos : bool
        Jobs must name the QOS, since it is not the one that Slurm takes by itself.
    max_wall_min : int or None
        Longest job in minutes.
    before_partition : bool
        Limits of its QOS win over those of a partition's QOS (``OverPartQOS``).
    above : tuple of Above
        The accounts above it that have limits of their own.
    takes : tuple of str
        All QOS that its jobs may name.
    """

    name: str
    qos: str
    limit: Tres
    limit_from: Mapping[str, str]
    limit_per_user: Tres
    used: Tres | None = None
    mine: Tres | None = None
    partitions: tuple[str, ...] = ()
    name_qos: bool = True
    limit_per_job: Tres = field(default_factory=dict)
    max_wall_min: int | None = None
    before_partition: bool = False
    above: tuple[Above, ...] = ()
    limit_per_account: Tres = field(default_factory=dict)
    ours: Tres | None = None
    takes: tuple[str, ...] = ()


#: The one account of a Slurm that keeps none.
NO_ACCOUNT = Account("", "", {}, {}, {}, used={}, mine={}, name_qos=False)


def usable_accounts(
    user: str,
    associations: Iterable[Association],
    qos: Iterable[Qos],
    rules: SiteRules,
) -> tuple[list[Account], list[LeftOut]]:
    """Return the accounts a user may place jobs on, and the others with reasons.

    A limit of the QOS wins over the association's for the same TRES, as in Slurm; the user's own
    and the account's association both hold.

    Parameters
    ----------
    user : str
    associations, qos : iterables
        As parsed from sacctmgr.
    rules : SiteRules
        The site's.

    Returns
    -------
    accounts : list of Account
        By name; without use, which :func:`with_usage` adds.
    left_out : list of LeftOut
        By name.
    """
    rows: dict[str, list[Association]] = {}
    own: dict[str, list[Association]] = {}
    for association in associations:
        if association.user == user:
            own.setdefault(association.account, []).append(association)
        elif not association.user and not association.partition:
            rows.setdefault(association.account, []).append(association)
    known = {record.name: record for record in qos}
    accounts, left_out = [], []
    for name in sorted(own):
        chosen = _qos_of(own[name], rules)
        reason = _reason(name, chosen, rules)
        if reason or chosen is None:
            left_out.append(LeftOut(name, reason))
        else:
            held = [*rows.get(name, []), *(row for row in own[name] if not row.partition)]
            account = _account(name, known.get(chosen, Qos(chosen)), held, own[name], rules)
            takes = tuple(dict.fromkeys(qos for row in own[name] for qos in row.qos))
            accounts.append(replace(account, above=_above(account, rows), takes=takes))
    return accounts, left_out


def _above(account: Account, rows: Mapping[str, Sequence[Association]]) -> tuple[Above, ...]:
    """Return the accounts above one with limits that its QOS does not replace."""
    found, name, seen = [], account.name, {account.name}
    while above := next((row.parent for row in rows.get(name, ()) if row.parent), ""):
        if above in seen:
            break
        name = above
        seen.add(name)
        limit = {
            tres: most
            for row in rows.get(name, ())
            for tres, most in row.tres.items()
            if account.limit_from.get(tres) != "qos"
        }
        if limit:
            found.append(Above(name, limit))
    return tuple(found)


def with_usage(
    accounts: Iterable[Account],
    qos_usage: Iterable[Usage],
    account_usage: Iterable[Usage],
    uid: int,
) -> list[Account]:
    """Return the accounts with live limits and use.

    Live limits of a QOS replace those of the database, which may be older; one that was lifted
    since stays until the database is asked again. Use of a QOS counts
    for its limits, use of the account for the association's.
    """
    of_qos = {usage.name: usage for usage in qos_usage}
    of_account = {usage.name: usage for usage in account_usage}
    return [_live(account, of_qos, of_account, uid) for account in accounts]


def _live(
    account: Account, of_qos: Mapping[str, Usage], of_account: Mapping[str, Usage], uid: int
) -> Account:
    live = of_qos.get(account.qos)
    if live is None:
        return account
    limit, origin = dict(account.limit), dict(account.limit_from)
    for tres in LIMITED:
        lower = live.limit.get(tres, 0) < limit.get(tres, math.inf)
        if tres in live.limit and (origin.get(tres) != "cap" or lower):
            limit[tres], origin[tres] = live.limit[tres], "qos"
    above = tuple(
        replace(one, used=dict(of_account[one.name].used) if one.name in of_account else None)
        for one in account.above
    )
    bounded = (limit, account.limit_per_user, account.limit_per_account)
    typed = any(GPU_TYPE in limits for limits in (*bounded, *(one.limit for one in above)))
    counted = [*(tres for tres in COUNTED if typed or tres != GPU_TYPE), *JOBS]
    used: Tres = {}
    for tres in (*counted, *(name for name in BUDGETS if name in limit)):
        record = of_account.get(account.name) if origin.get(tres) == "association" else live
        if record is None and tres in JOBS:
            record = live  # where the account's own are not said, those on its QOS
        if record is not None:
            used |= _used(record, tres)
    mine = {tres: live.used_by_uid.get(uid, {}).get(tres, 0) for tres in counted}
    ours = {tres: live.used_by_account.get(account.name, {}).get(tres, 0) for tres in counted}
    return replace(
        account, above=above, limit=limit, limit_from=origin, used=used, mine=mine, ours=ours
    )


def _used(record: Usage, tres: str) -> Tres:
    """Return the use of a TRES, none where nothing holds it; of a budget only what is said."""
    if tres not in BUDGETS:
        return {tres: record.used.get(tres, 0)}
    return {name: record.used[name] for name in (tres, spent(tres)) if name in record.used}


def _reason(name: str, qos: str | None, rules: SiteRules) -> str:
    """Return why an account is left out; empty if it is not."""
    if name in rules.blocked:
        return f"blocked: {rules.blocked[name]}"
    if re.search(rules.burst, name):
        return f"burst account (its name matches {rules.burst})"
    if rules.allowed is not None and name not in rules.allowed:
        return "not in the list of allowed accounts"
    return "" if qos else "no QOS but burst ones"


def _qos_of(rows: Sequence[Association], rules: SiteRules) -> str | None:
    """Return the default QOS, else the first that is not a burst QOS."""
    names = [row.default_qos for row in rows if row.default_qos]
    names += [name for row in rows for name in row.qos]
    return next((name for name in names if not re.search(rules.burst, name)), None)


def _account(
    name: str,
    qos: Qos,
    held: Sequence[Association],
    own: Sequence[Association],
    rules: SiteRules,
) -> Account:
    limit, origin = _limits(qos, held, rules.caps.get(name, {}))
    # Of one job and of one user the user's own row, the last, holds before the account's, and the
    # QOS before both.
    per_job: Tres = {}
    per_user: Tres = {}
    wall_min: int | None = None
    for row in held:
        per_job |= row.tres_per_job
        per_user |= row.tres_per_user
        wall_min = wall_min if row.max_wall_min is None else row.max_wall_min
    # numbers of jobs on the user's own row are the user's
    own_jobs = [{t: n for t, n in row.tres.items() if t in JOBS} for row in held if row.user]
    partitions = tuple(row.partition for row in own)
    return Account(
        name,
        qos.name,
        limit,
        origin,
        _least_each([per_user | qos.tres_per_user, *own_jobs]),
        partitions=() if "" in partitions else tuple(sorted(set(partitions))),
        name_qos=any(row.default_qos != qos.name for row in own),
        limit_per_job=per_job | qos.tres_per_job,
        max_wall_min=wall_min if qos.max_wall_min is None else qos.max_wall_min,
        before_partition="OverPartQOS" in qos.flags,
        limit_per_account=dict(qos.tres_per_account),
    )


def _limits(
    qos: Qos, held: Sequence[Association], caps: Tres
) -> tuple[dict[str, int], dict[str, str]]:
    """Return what holds of each TRES, and whose it is: the QOS replaces the associations."""
    limit: Tres = {}
    origin: dict[str, str] = {}
    for association in held:
        for tres, value in association.tres.items():
            if value < limit.get(tres, value + 1) and not (association.user and tres in JOBS):
                limit[tres], origin[tres] = value, "association"
    for tres, value in qos.tres.items():
        limit[tres], origin[tres] = value, "qos"
    for tres, value in caps.items():
        if value < limit.get(tres, value + 1):
            limit[tres], origin[tres] = value, "cap"
    return limit, origin


def _least_each(limits: Iterable[Tres]) -> Tres:
    """Return the smallest limit of each TRES."""
    least: Tres = {}
    for tres, value in (item for one in limits for item in one.items()):
        least[tres] = min(value, least.get(tres, value))
    return least
