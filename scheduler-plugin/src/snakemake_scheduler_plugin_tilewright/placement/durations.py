"""How long jobs take on each device kind: as their models say, then as jobs of this run did."""

import math
import statistics
from collections.abc import Sequence
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
