"""Before anything is submitted: jobs that fit nowhere, accounts that are not there."""

from collections.abc import Iterable

from ..cluster.limits import clip_runtime, may_use, too_big
from ..cluster.request import DeviceKind, ResourceRequest, Target
from ..cluster.state import ClusterState
from ..cluster.tres import tres_of
from ..errors import PlacementError
from ..runtime.words import count
from ..slurm.accounts import Account
from .estimates import Estimates
from .jobs import JobState


def check_feasible(tasks: Iterable[JobState], state: ClusterState, estimates: Estimates) -> None:
    """Refuse jobs that can never start, because no account may ever run them.

    Raises
    ------
    PlacementError
        With the figures of the first such job, and what to change.
    """
    checked = set()
    for task in tasks:
        job = task.job
        requests = {kind: estimates.request_of(task, kind, state) for kind in job.kinds}
        same = (job.rule, job.overrides, *requests.values())
        if same in checked:
            continue
        checked.add(same)
        chosen = job.overrides.account
        accounts = [a for a in state.accounts if chosen in (None, a.name)]
        if qos := [a for a in accounts if a.qos == job.overrides.qos]:
            accounts = qos
        if not accounts:
            known = ", ".join(a.name for a in state.accounts)
            raise PlacementError(
                f"rule {job.rule} is to run on account {chosen}, which cannot be used; "
                f"there are {known}"
            )
        reasons = [
            _never(account, kind, name, request, state)
            for account in accounts
            for kind, request in requests.items()
            for name, _ in state.places(kind, request.partition) or ((None, None),)
        ]
        if all(reasons):
            raise PlacementError(
                f"{job.name} can never start: {'; '.join(dict.fromkeys(reasons))}. Lower "
                f"the resources of rule {job.rule}, or use an account that has more"
            )


def _never(
    account: Account, kind: DeviceKind, name: str | None, request: ResourceRequest,
    state: ClusterState,
) -> str:  # fmt: skip
    """Return why a job can never start on an account in a partition; empty if it may."""
    target = Target(account.name, account.qos, name, kind)
    where = state.where(target)
    if kind == "gpu" and name is None:
        return "there is no GPU partition"
    if account.kind not in ("", kind):
        return (
            f"account {account.name} takes {account.kind.upper()} jobs only (accounts of site.yaml)"
        )
    if where is not None and not may_use(account, where):
        return f"account {account.name} may not use partition {where.name}"
    for name, wanted in request.licences:
        there = wanted if state.licences is None else state.licences.get(name, 0)
        if wanted > there:
            return f"it asks for {wanted} of licence {name} and there are {there}"
    request = clip_runtime(request, account, where)
    if too_large := too_big(account, request, where):
        return too_large
    if state.some_node_holds(target, request):
        return ""
    assert where is not None
    needs = [count(request.cpus, "CPU"), f"{tres_of(request, 1, where)['mem']} MB"]
    if request.gpus:
        of_type = f" of type {request.gpu_type}" if request.gpu_type else ""
        needs.append(count(request.gpus, "GPU") + of_type)
    needs += [f"feature {name}" for name in request.features]
    needs += [f"reservation {request.reservation}"] if request.reservation else []
    return f"no node of partition {where.name} has {', '.join(needs)}"
