"""Associations as slurmctld shows them, where sacctmgr does not (pure)."""

from ..errors import UnreadableError
from .parse import _budgets, _jobs, parse_assoc_mgr, parse_minutes, parse_tres, records_of
from .records import Association, of_association


def parse_associations(text: str) -> list[Association]:
    """Return the associations in ``scontrol -o show assoc_mgr flags=assoc``, without their QOS."""
    usage, found = parse_assoc_mgr(text), []
    fields = ("MaxJobs", "MaxSubmitJobs", "MaxTRESPJ", "MaxTRESMinsPJ", "MaxWallPJ")
    for _, pairs in records_of(text, "Account", "UserName", "Partition", "ParentAccount", *fields):
        user, parent = (pairs[name].partition("(")[0] for name in ("UserName", "ParentAccount"))
        account, partition = pairs["Account"], pairs["Partition"]
        found.append(
            Association(
                account, user, partition,
                tres=usage[of_association(account, user, partition)].limit,
                tres_per_job=parse_tres(pairs["MaxTRESPJ"])
                | _budgets(parse_tres(pairs["MaxTRESMinsPJ"])),
                tres_per_user=_jobs(*(pairs[name].partition("(")[0] for name in fields[:2])),
                max_wall_min=parse_minutes(pairs["MaxWallPJ"]),
                parent="" if user else parent,
            )
        )  # fmt: skip
    return found


def parse_shares(text: str) -> list[Association]:
    r"""Return the associations in ``sshare -n -P -o Account,User,Partition``.

    >>> [(one.account, one.user) for one in parse_shares("clive|ada|\n")]
    [('clive', 'ada')]
    """
    found = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 3 and cells[0]:
            found.append(Association(cells[0], cells[1], cells[2]))
        elif line.strip():
            raise UnreadableError(line)
    return found
