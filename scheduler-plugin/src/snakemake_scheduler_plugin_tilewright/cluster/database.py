"""Which accounts and limits there are: by sacctmgr, else by what slurmctld shows of them."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..errors import PlacementError, SlurmQueryError
from ..runtime.run_state import span_text
from ..slurm import associations, parse
from ..slurm.query import NO_ACCOUNTING, SlurmClient
from ..slurm.records import Association, Qos
from .site import Site
from .state import Note


class Database(NamedTuple):
    """What is known of accounts; ``has_accounts`` is false where jobs are sent without one."""

    associations: list[Association]
    qos: list[Qos]
    notes: list[Note]
    has_accounts: bool = True


def read_database(client: SlurmClient, site: Site, config: Mapping[str, str]) -> Database:
    """Return the associations of this cluster and all QOS, and what of them is old or not seen.

    Where sacctmgr shows no account of the user, those that slurmctld shows, else those that the
    site file names; where nothing shows one, jobs go to the user's default account.
    """
    try:
        answer = client.limits()
        rows, qos = parse.parse_sacctmgr(answer.text)
    except SlurmQueryError as error:
        if NO_ACCOUNTING in error.reason:
            note = "this Slurm keeps no accounts: jobs are bounded by its nodes alone"
            return Database([], [], [Note("limits", note)], has_accounts=False)
        why, enforced = str(error), False
    else:
        old = f"limits are {span_text(answer.age_s)} old: {answer.failure}"
        notes = [Note("limits", old)] if answer.failure else []
        known = Database(_of_this_cluster(config, rows), qos, notes)
        why = f"sacctmgr shows no account of {client.user}"
        enforced = config["AccountingStorageEnforce"] not in ("", "none", "(null)")
        if any(row.user == client.user for row in known.associations):
            return known
    for rows, source in _other_sources(client, site):
        if any(row.user == client.user for row in rows):
            note = f"{why}; accounts are those of {source}, and limits of QOS are not seen"
            return Database(rows, [], [Note("use", note)])
    if enforced:
        return known
    note = f"{why}, so jobs go to your default account, and its limits are not seen"
    return Database([], [], [Note("use", note)], has_accounts=False)


def _other_sources(client: SlurmClient, site: Site) -> Iterator[tuple[list[Association], str]]:
    """Yield the associations that else are seen, and where, without their QOS."""
    with contextlib.suppress(SlurmQueryError):
        rows = associations.parse_associations(client.usage("users", [client.user]))
        yield rows, "scontrol show assoc_mgr"
    with contextlib.suppress(SlurmQueryError):
        yield associations.parse_shares(client.shares()), "sshare, without limits"
    named = [Association(account, client.user) for account in site.allowed or ()]
    yield named, "the site file, without limits"


def _of_this_cluster(config: Mapping[str, str], rows: list[Association]) -> list[Association]:
    """Return the associations of this cluster; PlacementError where it is not known which it is."""
    clusters = {row.cluster for row in rows}
    if len(clusters) > 1 and not config["ClusterName"]:
        names = ", ".join(sorted(clusters))
        raise PlacementError(f"which of {names} this is is not known; try again when it answers")
    return [row for row in rows if len(clusters) < 2 or row.cluster == config["ClusterName"]]
