"""The beginning of a run on a cluster: what may be used, and that nothing else writes there."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .orphaned import before_run, note_submission
from .placement.accounts import Chosen
from .placement.cluster import Cluster, own_client
from .placement.ends import Ends
from .placement.jobs import Task
from .placement.request import Place, ResourceRequest
from .placement.room import Settings
from .placement.run import Run
from .placement.sender import Submission
from .pools import make_pools, summary
from .resources import Placement
from .runtime.ledger import LEDGER, Ledger
from .runtime.snakemake_adapter import max_jobs
from .settings import ExecutorSettings, names_in
from .slurm.query import SlurmClient, options_in_environment
from .tasks import Tasks


def look_at_cluster(settings: ExecutorSettings, client: SlurmClient) -> Cluster:
    """Return the cluster as it is now, with what a user wants of it.

    Raises
    ------
    PlacementError
        No account is left, or there is no partition of a name.
    """
    cluster = Cluster(
        client,
        Chosen(names_in(settings.accounts), names_in(settings.leave_out)),
        names_in(settings.gpu_partitions),
        names_in(settings.cpu_partitions),
    )
    cluster.look()
    return cluster


def _slots(cluster: Cluster) -> dict[str, list[Any]]:
    """Return the account, device kind and slots of each pool, for jobs of usual sizes."""
    found: dict[str, list[Any]] = {}
    for one in make_pools(cluster, together=True):
        account, kind = one.place.account, one.place.kind
        found.setdefault(one.place.pool, [account, kind, 0])[2] += one.slots
    return found


class Beginning:
    """What a run needs before its first job.

    Raises
    ------
    PlacementError
        Jobs of an earlier run still write here, Slurm does not answer, or no account is left.
    """

    def __init__(
        self,
        workflow: Any,
        settings: ExecutorSettings,
        logger: logging.Logger,
        command: Callable[[Task, Place, ResourceRequest, str], Submission],
        sent: Callable[[Task], None],
    ) -> None:
        self.placement: Placement = getattr(workflow, "placement", None) or Placement(
            on_cluster=True
        )
        folder, ledger = Path(workflow.workdir_init), self.placement.ledger
        client = own_client()
        before_run(client, folder, ledger)
        if options := options_in_environment():
            logger.warning(
                f"{', '.join(options)} are not handed on to Slurm's commands: what jobs need "
                "beyond their resources is for slurm_extra"
            )
        cluster = look_at_cluster(settings, client)
        own = folder / LEDGER.parent
        self.tasks = Tasks(workflow, self.placement, settings.reservation, own / "ends")

        def note(task: Task) -> None:
            with contextlib.suppress(OSError):  # its name alone is known then
                note_submission(own, task.slurm_id, task.slurm_name)
            sent(task)

        self.run = Run(
            cluster,
            Settings(settings.poll_seconds, settings.cpu_share, max_jobs(workflow)),
            Ledger(ledger),
            Ends(client, own / "ends"),
            command,
            self.tasks.order,
            note,
            logger.warning,
            pools=_slots(cluster),
        )
        if kinds := self.tasks.kinds():  # else there is nothing to do
            for line in summary(cluster, kinds):
                logger.info(line)
