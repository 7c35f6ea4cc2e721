"""What doctor checks on a cluster: Slurm's answers, accounts, partitions, orphaned jobs."""

import shutil
from collections.abc import Callable, Iterable

from ..orphaned import find_orphaned, sender_of
from ..placement.cluster import Cluster
from ..placement.request import KINDS, DeviceKind
from ..pools import make_pools, total_slots
from ..runtime.errors import PlacementError, SlurmQueryError
from ..slurm.query import SlurmClient
from .checks import Check, count, ok, problem, problem_from, warning

_PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")


def check_programs(which: Callable[[str], str | None] = shutil.which) -> Iterable[Check]:
    """Check that the commands which placement runs are found."""
    absent = [name for name in _PROGRAMS if which(name) is None]
    if absent:
        fix = "start on a login node, or load your cluster's Slurm module"
        yield problem("Slurm", f"{', '.join(absent)} not found", fix)


def check_daemons(client: SlurmClient) -> Check:
    """Check that slurmctld answers."""
    try:
        version = client.config().get("SLURM_VERSION", "version not known")
    except SlurmQueryError as error:
        fix = "wait until it answers, or ask your cluster's staff"
        return problem("slurmctld", str(error), fix)
    return ok("slurmctld", f"answers, Slurm {version}")


def check_accounts(cluster: Cluster) -> Iterable[Check]:
    """Check accounts and their slots; those left out are named with the reason."""
    pools = make_pools(cluster)
    for account in cluster.accounts:
        own = [pool for pool in pools
               if (pool.place.account, pool.place.qos) == (account.name, account.qos)]  # fmt: skip
        gpu, cpu = (total_slots(own, kind) for kind in KINDS)
        name = account.label or "(none)"
        if own or not account.scopes:
            yield ok("account", f"{name}: {gpu} GPU + {cpu} CPU slots")
        else:
            fix = "leave it out with --tilewright-leave-out, unless your jobs are smaller"
            yield warning("account", f"{name} has no slot for jobs of 8 CPUs", fix)
    for one in cluster.left_out:
        yield ok("account", f"{one.account} is left out: {one.reason}")
    for note in cluster.notes:
        yield warning("survey", note, "`tilewright-placement accounts` shows what is known")


def check_partition(cluster: Cluster, kind: DeviceKind) -> Check:
    """Check that a device kind has partitions, and say how long jobs may take there."""
    about, names = f"{kind.upper()} partition", cluster.names_of(kind)
    if not names and kind == "gpu":
        return ok(about, "there is none with GPUs: all jobs go to CPUs")
    if not names:
        return problem(about, "there is none that is up", "name one with --tilewright-…-partitions")
    texts = []
    for name in names:
        most = cluster.partitions[name].max_time_min
        limit = "no time limit" if most is None else f"jobs of at most {most / 60:g} h"
        texts.append(f"{name}, {limit}")
    return ok(about, "; ".join(texts))


def check_orphaned(client: SlurmClient, folder: str) -> Check:
    """Check that no job of another run still writes into a folder."""
    try:
        left = find_orphaned(client, folder)
    except PlacementError as error:
        return problem_from("orphaned jobs", error, "try again when Slurm answers")
    if left:
        from pathlib import Path

        sender = sender_of(Path(folder))
        text = f"{count(len(left), 'job')} {sender.words} still to end"
        return problem("orphaned jobs", text, sender.advice)
    return ok("orphaned jobs", "no job of an earlier run writes here")
