"""A Slurm cluster as one person sees it: accounts, partitions, places, and what is not known."""

import contextlib
import math
import os
import pwd
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from ..runtime.errors import PlacementError, SlurmQueryError
from ..slurm.parse import node_names
from ..slurm.query import SlurmClient
from ..slurm.records import Association, Partition, Qos, Tres, Usage
from .accounts import Account, Chosen, LeftOut, lineage, usable_accounts
from .request import DeviceKind, Place, ResourceRequest, tres_of

#: What sacctmgr says where there is no slurmdbd.
_NO_ACCOUNTING = "not running a supported accounting_storage plugin"
#: Places where others may end jobs come after all others, then QOS other than the default one.
_PREEMPTABLE_RANK = 1000


@dataclass
class Cluster:
    """What one person may use; `look` asks Slurm.

    Attributes
    ----------
    gpu_partitions, cpu_partitions : sequence of str
        The only partitions for jobs of a kind; none is all that take them, and ``none`` for GPUs
        is no GPU.
    notes : list of str
        What Slurm did not say.
    idle : dict or None
        The idle CPUs and GPUs of each partition; None where that is not known.
    limits_known : bool
        Whether Slurm says what limits there are.
    """

    client: SlurmClient
    chosen: Chosen = field(default_factory=Chosen)
    gpu_partitions: Sequence[str] = ()
    cpu_partitions: Sequence[str] = ()
    accounts: list[Account] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    partitions: dict[str, Partition] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    used_s: float = 0.0
    idle: dict[str, Tres] | None = None
    limits_known: bool = True
    _rows: tuple[list[Association], list[Qos]] = ([], [])
    _longest_min: dict[Place, int | None] = field(default_factory=dict)
    _places: dict[tuple[object, ...], list[Place]] = field(default_factory=dict)

    def look(self) -> None:
        """Ask for accounts, limits, partitions, and live use: three or four questions.

        Raises
        ------
        PlacementError
            No account is left, or the user chose what the cluster does not have.
        """
        self.notes = []
        try:
            self.partitions = {one.name: one for one in self.client.partitions()}
        except SlurmQueryError as error:
            if not self.partitions:  # else those that were known are used on
                self.notes.append(
                    f"partitions are not known, so jobs go to the default one: {error}"
                )
        rows, known, note = self._associations()
        if not self._rows[0] or (rows[0] and known >= self.limits_known):
            self._rows, self.limits_known = rows, known
            self.notes += [note] if note else []
        self.look_at_use()
        self._check_names()

    def look_at_use(self) -> None:
        """Ask for live use: one question."""
        rows, qos = self._rows
        own = {row.account for row in rows if row.user == self.client.user}
        above = {row.account: row for row in rows if not row.user}
        names = {name for row in rows if row.account in own for name in row.qos}
        usage: dict[str, Usage] = {}
        if own:
            accounts = sorted({one for name in own for one in lineage(name, above)})
            try:
                uids = {str(self.client.uid): self.client.user}
                usage = self.client.usage(sorted(names), accounts, uids)
            except SlurmQueryError as error:
                self.notes.append(f"what is in use is not known: {error}")
        self.used_s = self.client.clock()
        found = usable_accounts(self.client.user, rows, qos, self.chosen, usage)
        self.accounts, self.left_out = found
        if not rows:
            self.accounts = [Account("")]
        self._places.clear()
        self._longest_min.clear()

    def look_at_nodes(self) -> None:
        """Ask for what is idle of the partitions: one question."""
        try:
            self.idle = self.client.idle()
        except SlurmQueryError:
            self.idle = None  # then jobs that pend tell

    def idle_of(self, place: Place) -> Tres | None:
        """Return what is idle in the partitions of a place; None where that is not known.

        Of partitions of the same nodes one counts.
        """
        if self.idle is None or not place.partitions:
            return None
        own = {self.partitions[name].nodes if name in self.partitions else name: name
               for name in place.partitions}  # fmt: skip
        found: Counter[str] = Counter()
        for name in own.values():
            if name not in self.idle:
                return None
            found.update(self.idle[name])
        return dict(found)

    def places(
        self,
        kind: DeviceKind,
        request: ResourceRequest,
        excluded: Set[Place] = frozenset(),
        fixed: tuple[str, str] = ("", ""),
    ) -> list[Place]:
        """Return the places of a job, by rank.

        A list of partitions is one place. Where it is ``excluded``, as Slurm refused the job there,
        each of its partitions alone is one.

        Parameters
        ----------
        fixed : tuple of str
            The account and the QOS that the user chose; empty is any.
        """
        key = kind, request.partition, request.gpu_type, request.required_min, excluded, fixed
        if key not in self._places:
            found = []
            for account in self._accounts_of(*fixed):
                for names in self._lists(account, kind, request):
                    whole = self._place(account, kind, names)
                    parts = [self._place(account, kind, (one,)) for one in names]
                    found += [whole] if whole not in excluded else parts
            open_ = [one for one in found if one not in excluded]
            self._places[key] = sorted(open_, key=lambda one: one.rank)
        return self._places[key]

    def _accounts_of(self, account: str, qos: str) -> list[Account]:
        """Return the accounts that a job may use; what the user chose is not questioned."""
        own = [one for one in self.accounts if account in ("", one.name)]
        if qos and not any(one.qos == qos for one in own):
            own = [replace(one, qos=qos) for one in own if not one.order]
        found = [one for one in own if qos in ("", one.qos)]
        return found or [Account(account, qos)]

    def able_places(
        self,
        kind: DeviceKind,
        request: ResourceRequest,
        excluded: Set[Place] = frozenset(),
        fixed: tuple[str, str] = ("", ""),
    ) -> list[Place]:
        """Return the places of a job without those of which a limit is smaller than it.

        Those that allow less time than it asks for are left out where others allow it.
        """
        key = kind, request, excluded, fixed, "able"
        if key not in self._places:
            found = self.places(kind, request, excluded, fixed)
            able = [one for one in found if not self.too_large(one, request)]
            long = [one for one in able
                    if request.runtime_min <= (self.longest_min(one) or math.inf)]  # fmt: skip
            self._places[key] = long or able
        return self._places[key]

    def too_large(self, place: Place, request: ResourceRequest) -> str:
        """Return which limit of a place is smaller than one job; empty where none is known."""
        for account in self.accounts:
            if (account.name, account.qos) != (place.account, place.qos):
                continue
            limits = [(scope.name, scope.limit) for scope in account.scopes]
            for name, limit in [*limits, (f"one job of {account.label}", account.per_job)]:
                for tres, wanted in tres_of(request).items():
                    if wanted > limit.get(tres, wanted):
                        return f"{name} allows {limit[tres]} of {tres}, and it asks for {wanted}"
        return ""

    def longest_min(self, place: Place) -> int | None:
        """Return the longest time of a job at a place, in minutes; None without a limit."""
        if place not in self._longest_min:
            own = [self.partitions[one].max_time_min for one in place.partitions
                   if one in self.partitions]  # fmt: skip
            longest = [] if None in own else [max(filter(None, own), default=None)]
            longest += [one.longest_min for one in self.accounts
                        if (one.name, one.qos) == (place.account, place.qos)]  # fmt: skip
            self._longest_min[place] = min((n for n in longest if n is not None), default=None)
        return self._longest_min[place]

    def names_of(self, kind: DeviceKind) -> list[str]:
        """Return the partitions of a kind, as jobs prefer them."""
        return [one.name for one in self._of_kind(kind)]

    def _place(self, account: Account, kind: DeviceKind, names: tuple[str, ...]) -> Place:
        lose = account.preemptable or any(self._is_preemptable(one) for one in names)
        rank = _PREEMPTABLE_RANK * lose + account.order
        return Place(account.name, account.qos, names, kind, rank)

    def _lists(
        self, account: Account, kind: DeviceKind, request: ResourceRequest
    ) -> Iterable[tuple[str, ...]]:
        """Yield lists of partitions of an account; those where others may end jobs are the last."""
        if request.partition or not self.partitions:
            yield tuple(filter(None, request.partition.split(",")))
            return
        open_ = [one for one in self._of_kind(kind) if self._takes(one, account)]
        long = [
            one for one in open_
            if one.max_time_min is None or one.max_time_min >= (request.required_min or 1)
        ]  # fmt: skip
        typed = [one for one in long if self._has_type(one, request.gpu_type)] or long
        for lose in (False, True):
            if names := tuple(p.name for p in typed if self._is_preemptable(p.name) == lose):
                yield names

    def _of_kind(self, kind: DeviceKind) -> list[Partition]:
        """Return the partitions of a kind: the default one first, then the largest.

        CPU jobs leave partitions with GPUs to GPU jobs, unless there are no others.
        """
        named = self.gpu_partitions if kind == "gpu" else self.cpu_partitions
        if kind == "gpu" and list(named) == ["none"]:
            return []
        found = [one for one in self.partitions.values() if one.up]
        if named:
            found = [one for one in found if one.name in named]
        elif kind == "gpu":
            # where Slurm counts no GPUs, any partition may have some
            found = [one for one in found if one.has_gpus] or found
        else:
            found = [one for one in found if one.default or not one.has_gpus] or found
        return sorted(found, key=lambda p: (not p.default, -p.tres.get("cpu", 0)))

    @staticmethod
    def _has_type(partition: Partition, gpu_type: str) -> bool:
        types = [name for name in partition.tres if name.startswith("gres/gpu:")]
        return not gpu_type or not types or f"gres/gpu:{gpu_type}" in types

    def _takes(self, partition: Partition, account: Account) -> bool:
        """Return whether a partition takes an account on its QOS, or that is not known."""
        rows = {row.account: row for row in self._rows[0] if not row.user}
        names = set(lineage(account.name, rows)) if account.name else set()
        allowed = partition.allow_accounts
        if account.partitions and partition.name not in account.partitions:
            return False
        if names and (names & set(partition.deny_accounts) or
                      (allowed is not None and not names & set(allowed))):  # fmt: skip
            return False
        qos = partition.allow_qos
        return not account.qos or (
            account.qos not in partition.deny_qos and (qos is None or account.qos in qos)
        )

    def _is_preemptable(self, name: str) -> bool:
        """Return whether jobs of a partition of a higher tier may end those of this one."""
        one = self.partitions.get(name)
        if one is None or one.tier is None or one.preempt_mode == "OFF":
            return False
        above = [p for p in self.partitions.values() if (p.tier or 0) > one.tier]
        nodes = set(node_names(one.nodes)) if above else set()
        return any(nodes & set(node_names(p.nodes)) for p in above)

    def _associations(self) -> tuple[tuple[list[Association], list[Qos]], bool, str]:
        """Return associations and QOS, whether their limits are known, and a note.

        Where sacctmgr shows none, slurmctld or sshare shows the accounts; else jobs go to the
        user's default one.
        """
        user, qos = self.client.user, list[Qos]()
        try:
            rows, qos = self.client.limits()
            rows = self._of_this_cluster(rows)
            if any(row.user == user for row in rows):
                return (rows, qos), True, ""
            why = f"sacctmgr shows no account of {user}"
        except SlurmQueryError as error:
            why = str(error)
            if _NO_ACCOUNTING in error.reason:
                note = "this Slurm keeps no accounts: its nodes alone bound jobs"
                return ([], []), True, note
        with contextlib.suppress(SlurmQueryError):
            rows = self.client.associations()
            if any(row.user == user for row in rows):
                return (rows, qos), False, f"limits are not known: {why}"
        named = [Association(name, user) for name in self.chosen.only if name.isalnum()]
        where = "--tilewright-accounts" if named else "your default account"
        return (named, qos), False, f"jobs go to {where}, and limits are not known: {why}"

    def _of_this_cluster(self, rows: list[Association]) -> list[Association]:
        """Return the associations of this cluster, where one slurmdbd serves several."""
        if len({row.cluster for row in rows}) < 2:
            return rows
        name = self.client.config()["ClusterName"]
        return [row for row in rows if row.cluster == name]

    def _check_names(self) -> None:
        """Raise PlacementError where no account is left, or a partition is unknown."""
        if not self.accounts:
            reasons = "; ".join(f"{one.account}: {one.reason}" for one in self.left_out)
            raise PlacementError(f"no account is left to place jobs on ({reasons})")
        for name in self.partitions and (*self.gpu_partitions, *self.cpu_partitions):
            if name not in (*self.partitions, "none"):
                there = ", ".join(self.partitions)
                raise PlacementError(f"there is no partition {name}; there are {there}")


def own_client() -> SlurmClient:
    """Return a client that asks for the person who runs this process."""
    return SlurmClient(pwd.getpwuid(os.getuid()).pw_name)
