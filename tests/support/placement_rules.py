"""Accounts, partitions and jobs as tests of placement name them, and one round over them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.accounts import Account, Scope
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import Task
from snakemake_scheduler_plugin_tilewright.placement.order import Durations
from snakemake_scheduler_plugin_tilewright.placement.request import (
    KINDS,
    DeviceKind,
    Place,
    ResourceModel,
    ResourceRequest,
)
from snakemake_scheduler_plugin_tilewright.placement.room import Room
from snakemake_scheduler_plugin_tilewright.placement.round import Choice, Round
from snakemake_scheduler_plugin_tilewright.placement.status import Spot, Spots
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from snakemake_scheduler_plugin_tilewright.slurm.records import Partition, Tres

GPU, CPU = ResourceRequest(8, 100, 1, 60), ResourceRequest(8, 50, 0, 60)
#: CPU jobs and GPU jobs have partitions of their own.
PARTITIONS = (
    Partition("cpu", 600, {"cpu": 256, "mem": 4000}, default=True),
    Partition("gpu", 600, {"cpu": 112, "mem": 4000, "gres/gpu": 8}),
)
NOW_S = 1000.0


def account(name: str, limit: Tres | None = None, used: Tres | None = None, **of: Any) -> Account:
    """Return an account on a QOS of its name; nothing is used of its limits, or is not known."""
    scopes = []
    if limit is not None:
        known = dict.fromkeys(limit, 0) if used is None else used
        scopes = [Scope(f"QOS {name}", limit, known)]
    return Account(name, name, tuple(scopes), **of)


def cluster_of(
    accounts: Iterable[Account], partitions: Iterable[Partition] = PARTITIONS, **of: Any
) -> Cluster:
    """Return a cluster that was never asked."""
    own = {one.name: one for one in partitions}
    idle = {name: {"cpu": 10**5, "gres/gpu": 10**4} for name in own}
    of = {"idle": idle, **of}
    return Cluster(SlurmClient("ada"), accounts=[*accounts], partitions=own, **of)


def model(**requests: ResourceRequest) -> ResourceModel:
    """Return the model of a rule by device kind; its jobs take 600 s on CPUs."""
    kinds = tuple(kind for kind in KINDS if kind in requests)
    return ResourceModel(kinds, lambda _, kind: requests[kind], lambda _: 600.0)


def tasks(number: int, kinds: Sequence[DeviceKind] = ("cpu",), **of: Any) -> list[Task]:
    """Return jobs that are ready and alike, in their order."""
    sizes: dict[DeviceKind, ResourceRequest] = {"gpu": GPU, "cpu": CPU}
    rule, first = of.pop("rule", "work"), of.pop("order", (0.0,))
    requests = of.pop("requests", {kind: sizes[kind] for kind in kinds})
    of = {"cpu_seconds": 600.0, **of}
    return [
        Task(object(), f"{rule}_{i}", rule, requests, order=(*first, float(i)), **of)
        for i in range(number)
    ]


@dataclass
class Given:
    """What a round finds: jobs of this run at places, and when those end that run."""

    cluster: Cluster
    for_gpus: ResourceRequest | None = None
    held: list[tuple[Place, ResourceRequest]] = field(default_factory=list)
    wrong: set[Place] = field(default_factory=set)
    cpu_share: float = 0.85
    durations: Durations = field(default_factory=Durations)
    spots: Spots = field(default_factory=lambda: Spots(Spot))
    ends_s: dict[DeviceKind, list[tuple[float, Place]]] = field(default_factory=dict)
    most: float = math.inf

    def at(
        self, name: str, kind: DeviceKind = "cpu", running: int = 0, pending: int = 0, **known: Any
    ) -> Place:
        """Say what is known of the first place of an account for a kind."""
        found = self.cluster.places(kind, CPU)
        place = next(one for one in found if one.account == name)
        vars(self.spots[place]).update(known)
        self.spots.add(place, running=running, pending=pending)
        return place

    def choose(self, ready: Iterable[Task], movable: Iterable[Task] = ()) -> Choice:
        """Return what a round does; jobs that are alike are of one group."""
        groups: dict[object, int] = {}
        all_tasks = [*ready, *movable]
        for task in all_tasks:
            task.group = groups.setdefault(task.alike, len(groups))
        pending = [task for task in all_tasks if task.place is not None]
        return self.round().place([task for task in all_tasks if task.place is None], pending)

    def round(self) -> Round:
        """Return a round over what is known."""
        room = Room(
            self.cluster.accounts, (), self.held, self.cpu_share, self.for_gpus, (), self.wrong,
            self.cluster.idle_of, self.cluster.limits_known,
        )  # fmt: skip
        return Round(
            self.cluster, self.durations, room, self.spots, self.ends_s, NOW_S, self.most
        )  # fmt: skip


def sent_to(choice: Choice) -> dict[str, int]:
    """Return how many jobs a round sends to each account, with the device kind."""
    found: dict[str, int] = {}
    for _, place, _ in choice.starts:
        name = f"{place.account} {place.kind}"
        found[name] = found.get(name, 0) + 1
    return found
