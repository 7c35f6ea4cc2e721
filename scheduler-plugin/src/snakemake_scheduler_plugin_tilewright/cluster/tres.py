"""What jobs count as, in every unit that is limited, and how many of them nodes hold (pure)."""

import functools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..slurm.accounts import Account
from ..slurm.nodes import Node
from ..slurm.partitions import gpu_type_of
from ..slurm.records import WALL, Partition, budget_name, is_budget, running_name
from .request import ResourceRequest

#: TRES of which nodes have so much.
ON_NODES = ("cpu", "mem", "gres/gpu")
#: What Slurm measures of jobs that run: none asks for it.
_MEASURED = ("energy", "vmem", "pages", "fs/", "ic/", "gres/gpumem", "gres/gpuutil")
#: What is added to the largest TRES where that alone is billed, by PriorityFlags of slurm.conf(5).
_ADDED = {"MAX_TRES": ("license/", "bb/"), "MAX_TRES_GRES": ("license/", "bb/", "gres/")}
Weights = tuple[tuple[str, float], ...]


def why_not_counted(name: str, where: Partition | None) -> str:
    """Return why it is not known what a job will use of a limit; empty where it is.

    >>> why_not_counted("energy/min", None), why_not_counted("license/matlab", None)
    ('Slurm measures it', '')
    """
    if name.startswith(_MEASURED):
        return "Slurm measures it"
    if name == "node" and not (where and where.whole_nodes):
        return "jobs share nodes"
    if name.startswith("billing") and where and where.billing and where.priority_flags is None:
        return "PriorityFlags are not known"
    if name.startswith("gres/gpu:") and where and where.tres.get("gres/gpu"):
        return "" if gpu_type_of(where) else "its partition's GPUs are not of one type"
    return ""


