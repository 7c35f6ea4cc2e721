"""What a run has learned of places: which took jobs of a rule, refused them, or let them wait.

Where none was taken yet one job goes first, what is refused goes elsewhere, and where jobs were in
vain none is sent for a while.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..cluster.request import Target
from ..cluster.state import ClusterState
from .jobs import Assignment, JobState

#: Why a job waits for another one of its rule.
FIRST = "one job of its rule goes there first"
#: Places that refuse a rule in the same words after which it is its own fault (no figure).
_SAME_WORDS = 50
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
    """What is known of targets that were avoided."""

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self._least_s = max(_AVOID_S, patience_s)

    def avoid(
        self, target: Target, why: str, now_s: float, *, for_all: bool, invalid: bool = False
    ) -> bool:
        """Avoid a target from now on; return whether it was not avoided yet."""
        known = self.get(target)
        same = known is not None and (known.for_all, known.invalid) >= (for_all, invalid)
        if known is not None and known.until_s > now_s and same:
            return False  # jobs that are moved together count once
        times = known.times + 1 if known else 0
        until_s = now_s + self._least_s * 2 ** min(times, _MOST_DOUBLINGS)
        self[target] = Avoided(until_s, times, why, for_all, invalid, now_s)
        return True

    def note_start(self, target: Target, sent_s: float, start_s: float | None = None) -> None:
        """Note that a job runs which was sent there then: what was known before is forgotten."""
        known = self.get(target)
        # what took no job takes one again as one begins there, and so does all avoided with it
        if known and known.for_all and start_s is not None and start_s > known.since_s:
            for one, of in list(self.items()):
                if (of.since_s, of.why) == (known.since_s, known.why):
                    del self[one]
        elif known and sent_s >= known.until_s:
            del self[target]

    def close(self, state: ClusterState, now_s: float) -> ClusterState:
        """Return a state of the cluster with what is avoided now."""
        avoided = self.avoided_at(now_s)
        closed = {target: one.why for target, one in avoided.items() if one.for_all}
        return replace(
            state,
            closed={**state.closed, **closed},
            avoided={target: one.why for target, one in avoided.items()},
            invalid=frozenset(target for target, one in avoided.items() if one.invalid),
        )

    def avoided_at(self, now_s: float) -> dict[Target, Avoided]:
        """Return what is avoided now."""
        return {target: one for target, one in self.items() if one.until_s > now_s}


class Admission:
    """What is known of the places that took jobs of a rule in this run, or refused them.

    Attributes
    ----------
    taken : set of tuple of str and Target
        Rules, and where Slurm took a job of theirs.
    refused : dict of str to dict
        Rule, or name of a job where others of its rule were taken, to the places that refuse it
        and their words.
    holds_back : bool
        Whether jobs wait until the first one of their rule is taken.
    """

    def __init__(self) -> None:
        self.holds_back = False
        self.taken: set[tuple[str, Target]] = set()
        self.refused: dict[str, dict[Target, str]] = {}

    def note(self, tasks: Iterable[JobState]) -> None:
        """Note where jobs were taken, and where each does not go any more."""
        for task in tasks:
            if task.assignment and (task.slurm_job or task.submission == ""):
                self.taken.add((task.job.rule, task.assignment.target))
            if refused := self.refused and self.of(task):
                task.excluded_targets = task.excluded_targets.union(refused)

    def note_submission(self, task: JobState, refusal: str) -> bool:
        """Note that a job was submitted, or why not; return whether others wait for it."""
        # the executor says so in threads of its own; of a job that was submitted it is of its end
        if task.submission is None:
            task.submission = refusal
        return self.holds_back and not refusal

    def of(self, task: JobState) -> Mapping[Target, str]:
        """Return the places that refuse a job, and their words."""
        return self.refused.get(task.job.rule, {}) | self.refused.get(task.name, {})

    def beside_first(
        self, starts: Mapping[str, Assignment], tasks: Mapping[str, JobState], backoff: Backoff
    ) -> list[str]:
        """Return the jobs that wait, as another one of their rule goes to their place first.

        Until Slurm has taken that one; where a limit was reached before, until it starts it.
        """
        limits = {target for target, one in backoff.items() if one.for_all}
        sent = [(task, task.assignment.target) for task in tasks.values() if task.assignment]
        out = {(task.job.rule, to) for task, to in sent if task.waiting}
        full = {to for task, to in sent if task.pending} & limits
        found = []
        for name, assignment in starts.items():
            to = assignment.target
            key = tasks[name].job.rule, to
            if to in full or (key in out and key not in self.taken):
                found.append(name)
            out.add(key)
            full |= {to} & limits
        self.holds_back = bool(found)
        return found

    def close(self, task: JobState, target: Target, words: str, places: Collection[Target]) -> str:
        """Close a place for a rule, or for the job alone where it took others of that rule.

        Return why none of ``places`` will take the job; empty where one may.
        """
        key = task.name if (task.job.rule, target) in self.taken else task.job.rule
        self.refused.setdefault(key, {})[target] = words
        refused = self.of(task)
        same = sum(one == words for one in refused.values())
        if same < _SAME_WORDS and set(places) - refused.keys():
            return ""
        said = "; ".join(dict.fromkeys(refused.values()))
        return f"is not tried again: sbatch refuses it everywhere ({said})"
