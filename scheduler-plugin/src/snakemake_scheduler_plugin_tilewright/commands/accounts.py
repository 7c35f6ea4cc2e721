"""The accounts as a table of 80 columns, or as JSON."""

import os
import pwd
from collections.abc import Sequence
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import platformdirs
import typer
from rich.console import Console
from rich.table import Table

from ..cluster.limits import remaining, unknown_use, use_is_known
from ..cluster.pools import Pool, make_pools, total_slots
from ..cluster.query import query_cluster
from ..cluster.request import KINDS
from ..cluster.site import Site, read_site
from ..cluster.state import ClusterState
from ..cluster.tres import Budget, budgets
from ..errors import PlacementError
from ..slurm.accounts import Account, LimitScope
from ..slurm.query import SlurmClient
from .checks import sizes_text
from .slurm_here import slurm_wanted

#: TRES and numbers of jobs that have a column.
_SHOWN = ("cpu", "mem", "gres/gpu", "jobs")
#: Columns of a name.
_NAME = 20


def show_accounts(site: Path | None, user: str | None, *, json: bool) -> None:
    """Look at the accounts of a user, yours without one, and print what was found."""
    if not slurm_wanted(site):
        raise SystemExit("accounts: no Slurm here: jobs run on this machine")
    try:
        person = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
        client = SlurmClient(person.pw_name, platformdirs.user_cache_path("tilewright"))
        rules = read_site(site)
        found = query_cluster(client, person.pw_uid, rules)
    except KeyError:
        raise SystemExit(f"accounts: there is no user {user}") from None
    except PlacementError as error:
        raise SystemExit(f"accounts: {error}") from None
    if not found.accounts and not found.left_out:
        raise SystemExit(f"accounts: Slurm has no account of {found.user}")
    if json:
        typer.echo(dumps(as_json(found), indent=2))
    else:
        print_accounts(found, rules, Console())


def print_accounts(state: ClusterState, site: Site, console: Console) -> None:
    """Print limits, use and slots of every account, and who is left out and why."""
    console.print(_table(state))
    console.print(sizes_text(site.largest_jobs()), highlight=False)
    for line in _totals(state):
        console.print(line, highlight=False, markup=False)
    for account in state.accounts:
        rests = [f"left on {account.name}: {budget}" for budget in left_of(account, state)]
        for line in [*_queued(state, account), *rests]:
            console.print(line, highlight=False, markup=False)
    if state.left_out:
        console.print("\nleft out:", highlight=False)
        width = max(len(one.account) for one in state.left_out)
        for one in state.left_out:
            console.print(f"  {one.account:<{width}}  {one.reason}", highlight=False, markup=False)
    for note in state.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)


def as_json(state: ClusterState) -> dict[str, Any]:
    """Return the accounts as plain values; unknown use is null, memory is in MB."""
    return {
        "user": state.user,
        "accounts": [
            {
                "name": account.name,
                "qos": account.qos,
                "limits": [asdict(scope) for scope in holders_of(state, account)],
                "mine": account.mine,
                "free": {tres: n for tres in _SHOWN if (n := _free(state, account, tres)) != ""},
                "budgets": [
                    {**asdict(one), "left": one.remaining, "words": str(one)}
                    for one in left_of(account, state)
                ],
            }
            for account in state.accounts
        ],
        "pools": {
            "independent": [asdict(pool) for pool in _each_alone(state)],
            "shared": [asdict(pool) for pool in make_pools(state)],
        },
        "total": {
            "independent": total_slots(_each_alone(state, together=True)),
            "shared": total_slots(make_pools(state, together=True)),
        },
        "left_out": {one.account: one.reason for one in state.left_out},
        "notes": [note.text for note in state.notes],
    }


def left_of(account: Account, state: ClusterState) -> list[Budget]:
    """Return what is left of the budgets that bound an account's jobs in any partition."""
    found = [one for where in state.open_partitions for one in budgets(account, where)]
    return list(dict.fromkeys(found))


def holders_of(state: ClusterState, account: Account) -> list[LimitScope]:
    """Return all that limits an account's jobs in the partition of any device kind."""
    found: dict[str, LimitScope] = {}
    for where in [None, *state.open_partitions]:
        for scope in account.within(where).scopes:
            before = found.get(scope.name, scope)
            found[scope.name] = replace(scope, limit=before.limit | scope.limit)
    return list(found.values())


