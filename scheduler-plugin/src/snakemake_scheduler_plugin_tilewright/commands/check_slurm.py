"""What doctor checks on a cluster: Slurm's answers, accounts, partitions, orphaned jobs."""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from ..cluster.cluster import Cluster
from ..cluster.limits import longest_of, may_use
from ..cluster.pools import total_slots
from ..cluster.request import KINDS, DeviceKind
from ..errors import PlacementError, SlurmQueryError
from ..placement.orphaned import find_orphaned, sender_of
from ..slurm.partitions import is_for_gpus
from ..slurm.query import SlurmClient
from ..slurm.records import Partition
from .accounts import left_of
from .checks import Check, count, ok, problem, problem_from, sizes_text, warning

_PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")
#: The executor asks squeue after 5 s and wants ended jobs to be listed for three times as long.
_MUST_AGE_S, _SHOULD_AGE_S = 15, 60


def check_programs(which: Callable[[str], str | None] = shutil.which) -> Iterable[Check]:
    """Check that the commands which placement and the executor run are found."""
    absent = [name for name in _PROGRAMS if which(name) is None]
    if absent:
        fix = "start on a login node, or load your cluster's Slurm module"
        yield problem("Slurm", f"{', '.join(absent)} not found", fix)


def check_daemons(client: SlurmClient) -> Iterable[Check]:
    """Check that slurmctld and slurmdbd answer, and how long ended jobs stay in the queue."""
    try:
        config = client.run(("scontrol", "show", "config"))
    except SlurmQueryError as error:
        yield problem("slurmctld", str(error), "wait until it answers, or ask your cluster's staff")
        return
    found = re.search(r"^SLURM_VERSION\s*=\s*(\S+)", config, re.M)
    yield ok("slurmctld", f"answers, Slurm {found[1] if found else 'version not known'}")
    yield check_job_age(config)
    with contextlib.suppress(SlurmQueryError):  # else a note says which limits are known
        if client.limits().failure is None:
            yield ok("slurmdbd", "answers, limits are fresh")


def check_job_age(config: str) -> Check:
    """Check ``MinJobAge`` in ``scontrol show config``: how long squeue lists ended jobs."""
    found = re.search(r"^MinJobAge\s*=\s*(\d+)", config, re.M)
    if found is None:
        return warning("MinJobAge", "not known", "look at `scontrol show config`")
    age_s = int(found[1])
    text = f"squeue lists ended jobs for {age_s} s"
    fix = "ask your cluster's staff for MinJobAge=300 in slurm.conf"
    if age_s < _MUST_AGE_S:
        return problem("MinJobAge", f"{text}; {_MUST_AGE_S} s are needed", fix)
    if age_s < _SHOULD_AGE_S:
        return warning("MinJobAge", f"{text}; {_SHOULD_AGE_S} s are safe", fix)
    return ok("MinJobAge", text)


def check_accounts(cluster: Cluster) -> Iterable[Check]:
    """Check accounts and their slots; those left out are named with the reason."""
    state = cluster.state
    yield ok("slots", sizes_text(state.largest_jobs))
    for account in state.accounts:
        qos = [p for p in cluster.pools if (p.account, p.qos) == (account.name, account.qos)]
        gpu, cpu = (total_slots(qos, kind) for kind in KINDS)
        name = state.name_of(account)
        if spent := [str(one) for one in left_of(account, state) if one.remaining == 0]:
            fix = "it takes jobs again when an administrator raises the budget, or its use decays"
            yield warning("account", f"{name}: left are {'; '.join(spent)}", fix)
        elif not any(pool.account == account.name for pool in cluster.pools):
            fix = "block it in the site file, or lower gpu_job and cpu_job there"
            yield warning("account", f"{name} has no slot", fix)
        else:
            yield ok("account", f"{name}: {gpu} GPU + {cpu} CPU slots")
    for one in state.left_out:
        yield ok("account", f"{one.account} is left out: {one.reason}")
    for note in state.notes:
        fix = "`tilewright-placement accounts` shows what is known"
        if note.about == "blocked":
            fix = "correct the name in the site file, unless it is an account of others"
        yield warning("survey", note.text, fix)


def check_partition(cluster: Cluster, kind: DeviceKind) -> Check:
    """Check that a device kind has partitions, which take the accounts and are long enough."""
    about, state = f"{kind.upper()} partition", cluster.state
    every = state.partitions.get(kind, ())
    partitions = [p for p in every if kind == "gpu" or not is_for_gpus(p)] or every
    if not partitions and kind == "gpu":
        return ok(about, "there is none with GPUs: all jobs go to CPUs")
    if not partitions:
        return problem(about, "there is none that is up", "name one in the site file")
    takes = {a.name for a in state.accounts if any(may_use(a, p) for p in partitions)}
    if refused := sorted({a.name for a in state.accounts} - takes):
        text = f"{', '.join(p.name for p in partitions)} does not take jobs of {', '.join(refused)}"
        fix = "block these accounts in the site file, or name another partition"
        return warning(about, text, fix)
    text, most = "; ".join(map(_described, partitions)), longest_of(partitions)
    asked_min = cluster.site.largest_jobs()[kind].runtime_min
    if most is not None and most < asked_min:
        text += f"; slots are counted for jobs of {asked_min / 60:g} h ({kind}_job)"
        fix = f"name a partition for longer jobs in the site file, or lower {kind}_job there"
        return warning(about, text, fix)
    return ok(about, text)


def _described(partition: Partition) -> str:
    most = partition.max_time_min
    text = f"{partition.name} is up, {count(partition.nodes, 'node')}, "
    text += "no time limit" if most is None else f"jobs of at most {most / 60:g} h"
    return text + (", each gets a whole node" if partition.whole_nodes else "")


def check_orphaned(cluster: Cluster, folder: str) -> Iterable[Check]:
    """Check that no job of another run still writes into a folder."""
    try:
        left = find_orphaned(cluster.client, folder)
    except PlacementError as error:
        yield problem_from("orphaned jobs", error, "try again when Slurm answers")
        return
    if left:
        sender = sender_of(Path(folder))
        text = f"{count(len(left), 'job')} {sender.words} still to end"
        yield problem("orphaned jobs", text, sender.advice)
    else:
        yield ok("orphaned jobs", "no job of an earlier run writes here")
