"""Accounts, their limits and their use, and what is left of them (pure).

The examples have an account ``lab`` with 32 CPUs, 8 of them in use, and jobs of 4 CPUs and 240 min
at most; a request ``job`` for 4 CPUs, 8 GB and 60 min; and a partition ``short`` of 30 min.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..slurm.accounts import Account
from ..slurm.jobs import why_pending
from ..slurm.records import JOBS, Partition, is_budget, spent_name
from .request import ResourceRequest, Target
from .tres import in_hours, tres_of, why_not_counted


def limited_tres(account: Account, partition: Partition | None) -> list[str]:
    """Return the TRES, numbers of jobs and budgets that something limits on an account.

    Without those of which it is not known what a job will use (:func:`why_not_counted`).

    >>> limited_tres(lab, None)
    ['cpu']
    """
    within = account.within(partition)
    names = set(within.per_job).union(*(scope.limit for scope in within.scopes))
    if partition is not None:
        names |= {"cpu"} if partition.cpus_a_node else set()
        names |= {"mem"} if partition.mem_a_node else set()
    counted = [name for name in names if not why_not_counted(name, partition)]
    return sorted(counted, key=lambda name: (is_budget(name), name in JOBS, name))


def _limits_and_use(
    account: Account, partition: Partition | None, tres: str, used: str
) -> list[tuple[int, int]]:
    """Return limit and use of all that bounds a TRES; use that is not known counts as none."""
    return [
        (scope.limit[tres], (scope.used or {}).get(used, 0))
        for scope in account.within(partition).scopes
        if tres in scope.limit
    ]


def remaining(account: Account, partition: Partition | None, tres: str) -> int | None:
    """Return what is left of a TRES, None where nothing limits it.

    >>> remaining(lab, None, "cpu"), remaining(lab, None, "gres/gpu")
    (24, None)
    """
    rests = [limit - used for limit, used in _limits_and_use(account, partition, tres, tres)]
    return max(0, min(rests)) if rests else None


def largest(account: Account, partition: Partition | None, tres: str) -> int | None:
    """Return the most of a TRES that one job may ever have, None where nothing limits it.

    >>> largest(lab, None, "cpu"), largest(lab, None, "mem")
    (4, None)
    """
    within = account.within(partition)
    limits = [scope.limit.get(tres) for scope in within.scopes]
    node = {"cpu": partition.cpus_a_node, "mem": partition.mem_a_node} if partition else {}
    every = (*limits, node.get(tres), within.per_job.get(tres))
    return min((most for most in every if most is not None), default=None)


def largest_ever(account: Account, partition: Partition | None) -> dict[str, int]:
    """Return the most of each TRES that one job may have at some time, of those that are limited.

    What is used up of a budget does not come back in this run, what running jobs may take does.
    A limit of no jobs at all is a gate that is opened again.

    >>> largest_ever(lab, None)
    {'cpu': 4}
    """
    found = {}
    for tres in limited_tres(account, partition):
        most = largest(account, partition, tres)
        if is_budget(tres):
            spent = spent_name(tres)
            rests = [n - used for n, used in _limits_and_use(account, partition, tres, spent)]
            most = max(0, min([most or 0, *rests])) if rests else most
        if tres not in JOBS and most is not None:
            found[tres] = most
    return found


def longest_min(account: Account, partition: Partition | None) -> int | None:
    """Return the minutes that one job may take at most, None where nothing limits them.

    >>> longest_min(lab, None), longest_min(lab, short)
    (240, 30)
    """
    within = account.within(partition)
    of_partition = partition.max_time_min if partition and not within.beyond_partition else None
    walls = (within.longest_min, of_partition)
    return min((minutes for minutes in walls if minutes is not None), default=None)


def longest_of(partitions: Iterable[Partition | None]) -> int | None:
    """Return the minutes of the longest job that any of some partitions takes.

    >>> longest_of([short, replace(short, max_time_min=60)]), longest_of([short, None])
    (60, None)
    """
    walls = [where.max_time_min if where else None for where in partitions]
    return None if None in walls else max((n for n in walls if n is not None), default=None)


def clip_runtime(
    request: ResourceRequest, account: Account, partition: Partition | None
) -> ResourceRequest:
    """Return a request with no more minutes than its place allows, and no less than it states.

    >>> clip_runtime(job, lab, short).runtime_min
    30
    """
    most = longest_min(account, partition)
    if most is None or request.runtime_min <= most:
        return request
    return replace(request, runtime_min=max(most, request.required_min))


def may_use(account: Account, partition: Partition | None) -> bool:
    """Return whether an account's jobs may go to a partition; to Slurm's default they may.

    >>> may_use(lab, short), may_use(lab, replace(short, deny_accounts=("lab",)))
    (True, False)
    """
    if partition is None:
        return True
    accounts, qos = partition.allow_accounts, partition.allow_qos
    return (
        (accounts is None or account.name in accounts)
        and (qos is None or account.qos in qos)
        and account.name not in partition.deny_accounts
        and account.qos not in partition.deny_qos
        and (not account.partitions or partition.name in account.partitions)
        and partition.name not in account.not_in
    )


def targets_of_limit(
    reason: str, here: Target, where: Partition | None, targets: Iterable[Target]
) -> set[Target]:
    """Return the targets that a limit bounds for which a job pends at one of them.

    One of an account bounds all its jobs. One of a QOS bounds those of all accounts, in the one
    partition where that has a QOS of its own, which it may be. One of GPUs bounds no CPU jobs. What
    is not known to be a limit bounds its own target.

    >>> here, cpu = Target("lab", "lab", "g", "gpu"), Target("lab", "lab", "c", "cpu")
    >>> len(targets_of_limit("QOSGrpCpuLimit", here, None, [here, cpu]))
    2
    >>> len(targets_of_limit("QOSGrpGRES", here, None, [here, cpu]))
    1
    """
    of_qos, gpus = reason.upper().startswith("QOS"), "GRES" in reason.upper()
    known = why_pending(reason).obstacle in ("limit", "spent")
    one_partition = not known or (of_qos and where is not None and where.qos is not None)
    return {
        one
        for one in targets
        if (one.account == here.account or (known and of_qos))
        and (one.qos == here.qos or (known and not of_qos))
        and (one.partition == here.partition or not one_partition)
        and (one.device == "gpu" or not gpus)
    }


def too_big(
    account: Account,
    request: ResourceRequest,
    partition: Partition | None = None,
    most_ever: Mapping[str, int] | None = None,
) -> str | None:
    """Return why a job that asks for this can never start on an account, None if it may.

    Parameters
    ----------
    most_ever : mapping, optional
        What :func:`largest_ever` returns, where it is known.

    Examples
    --------
    >>> too_big(lab, replace(job, cpus=8))
    'it asks for cpu=8 and account lab has 4'
    >>> too_big(lab, replace(job, required_min=60), short)
    'it asks for 60 min and partition short has 30'
    >>> too_big(lab, job)
    """
    limits, longest = account.within(partition), longest_min(account, partition)
    if longest is not None and request.required_min > longest:
        whose = f"account {account.name}"
        if partition is not None and limits.longest_min != longest:
            whose = f"partition {partition.name}"
        return f"it asks for {request.required_min} min and {whose} has {longest}"
    wanted = tres_of(request, partition)
    for tres, least in limits.least.items():
        if wanted[tres] < least and not why_not_counted(tres, partition):
            asks = f"it asks for {tres}={wanted[tres]}"
            return f"{asks} and QOS {account.qos} takes jobs from {least} on"
    known = largest_ever(account, partition) if most_ever is None else most_ever
    for tres, most in known.items():
        if wanted[tres] <= most:
            continue
        if is_budget(tres):
            asks, has = in_hours(tres, wanted[tres]), f"{in_hours(tres, most)} left"
            return f"it may take {asks} and account {account.name} has {has}"
        whole = partition is not None and partition.whole_nodes and tres != "mem"
        asks = f"it gets a whole node with {tres}" if whole else f"it asks for {tres}"
        unit = "M" if tres == "mem" else ""
        return f"{asks}={wanted[tres]}{unit} and account {account.name} has {most}{unit}"
    return None


def unknown_use(account: Account, partition: Partition | None = None) -> dict[str, list[str]]:
    """Return the limited TRES whose use Slurm did not say, by what limits them.

    >>> unknown_use(lab)
    {}
    """
    found = {
        scope.name: [
            tres
            for tres in scope.limit
            if tres not in (scope.used or {}) and not why_not_counted(tres, partition)
        ]
        for scope in account.within(partition).scopes
    }
    return {name: unknown for name, unknown in found.items() if unknown}


def use_is_known(account: Account, partition: Partition | None, tres: str) -> bool:
    """Return whether Slurm reported the use of a TRES by all that limits it.

    >>> use_is_known(lab, None, "cpu")
    True
    """
    return not any(tres in unknown for unknown in unknown_use(account, partition).values())
