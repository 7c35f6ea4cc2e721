"""The accounts as a table of 80 columns, or as JSON."""

import pwd
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ..begin import look_at_cluster
from ..placement.accounts import Account, Scope
from ..placement.cluster import Cluster, own_client
from ..placement.request import KINDS, DeviceKind, ResourceRequest
from ..pools import SIZES, Pool, make_pools, total_slots
from ..runtime.errors import PlacementError
from ..runtime.words import count
from ..settings import settings_of
from ..slurm.query import SlurmClient
from .checks import plain
from .slurm_here import has_slurm

#: TRES and numbers of jobs that have a column.
_SHOWN = ("cpu", "mem", "gres/gpu", "jobs")
#: Columns of a name.
_NAME = 20


def show_accounts(
    profile: Path | None, user: str | None, sizes: Mapping[DeviceKind, str | None], *, json: bool
) -> None:
    """Look at the accounts of a user, yours without one, and print what was found.

    Parameters
    ----------
    sizes : mapping
        Device kind to the size of the jobs that are counted, as ``8:48`` for 8 CPUs and 48 GB.
    """
    if not has_slurm():
        raise SystemExit("accounts: no Slurm here: jobs run on this machine")
    try:
        client = _client_of(user) if user else own_client()
        settings = settings_of(profile)
        found = look_at_cluster(settings, client)
        found.look_at_nodes()
    except KeyError:
        raise SystemExit(f"accounts: there is no user {user}") from None
    except PlacementError as error:
        raise SystemExit(f"accounts: {error}") from None
    shown = Accounts(found, _sizes(sizes), settings.cpu_share)
    if json:
        typer.echo(dumps(shown.as_json(), indent=2))
    else:
        shown.print(Console())


def _client_of(user: str) -> SlurmClient:
    found = pwd.getpwnam(user)
    return SlurmClient(found.pw_name, uid=found.pw_uid)


def _sizes(given: Mapping[DeviceKind, str | None]) -> dict[DeviceKind, ResourceRequest]:
    found = dict(SIZES)
    for kind, text in given.items():
        if text is None:
            continue
        cpus, _, mem_gb = text.partition(":")
        if not (cpus.isdecimal() and mem_gb.isdecimal() and int(cpus)):
            raise SystemExit(f"accounts: --{kind}-job is {text}; give CPUS:GB, as 8:48")
        usual = found[kind]
        found[kind] = ResourceRequest(int(cpus), int(mem_gb) * 1024, usual.gpus, 60)
    return found


class Accounts:
    """What is shown of a cluster."""

    def __init__(
        self, cluster: Cluster, sizes: Mapping[DeviceKind, ResourceRequest], cpu_share: float
    ) -> None:
        self.cluster, self.sizes = cluster, sizes
        self.alone = make_pools(cluster, sizes, cpu_share)
        self.together = make_pools(cluster, sizes, cpu_share, together=True)
        self.each_kind = [
            pool for kind, size in sizes.items()
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
                 for kind, one in self.sizes.items()]  # fmt: skip
        lines = [f"slots for {' and '.join(sizes)} (--gpu-job, --cpu-job)"]
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
