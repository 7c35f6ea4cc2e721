"""The accounts as a table of 80 columns, or as JSON."""

import os
import pwd
from collections.abc import Sequence
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from typing import Any

import platformdirs
import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ..cluster.limits import remaining, unknown_use, use_is_known
from ..cluster.pools import Pool, make_pools, total_slots
from ..cluster.query import query_cluster
from ..cluster.request import KINDS
from ..cluster.site import read_site
from ..cluster.state import ClusterState
from ..cluster.tres import Budget, budgets
from ..errors import PlacementError
from ..slurm.accounts import Account, LimitScope
from ..slurm.query import SlurmClient
from .checks import plain, sizes_text
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
        found = query_cluster(client, person.pw_uid, read_site(site))
    except KeyError:
        raise SystemExit(f"accounts: there is no user {user}") from None
    except PlacementError as error:
        raise SystemExit(f"accounts: {error}") from None
    if not found.accounts and not found.left_out:
        raise SystemExit(f"accounts: Slurm has no account of {found.user}")
    if json:
        typer.echo(dumps(as_json(found), indent=2))
    else:
        print_accounts(found, Console())


def print_accounts(state: ClusterState, console: Console) -> None:
    """Print limits, use and slots of every account, and who is left out and why."""
    pools, alone = make_pools(state, together=True), _each_alone(state, together=True)
    order = "" if _sum(pools) == _sum(alone) else ", GPU jobs first, CPU jobs in what they leave"
    lines = [sizes_text(state.largest_jobs), f"at once: {_sum(pools)}{order}"]
    for account in state.accounts:
        lines += [f"jobs that run or wait on {account.name}: {_of(scope, 'submit')} ({scope.name})"
                  for scope in holders_of(state, account) if "submit" in scope.limit]  # fmt: skip
        lines += [f"left on {account.name}: {budget}" for budget in left_of(account, state)]
    if state.left_out:
        width = max(len(one.account) for one in state.left_out)
        lines += ["", "left out:"]
        lines += [f"  {one.account:<{width}}  {one.reason}" for one in state.left_out]
    console.print(_table(state))
    for line in lines:
        console.print(plain(line))
    for note in state.notes:
        console.print(plain(f"note: {note}", "yellow"))


def as_json(state: ClusterState) -> dict[str, Any]:
    """Return the accounts as plain values; unknown use is null, memory is in MB."""
    alone, shared = _each_alone(state), make_pools(state)
    return {
        "user": state.user,
        "accounts": [_account_as_json(account, state) for account in state.accounts],
        "pools": {"independent": [*map(asdict, alone)], "shared": [*map(asdict, shared)]},
        "total": {
            "independent": total_slots(_each_alone(state, together=True)),
            "shared": total_slots(make_pools(state, together=True)),
        },
        "left_out": {one.account: one.reason for one in state.left_out},
        "notes": [note.text for note in state.notes],
    }


def _account_as_json(one: Account, state: ClusterState) -> dict[str, Any]:
    left = [{**asdict(b), "left": b.remaining, "words": str(b)} for b in left_of(one, state)]
    return {
        "name": one.name,
        "qos": one.qos,
        "limits": [asdict(scope) for scope in holders_of(state, one)],
        "mine": one.mine,
        "free": free_of(state, one),
        "budgets": left,
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


def free_of(state: ClusterState, account: Account) -> dict[str, int | None]:
    """Return what is left of TRES that something limits; None where use is not known."""
    found: dict[str, int | None] = {}
    for tres in _SHOWN:  # of GPUs in the first partition with some, else in that of CPU jobs
        where = state.where(state.target(account, "gpu" if tres == "gres/gpu" else "cpu"))
        known, rest = use_is_known(account, where, tres), remaining(account, where, tres)
        if not known or rest is not None:
            found[tres] = rest if known else None
    return found


def _table(state: ClusterState) -> Table:
    table = Table(title=plain(f"Accounts of {state.user}"), title_justify="left", pad_edge=False)
    table.add_column("account", max_width=_NAME)
    for name in ("CPU", "memory GB", "GPU", "jobs", "GPU or CPU slots"):
        table.add_column(name, justify="right")
    pools = _each_alone(state)
    for account in state.accounts:
        slots, now = _slots(state, account, pools)
        table.add_row(plain(state.name_of(account) or "(none)"), *[""] * 4, slots, style="bold")
        for scope in holders_of(state, account):
            cells = [_of(scope, tres) for tres in _SHOWN]
            if any(cells):
                table.add_row(Padding(plain(scope.name), (0, 0, 0, 2)), *cells, "")
        mine = [_cell(tres, (account.mine or {}).get(tres)) for tres in _SHOWN]
        table.add_row("  mine", *mine, "")
        rest = free_of(state, account)
        none = {tres: "" if tres == "jobs" else "no limit" for tres in _SHOWN}
        free = (none | {tres: _cell(tres, n) for tres, n in rest.items()}).values()
        table.add_row("  free", *free, now, end_section=True)
    return table


def _of(scope: LimitScope, tres: str) -> str:
    """Return use and limit of a TRES; empty where it is not limited."""
    if tres not in scope.limit:
        return ""
    used = _cell(tres, (scope.used or {}).get(tres))
    return f"{used} of {_cell(tres, scope.limit[tres])}"


def _cell(tres: str, value: int | None) -> str:
    """Return an amount, memory in GB; a question mark where it is not known."""
    return "?" if value is None else f"{value / (1024 if tres == 'mem' else 1):.0f}"


def _slots(state: ClusterState, account: Account, pools: Sequence[Pool]) -> list[str]:
    """Return how many GPU or CPU jobs an account holds on its QOS: all, and now."""
    own = [p for p in pools if (p.account, p.qos) == (account.name, account.qos)]
    of = {k: [(pool.slots, pool.free) for pool in own if pool.kind == k] for k in KINDS}
    both = [f"{sum(n[k] for n in of['gpu'])} or {sum(n[k] for n in of['cpu'])}" for k in (0, 1)]
    unknown = any(unknown_use(account, where) for where in state.open_partitions)
    return [both[0], "?" if unknown else both[1]]


def _each_alone(state: ClusterState, *, together: bool = False) -> list[Pool]:
    """Return the slots of each device kind, each counted as if it were the only one."""
    found = [pool for kind in KINDS for pool in make_pools(state, [kind], together=together)]
    return sorted(found, key=lambda pool: pool.account)


def _sum(pools: Sequence[Pool]) -> str:
    gpu, cpu = total_slots(pools, "gpu"), total_slots(pools, "cpu")
    return f"{gpu} GPU + {cpu} CPU = {gpu + cpu} jobs"
