"""The accounts that a person may use, with limits and use; and why the others are left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .jobs import SlurmJob
from .records import (
    JOBS,
    OTHER_ACCOUNTS,
    OTHER_USERS,
    Association,
    Partition,
    Qos,
    Tres,
    Usage,
    is_budget,
    of_association,
    on_qos,
)


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
    allowed, qos : sequence of str or None
        The only accounts and QOS to use; None is all.
    caps : mapping of str to dict
        Account to TRES that its jobs do not exceed together, below its own limits (mem in MB).
    kinds : mapping of str to str
        Account to the one kind of jobs, ``gpu`` or ``cpu``, that it takes.
    """

    burst: str = r"-b$"
    blocked: Mapping[str, str] = field(default_factory=dict)
    allowed: Sequence[str] | None = None
    caps: Mapping[str, Tres] = field(default_factory=dict)
    qos: Sequence[str] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """An account that is not used, and why."""

    account: str
    reason: str


@dataclass(frozen=True)
class LimitScope:
    """What limits jobs together: a QOS, a user or an account on it, an association, a cap.

    Attributes
    ----------
    name : str
        ``QOS lab``, ``ada on QOS lab``, ``account lab`` …; the same name is the same thing.
    limit : dict
        What is in force of it: TRES, numbers of jobs and budgets, mem in MB.
    used : dict or None
        Of the same, by all whom it counts; None, or without the TRES, where Slurm did not say.
    cap : bool
        Whether the site file sets it: ``utilisation`` does not reduce it.
    """

    name: str
    limit: Tres
    used: Tres | None
    cap: bool = False

    def with_more(self, more: Mapping[str, int]) -> LimitScope:
        """Return it with more in use; what is not known stays so."""
        if self.used is None:
            return self
        more = {t: self.used[t] + more.get(t, 0) for t in self.limit if t in self.used}
        return replace(self, used=self.used | more)


@dataclass(frozen=True)
class Limits:
    """What bounds an account's jobs in one partition.

    Attributes
    ----------
    counts_on : tuple of str
        Names of all that its jobs count on, whether it limits them or only other accounts' jobs.
    per_job : dict
        TRES and budgets of one job.
    beyond_partition : bool
        Its jobs may take longer than their partition allows (flag ``PartitionTimeLimit``).
    least : dict
        TRES that each job must ask for at least.
    """

    scopes: tuple[LimitScope, ...] = ()
    counts_on: tuple[str, ...] = ()
    per_job: Tres = field(default_factory=dict)
    longest_min: int | None = None
    beyond_partition: bool = False
    least: Tres = field(default_factory=dict)


@dataclass(frozen=True)
class Account:
    """An account on one of the QOS that its jobs may name; of each there is another.

    Attributes
    ----------
    qos : str
        Empty where it has none.
    limits : dict of str to Limits
        By partition; that of "" holds in all others.
    partitions : tuple of str
        Those that associations with this QOS are bound to; empty is all.
    not_in : tuple of str
        Those where another association holds, without this QOS.
    kind : str
        The one kind of jobs that it takes, ``gpu`` or ``cpu``; empty is both.
    takes : tuple of str
        All QOS that its jobs may name.
    mine : dict or None
        What this user has in use on the QOS; None where Slurm did not say.
    preemptable : bool
        Whether jobs of other QOS may end its own.
    order : int
        0 on its default QOS, then the others by their longest job.
    """

    name: str
    qos: str
    limits: Mapping[str, Limits]
    partitions: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    mine: Tres | None = None
    order: int = 0
    not_in: tuple[str, ...] = ()
    kind: str = ""
    preemptable: bool = False

    def within(self, partition: Partition | None) -> Limits:
        """Return what bounds its jobs in a partition."""
        return self.at(partition.name if partition else "")

    def at(self, partition: str) -> Limits:
        """Return what bounds its jobs in a partition of this name; empty is one not known."""
        return self.limits.get(partition, self.limits[""])

    def counted_on(self, partition: str | None, qos: str) -> list[str]:
        """Return the names of all that a job counts on, by its partition and QOS."""
        own = on_qos(self.qos)
        names = self.at(partition or "").counts_on
        return [name for name in names if qos in ("", self.qos) or not name.endswith(own)]


#: The one account of a Slurm that keeps none.
NO_ACCOUNT = Account("", "", {"": Limits()})


