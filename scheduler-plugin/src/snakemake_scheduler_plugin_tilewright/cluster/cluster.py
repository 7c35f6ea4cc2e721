"""The Slurm cluster of a run: its site, what asks it, and the last look at it."""

import os
import pwd
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from ..errors import SiteError
from ..runtime.snakemake_command import command, profile_file
from ..slurm.jobs import SlurmJob, parse_queue
from ..slurm.query import SlurmClient
from .pools import Pool, make_pools, slots_by_name
from .query import query_cluster
from .site import Site, read_site
from .state import ClusterState

#: Calls in one look at the cluster: queue, live use and nodes, and two in which the executor asks
#: at its jobs and asks for Slurm's config; limits and partitions every tenth time.
_CALLS_A_LOOK = 5
_MIN_TTL_S = 5.0  # however often Slurm may be asked (no figure)


@dataclass
class Cluster:
    """A Slurm cluster as one person sees it; ``state`` is the last look at it."""

    site: Site
    client: SlurmClient
    uid: int
    state: ClusterState
    _pools: tuple[ClusterState, list[Pool]] | None = field(default=None, init=False, repr=False)
    _looked: dict[tuple[str, ...], float] | None = field(default=None, init=False, repr=False)

    def look(self) -> ClusterState:
        """Look again; what is younger than its time to live is not asked, nor read, again."""
        if self._looked is None or self._looked != self.client.answered_s():
            self.state = query_cluster(self.client, self.uid, self.site)
            self._looked = self.client.answered_s()
        return self.state

    @property
    def pools(self) -> list[Pool]:
        """The pools of the last look, for jobs of the site's sizes."""
        if self._pools is None or self._pools[0] is not self.state:
            self._pools = self.state, make_pools(self.state)
        return self._pools[1]

    def queue(self) -> list[SlurmJob]:
        """Return this person's jobs, those that ended in the last minutes too."""
        return list(parse_queue(self.client.queue()))

    @property
    def durations_file(self) -> Path:
        """The file of learned durations, one for each set of partitions."""
        names = ",".join(sorted({p.name for own in self.state.partitions.values() for p in own}))
        return self.client.cache_dir / f"durations-{zlib.crc32(names.encode()):08x}.json"


def open_cluster(path: Path | None = None) -> Cluster:
    """Return the cluster as it is now, by a site file.

    Parameters
    ----------
    path : Path, optional
        The site file; ``TILEWRIGHT_SITE`` wins over it. Without either, the defaults.

    Raises
    ------
    SiteError
        The site file is wrong, or names accounts or partitions that the cluster does not have.
    PlacementError
        The accounts are not known.
    """
    if named := os.environ.get("TILEWRIGHT_SITE"):
        path = Path(named)
    read = read_site(path)
    client = own_client(read.calls_per_min)
    # what other runs know of limits minutes ago may be why this one was just changed
    client.forget(limits=True, but_last_s=_MIN_TTL_S)
    found = query_cluster(client, os.getuid(), read)
    if absent := [note for note in found.notes if note.about == "site"]:
        raise SiteError(f"{path}: {absent[0]}")
    if not found.accounts:
        reasons = "; ".join(f"{one.account}: {one.reason}" for one in found.left_out)
        raise SiteError(f"no account is left to place jobs on ({reasons or 'there are none'})")
    return Cluster(read, client, os.getuid(), found)


def of_command(argv: Sequence[str], site: Path | None = None) -> Cluster:
    """Return the cluster of a ``snakemake`` command.

    It is that of ``site``, else of the ``site.yaml`` next to the profile. Errors are those of
    :func:`open_cluster`.
    """
    return open_cluster(site or profile_file("site.yaml", argv))


def slots() -> dict[str, int]:
    """Return the slots of each pool, for ``resources`` of a profile; see :func:`of_command`.

    They count jobs for schedulers that do not look at Slurm themselves. Where not even one job of
    the site's sizes fits, a name that no job asks for: Snakemake wants one.
    """
    found = slots_by_name(of_command(command()).pools)
    return {name: count for name, (_, _, count) in found.items()} or {"no_slots": 1}


def own_client(calls_per_min: float = Site().calls_per_min) -> SlurmClient:
    """Return a client that asks for the person who runs this process."""
    user, cache = pwd.getpwuid(os.getuid()).pw_name, platformdirs.user_cache_path("tilewright")
    ttl_s = max(_MIN_TTL_S, 60.0 * _CALLS_A_LOOK / calls_per_min)
    return SlurmClient(user, cache, ttl_s=ttl_s, shared_dir=cache / "answers")
