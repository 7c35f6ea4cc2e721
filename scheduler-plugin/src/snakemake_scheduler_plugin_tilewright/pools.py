"""How many jobs each account holds, all in all and now: what is shown, and where jobs go first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .placement.accounts import Account, Scope
from .placement.cluster import Cluster
from .placement.request import KINDS, DeviceKind, Place, ResourceRequest
from .placement.room import Room
from .runtime.words import count

#: Jobs of such sizes are counted, unless others are given: those of KINTSUGI's worked example.
SIZES: Mapping[DeviceKind, ResourceRequest] = {
    "gpu": ResourceRequest(8, 180 * 1024, 1, 240),
    "cpu": ResourceRequest(8, 48 * 1024, 0, 240),
}
#: Share of an account's CPUs that CPU jobs may fill: the others of a group begin something now and
#: then (KINTSUGI's worked example).
CPU_SHARE = 0.85
#: More jobs than any limit.
_MANY = 10**6
#: Names that are written out of a list of many.
_NAMES = 4


@dataclass(frozen=True)
class Pool:
    """What one place holds of jobs of one size.

    Attributes
    ----------
    slots : int
        Jobs that its limits, or its partitions, allow.
    free : int or None
        Jobs that fit now, next to what is in use; None where that is not known.
    """

    place: Place
    slots: int
    free: int | None


def make_pools(
    cluster: Cluster,
    sizes: Mapping[DeviceKind, ResourceRequest] = SIZES,
    cpu_share: float = CPU_SHARE,
    *,
    together: bool = False,
) -> list[Pool]:
    """Return the pools of each account and QOS for jobs of some sizes; one without slots is none.

    Parameters
    ----------
    together : bool
        CPU jobs get what GPU jobs leave, and each QOS what those before it leave, instead of all
        that it may have alone.
    """
    whole = Room([_empty(one) for one in cluster.accounts], (), (), cpu_share, None)
    now = Room(
        cluster.accounts, (), (), cpu_share, None,
        idle_of=cluster.idle_of, limits_known=cluster.limits_known,
    )  # fmt: skip
    found = []
    for kind in [one for one in KINDS if one in sizes]:
        request = sizes[kind]
        for place in cluster.places(kind, request):
            if kind == "gpu" and not place.partitions:
                continue
            most = _most_in(cluster, place, request)
            slots = whole.jobs(place, request, most)
            free = now.jobs(place, request, slots) if now.knows_limits(place) else None
            if together:
                whole.take(place, request, slots)
                now.take(place, request, free or 0)
            if slots:
                found.append(Pool(place, slots, free))
    return sorted(found, key=lambda pool: (pool.place.account, pool.place.rank))


def total_slots(pools: Iterable[Pool], kind: DeviceKind | None = None) -> int:
    """Return the jobs that fit at once, of one device kind or of both.

    >>> gpu = Pool(Place("lab", "normal", (), "gpu"), 2, 2)
    >>> total_slots([gpu, Pool(Place("lab", "normal", (), "cpu"), 8, 6)]), total_slots([gpu], "gpu")
    (10, 2)
    """
    return sum(pool.slots for pool in pools if kind in (None, pool.place.kind))


def _empty(account: Account) -> Account:
    """Return an account of which nothing is in use."""
    scopes = (Scope(one.name, one.limit, dict.fromkeys(one.limit, 0)) for one in account.scopes)
    return replace(account, scopes=tuple(scopes))


def _most_in(cluster: Cluster, place: Place, request: ResourceRequest) -> int:
    """Return how many jobs the partitions of a place hold, were they empty."""
    own = [cluster.partitions[name].tres for name in place.partitions if name in cluster.partitions]
    wanted = {"cpu": request.cpus, "mem": request.mem_mb, "gres/gpu": request.gpus}
    counts = [
        min([tres[name] // n for name, n in wanted.items() if n and name in tres], default=_MANY)
        for tres in own
    ]
    return sum(counts) or _MANY


def summary(cluster: Cluster, kinds: Iterable[DeviceKind]) -> list[str]:
    """Return what a run found of the cluster in a few lines.

    Parameters
    ----------
    kinds : iterable of {"gpu", "cpu"}
        Where jobs of the run may go: nothing is shown of the other.
    """
    names = [*dict.fromkeys(one.name for one in cluster.accounts if one.name)]
    head = "jobs name no account, and go where nodes have room"
    if names:
        head = f"jobs go to {count(len(names), 'account')} of {cluster.client.user}: {_some(names)}"
    lines = ["  `tilewright-placement accounts` shows what they may use"] * bool(names)
    why: dict[str, list[str]] = {}
    for one in cluster.left_out:
        why.setdefault(one.reason, []).append(one.account)
    lines += [f"  left out: {_some(own)}: {reason}" for reason, own in why.items()]
    places = [f"{kind.upper()} jobs to {_some(cluster.names_of(kind)) or 'the default one'}"
              for kind in KINDS if kind in kinds]  # fmt: skip
    return [head, *lines, f"  partitions: {'; '.join(places)}",
            *(f"  note: {note}" for note in dict.fromkeys(cluster.notes))]  # fmt: skip


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest} more" if rest > 0 else "")
