"""The Slurm cluster of this process: its site, what asks it, and the last look at it.

A profile evaluates ``cluster.limits("site.yaml")`` in Snakemake's main process and the Snakefile
is read later in the same process, with nothing that Snakemake passes from one to the other; so
the cluster of the process is kept here. Inside jobs no profile is evaluated, so nothing is asked
there.
"""

from __future__ import annotations

import os
import pwd
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind
from snakemake_scheduler_plugin_tilewright.placement.site import Site, SiteError, read_site
from snakemake_scheduler_plugin_tilewright.placement.survey import Survey, survey
from snakemake_scheduler_plugin_tilewright.runtime.snakemake_command import beside_profile, command
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob, parse_queue
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient, Unknown

#: Calls in one look at the cluster: queue, live use and nodes, and two in which the executor looks
#: at its jobs and asks for Slurm's config; limits and partitions every tenth time.
_CALLS_A_LOOK = 5
_MIN_TTL_S = 5.0
_current: Cluster | None = None


@dataclass
class Cluster:
    """A Slurm cluster as one person sees it.

    Attributes
    ----------
    survey : Survey
        The last look.
    """

    site: Site
    client: SlurmClient
    uid: int
    survey: Survey
    _looked: dict[tuple[str, ...], float] | None = field(default=None, init=False, repr=False)

    def look(self) -> Survey:
        """Look again; what is younger than its time to live is not asked, nor read, again."""
        if self._looked is None or self._looked != self.client.answered_s():
            self.survey = survey(self.client, self.uid, self.site)
            self._looked = self.client.answered_s()
        return self.survey

    def queue(self) -> list[SlurmJob] | Unknown:
        """Return this person's jobs, those that ended in the last minutes too."""
        said = self.client.queue()
        return said if isinstance(said, Unknown) else list(parse_queue(said))

    @property
    def durations_file(self) -> Path:
        """Where learned durations are kept, one file for each set of partitions."""
        names = ",".join(sorted({p.name for p in self.survey.partitions.values() if p}))
        return self.client.cache_dir / f"durations-{zlib.crc32(names.encode()):08x}.json"

    def partition(self, kind: Kind) -> str | None:
        """Return the name of the partition of a device kind."""
        chosen = self.survey.partitions[kind]
        return chosen.name if chosen else None

    def max_times_min(self) -> dict[Kind, int | None]:
        """Return the longest job of each device kind's partition, where it has a limit."""
        return {kind: p.max_time_min if p else None for kind, p in self.survey.partitions.items()}


def use(site: str | Path | None = None) -> Cluster:
    """Make a site's cluster the one of this process.

    Parameters
    ----------
    site : path, optional
        The site file, beside the profile that the command names or in the working directory;
        ``TILEWRIGHT_SITE`` wins over it. Without either, the defaults.

    Raises
    ------
    SiteError
        The site file is wrong, or names accounts or partitions that the cluster does not have.
    SurveyError
        The accounts are not known.
    """
    global _current
    named = os.environ.get("TILEWRIGHT_SITE")
    path = Path(named) if named else beside_profile(Path(site), command()) if site else None
    read = read_site(path)
    client = own_client(read.calls_per_min)
    # what other runs were told of limits minutes ago may be why this one was just changed
    client.forget(limits=True, but_last_s=_MIN_TTL_S)
    found = survey(client, os.getuid(), read)
    _check_names(found, str(path))
    _current = Cluster(read, client, os.getuid(), found)
    return _current


def of_command(argv: Sequence[str], site: Path | None = None) -> Cluster:
    """Return the cluster of a ``snakemake`` command.

    It is the one of ``site``, else the one that the profile named, else that of a ``site.yaml``
    beside the profile, else the one that is there. Errors are those of :func:`use`.
    """
    beside = beside_profile(Path("site.yaml"), argv)
    return (
        use(site)
        if site is not None
        else current() or use(beside.absolute() if beside.is_file() else None)
    )


def own_client(calls_per_min: float = 60.0) -> SlurmClient:
    """Return a client that asks for the person who runs this process."""
    user, cache = pwd.getpwuid(os.getuid()).pw_name, platformdirs.user_cache_path("tilewright")
    ttl_s = max(_MIN_TTL_S, 60.0 * _CALLS_A_LOOK / calls_per_min)
    return SlurmClient(user, cache, ttl_s=ttl_s, shared_dir=cache / "answers")


def current() -> Cluster | None:
    """Return the cluster of this process, None where no profile named one."""
    return _current


def limits(site: str | Path | None = None) -> dict[str, int]:
    """Return the slots of each pool, for ``resources`` of a profile; see :func:`use`.

    Where not even one job of the site's sizes fits, a name that no job asks for: Snakemake wants
    one. Jobs are then placed by their own sizes alone.
    """
    found = use(site).survey
    return {pool.name: pool.slots for pool in found.pools} or {"no_slots": 1}


def _check_names(found: Survey, path: str) -> None:
    """Refuse a site that names what the cluster does not have."""
    absent = [note for note in found.notes if note.about == "site"]
    if absent:
        raise SiteError(f"{path}: {absent[0]}")
    if not found.accounts:
        reasons = "; ".join(f"{left.account}: {left.reason}" for left in found.left_out)
        raise SiteError(f"no account is left to place jobs on ({reasons or 'there are none'})")
