"""Which jobs go first: those for which most work waits."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from .durations import Durations
from .request import KINDS, DeviceKind


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