def _free(state: ClusterState, account: Account, tres: str) -> int | Literal[""] | None:
    """Return what is left of a TRES: None where use is not known, nothing where nothing limits it.

    Of GPUs in the first partition with some, of all else in the first of CPU jobs.
    """
    where = state.where(state.target(account, "gpu" if tres == "gres/gpu" else "cpu"))
    if not use_is_known(account, where, tres):
        return None
    rest = remaining(account, where, tres)
    return "" if rest is None else rest


def _table(state: ClusterState) -> Table:
    table = Table(title=f"Accounts of {state.user}", title_justify="left", pad_edge=False)
    table.add_column("account", no_wrap=True)
    for name in ("CPU", "memory GB", "GPU", "jobs", "GPU or CPU slots"):
        table.add_column(name, justify="right")
    pools = _each_alone(state)
    for account in state.accounts:
        slots = _slots(state, account, pools, now=False)
        name = state.name_of(account)
        table.add_row(name or "(none)", "", "", "", "", slots, style="bold")
        for scope in holders_of(state, account):
            cells = [_of(scope, tres) for tres in _SHOWN]
            if any(cells):
                table.add_row(_indented(scope.name), *cells, "")
        mine = [_cell(tres, (account.mine or {}).get(tres)) for tres in _SHOWN]
        table.add_row("  mine", *mine, "")
        free = [_cell(tres, _free(state, account, tres)) for tres in _SHOWN]
        now = _slots(state, account, pools, now=True)
        table.add_row("  free", *free, now, end_section=True)
    return table


def _indented(name: str) -> str:
    r"""Return a name in lines that leave room for the other columns, the first less indented.

    >>> _indented("ada of account maigan")
    '  ada of account\n    maigan'
    """
    return fill(name, _NAME, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _of(scope: LimitScope, tres: str) -> str:
    """Return use and limit of a TRES; empty where it is not limited."""
    if tres not in scope.limit:
        return ""
    used = _cell(tres, (scope.used or {}).get(tres))
    return f"{used} of {_cell(tres, scope.limit[tres])}"


def _cell(tres: str, value: int | str | None) -> str:
    """Return an amount, memory in GB; a question mark where it is not known."""
    if value is None:
        return "?"
    if value == "":
        return "" if tres == "jobs" else "no limit"
    return f"{int(value) / (1024 if tres == 'mem' else 1):.0f}"


def _queued(state: ClusterState, account: Account) -> list[str]:
    """Return the limits on jobs that run or wait."""
    return [
        f"jobs that run or wait on {account.name}: {_of(scope, 'submit')} ({scope.name})"
        for scope in holders_of(state, account)
        if "submit" in scope.limit
    ]


def _slots(state: ClusterState, account: Account, pools: Sequence[Pool], *, now: bool) -> str:
    if now and any(unknown_use(account, where) for where in state.open_partitions):
        return "?"
    own = [p for p in pools if (p.account, p.qos) == (account.name, account.qos)]
    kinds = {kind: [pool for pool in own if pool.kind == kind] for kind in KINDS}
    counts = {k: sum(p.free if now else p.slots for p in of) for k, of in kinds.items()}
    return f"{counts['gpu']} or {counts['cpu']}"


def _totals(state: ClusterState) -> list[str]:
    """Return the slots of all accounts; where jobs of one kind take the other's, that too."""
    pools, alone = make_pools(state, together=True), _each_alone(state, together=True)
    if _sum(pools) == _sum(alone):
        return [f"at once: {_sum(pools)}"]
    bounds = [f"{p.account} {p.slots} ({p.bound})" for p in pools if p.kind == "cpu"]
    return [
        f"at once: {_sum(pools)}, GPU jobs first, CPU jobs in what they leave",
        f"each kind alone: {total_slots(alone, 'gpu')} GPU or {total_slots(alone, 'cpu')} CPU jobs",
        f"CPU slots next to all GPU jobs: {', '.join(bounds) or 'none'}",
    ]


def _each_alone(state: ClusterState, *, together: bool = False) -> list[Pool]:
    """Return the slots of each device kind, each counted as if it were the only one."""
    found = [pool for kind in KINDS for pool in make_pools(state, [kind], together=together)]
    return sorted(found, key=lambda pool: pool.account)


def _sum(pools: Sequence[Pool]) -> str:
    gpu, cpu = total_slots(pools, "gpu"), total_slots(pools, "cpu")
    return f"{gpu} GPU + {cpu} CPU = {gpu + cpu} jobs"
