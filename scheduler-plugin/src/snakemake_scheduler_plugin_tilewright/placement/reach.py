"""Where each job may go: the targets that can take what it asks for (pure)."""

from collections.abc import Hashable, Iterable, Mapping

from ..cluster.limits import clip_runtime
from ..cluster.request import KINDS, DeviceKind, ResourceRequest, Target
from ..cluster.state import ClusterState
from .estimates import Estimates, RequestCache, largest_of
from .jobs import JobState, UserOverrides

#: The targets that can take a job: jobs with the same ones are of one class.
JobClass = frozenset[Target]
Requests = Mapping[Target, ResourceRequest]


def targets_of(
    state: ClusterState, requests: Mapping[DeviceKind, ResourceRequest], fixed: UserOverrides
) -> dict[Target, ResourceRequest]:
    """Return the targets of jobs that ask for this, no longer than each allows.

    They are of the account, QOS and partition that the user chose, where he did; a QOS that is not
    one of placement's is left to the default one.
    """
    found = {}
    for target in state.targets(
        {kind: requests[kind].partition for kind in KINDS if kind in requests}
    ):
        account = state.account(target.account, target.qos)
        if account is not None and fixed.account in (None, target.account):
            request = clip_runtime(requests[target.device], account, state.where(target))
            found[target] = request
    if fixed.qos:
        own = {target: one for target, one in found.items() if target.qos == fixed.qos}
        found = own or {
            target: one
            for target, one in found.items()
            if (first := state.account(target.account)) and first.qos == target.qos
        }
    return found


class Reach:
    """Where the jobs of a round may go, found once for all that are alike."""

    def __init__(self, estimates: Estimates, state: ClusterState) -> None:
        self.estimates, self.state = estimates, state
        self.requests = RequestCache(estimates, state)
        self._of: dict[Hashable, Requests] = {}
        self._short: dict[Hashable, list[Target]] = {}
        self._classes: dict[Hashable, JobClass] = {}
        self._same: dict[JobClass, JobClass] = {}
        self._of_task: dict[str, JobClass] = {}
        self._order: dict[Target, tuple[str, int, int]] = {}

    def every(self, task: JobState) -> Requests:
        """Return the targets that can take a job at some time, with what it asks for there.

        All, where none can. Where some have less time than it asks for, and nobody stated that,
        they are those that have twice what it is estimated to take.
        """
        requests, fixed = self.requests.of(task), task.job.overrides
        key: tuple[Hashable, ...] = id(requests), fixed.account, fixed.qos
        if key not in self._of:
            found = targets_of(self.state, requests, fixed)
            able = [target for target, one in found.items() if self.state.can_take(target, one)]
            left = sorted(self.state.leaving_gpus(able or found), key=self.state.rank)
            self._of[key] = {target: found[target] for target in left}
            self._short[key] = [
                one for one in left if found[one].runtime_min < requests[one.device].runtime_min
            ]
        reached, short = self._of[key], self._short[key]
        if not short:
            return reached
        least = {t: self.estimates.seconds(task.job, t.device) / 30 for t in short}
        out = frozenset(t for t in short if reached[t].runtime_min < least[t])
        if (key, out) not in self._of:
            enough = {target: one for target, one in reached.items() if target not in out}
            self._of[key, out] = enough or reached
        return self._of[key, out]

    def targets(self, task: JobState) -> list[tuple[Target, ResourceRequest]]:
        """Return the same without those where a job pended in vain.

        Where nothing else will ever take it, it may go back.
        """
        every = list(self.every(task).items())
        fresh = [(target, one) for target, one in every if target not in task.excluded_targets]
        return fresh if any(self.state.can_ever_run(*one) for one in fresh) else every

    def job_class(self, task: JobState) -> JobClass:
        """Return the targets of a job; for most there is but one set of them, and one object."""
        found = self._of_task.get(task.name)
        if found is None:
            key = id(self.every(task)), task.excluded_targets
            if key not in self._classes:
                own = frozenset(target for target, _ in self.targets(task))
                self._classes[key] = self._same.setdefault(own, own)
            found = self._of_task[task.name] = self._classes[key]
        return found

    def by_class(self, tasks: Iterable[JobState]) -> dict[JobClass, list[JobState]]:
        """Return jobs by their class."""
        found: dict[JobClass, list[JobState]] = {}
        for task in tasks:
            found.setdefault(self.job_class(task), []).append(task)
        return found

    def largest(self, tasks: Iterable[JobState]) -> dict[Target, ResourceRequest]:
        """Return for each target a request as large as all of the jobs that may go there."""
        numbers: dict[Target, list[int]] = {}
        largest = []
        for number, (job_class, members) in enumerate(self.by_class(tasks).items()):
            largest.append(self.requests.largest(members))
            for target in job_class:
                numbers.setdefault(target, []).append(number)
        found: dict[Hashable, ResourceRequest] = {}
        asked = {}
        for target, own in numbers.items():
            key = target.device, *own
            if key not in found:
                found[key] = largest_of([largest[number][target.device] for number in own])
            asked[target] = found[key]
        return asked

    def order(self, target: Target) -> tuple[str, int, int]:
        """Return the place of a target among those of all accounts: GPUs first, then by rank."""
        if target not in self._order:
            place = target.account, KINDS.index(target.device), self.state.rank(target)
            self._order[target] = place
        return self._order[target]