def usable_accounts(
    user: str,
    associations: Iterable[Association],
    qos: Iterable[Qos],
    rules: SiteRules,
    partitions: Iterable[Partition] = (),
    usage: Mapping[str, Usage] | None = None,
) -> tuple[list[Account], list[LeftOut]]:
    """Return the accounts a user may place jobs on, on each of their QOS; the others with reasons.

    By name; of an account its default QOS is first, then that of the shortest jobs.

    Parameters
    ----------
    usage : mapping, optional
        Live limits and use by name. Live limits replace those of the database, which may be
        older; one that was lifted since stays until the database is asked again.
    """
    associations, qos, partitions = list(associations), list(qos), list(partitions)
    rows, own = dict[str, Association](), dict[str, list[Association]]()
    for association in associations:
        if association.user == user:
            own.setdefault(association.account, []).append(association)
        elif not association.user and not association.partition:
            rows[association.account] = association
    known = {record.name: record for record in qos}
    accounts, left_out = [], []
    for name in sorted(own):
        names = _qos_of(own[name], rules)
        if reason := _reason(name, names, rules):
            left_out.append(LeftOut(name, reason))
            continue
        held = [rows[one] for one in lineage(name, rows) if one in rows]
        cap = _cap(name, names, rules.caps.get(name, {}), usage or {})
        records = [known.get(one, Qos(one)) for one in names]
        defaults = {row.default_qos for row in own[name]}
        records.sort(key=lambda one: (one.name not in defaults, one.max_wall_min or math.inf))
        for order, record in enumerate(records):
            of = _Records(user, name, record, own[name], held, cap, usage or {})
            account = _account(of, partitions, known, 0 if record.name in defaults else order)
            accounts.append(replace(account, kind=rules.kinds.get(name, "")))
    if not accounts and any(re.search(rules.burst, name) for name in own):  # of other sites
        none = replace(rules, burst=r"(?!)")
        return usable_accounts(user, associations, qos, none, partitions, usage)
    return accounts, left_out


def _account(
    of: _Records, partitions: Iterable[Partition], known: Mapping[str, Qos], order: int
) -> Account:
    """Return an account on a QOS, with its limits in each partition that has some."""
    bound = {row.partition for row in of.own}
    takes = {row.partition for row in of.own if of.qos.name in (*row.qos, row.default_qos, "")}
    limits = {"": _limits(of, "", None)}
    limits |= {
        p.name: _limits(of, p.name, known.get(p.qos or ""))
        for p in partitions
        if p.qos or p.name in bound
    }
    return Account(
        of.account, of.qos.name, limits,
        () if "" in takes else tuple(sorted(takes)),
        tuple(dict.fromkeys(qos for row in of.own for qos in row.qos)),
        of.in_use(on_qos(of.qos.name, of.user), on_qos(of.qos.name, OTHER_USERS)),
        order,
        tuple(sorted(bound - takes)) if "" in takes else (),
    )  # fmt: skip


def with_caps_alone(account: Account) -> Account:
    """Return an account that only the site file limits."""
    limits = {
        where: Limits(tuple(scope for scope in at.scopes if scope.cap), at.counts_on)
        for where, at in account.limits.items()
    }
    return replace(account, limits=limits)


def lineage(account: str, rows: Mapping[str, Association]) -> list[str]:
    """Return an account and those above it up to the root, by the accounts' own rows."""
    found = [account]
    while (row := rows.get(found[-1])) and row.parent and row.parent not in found:
        found.append(row.parent)
    return found


def names_of(
    job: SlurmJob,
    rows: Mapping[str, Association],
    parents: Mapping[str, Association],
    partition_qos: Mapping[str, str],
) -> list[str]:
    """Return the names of all that a job of anybody counts on."""
    account = of_association(job.account)
    own = of_association(job.account, job.user, job.partition)
    names = [own if own in rows else of_association(job.account, job.user)]
    names += [of_association(one) for one in lineage(job.account, parents)]
    names.append(f"cap of {account}")
    for qos in {job.qos, partition_qos.get(job.partition, "")} - {""}:
        names += [on_qos(qos, who) for who in ("", job.user, account)]
    return names


def _cap(account: str, qos: Iterable[str], limit: Tres, usage: Mapping[str, Usage]) -> LimitScope:
    """Return what the site file lets an account's jobs hold, on all of its QOS together."""
    who, nothing = (of_association(account), OTHER_ACCOUNTS), Usage()
    name = f"cap of {who[0]}"
    each = [next((usage[n] for n in (on_qos(q, one) for one in who) if n in usage), nothing).used
            for q in qos]  # fmt: skip
    each = [usage[name].used] if name in usage else each  # of the queue
    used = {tres: sum(one[tres] for one in each) for tres in limit if all(tres in e for e in each)}
    return LimitScope(name, limit, used, cap=True)


