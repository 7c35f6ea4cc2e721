"""Which places take jobs of which rules: one job goes first, and what is refused goes elsewhere."""

from collections.abc import Collection, Iterable, Mapping

from ..cluster.request import Target
from .backoff import Backoff
from .jobs import Assignment, JobState

#: Why a job waits for another one of its rule.
FIRST = "one job of its rule goes there first"
#: Places that refuse a rule in the same words after which it is its own fault (no figure).
_SAME_WORDS = 50


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
        """Note that a job was submitted, or why not; return whether others wait for it.

        Snakemake's executor says so in threads of its own.
        """
        if task.submission is None:  # what it says of a job that was submitted is of its end
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

        Returns
        -------
        str
            Why no place will take the job; empty where one may.
        """
        key = task.name if (task.job.rule, target) in self.taken else task.job.rule
        self.refused.setdefault(key, {})[target] = words
        refused = self.of(task)
        same = sum(one == words for one in refused.values())
        if same < _SAME_WORDS and set(places) - refused.keys():
            return ""
        said = "; ".join(dict.fromkeys(refused.values()))
        return f"is not tried again: sbatch refuses it everywhere ({said})"
