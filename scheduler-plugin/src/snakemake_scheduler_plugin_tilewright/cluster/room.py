"""What is free of a cluster, as jobs take it one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from ..slurm.accounts import Account
from ..slurm.nodes import Node
from ..slurm.records import JOBS, Partition, Tres, is_budget
from .limits import largest, limited_tres, unknown_use
from .request import ResourceRequest, Target
from .state import ClusterState
from .tres import ON_NODES, is_reserved, on_a_node, room_of, suited

#: Jobs of a pool that nothing bounds, not even a partition of known size (no figure).
_MOST_SLOTS = 1000
#: ``bound`` of what has no limit of its own.
PARTITION = "partition"
_SIZE = "size of "
#: Which jobs count: all, those that were taken from the room, or none.
Counted = Literal["all", "taken", "none"]
#: What limits jobs together: its name, whether it is a cap, and limit and use of each TRES.
_Scope = tuple[str, bool, tuple[tuple[str, int, int], ...]]


class _Bounds(NamedTuple):
    """What bounds an account in a partition; ``known`` is false where any use is not known."""

    key: Hashable
    #: Of one job.
    most: Tres
    scopes: tuple[_Scope, ...]
    known: bool


class Room:
    """What limits and nodes leave; unlike all else of a cluster it changes, as jobs take it.

    :meth:`by_limits` looks at limits alone, :meth:`on_nodes` at nodes, :meth:`count` at both, and
    :meth:`jobs` also at what is closed or avoided, with some CPUs left free. :meth:`fits` is for
    one more job, all CPUs counted, :meth:`within_limits` the same once a node has room. Nodes with
    the same things free are counted as one: 1,000 of them are a few.

    Parameters
    ----------
    empty : bool
        As if nothing was in use, but for what is spent of budgets.
    """

    def __init__(self, state: ClusterState, *, empty: bool = False) -> None:
        self.state = state
        self._counted: Counted = "taken" if empty else "all"
        self._taken: dict[str, Counter[str]] = {}
        #: How often jobs were taken from each scope; what limits left at such a version.
        self._versions: dict[str, int] = {}
        self._lefts: dict[Hashable, tuple[int, Mapping[str, float]]] = {}
        self._bounds: dict[tuple[int, int], _Bounds] = {}
        self._sizes: dict[str, _Bounds] = {}
        #: Jobs that nodes hold, by partition and what was asked, until a job is taken there.
        self._fitting: dict[str, dict[ResourceRequest, int]] = {}
        #: Nodes that are alike, with their names; and which of them each partition has.
        self._nodes: list[tuple[Node, tuple[str, ...]]] = []
        self._of_partition: dict[str, list[int]] = {}
        alike: dict[object, list[Node]] = {}
        for node in state.nodes or ():
            if node.up and (empty or node.free.get("cpu", 0) > 0):
                alike.setdefault(node.key, []).append(node)
        for nodes in alike.values():
            self._add(_emptied(nodes[0]) if empty else nodes[0], *(one.name for one in nodes))
        for use in () if empty else state.pending:
            self._take_node(use.partition, use.tres, use.request or ResourceRequest(0, 0, 0, 0))

    def copy(self) -> Room:
        """Return the same room, which jobs can take without taking this one."""
        found = object.__new__(Room)
        found.__dict__ |= self.__dict__ | {
            "_taken": {name: taken.copy() for name, taken in self._taken.items()},
            "_fitting": {name: held.copy() for name, held in self._fitting.items()},
            "_versions": self._versions.copy(),
            "_lefts": self._lefts.copy(),
            "_nodes": [*self._nodes],
            "_of_partition": {name: [*own] for name, own in self._of_partition.items()},
        }
        return found

    def jobs(self, target: Target, request: ResourceRequest) -> int:
        """Return how many such jobs may start now."""
        state = self.state
        if target in state.avoided or state.why_closed(target):
            return 0
        return self.count(target, request)[0]

    def count(self, target: Target, request: ResourceRequest) -> tuple[int, str]:
        """Return how many such jobs limits and nodes hold, and what bounds them.

        CPU jobs leave CPUs of an account free, but not those of the one job that it holds.
        """
        share = self.state.utilisation if target.device == "cpu" else 1.0
        account, where = self.state.account(target.account, target.qos), self.state.where(target)
        held = self.on_nodes(where, request)
        if account is None or held == 0:
            return 0, PARTITION
        asked = account, where, request
        jobs, bound = self._count(*asked, share)
        if not jobs and share < 1 and self._count(*asked)[0]:
            jobs = int(not self._count(*asked, share, "none")[0])
        return (jobs, bound) if held is None or jobs <= held else (held, PARTITION)

    def _count(
        self, account: Account, where: Partition | None, request: ResourceRequest,
        share: float = 1.0, counted: Counted | None = None,
    ) -> tuple[int, str]:  # fmt: skip
        jobs, bound = self.by_limits(account, where, request, share, counted)
        if self.state.nodes is not None or where is None or not jobs:
            return jobs, bound
        wanted = self.state.wanted(request, where)
        left = self._left(self._size(where), share, counted or self._counted)
        held = min((_jobs_in(left[t], wanted[t]) for t in left if t in wanted), default=jobs)
        return (held, PARTITION) if held < jobs else (jobs, bound)

    def fits(self, target: Target, request: ResourceRequest) -> bool:
        """Return whether one more job may start now, all CPUs of the account counted."""
        if target in self.state.avoided or self.on_nodes(self.state.where(target), request) == 0:
            return False
        return self.within_limits(target, request)

    def within_limits(self, target: Target, request: ResourceRequest) -> bool:
        """Return whether no limit keeps one more job from starting once a node has room for it."""
        state = self.state
        account, where = state.account(target.account, target.qos), state.where(target)
        if account is None or state.why_closed(target) or not state.can_take(target, request):
            return False
        if not state.some_node_holds(target, request):
            return False
        return self._count(account, where, request)[0] > 0

    def by_limits(
        self,
        account: Account,
        where: Partition | None,
        request: ResourceRequest,
        share: float = 1.0,
        counted: Counted | None = None,
    ) -> tuple[int, str]:
        """Return how many jobs the limits of an account hold, and what bounds them, GPUs first."""
        counted = counted or self._counted
        wanted, bounds = self.state.wanted(request, where), self._bounds_of(account, where)
        for tres, most in bounds.most.items():
            if wanted.get(tres, 0) > most:
                return 0, tres
        if not bounds.known and counted == "all":
            return 0, PARTITION
        best, bound = _MOST_SLOTS, PARTITION
        for tres, left in self._left(bounds, share, counted).items():
            if not (each := wanted.get(tres)):
                continue
            jobs = _jobs_in(left, each)
            if jobs < best or (jobs == best and _rank(tres) < _rank(bound)):
                best, bound = jobs, tres
        return best, bound

    def _bounds_of(self, account: Account, where: Partition | None) -> _Bounds:
        limits = account.within(where)
        key = id(limits), self.state.alike(where)
        if key not in self._bounds:
            most = {tres: largest(account, where, tres) for tres in limited_tres(account, where)}
            scopes = tuple(
                (scope.name, scope.cap, tuple(
                    (tres, limit, (scope.used or {}).get(tres, 0))
                    for tres, limit in scope.limit.items() if tres in most
                ))
                for scope in limits.scopes
            )  # fmt: skip
            largest_ = {tres: n for tres, n in most.items() if n is not None}
            self._bounds[key] = _Bounds(key, largest_, scopes, not unknown_use(account, where))
        return self._bounds[key]

    def _size(self, where: Partition) -> _Bounds:
        """Return the size of a partition, as what bounds the jobs there."""
        if where.name not in self._sizes:
            name = f"{_SIZE}{where.name}"
            sizes = tuple((tres, where.tres[tres], 0) for tres in ON_NODES if tres in where.tres)
            self._sizes[where.name] = _Bounds(name, {}, ((name, False, sizes),), known=True)
        return self._sizes[where.name]

    def _left(self, bounds: _Bounds, share: float, counted: Counted) -> Mapping[str, float]:
        """Return what all that bounds an account leaves of each TRES."""
        key, versions = (bounds.key, share, counted), self._versions
        version = sum([versions.get(name, 0) for name, _, _ in bounds.scopes]) if versions else 0
        known = self._lefts.get(key)
        if known and known[0] == version:
            return known[1]
        found = dict[str, float]()
        self._lefts[key] = version, found
        for name, cap, limits in bounds.scopes:
            taken = self._taken.get(name, Counter())
            for tres, limit, used in limits:
                part = share if tres == "cpu" and not cap else 1.0
                # what is spent of a budget is so on an empty cluster too
                left = limit * part - (used if counted == "all" or _is_spent(tres) else 0)
                left -= 0 if counted == "none" else taken.get(tres, 0)
                found[tres] = min(left, found.get(tres, left))
        return found

    def on_nodes(self, where: Partition | None, request: ResourceRequest) -> int | None:
        """Return how many jobs the nodes of a partition hold now; None where they are not known."""
        if self.state.nodes is None or where is None:
            return None
        held = self._fitting.setdefault(where.name, {})
        if request not in held:
            wanted = on_a_node(request, where)
            held[request] = sum(
                room_of(node, where, request, wanted, now=True) * len(names)
                for _, node, names in self._holding(where.name, request)
            )
        return held[request]

    def _holding(
        self, partition: str | None, request: ResourceRequest
    ) -> Iterator[tuple[int, Node, tuple[str, ...]]]:
        """Yield the nodes of a partition that are of those that a request asks for."""
        reserved = is_reserved(self.state.nodes_in[partition or ""], request)
        for k in self._of_partition.get(partition or "", ()):
            node, names = self._nodes[k]
            if own := suited(node, names, request, reserved=reserved):
                yield k, node, own

    def take(self, target: Target, request: ResourceRequest, jobs: int = 1) -> None:
        """Take the room of some jobs: of all limits that they count on, and of nodes."""
        account, where = self.state.account(target.account, target.qos), self.state.where(target)
        if account is None or not jobs:
            return
        one = self.state.wanted(request, where)
        use = {tres: jobs * n for tres, n in one.items()}
        for name in (*account.within(where).counts_on, f"{_SIZE}{target.partition}"):
            self._taken.setdefault(name, Counter()).update(use)
            self._versions[name] = self._versions.get(name, 0) + 1
        for _ in range(jobs):
            self._take_node(target.partition, one, request)

    def _take_node(
        self, partition: str | None, use: Mapping[str, int], request: ResourceRequest
    ) -> None:
        """Take what a job uses of the fullest node that holds it, as Slurm would fill them."""
        wanted = {tres: use.get(tres, 0) for tres in ON_NODES}
        where = self.state.where_is(partition)
        asked = on_a_node(request, where) if where and request.cpus else wanted
        rooms = [
            (room, names[0], k)
            for k, node, names in self._holding(partition, request)
            if where and (room := room_of(node, where, request, asked, now=True))
        ]
        if rooms:
            _, name, k = min(rooms)
            node, names = self._nodes[k]
            for there in node.partitions:
                self._fitting.pop(there, None)
                if len(names) == 1:
                    self._of_partition[there].remove(k)
            self._nodes[k] = node, tuple(one for one in names if one != name)
            self._add(node.taken(wanted), name)

    def _add(self, node: Node, *names: str) -> None:
        for partition in node.partitions:
            self._of_partition.setdefault(partition, []).append(len(self._nodes))
        self._nodes.append((node, names))


def _emptied(node: Node) -> Node:
    """Return a node with nothing on it, before any reservation of it begins."""
    own = {name: (min(0.0, begin), end) for name, (begin, end) in node.reservations.items()}
    return replace(node, free=node.total, free_min=None, reservations=own)


def _jobs_in(left: float, each: int) -> int:
    return max(0, int(left / each + 1e-9))


def _is_spent(tres: str) -> bool:
    return is_budget(tres) and not tres.endswith("/running")


def _rank(name: str) -> tuple[bool, bool, bool, bool, str]:
    gpus = name.startswith("gres/")
    return name == PARTITION, is_budget(name), name in JOBS, not gpus, name