def tres_of(request: ResourceRequest, where: Partition | None = None) -> Counter[str]:
    """Return what one job counts as, in every TRES; 0 of what it does not ask for.

    In a partition that gives whole nodes a job counts with all CPUs and GPUs of one, and where
    memory for each CPU is limited with as many CPUs as its memory takes. One that asks for no
    memory gets the default. Budgets are charged for its whole time limit, as Slurm does where it
    enforces ``safe`` limits.

    >>> tres_of(ResourceRequest(4, 8000, 0, 60))["cpu/min"]
    240
    """
    cpus, gpus, mem_mb = request.cpus, request.gpus, request.mem_mb
    if where is not None and not mem_mb:
        mem_mb = where.default_mem_a_cpu * cpus or where.default_mem_a_node
    if where is not None and where.mem_a_cpu:
        cpus = max(cpus, -(-mem_mb // where.mem_a_cpu))
    if where is not None and where.whole_nodes:
        cpus = max(cpus, where.whole.get("cpu", 0))
        gpus = max(gpus, where.whole.get("gres/gpu", 0))
    held = [("cpu", cpus), ("mem", mem_mb), ("node", 1), ("gres/gpu", gpus)]
    if gpus and (gpu_type := gpu_type_of(where)):
        held.append((f"gres/gpu:{gpu_type}", gpus))
    held += [(f"license/{name}", number) for name, number in request.licences]
    weights, flags = (where.billing, where.priority_flags or ()) if where else ((), ())
    return Counter(dict(_tres_of(tuple(held), request.runtime_min, weights, flags)))


@functools.lru_cache(maxsize=4096)
def _tres_of(
    held: tuple[tuple[str, int], ...], minutes: int, weights: Weights, flags: tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
    of = dict(held)
    bills = {name: weight * of.get(name, 0) for name, weight in weights or (("cpu", 1.0),)}
    added = next((names for flag, names in _ADDED.items() if flag in flags), "")
    largest = max((n for name, n in bills.items() if not name.startswith(added)), default=0)
    of["billing"] = int(largest + sum(n for name, n in bills.items() if name.startswith(added)))
    charged = {budget_name(tres): amount * minutes for tres, amount in of.items()}
    taken = {running_name(name): amount for name, amount in charged.items()}
    return tuple({**of, "jobs": 1, "submit": 1, **charged, WALL: minutes, **taken}.items())


def fitting_jobs(nodes: Iterable[Node], partition: Partition, request: ResourceRequest) -> int:
    """Return how many jobs of a request the nodes of a partition that are up hold, if empty.

    >>> fitting_jobs([node], replace(short, tres={}), ResourceRequest(4, 8000, 0, 20))
    8
    """
    own = [node for node in nodes if partition.name in node.partitions]
    wanted, reserved = on_a_node(request, partition), is_reserved(own, request)
    return sum(
        room_of(node, partition, request, wanted, now=False)
        for node in own
        if suited(node, (node.name,), request, reserved=reserved)
    )


def on_a_node(request: ResourceRequest, where: Partition) -> dict[str, int]:
    """Return what a job asks of its node, also where it gets all of it.

    >>> on_a_node(ResourceRequest(4, 8000, 0, 20), short)
    {'cpu': 4, 'mem': 8000, 'gres/gpu': 0}
    """
    amounts = tres_of(request, replace(where, whole_nodes=False) if where.whole_nodes else where)
    return {tres: amounts[tres] for tres in ON_NODES}


def is_reserved(nodes: Iterable[Node], request: ResourceRequest) -> bool:
    """Return whether any nodes are known to be of the reservation that a request names.

    >>> is_reserved([node], replace(job, reservation="course"))
    False
    """
    return any(request.reservation in node.reservations for node in nodes)


def suited(
    node: Node, names: tuple[str, ...], request: ResourceRequest, *, reserved: bool
) -> tuple[str, ...]:
    """Return which nodes of the same kind have what a request names, and are not excluded by it.

    ``reserved`` says that nodes of its reservation are known (:func:`is_reserved`).

    >>> suited(node, ("c1", "c2"), replace(job, not_nodes=("c1",)), reserved=False)
    ('c2',)
    >>> suited(node, ("c1", "c2"), replace(job, features=("bigmem",)), reserved=False)
    ()
    """
    inside = not node.reserved or bool(request.reservation)
    if reserved:
        inside = request.reservation in node.reservations
    typed = not request.gpu_type or request.gpu_type in node.gpu_types
    if not (inside and typed and set(request.features) <= set(node.features)):
        return ()
    only, out = request.only_nodes, request.not_nodes
    if not (only or out):
        return names
    return tuple(name for name in names if name not in out and (not only or name in only))


def room_of(
    node: Node, partition: Partition, request: ResourceRequest, wanted: dict[str, int], *, now: bool
) -> int:
    """Return how many jobs of a request, which asks so much of its node, fit on one.

    >>> room_of(node, short, job, on_a_node(job, short), now=True)
    7
    """
    begin_min, end_min = node.reservations.get(request.reservation, (-math.inf, math.inf))
    if not request.reservation and node.free_min is not None:
        end_min = node.free_min if now else math.inf  # before a reservation begins
    if request.runtime_min > end_min - max(0, begin_min) or (now and begin_min > 0):
        return 0
    if partition.whole_nodes:
        return int(bool(node.room(wanted, now=False)) and (node.free == node.total or not now))
    room = node.room(wanted, now=now)
    if partition.cpus_a_node is not None and room:
        alone = now and len(node.partitions) == 1
        held = node.total.get("cpu", 0) - node.free.get("cpu", 0) if alone else 0
        room = min(room, max(0, partition.cpus_a_node - held) // wanted["cpu"])
    return room


#: Words for budgets: what is charged, and how many minutes of Slurm's make one hour of it.
_HOURS = {
    WALL: ("job-hours", 60),
    "cpu/min": ("CPU-hours", 60),
    "mem/min": ("GB-hours of memory", 60 * 1024),
    "node/min": ("node-hours", 60),
    "billing/min": ("billing-hours", 60),
}


def in_hours(name: str, minutes: float) -> str:
    """Return an amount of a budget in words.

    >>> in_hours("cpu/min", 90), in_hours("gres/gpu/min/running", 1200)
    ('1.5 CPU-hours', '20 GPU-hours of running jobs')
    """
    plain = name.removesuffix("/running")
    other = "GPU" if plain.startswith("gres/gpu") else plain.removesuffix("/min")
    words, each = _HOURS.get(plain, (f"{other}-hours", 60))
    hours = minutes / each
    text = f"{hours:.3g}" if hours < 1000 else f"{hours:.0f}"
    return f"{text} {words}{'' if plain == name else ' of running jobs'}"


@dataclass(frozen=True)
class Budget:
    """What is left of one budget of an account.

    Attributes
    ----------
    name : str
        ``cpu/min``, ``gres/gpu/min/running``, ….
    holder : str
        Whose it is: a QOS, an account, or one above it.
    used : int or None
        With what running jobs may still take; None where Slurm did not say.
    """

    name: str
    holder: str
    limit: int
    used: int | None

    @property
    def remaining(self) -> int | None:
        """Minutes that are left; None where that is not known."""
        return None if self.used is None else max(0, self.limit - self.used)

    def __str__(self) -> str:
        """Return what is left in hours."""
        left = "?" if self.remaining is None else in_hours(self.name, self.remaining)
        return f"{left} of {in_hours(self.name, self.limit)} ({self.holder})"


def budgets(account: Account, partition: Partition | None = None) -> list[Budget]:
    """Return what is left of the budgets that bound an account's jobs.

    >>> budgets(lab)
    []
    >>> print(Budget("gres/gpu/min", "QOS lab", 6000, 1500))
    75 GPU-hours of 100 GPU-hours (QOS lab)
    """
    return [
        Budget(name, scope.name, scope.limit[name], (scope.used or {}).get(name))
        for scope in account.within(partition).scopes
        for name in scope.limit
        if is_budget(name)
    ]
