"""What limits leave of each account, as a prior: where it is wrong or silent, jobs find out.

It is renewed by asking for limits and live use now and then.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..runtime.errors import PlacementError
from ..slurm.records import Tres
from .accounts import Account, Scope
from .cluster import Cluster
from .jobs import Task
from .request import Place, ResourceRequest, tres_of


class Room:
    """What is free of all limits of all accounts, while jobs take it.

    Parameters
    ----------
    own : mapping
        By name of a limit, what jobs of this run held when its use was asked: ``held`` counts it.
    held : iterable of (Place, ResourceRequest)
        What jobs of this run hold or wait for now.
    cpu_share : float
        Share of an account's CPUs that CPU jobs may fill.
    for_gpus : ResourceRequest or None
        What a GPU job asks for, while there are some: CPU jobs leave that to each free GPU.
    pending : iterable of Place
        Where jobs of this run pended when that was asked.
    wrong : collection of Place
        Places where what is known was wrong.
    idle_of : callable
        What is idle in the partitions of a place, with ``own``; None where that is not known.
    limits_known : bool
        Whether Slurm says what limits there are.
    """

    def __init__(
        self,
        accounts: Iterable[Account],
        own: Iterable[tuple[Place, ResourceRequest]],
        held: Iterable[tuple[Place, ResourceRequest]],
        cpu_share: float,
        for_gpus: ResourceRequest | None,
        pending: Iterable[Place] = (),
        wrong: Collection[Place] = (),
        idle_of: Callable[[Place], Tres | None] = lambda place: None,
        limits_known: bool = True,
    ) -> None:
        self.accounts = {(one.name, one.qos): one for one in accounts}
        self.cpu_share, self.for_gpus, self.wrong = cpu_share, for_gpus, wrong
        scopes = {scope.name: scope for a in self.accounts.values() for scope in a.scopes}
        self.limit = {name: scope.limit for name, scope in scopes.items()}
        self.free = {
            name: {t: n - scope.used[t] for t, n in scope.limit.items() if t in scope.used}
            for name, scope in scopes.items()
            if scope.used is not None
        }
        self.limits_known, self._idle_of = limits_known, idle_of
        self._nodes: dict[tuple[str, ...], Tres | None] = {}
        self._waiting = {
            name: scope.used.get("submit", 0) - scope.used.get("jobs", 0)
            for name, scope in scopes.items()
            if scope.used is not None
        }
        for place, request in own:
            self.take(place, request, -1)
        # a job may have ended between two questions: others use no less than nothing
        for name, free in self.free.items():
            for tres in free:
                free[tres] = min(free[tres], self.limit[name][tres])
        self._left = {name: dict(free) for name, free in self.free.items()}
        for place, request in held:
            self.take(place, request)
        for place in pending:
            for scope in self._scopes(place):
                if scope.name in self._waiting:
                    self._waiting[scope.name] -= 1

    def is_known(self, place: Place) -> bool:
        """Return whether all is known that bounds a place: its limits, and what nodes are idle."""
        return self._idle(place) is not None and self.knows_limits(place)

    def knows_limits(self, place: Place) -> bool:
        """Return whether all limits of a place are known, and what is in use of them."""
        account = self.accounts.get((place.account, place.qos))
        if account is None or place in self.wrong or not self.limits_known:
            return False
        return all(
            self.free.get(scope.name, {}).keys() >= scope.limit.keys() & _COUNTED
            for scope in account.scopes
        )

    def _idle(self, place: Place) -> Tres | None:
        if place.partitions not in self._nodes:
            idle = self._idle_of(place)
            self._nodes[place.partitions] = None if idle is None else dict(idle)
        return self._nodes[place.partitions]

    def jobs(self, place: Place, request: ResourceRequest, most: int = 10**6) -> int:
        """Return how many jobs the known limits of a place leave room for, ``most`` at most."""
        account = self.accounts.get((place.account, place.qos))
        most = min(most, self.on_nodes(place, request))
        for scope in account.scopes if account else ():
            free = self.free.get(scope.name, {})
            reserved = self._reserved(scope.name) if place.kind == "cpu" else {}
            for tres, wanted in tres_of(request).items():
                if tres in free and wanted:
                    rest = free[tres] - reserved.get(tres, 0)
                    most = min(most, rest // wanted)
        return max(0, most)

    def on_nodes(self, place: Place, request: ResourceRequest) -> int:
        """Return how many jobs what is idle has room for, as far as that is known."""
        wanted = tres_of(request)
        counts = [free // wanted[tres] for tres, free in (self._idle(place) or {}).items()
                  if wanted.get(tres)]  # fmt: skip
        return max(0, min(counts, default=10**6))

    def take(self, place: Place, request: ResourceRequest, times: int = 1) -> None:
        """Take what a job holds, or give it back."""
        account, idle = self.accounts.get((place.account, place.qos)), self._idle(place) or {}
        for tres in idle:
            idle[tres] -= times * tres_of(request).get(tres, 0)
        for scope in account.scopes if account else ():
            if free := self.free.get(scope.name):
                for tres, wanted in tres_of(request).items():
                    if tres in free:
                        free[tres] -= times * wanted

    def is_left(self, place: Place, request: ResourceRequest) -> bool:
        """Return whether others leave room in all limits of a place, were no job of this run there.

        False where that is not known.
        """
        return self.knows_limits(place) and all(
            self._left.get(scope.name, {}).get(tres, wanted) >= wanted
            for scope in self._scopes(place)
            for tres, wanted in tres_of(request).items()
        )

    def others_wait(self, place: Place) -> bool:
        """Return whether jobs of others, or of other runs, wait for what limits a place."""
        return any(self._waiting.get(scope.name, 0) > 0 for scope in self._scopes(place))

    def _scopes(self, place: Place) -> Sequence[Scope]:
        account = self.accounts.get((place.account, place.qos))
        return account.scopes if account else ()

    def _reserved(self, name: str) -> Mapping[str, int]:
        """Return what CPU jobs leave of a limit: to GPU jobs, and a share of the CPUs."""
        limit, free = self.limit[name], self.free.get(name, {})
        reserved = {"cpu": round((1 - self.cpu_share) * limit["cpu"])} if "cpu" in limit else {}
        gpus = free.get("gres/gpu", 0)
        if self.for_gpus and gpus > 0:
            for tres, n in (("cpu", self.for_gpus.cpus), ("mem", self.for_gpus.mem_mb)):
                reserved[tres] = max(reserved.get(tres, 0), gpus * n)
        return reserved


#: What limits of accounts are looked at; of other TRES, Slurm tells when one is reached.
_COUNTED = {"cpu", "mem", "gres/gpu", "jobs", "submit", "node"}


#: Limits and partitions are asked again so often, live use more often (no figures).
_LIMITS_S, _USE_S = 300.0, 20.0


@dataclass
class Settings:
    """How a run places its jobs.

    Attributes
    ----------
    poll_s : float
        Slurm's queue is asked so often.
    cpu_share : float
        Share of an account's CPUs that CPU jobs may fill.
    most_jobs : float
        Jobs that Slurm has at once at most.
    """

    poll_s: float = 10.0
    cpu_share: float = 0.85
    most_jobs: float = math.inf


@dataclass
class Survey:
    """Keeps a look at the cluster fresh.

    Attributes
    ----------
    begun : bool
        Whether `look` was called: before it the cluster was looked at just now.
    """

    cluster: Cluster
    cpu_share: float
    begun: bool = False
    _own_use: list[tuple[Place, ResourceRequest]] = field(default_factory=list)
    _own_pending: list[Place] = field(default_factory=list)
    _limits_s: float = -math.inf
    _nodes_s: float = -math.inf

    def look(self, active: Sequence[Task]) -> list[str]:
        """Ask for what is old of limits and live use; return what Slurm does not say any more.

        Parameters
        ----------
        active : sequence of Task
            The jobs of this run that Slurm has: what is in use counts those that run.
        """
        found = self.cluster
        now_s, notes = found.client.clock(), list(found.notes)
        if not self.begun:
            self.begun, self._limits_s = True, now_s
            return []
        failure = []
        if now_s - self._limits_s >= _LIMITS_S:
            if not found.client.may_ask(4):
                return []  # nothing else is asked until these may be
            try:
                found.look()
            except PlacementError as error:
                failure = [str(error)]
            self._limits_s = now_s
        elif now_s - found.used_s >= _USE_S and found.client.may_ask(2):
            found.look_at_use()
        elif found.idle is not None or self._nodes_s > now_s - _USE_S or not found.client.may_ask():
            return []
        found.look_at_nodes()
        self._nodes_s = now_s
        held = [(task, task.place) for task in active if task.place]
        self._own_use = [(at, task.request(at.kind)) for task, at in held if task.running]
        self._own_pending = [at for task, at in held if not task.running]
        return [*failure, *(note for note in found.notes if note not in notes)]

    def room(
        self, tasks: Iterable[Task], movable: Sequence[Task], wrong: Collection[Place]
    ) -> Room:
        """Return what limits and nodes leave.

        Parameters
        ----------
        movable : sequence of Task
            Jobs that pend for a limit, which hold nothing of others.
        wrong : collection of Place
            Places where what is known was wrong.
        """
        tasks, out = list(tasks), {id(task) for task in movable}
        held = [(t.place, t.request(t.place.kind)) for t in tasks if t.place and id(t) not in out]
        found = self.cluster
        gpus = found.names_of("gpu") or not found.partitions
        sizes = [task.request("gpu") for task in tasks if gpus and "gpu" in task.requests]
        largest = max(sizes, key=lambda one: (one.mem_mb, one.cpus), default=None)
        return Room(
            found.accounts, self._own_use, held, self.cpu_share, largest, self._own_pending, wrong,
            found.idle_of, found.limits_known,
        )  # fmt: skip
