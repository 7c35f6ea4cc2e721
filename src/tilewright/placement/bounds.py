"""What bounds the jobs of an account in a partition, in every TRES (pure).

A limit of the partition's QOS replaces the account's for the same TRES, as in Slurm; where the
account's QOS has the flag ``OverPartQOS`` it is the other way round. A cap of the site holds
beside both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.placement.jobs import Shape
from tilewright.slurm.accounts import COUNTED, Account
from tilewright.slurm.records import Partition


def needs(shape: Shape, jobs: int) -> dict[str, int]:
    """Return what so many jobs of a shape count as, in every unit that is limited."""
    return {
        "cpu": jobs * shape.cpus,
        "mem": jobs * shape.mem_mb,
        "gres/gpu": jobs * shape.gpus,
        "jobs": jobs,
        "submit": jobs,
    }


def bounds(account: Account, partition: Partition | None, tres: str) -> list[tuple[int, int]]:
    """Return limit and use of all that bounds a TRES; use that is not known counts as none."""
    holders = _holders(account, partition)
    found = [(h.limit[tres], (h.used or {}).get(tres, 0)) for h in holders if tres in h.limit][:1]
    found += [
        (h.limit_per_user[tres], (h.mine or {}).get(tres, 0))
        for h in holders
        if tres in h.limit_per_user
    ][:1]
    if account.limit_from.get(tres) == "cap":
        found.append((account.limit[tres], (account.used or {}).get(tres, 0)))
    return found


def room(account: Account, partition: Partition | None, tres: str) -> int | None:
    """Return what is left of a TRES, None where nothing limits it."""
    left = [limit - used for limit, used in bounds(account, partition, tres)]
    return max(0, min(left)) if left else None


def largest(account: Account, partition: Partition | None, tres: str) -> int | None:
    """Return the most of a TRES that one job may ever have, None where nothing limits it."""
    limits = [limit for limit, _ in bounds(account, partition, tres)]
    own = [h.limit_per_job[tres] for h in _holders(account, partition) if tres in h.limit_per_job]
    return min([*limits, *own[:1]], default=None)


def longest_min(account: Account, partition: Partition | None) -> int | None:
    """Return the minutes that one job may take at most, None where nothing limits them."""
    walls = (account.max_wall_min, partition.max_time_min if partition else None)
    return min((minutes for minutes in walls if minutes is not None), default=None)


def clipped(shape: Shape, account: Account, partition: Partition | None) -> Shape:
    """Return a shape with no more minutes than its place allows."""
    most = longest_min(account, partition)
    return shape if most is None else replace(shape, runtime_min=min(shape.runtime_min, most))


def may_use(account: Account, partition: Partition) -> bool:
    """Return whether an account's jobs may go to a partition."""
    accounts, qos = partition.allow_accounts, partition.allow_qos
    return (
        (accounts is None or account.name in accounts)
        and (qos is None or account.qos in qos)
        and (not account.partitions or partition.name in account.partitions)
    )


def too_big(account: Account, shape: Shape, partition: Partition | None = None) -> str | None:
    """Return why a job of this shape would pend on an account for ever, None if it fits."""
    for tres, needed in needs(shape, 1).items():
        most = largest(account, partition, tres) if tres in COUNTED else None
        if most is not None and needed > most:
            return f"it asks for {tres}={needed} and account {account.name} has {most}"
    return None


def unknown_use(account: Account, partition: Partition | None) -> Iterable[str]:
    """Return the limited TRES whose use Slurm did not say."""
    for tres in COUNTED:
        holder = next((h for h in _holders(account, partition) if tres in h.limit), None)
        if holder is not None and tres not in (holder.used or {}):
            yield tres


def _holders(account: Account, partition: Partition | None) -> list[Account | Partition]:
    """Return those whose limits hold, the one that wins first."""
    if partition is None:
        return [account]
    return [account, partition] if account.before_partition else [partition, account]
