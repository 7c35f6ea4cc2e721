"""Targets where nothing is sent for a while, since jobs were there in vain."""

from typing import NamedTuple

from ..cluster.request import Target

#: A target is avoided so long at least, and twice as long each time, 64 min at most (no figures).
_AVOID_S = 60.0
_MOST_DOUBLINGS = 6


class Avoided(NamedTuple):
    """A target where jobs pended in vain, or none was taken: until when, how often before, why.

    ``for_all``: Slurm takes no job there. For busy nodes those that run nowhere else may wait.
    ``invalid``: and it will take none of them as long as limits or associations stay.
    """

    until_s: float
    times: int
    why: str
    for_all: bool
    invalid: bool = False
    since_s: float = 0.0


class Backoff(dict[Target, Avoided]):
    """What is known of targets that were avoided.

    Parameters
    ----------
    patience_s : float
        Seconds that a job pends in vain before it may be moved.
    """

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self._least_s = max(_AVOID_S, patience_s)

    def avoid(
        self, target: Target, why: str, now_s: float, *, for_all: bool, invalid: bool = False
    ) -> bool:
        """Avoid a target from now on; return whether it was not avoided yet.

        Jobs that are moved together count once.
        """
        known = self.get(target)
        if known is not None and known.until_s > now_s:
            return False
        times = known.times + 1 if known else 0
        until_s = now_s + self._least_s * 2 ** min(times, _MOST_DOUBLINGS)
        self[target] = Avoided(until_s, times, why, for_all, invalid, now_s)
        return True

    def note_start(self, target: Target, sent_s: float, start_s: float | None = None) -> None:
        """Note that a job runs which was sent there then: what was known before is forgotten.

        A target that took no job takes one again as soon as one begins there, and all that were
        avoided with it.
        """
        known = self.get(target)
        if known and known.for_all and start_s is not None and start_s > known.since_s:
            same = [
                one
                for one, of in self.items()
                if (of.since_s, of.why) == (known.since_s, known.why)
            ]
            for one in same:
                del self[one]
        elif known and sent_s >= known.until_s:
            del self[target]

    def avoided_at(self, now_s: float) -> dict[Target, Avoided]:
        """Return what is avoided now."""
        return {target: one for target, one in self.items() if one.until_s > now_s}
