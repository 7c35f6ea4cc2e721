"""The accounts that a person may use, with limits and live use; and why others are left out."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..slurm.records import Association, Qos, Tres, Usage, of_association, on_qos


@dataclass(frozen=True)
class LeftOut:
    """An account that is not used, and why."""

    account: str
    reason: str


@dataclass(frozen=True)
class Scope:
    """What limits jobs together: a QOS, a user or an account on it, an association.

    Attributes
    ----------
    name : str
        ``QOS lab``, ``ada on QOS lab``, ``account lab`` …; the same name is the same thing.
    limit : dict
        TRES and numbers of jobs, memory in MB.
    used : dict or None
        Of the same, by all whom it counts; None, or without the TRES, where Slurm did not say.
    """

    name: str
    limit: Tres
    used: Tres | None

    def rest(self, tres: str) -> int | None:
        """Return what is left of a TRES that it limits; None where its use is not known."""
        if self.used is None or tres not in self.used:
            return None
        return max(0, self.limit[tres] - self.used[tres])


@dataclass(frozen=True)
class Account:
    """An account on one of the QOS that its jobs may name; of each there is another.

    Attributes
    ----------
    qos : str
        Empty where it has none.
    partitions : tuple of str
        Those that its associations are bound to; empty is all.
    order : int
        0 on its default QOS, then the others by their longest job.
    preemptable : bool
        Whether jobs of other QOS may end its own.
    """

    name: str
    qos: str = ""
    scopes: tuple[Scope, ...] = ()
    per_job: Tres = field(default_factory=dict)
    longest_min: int | None = None
    partitions: tuple[str, ...] = ()
    order: int = 0
    preemptable: bool = False

    @property
    def label(self) -> str:
        """Its name, with its QOS where that is not its default one."""
        return f"{self.name} on {self.qos}" if self.order else self.name

    def limit(self, tres: str) -> int | None:
        """Return the smallest limit of a TRES; None without one."""
        return min((s.limit[tres] for s in self.scopes if tres in s.limit), default=None)

    def rest(self, tres: str) -> int | None:
        """Return what all limits leave of a TRES; None where a use is not known, or no limit."""
        rests = [scope.rest(tres) for scope in self.scopes if tres in scope.limit]
        known = [one for one in rests if one is not None]
        return min(known) if known and len(known) == len(rests) else None


@dataclass(frozen=True)
class Chosen:
    """Which accounts and QOS a user wants: names, or patterns of the shell.

    Attributes
    ----------
    only : sequence of str
        The only accounts to use; none is all.
    leave_out : sequence of str
        Accounts and QOS that are not used.
    """

    only: Sequence[str] = ()
    leave_out: Sequence[str] = ()

    def reason(self, name: str) -> str:
        """Return why an account or QOS is not used; empty where it is."""
        for pattern in self.leave_out:
            if fnmatch.fnmatchcase(name, pattern.lower()):
                return f"--tilewright-leave-out {pattern}"
        if self.only and not any(fnmatch.fnmatchcase(name, one.lower()) for one in self.only):
            return "not among --tilewright-accounts"
        return ""


def usable_accounts(
    user: str,
    associations: Iterable[Association],
    qos: Iterable[Qos],
    chosen: Chosen,
    usage: Mapping[str, Usage],
) -> tuple[list[Account], list[LeftOut]]:
    """Return the accounts a user may place jobs on, on each of their QOS; the others with reasons.

    By name; of an account its default QOS is first, then that of the shortest jobs.

    Parameters
    ----------
    usage : mapping
        Live limits and use by name. Live limits replace those of the database, which may be older.
    """
    rows, own = dict[str, Association](), dict[str, list[Association]]()
    for association in associations:
        if association.user == user:
            own.setdefault(association.account, []).append(association)
        elif not association.user and not association.partition:
            rows[association.account] = association
    known = {record.name: record for record in qos}
    lose = {name for record in known.values() for name in record.preempts}
    accounts, left_out = [], []
    for name in sorted(own):
        if reason := chosen.reason(name):
            left_out.append(LeftOut(name, reason))
            continue
        records = _qos_of(own[name], known, chosen)
        if not records:
            left_out.append(LeftOut(name, "no QOS but those that are left out"))
        above = [rows[one] for one in lineage(name, rows) if one in rows]
        for order, record in enumerate(records):
            here = [row for row in own[name] if record.name in (*row.qos, row.default_qos, "")]
            bound = {row.partition for row in here}
            accounts.append(
                Account(
                    name, record.name, tuple(_scopes(user, record, here, above, usage)),
                    *_of_one_job(record, here, above[:1]),
                    () if "" in bound else tuple(sorted(bound)), order, record.name in lose,
                )
            )  # fmt: skip
    return accounts, left_out


def lineage(account: str, rows: Mapping[str, Association]) -> list[str]:
    """Return an account and those above it up to the root, by the accounts' own rows."""
    found = [account]
    while (row := rows.get(found[-1])) and row.parent and row.parent not in found:
        found.append(row.parent)
    return found


def _qos_of(rows: Sequence[Association], known: Mapping[str, Qos], chosen: Chosen) -> list[Qos]:
    """Return the QOS of an account's jobs, the default first, then by their longest job."""
    defaults = [row.default_qos for row in rows if row.default_qos]
    names = dict.fromkeys([*defaults, *(name for row in rows for name in row.qos)]) or {"": None}
    left_out = Chosen(leave_out=chosen.leave_out)
    found = [known.get(name, Qos(name)) for name in names if not left_out.reason(name)]
    return sorted(found, key=lambda q: (q.name not in defaults, q.max_wall_min or math.inf))


def _scopes(
    user: str,
    qos: Qos,
    own: Sequence[Association],
    above: Sequence[Association],
    usage: Mapping[str, Usage],
) -> Iterable[Scope]:
    """Yield what bounds an account's jobs; of a TRES limits of a QOS hold before associations'."""
    account = of_association(own[0].account)
    relative = "Relative" in qos.flags  # limits in percent, of which nothing is known
    of_qos = [
        (on_qos(qos.name), qos.tres),
        (on_qos(qos.name, user), qos.tres_per_user),
        (on_qos(qos.name, account), qos.tres_per_account),
    ]
    group: set[str] = set()
    for name, tres in of_qos:
        live = usage.get(name)
        limit = ({} if relative else tres) | (live.limit if live else {})
        group = group if name != on_qos(qos.name) else set(limit)
        if limit:
            yield Scope(name, limit, live.used if live else None)
    for row in [*own, *above]:
        name = of_association(row.account, row.user, row.partition)
        live = usage.get(name)
        limit = row.tres | (row.tres_per_user if row.user else {}) | (live.limit if live else {})
        limit = {tres: most for tres, most in limit.items() if tres not in group}
        if limit:
            yield Scope(name, limit, live.used if live else None)


def _of_one_job(
    qos: Qos, own: Sequence[Association], above: Sequence[Association]
) -> tuple[Tres, int | None]:
    """Return what bounds one job, and its longest time in minutes."""
    of_one: list[Qos | Association] = [qos, *own, *above]
    per_job: Tres = {}
    for one in reversed(of_one):
        per_job |= one.tres_per_job
    walls = [one.max_wall_min for one in of_one if one.max_wall_min is not None]
    return per_job, walls[0] if walls else None
