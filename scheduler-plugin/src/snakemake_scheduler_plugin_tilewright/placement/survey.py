"""When Slurm is asked for limits and live use, and what they leave for the jobs of a run."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..runtime.errors import PlacementError
from .cluster import Cluster
from .jobs import Task
from .request import Place, ResourceRequest
from .room import Room

#: Limits and partitions are asked again so often, live use more often (no figures).
_LIMITS_S, _USE_S = 300.0, 20.0


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
