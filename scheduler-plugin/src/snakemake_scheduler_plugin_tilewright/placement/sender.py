"""Submits jobs, and learns from the words of sbatch where Slurm takes which."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ..runtime.errors import SlurmQueryError
from ..runtime.ledger import Ledger
from ..slurm.reasons import may_have_taken, may_pass, refusal_words
from .cluster import Cluster
from .jobs import Task, exclude
from .request import KINDS, DeviceKind, Place, ResourceRequest
from .status import Places

#: What is run to submit a job: its arguments, and the script that sbatch reads.
Submission = tuple[Sequence[str], str]
#: Calls of sbatch at once (no figure).
_AT_ONCE = 4
_Start = tuple[Task, Place, ResourceRequest]


@dataclass
class Sender:
    """Submits the jobs of one run.

    Parameters
    ----------
    name : str
        That of the run; each submission has another number behind it.
    command : callable
        Job, place, request, and the job's name in Slurm to its submission.
    sent : callable
        Called with each job that Slurm took, first of all.

    Attributes
    ----------
    bad_nodes : dict
        By device kind, nodes that failed: no job goes there.
    """

    cluster: Cluster
    ledger: Ledger
    places: Places
    name: str
    command: Callable[[Task, Place, ResourceRequest, str], Submission]
    sent: Callable[[Task], None]
    bad_nodes: dict[DeviceKind, set[str]] = field(default_factory=lambda: {k: set() for k in KINDS})
    _refusals: dict[object, dict[Place, str]] = field(default_factory=dict)
    _taken: set[tuple[object, Place]] = field(default_factory=set)
    _count: int = 0

    def send(self, starts: Sequence[_Start]) -> list[Task]:
        """Submit jobs; return those that sbatch refused.

        Of those of a size one goes first where none was taken yet; the others wait for its answer.
        """
        first: dict[tuple[object, Place], _Start] = {}
        for task, place, request in starts:
            if (key := (task.size, place)) not in self._taken:
                first.setdefault(key, (task, place, request))
        refused = self._send(list(first.values()))
        sent = {one[0] for one in first.values()}
        others = [one for one in starts if one[0] not in sent]
        return refused + self._send([one for one in others if (one[0].size, one[1]) in self._taken])

    def exclude_refusals(self, task: Task) -> None:
        """Exclude the places that refused jobs like this one."""
        known = self._refusals.get(None, {}) | self._refusals.get(task.size, {})
        for place, words in known.items():
            if place not in task.history.excluded:
                exclude(task.history, place, words)

    def _send(self, starts: Sequence[_Start]) -> list[Task]:
        for task, place, _ in starts:
            self._count += 1
            task.place, task.slurm_name = place, f"{self.name}.{self._count}"
            task.sent_s = task.waits_since_s = self.cluster.client.clock()
            task.bound = None
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            run = pool.map if len(starts) > 1 else map
            answers = list(run(self._sbatch, starts))
        refused = []
        for (task, place, request), words in zip(starts, answers, strict=True):
            if words is None:
                self._taken.add((task.size, place))
                self.ledger.write(
                    "place", **task.event(), cpus=request.cpus, mem_mb=request.mem_mb,
                    gpus=request.gpus, runtime_min=request.runtime_min,
                    partition=",".join(place.partitions) or None,
                )  # fmt: skip
            # else the queue shows it by its name, or it is sent again
            elif not (may_have_taken(words) or "no number of a job" in words):
                self._note_refusal(task, place, refusal_words(words))
                refused.append(task)
        return refused

    def _sbatch(self, start: _Start) -> str | None:
        """Submit a job; return Slurm's words where it does not take it."""
        task, place, request = start
        argv, script = self.command(task, place, request, task.slurm_name)
        if bad := sorted(self.bad_nodes[place.kind]):
            argv = [*argv, f"--exclude={','.join(bad)}"]
        try:
            task.slurm_id = self.cluster.client.submit(argv, script)
        except SlurmQueryError as error:
            return error.reason
        self.sent(task)
        return None

    def _note_refusal(self, task: Task, place: Place, words: str) -> None:
        """Note that sbatch did not take a job: it goes elsewhere, or here again later."""
        now_s = self.cluster.client.clock()
        self.ledger.write("refuse", **task.event(), words=words)
        passes = may_pass(words)
        if not passes and (bad := self.bad_nodes[place.kind]):  # perhaps too many are avoided
            if (place.kind, place.partitions) in task.history.failed:
                self._exclude_partitions(task, place, f"it failed there ({', '.join(bad)})")
            bad.clear()
        elif not passes:
            # of an account, a QOS or a partition, whatever the job asks for
            of_any = words.lower().startswith(("invalid account", "invalid qos", "invalid part"))
            self._refusals.setdefault(None if of_any else task.size, {})[place] = words
        elif "imit" in words:
            self.places.fill(place, now_s)
        else:
            self.places.close(place, words, now_s)

    def _exclude_partitions(self, task: Task, place: Place, words: str) -> None:
        """Send a job to the partitions of a place no more, whatever the account."""
        request, fixed = task.request(place.kind), (task.account, task.qos)
        for one in self.cluster.places(place.kind, request, task.history.excluded, fixed):
            if one.partitions == place.partitions:
                exclude(task.history, one, words)
