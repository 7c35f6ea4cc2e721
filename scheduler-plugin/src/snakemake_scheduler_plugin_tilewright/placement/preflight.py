"""Before anything is submitted: jobs that fit nowhere, accounts that are not there."""

from __future__ import annotations

from collections.abc import Iterable

from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind, Shape, Task
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    clipped,
    may_use,
    too_big,
)
from snakemake_scheduler_plugin_tilewright.placement.sizing import Estimates
from snakemake_scheduler_plugin_tilewright.runtime.words import count
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account


def _never(account: Account, kind: Kind, shape: Shape, capacity: Capacity) -> str:
    """Return why a job of a shape would pend at a place for ever; empty if it would not."""
    where = capacity.where(kind, shape)
    if not capacity.has_partition(kind, shape):
        return f"there is no {kind.upper()} partition"
    if where is not None and not may_use(account, where):
        return f"account {account.name} may not use partition {where.name}"
    for name, wanted in shape.licences:
        there = wanted if capacity.licences is None else capacity.licences.get(name, 0)
        if wanted > there:
            return f"it asks for {wanted} of licence {name} and there are {there}"
    shape = clipped(shape, account, where)
    return too_big(account, shape, where) or _no_node(kind, shape, capacity)


def _no_node(kind: Kind, shape: Shape, capacity: Capacity) -> str:
    """Return that no node of a kind is large enough or of the right kind; empty if one is."""
    where = capacity.where(kind, shape)
    if where is None or capacity.some_node_holds(kind, shape):
        return ""
    held = [count(shape.cpus, "CPU"), f"{shape.mem_mb} MB"]
    if shape.gpus:
        of_type = f" of type {shape.gpu_type}" if shape.gpu_type else ""
        held.append(count(shape.gpus, "GPU") + of_type)
    held += [f"feature {name}" for name in shape.features]
    return f"no node of partition {where.name} has {', '.join(held)}"


def check_sizes(tasks: Iterable[Task], capacity: Capacity, estimates: Estimates) -> None:
    """Refuse jobs that would pend for ever, because no account may ever run them.

    Raises
    ------
    PlacementError
        With the figures of the first such job, and what to change.
    """
    seen = set()
    for task in tasks:
        job = task.job
        shapes = {kind: estimates.shape_of(task, kind, capacity) for kind in job.kinds}
        same = (job.rule, job.fixed, *shapes.values())
        if same in seen:
            continue
        seen.add(same)
        chosen = job.fixed.account
        accounts = [a for a in capacity.accounts if chosen in (None, a.name)]
        if not accounts:
            known = ", ".join(a.name for a in capacity.accounts)
            raise PlacementError(
                f"rule {job.rule} is to run on account {chosen}, which cannot be used; "
                f"there are {known}"
            )
        reasons = [
            _never(account, kind, shape, capacity)
            for account in accounts
            for kind, shape in shapes.items()
        ]
        if all(reasons):
            raise PlacementError(
                f"{job.name} would pend for ever: {'; '.join(dict.fromkeys(reasons))}. Lower "
                f"the resources of rule {job.rule}, or use an account that has more"
            )