class _Records(NamedTuple):
    """All that limits an account's jobs: the user's ``own`` rows, and those of accounts above."""

    user: str
    account: str
    qos: Qos
    own: Sequence[Association]
    rows: Sequence[Association]
    cap: LimitScope
    usage: Mapping[str, Usage]

    def in_use(self, *names: str) -> Tres | None:
        """Return the use of the first of these names that Slurm says; the last may be of others."""
        return next((self.usage[name].used for name in names if name in self.usage), None)

    def live(self, name: str, limit: Tres) -> Tres:
        """Return limits with what Slurm says of them now."""
        return limit | self.usage[name].limit if name in self.usage else limit


def _limits(of: _Records, partition: str, partition_qos: Qos | None) -> Limits:
    """Return what bounds an account's jobs in a partition, as ``acct_policy.c`` of Slurm does."""
    here = [row for row in of.own if row.partition == partition]
    own = here or [row for row in of.own if not row.partition]
    ordered = {q.name: q for q in (partition_qos, of.qos) if q is not None}
    # Of a group limit, and of one user's and one account's, that of the partition's QOS holds
    # before that of the job's without the flag; both hold before those of all associations.
    order = list(ordered.values())
    if "OverPartQOS" in of.qos.flags:
        order.reverse()
    found: list[LimitScope] = []
    of_account = of_association(of.account)
    group, each_user, each_account = set[str](), set[str](), set[str]()
    for qos in order:
        for who, others, limit, set_before in (
            ("", "", qos.tres, group),
            (of.user, OTHER_USERS, qos.tres_per_user, each_user),
            (of_account, OTHER_ACCOUNTS, qos.tres_per_account, each_account),
        ):
            name = on_qos(qos.name, who)
            limit = _absolute(qos, of.live(name, limit))
            used = of.in_use(name, on_qos(qos.name, others))
            found.append(LimitScope(name, _without(limit, set_before), used))
            set_before.update(limit)
    for row in [*own, *of.rows]:
        name = of_association(row.account, row.user, row.partition)
        limit = _without(of.live(name, row.tres), group)
        if row.user:  # numbers of its jobs come from the account where it has none of its own
            jobs = {t: n for one in (*of.rows[:1], row) for t, n in one.tres_per_user.items()}
            jobs = _without(jobs, each_user | each_account)
            limit |= {tres: min(most, limit.get(tres, most)) for tres, most in jobs.items()}
        found.append(LimitScope(name, limit, of.in_use(name)))
    found.append(of.cap)
    of_one: list[Qos | Association] = [*order, *own, *of.rows[:1]]
    per_job: Tres = {}
    for one in reversed(of_one):
        per_job |= _absolute(one, one.tres_per_job)
    walls = [one.max_wall_min for one in of_one if one.max_wall_min is not None]
    return Limits(
        tuple(scope for scope in found if scope.limit),
        tuple(scope.name for scope in found),
        per_job,
        walls[0] if walls else None,
        "PartitionTimeLimit" in of.qos.flags,
        {tres: n for one in reversed(order) for tres, n in one.least.items()},
    )


def _absolute(one: Qos | Association, limit: Tres) -> Tres:
    """Return limits without those of a QOS in percent (flag ``Relative``)."""
    relative = isinstance(one, Qos) and "Relative" in one.flags
    return {t: n for t, n in limit.items() if not relative or t in JOBS or is_budget(t)}


def _without(limit: Tres, names: set[str]) -> Tres:
    return {tres: most for tres, most in limit.items() if tres not in names}


def _reason(name: str, qos: Sequence[str], rules: SiteRules) -> str:
    """Return why an account is left out; empty if it is not."""
    if name in rules.blocked:
        return f"blocked: {rules.blocked[name]}"
    if re.search(rules.burst, name):
        return f"burst account (its name matches {rules.burst})"
    if rules.allowed is not None and name not in rules.allowed:
        return "not in the list of allowed accounts"
    return "" if qos else "no QOS but those that are left out"


def _qos_of(rows: Sequence[Association], rules: SiteRules) -> list[str]:
    """Return the QOS of an account's jobs, the default first, then as listed; "" without any."""
    names = [row.default_qos for row in rows if row.default_qos]
    names += [name for row in rows for name in row.qos]
    return [
        name
        for name in dict.fromkeys(names or [""])
        if not (name and re.search(rules.burst, name)) and (rules.qos is None or name in rules.qos)
    ]
