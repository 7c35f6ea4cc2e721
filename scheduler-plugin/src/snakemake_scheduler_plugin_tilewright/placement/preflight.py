"""Before anything is submitted: stale jobs, jobs that fit nowhere, accounts that are not there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Job,
    Kind,
    PlacementError,
    Shape,
    Task,
)
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    clipped,
    longest_min,
    may_use,
    too_big,
)
from snakemake_scheduler_plugin_tilewright.placement.sizing import Estimates
from snakemake_scheduler_plugin_tilewright.runtime.snakemake_command import (
    is_locked,
    only_looks,
    unlocks,
)
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob, parse_queue, stale_jobs
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient, Unknown

_POLL_S = 10.0
_PATIENCE = 30  # looks in vain while waiting
_COMPLETING_S = 120.0  # KillWait is 30 s unless the site says otherwise


def before_run(cluster: Cluster | None, argv: Sequence[str], *, has_lock: bool = False) -> None:
    """Deal with stale jobs before jobs are sent, unless nothing will run.

    Parameters
    ----------
    cluster : Cluster or None
    argv : sequence of str
        The command.
    has_lock : bool
        Whether this run itself has locked the folder by now.

    Raises
    ------
    PlacementError
        As :func:`deal_with_stale`, or the working directory has a line break in its name.
    """
    if cluster is None or only_looks(argv[1:]):
        return
    if "\n" in str(Path.cwd()):
        raise PlacementError(
            f"the working directory {str(Path.cwd())!r} has a line break in its name, which squeue "
            "cannot tell from the end of a job; rename it"
        )
    locked = not has_lock and is_locked(Path.cwd()) and not unlocks(argv[1:])
    deal_with_stale(cluster.client, str(Path.cwd()), cluster.site.stale, _say, locked=locked)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def look_for_stale(client: SlurmClient, workdir: str) -> list[SlurmJob]:
    """Return the jobs of an earlier run that still write into a folder.

    Raises
    ------
    PlacementError
        The queue is not known: then nobody can say that nothing writes there.
    """
    client.forget()
    said = client.queue()
    if isinstance(said, Unknown):
        raise PlacementError(
            f"whether jobs of an earlier run still write into {workdir} is not known: {said}; "
            "try again when Slurm answers"
        )
    return stale_jobs(parse_queue(said), workdir)


def deal_with_stale(
    client: SlurmClient,
    workdir: str,
    choice: str,
    say: Callable[[str], None],
    *,
    locked: bool = False,
) -> None:
    """Refuse, wait for or cancel jobs of an earlier run that still write into a folder.

    Parameters
    ----------
    client : SlurmClient
    workdir : str
    choice : {"refuse", "wait", "cancel"}
    say : callable
        Takes a line for the user.
    locked : bool
        Whether Snakemake refuses this run all the same once they are gone.

    Raises
    ------
    PlacementError
        There are such jobs and the choice is to refuse, the folder is locked, or the queue is not
        known.
    """
    stale = _without_completing(client, workdir, say)
    if not stale:
        return
    lines = "\n".join(f"  {job.id}  {job.state:<10} {job.comment}" for job in stale)
    there = f"{len(stale)} jobs of an earlier run still write into {workdir}:\n{lines}"
    if choice == "refuse":
        raise PlacementError(
            f"{there}\nwait for them with `tilewright-placement stale --wait`, or end them with "
            "`tilewright-placement stale --cancel`; then unlock with --unlock if Snakemake asks "
            "for it"
        )
    if locked:
        raise PlacementError(
            f"{there}\na run is active in this folder, or was killed and left it locked, so this "
            "one cannot begin after them; where none is active, run it with --unlock first"
        )
    say(there)
    if choice == "cancel":
        said = client.cancel([job.id for job in stale])
        if isinstance(said, Unknown):
            raise PlacementError(f"{there}\nthey could not be cancelled: {said}")
        say("cancelled; waiting until they are gone")
    _wait_until_gone(client, workdir, stale, say, 1.0 if choice == "cancel" else _POLL_S)


def _wait_until_gone(
    client: SlurmClient,
    workdir: str,
    stale: list[SlurmJob],
    say: Callable[[str], None],
    poll_s: float,
) -> None:
    """Look at the queue until no stale job is left; slurmctld may be away for some minutes."""
    failures = 0
    while stale:
        try:
            stale, failures = look_for_stale(client, workdir), 0
        except PlacementError as error:
            failures += 1
            if failures == _PATIENCE:
                raise
            say(str(error))
        if stale:
            say(f"waiting for {len(stale)}: {', '.join(str(job.id) for job in stale[:8])}")
            time.sleep(poll_s)


def _without_completing(
    client: SlurmClient, workdir: str, say: Callable[[str], None]
) -> list[SlurmJob]:
    """Return the stale jobs; those that are just being ended, as after Ctrl-C, are waited for."""
    limit_s = time.monotonic() + _COMPLETING_S
    while stale := look_for_stale(client, workdir):
        completing = all(job.state == "COMPLETING" for job in stale)
        if not completing or time.monotonic() > limit_s:
            break
        say(f"waiting for {len(stale)} jobs that are being ended")
        time.sleep(1.0)
    return stale


def _never(job: Job, account: Account, kind: Kind, shape: Shape, capacity: Capacity) -> str:
    """Return why a job would pend at a place for ever; empty if it would not."""
    where = capacity.partitions.get(kind)
    if not capacity.has_partition(kind):
        return f"no {kind} partition"
    if where is not None and not may_use(account, where):
        return f"account {account.name} may not use partition {where.name}"
    for name, count in shape.licences:
        there = count if capacity.licences is None else capacity.licences.get(name, 0)
        if count > there:
            return f"it asks for {count} of licence {name} and there are {there}"
    minutes, most = job.fixed.runtime_min, longest_min(account, where)
    if minutes is not None and most is not None and minutes > most:
        return f"it asks for {minutes} min and account {account.name} has {most}"
    shape = clipped(shape, account, where)
    return too_big(account, shape, where) or _no_node(kind, shape, capacity)


def _no_node(kind: Kind, shape: Shape, capacity: Capacity) -> str:
    """Return that no node of a kind is large enough or of the right kind; empty if one is."""
    where = capacity.partitions.get(kind)
    if where is None or capacity.some_node_holds(kind, shape):
        return ""
    held = [f"{shape.cpus} CPUs", f"{shape.mem_mb} MB"]
    if shape.gpus:
        held.append(f"{shape.gpus} GPUs{f' of type {shape.gpu_type}' if shape.gpu_type else ''}")
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
            _never(job, account, kind, shape, capacity)
            for account in accounts
            for kind, shape in shapes.items()
        ]
        if all(reasons):
            raise PlacementError(
                f"{job.name} would pend for ever: {'; '.join(dict.fromkeys(reasons))}. Lower "
                f"the resources of rule {job.rule}, or use an account that has more"
            )
