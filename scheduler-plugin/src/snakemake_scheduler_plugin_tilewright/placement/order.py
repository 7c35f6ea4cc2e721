"""How long jobs take, as those of the run did, and which go first."""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from .request import KINDS, SLOWDOWN, DeviceKind

#: Finished jobs that are remembered for each rule and device (no figure).
_KEPT = 30
#: Durations of a rule's jobs scatter so much, as standard deviation of their logarithm, until jobs
#: tell: this counts as three of them. With 1.2 standard deviations as margin on CPUs, instead of
#: the 40 % of a rule that is not known, runs that know ten jobs of each rule end 0.6 % sooner
#: (182 random clusters).
_SCATTER, _SCATTER_JOBS, _DEVIATIONS = 0.2, 3, 1.2


def margin_of(factors: Sequence[float]) -> float:
    """Return the share by which the next job may take longer, after finished ones of its rule.

    Parameters
    ----------
    factors : sequence of float
        What each took, over what it was expected to take; positive.
    """
    logs, count = [math.log(factor) for factor in factors], len(factors)
    spread = sum((log - statistics.fmean(logs)) ** 2 for log in logs)
    own = (_SCATTER_JOBS * _SCATTER**2 + spread) / (_SCATTER_JOBS + max(0, count - 1))
    margin = math.expm1(_DEVIATIONS * math.sqrt(own + _SCATTER**2 / (1 + 2 * count)))
    return min(1.0, margin)  # one job that hung must not close the CPUs to its rule


@dataclass
class Durations:
    """Factors from nominal seconds, of one CPU job by its model, to seconds on a device.

    Attributes
    ----------
    slowdowns : dict
        Rule to how much longer its jobs take on CPUs than on a GPU, by their model.
    """

    slowdowns: dict[str, float] = field(default_factory=dict)
    _learned: dict[tuple[str, DeviceKind], list[float]] = field(default_factory=dict)
    _factors: dict[tuple[str, DeviceKind], float] = field(default_factory=dict)

    def factor(self, rule: str, kind: DeviceKind) -> float:
        """Return seconds on a device per nominal second: the median of the last jobs, if any.

        A device that never ran the rule is estimated from the one that did.
        """
        key = rule, kind
        if key not in self._factors:
            own, other = (self._learned.get((rule, one)) for one in (kind, _other(kind)))
            slowdown = self.slowdowns.get(rule, SLOWDOWN)
            ratio = 1 / slowdown if kind == "gpu" else slowdown
            nominal = 1 / slowdown if kind == "gpu" else 1.0
            found = statistics.median(own) if own else None
            if found is None:
                found = statistics.median(other) * ratio if other else nominal
            self._factors[key] = found
        return self._factors[key]

    def margin(self, rule: str) -> float:
        """Return the share by which a job may take longer on a CPU than estimated."""
        return margin_of(self._learned.get((rule, "cpu"), ()))

    def learn(self, rule: str, kind: DeviceKind, cpu_seconds: float, took_s: float) -> None:
        """Remember a finished job."""
        if cpu_seconds > 0 and took_s > 0:
            values = self._learned.setdefault((rule, kind), [])
            values.append(took_s / cpu_seconds)
            del values[:-_KEPT]
            self._factors.clear()


def _other(kind: DeviceKind) -> DeviceKind:
    return KINDS[1 - KINDS.index(kind)]


@dataclass
class Node:
    """One job of the whole workflow that has still to run."""

    rule: str
    kinds: tuple[DeviceKind, ...]
    cpu_seconds: float
    priority: float
    needs: list[Hashable]


@dataclass
class Order:
    """The order of all jobs of a run: priority, then the longest chain of work to the end.

    Parameters
    ----------
    read : callable
        All jobs that have still to run, by what `of` is asked for.
    """

    read: Callable[[], dict[Hashable, Node]] = dict
    _order: dict[Hashable, tuple[float, ...]] = field(default_factory=dict)

    def of(self, jobs: Sequence[Hashable], durations: Durations) -> tuple[float, ...]:
        """Return the order of a job, or of a group of jobs: the smaller one goes first."""
        if any(job not in self._order for job in jobs):
            self._order = self._made(self.read(), durations)
            for job in jobs:
                self._order.setdefault(job, (0.0, 0.0, float(len(self._order))))
        return min(self._order[job] for job in jobs)

    def forget(self) -> None:
        """Make the order again when it is next asked for: durations were learned."""
        self._order = {}

    def _made(
        self, nodes: dict[Hashable, Node], durations: Durations
    ) -> dict[Hashable, tuple[float, ...]]:
        chain_s: dict[Hashable, float] = {}
        feeds: dict[Hashable, list[Hashable]] = {job: [] for job in nodes}
        for job, node in nodes.items():
            for need in node.needs:
                if need in feeds:
                    feeds[need].append(job)
        for job in _backwards(nodes, feeds):
            node = nodes[job]
            own = min(durations.factor(node.rule, kind) for kind in node.kinds or KINDS[1:])
            after = max((chain_s[one] for one in feeds[job]), default=0.0)
            chain_s[job] = own * node.cpu_seconds + after
        return {
            job: (-node.priority, -chain_s[job], float(i))
            for i, (job, node) in enumerate(nodes.items())
        }


def _backwards(
    nodes: dict[Hashable, Node], feeds: dict[Hashable, list[Hashable]]
) -> Iterable[Hashable]:
    """Yield all jobs, each after those that need it."""
    left = {job: len(own) for job, own in feeds.items()}
    last = [job for job, n in left.items() if not n]
    for job in last:
        yield job
        for need in nodes[job].needs:
            if need in left:
                left[need] -= 1
                if not left[need]:
                    last.append(need)
