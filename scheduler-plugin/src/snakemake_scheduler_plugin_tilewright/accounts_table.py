"""The accounts as a table of 80 columns, or as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .begin import look_at_cluster
from .placement.accounts import Account, Scope
from .placement.cluster import Cluster, own_client
from .placement.request import KINDS
from .pools import SIZES, Pool, make_pools, total_slots
from .runtime.errors import PlacementError
from .runtime.words import count, printable
from .settings import settings_of
from .slurm.query import has_slurm

#: TRES and numbers of jobs that have a column.
_SHOWN = ("cpu", "mem", "gres/gpu", "jobs")
#: Columns of a name.
_NAME = 20


def show_accounts(profile: Path | None, *, json: bool) -> None:
    """Look at your accounts, with the settings of a profile, and print what was found."""
    if not has_slurm():
        raise SystemExit("accounts: no Slurm here: jobs run on this machine")
    try:
        settings = settings_of(profile)
        found = look_at_cluster(settings, own_client())
        found.look_at_nodes()
    except PlacementError as error:
        raise SystemExit(f"accounts: {error}") from None
    shown = Accounts(found, settings.cpu_share)
    if json:
        typer.echo(dumps(shown.as_json(), indent=2))
    else:
        shown.print(Console())


class Accounts:
    """What is shown of a cluster."""

    def __init__(self, cluster: Cluster, cpu_share: float) -> None:
        self.cluster = cluster
        self.alone = make_pools(cluster, cpu_share=cpu_share)
        self.together = make_pools(cluster, cpu_share=cpu_share, together=True)
        self.each_kind = [
            pool for kind, size in SIZES.items()
            for pool in make_pools(cluster, {kind: size}, cpu_share, together=True)
        ]  # fmt: skip

    def print(self, console: Console) -> None:
        """Print limits, use and slots of every account, and who is left out and why."""
        table = Table(
            title=plain(f"Accounts of {self.cluster.client.user}"), title_justify="left",
            pad_edge=False,
        )  # fmt: skip
        table.add_column("account", max_width=_NAME)
        for name in ("CPU", "memory GB", "GPU", "jobs", "GPU or CPU slots"):
            table.add_column(name, justify="right")
        for account in self.cluster.accounts:
            self._add_rows(table, account)
        console.print(table)
        sizes = [f"{kind.upper()} jobs of {count(one.cpus, 'CPU')} and {one.mem_mb / 1024:.0f} GB"
                 for kind, one in SIZES.items()]  # fmt: skip
        lines = [f"slots for {' and '.join(sizes)}"]
        lines.append(f"at once: {_sum(self.together)}; each kind alone: {_sum(self.each_kind)}")
        left_out = self.cluster.left_out
        width = max((len(one.account) for one in left_out), default=0)
        lines += ["", "left out:"] if left_out else []
        lines += [f"  {one.account:<{width}}  {one.reason}" for one in left_out]
        for line in lines:
            console.print(plain(line))
        for note in self.cluster.notes:
            console.print(plain(f"note: {note}", "yellow"))

    def as_json(self) -> dict[str, Any]:
        """Return the accounts as plain values; unknown use is null, memory is in MB."""
        return {
            "user": self.cluster.client.user,
            "accounts": [
                {"name": one.name, "qos": one.qos, "limits": [asdict(s) for s in one.scopes],
                 "free": {tres: one.rest(tres) for tres in _SHOWN}}
                for one in self.cluster.accounts
            ],
            "pools": {"independent": [*map(_pool_as_json, self.alone)],
                      "shared": [*map(_pool_as_json, self.together)]},
            "total": {"independent": total_slots(self.each_kind),
                      "shared": total_slots(self.together)},
            "left_out": {one.account: one.reason for one in self.cluster.left_out},
            "notes": self.cluster.notes,
        }  # fmt: skip

    def _add_rows(self, table: Table, account: Account) -> None:
        own = [pool for pool in self.alone
               if (pool.place.account, pool.place.qos) == (account.name, account.qos)]  # fmt: skip
        slots = {k: sum(pool.slots for pool in own if pool.place.kind == k) for k in KINDS}
        free = {k: [pool.free for pool in own if pool.place.kind == k] for k in KINDS}
        both = f"{slots['gpu']} or {slots['cpu']}"
        table.add_row(plain(account.label or "(none)"), *[""] * 4, both, style="bold")
        for scope in account.scopes:
            cells = [_use(scope, tres) for tres in _SHOWN]
            if any(cells):
                table.add_row(Padding(plain(scope.name), (0, 0, 0, 2)), *cells, "")
        rest = [_cell(tres, account.rest(tres)) if account.limit(tres) is not None else ""
                for tres in _SHOWN]  # fmt: skip
        now = [None if None in free[k] else sum(n or 0 for n in free[k]) for k in KINDS]
        text = "?" if None in now else f"{now[0]} or {now[1]}"
        table.add_row("  free", *rest, text, end_section=True)


def _pool_as_json(pool: Pool) -> dict[str, Any]:
    place = pool.place
    return {"account": place.account, "qos": place.qos, "partitions": list(place.partitions),
            "kind": place.kind, "slots": pool.slots, "free": pool.free}  # fmt: skip


def _use(scope: Scope, tres: str) -> str:
    """Return use and limit of a TRES; empty where it is not limited."""
    if tres not in scope.limit:
        return ""
    return f"{_cell(tres, (scope.used or {}).get(tres))} of {_cell(tres, scope.limit[tres])}"


def _cell(tres: str, value: int | None) -> str:
    """Return an amount, memory in GB; a question mark where it is not known."""
    return "?" if value is None else f"{value / (1024 if tres == 'mem' else 1):.0f}"


def _sum(pools: Sequence[Pool]) -> str:
    gpu, cpu = total_slots(pools, "gpu"), total_slots(pools, "cpu")
    return f"{gpu} GPU + {cpu} CPU = {gpu + cpu} jobs"


def plain(words: object, style: str = "") -> Text:
    """Return words of others as a line for the terminal, in which nothing is markup."""
    return Text(printable(words), style)
