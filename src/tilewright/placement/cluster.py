"""The cluster of this process: asked once where a profile says so, and again as time passes.

A profile evaluates ``cluster.limits("site.yaml")`` in Snakemake's main process; the rules'
resource functions and the scheduler plugin then find the same cluster here. Inside jobs no
profile is evaluated, so nothing is asked there.
"""

from __future__ import annotations

import os
import pwd
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from tilewright.placement.jobs import Kind
from tilewright.placement.site import Site, SiteError, read_site
from tilewright.placement.survey import Survey, survey
from tilewright.slurm.jobs import SlurmJob, parse_queue
from tilewright.slurm.query import SlurmClient, Unknown

if TYPE_CHECKING:
    from tilewright.placement.resources import Plan

#: Live use and the queue are asked again after this long: two calls of 20 ms each.
TTL_S = 5.0
_current: Cluster | None = None


@dataclass
class Cluster:
    """A Slurm cluster as one person sees it.

    Attributes
    ----------
    site : Site
    client : SlurmClient
    uid : int
    survey : Survey
        The last look.
    plan : Plan or None
        Where the jobs of this process's run go; the Snakefile makes it.
    """

    site: Site
    client: SlurmClient
    uid: int
    survey: Survey
    plan: Plan | None = None

    def look(self) -> Survey:
        """Look again; what is younger than its time to live is not asked anew."""
        self.survey = survey(self.client, self.uid, self.site)
        return self.survey

    def queue(self) -> list[SlurmJob] | Unknown:
        """Return this person's jobs, those that ended in the last minutes too."""
        said = self.client.queue()
        return said if isinstance(said, Unknown) else parse_queue(said)

    @property
    def durations_file(self) -> Path:
        """Where learned durations are kept, one file for each set of partitions."""
        names = ",".join(sorted({p.name for p in self.survey.partitions.values() if p}))
        return self.client.cache_dir / f"durations-{zlib.crc32(names.encode()):08x}.json"

    def partition(self, kind: Kind) -> str | None:
        """Return the name of the partition of a device kind."""
        chosen = self.survey.partitions[kind]
        return chosen.name if chosen else None

    def max_time_min(self, kind: Kind) -> int | None:
        """Return the longest job of a device kind's partition."""
        chosen = self.survey.partitions[kind]
        return chosen.max_time_min if chosen else None


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
    path = Path(named) if named else site_file(Path(site), sys.argv) if site else None
    read = read_site(path)
    client = own_client()
    found = survey(client, os.getuid(), read)
    _check_names(read, found, str(path))
    _current = Cluster(read, client, os.getuid(), found)
    return _current


def site_file(name: Path, argv: Sequence[str]) -> Path:
    """Return a site file beside the profile that a Snakemake command names, else as it is.

    A profile cannot tell where it lies, and a copy of one must not read the site of the other.
    """
    from snakemake.cli import get_argument_parser, get_profile_dir, resolve_snakefile

    try:
        given, _ = get_argument_parser().parse_known_args(list(argv[1:]))
    except SystemExit:  # Snakemake refuses them itself
        return name
    profiles = list(given.profile or ())
    if given.workflow_profile:
        own = Path("profiles", given.workflow_profile)
        snakefile = resolve_snakefile(given.snakefile, allow_missing=True)
        beside = [Path(snakefile).parent / own] if snakefile else []
        profiles = [given.workflow_profile, own, *beside, *profiles]
    for profile in profiles:
        found = get_profile_dir(str(profile))
        if found is not None and Path(found[0], name).is_file():
            return Path(found[0], name)
    return name


def own_client() -> SlurmClient:
    """Return a client that asks for the person who runs this process."""
    user = pwd.getpwuid(os.getuid()).pw_name
    return SlurmClient(user, platformdirs.user_cache_path("tilewright"), ttl_s=TTL_S)


def current() -> Cluster | None:
    """Return the cluster of this process, None where no profile named one."""
    return _current


def limits(site: str | Path | None = None) -> dict[str, int]:
    """Return the slots of each pool, for ``resources`` of a profile; see :func:`use`.

    Where not even one job of the site's sizes fits, a name that no job asks for: Snakemake wants
    one. Jobs are then placed by their own sizes alone.
    """
    found = use(site).survey
    return {pool.name: pool.slots for pool in found.pools[found.sharing]} or {"no_slots": 1}


def _check_names(site: Site, found: Survey, path: str) -> None:
    """Refuse a site that names what the cluster does not have."""
    known = sorted([a.name for a in found.accounts] + [left.account for left in found.left_out])
    named: list[tuple[str, Sequence[str]]] = [
        ("allowed", site.allowed or ()),
        ("caps", tuple(site.caps)),
    ]
    for key, accounts in named:
        for account in accounts:
            if account not in known:
                raise SiteError(
                    f"{path}: '{key}' names account {account}, which {found.user} does not have; "
                    f"there are {', '.join(known)}"
                )
    absent = [note for note in found.notes if note.startswith("partition ")]
    if absent:
        raise SiteError(f"{path}: {absent[0]}")
    if not found.accounts:
        reasons = "; ".join(f"{left.account}: {left.reason}" for left in found.left_out)
        raise SiteError(f"no account is left to place jobs on ({reasons or 'there are none'})")
