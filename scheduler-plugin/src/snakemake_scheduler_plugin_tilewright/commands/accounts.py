"""The survey of accounts as a table of 80 columns, or as JSON."""

from __future__ import annotations

import os
import pwd
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

import platformdirs
import typer
from rich.console import Console
from rich.table import Table

from snakemake_scheduler_plugin_tilewright.commands.checks import sizes_text
from snakemake_scheduler_plugin_tilewright.commands.slurm_here import slurm_wanted
from snakemake_scheduler_plugin_tilewright.placement.budgets import Budget, budgets
from snakemake_scheduler_plugin_tilewright.placement.cluster import Survey, SurveyError, survey
from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    Sharing,
    left,
    total_slots,
    unknown_use,
)
from snakemake_scheduler_plugin_tilewright.placement.site import Site, SiteError, read_site
from snakemake_scheduler_plugin_tilewright.slurm.accounts import COUNTED, Account
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient


def show_accounts(site: Path | None, user: str | None, *, json: bool) -> None:
    """Look at the accounts of a user, yours without one, and print what was found."""
    if not slurm_wanted(site):
        raise SystemExit("accounts: no Slurm here: jobs run on this machine")
    try:
        person = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
        client = SlurmClient(person.pw_name, platformdirs.user_cache_path("tilewright"))
        rules = read_site(site)
        found = survey(client, person.pw_uid, rules)
    except KeyError:
        raise SystemExit(f"accounts: there is no user {user}") from None
    except (SiteError, SurveyError) as error:
        raise SystemExit(f"accounts: {error}") from None
    if json:
        typer.echo(dumps(as_json(found), indent=2))
    else:
        print_survey(found, rules, Console())


def print_survey(survey: Survey, site: Site, console: Console) -> None:
    """Print limits, use and slots of every account, and who is left out and why."""
    console.print(_table(survey))
    console.print(sizes_text(site.shapes()), highlight=False)
    for line in _totals(survey):
        console.print(line, highlight=False, markup=False)
    for account in survey.accounts:
        for budget in left_of(account, survey):
            console.print(f"left on {account.name}: {budget}", highlight=False, markup=False)
    if survey.left_out:
        console.print("\nleft out:", highlight=False)
        width = max(len(one.account) for one in survey.left_out)
        for one in survey.left_out:
            console.print(f"  {one.account:<{width}}  {one.reason}", highlight=False, markup=False)
    for note in survey.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)


def as_json(survey: Survey) -> dict[str, Any]:
    """Return the survey as plain values; unknown use is null, memory is in MB."""
    return {
        "user": survey.user,
        "accounts": [
            {
                "name": account.name,
                "qos": account.qos,
                "limit": account.limit,
                "limit_from": dict(account.limit_from),
                "used": account.used,
                "mine": account.mine,
                "free": {
                    tres: None if tres in unknown_use(account) else left(account, None, tres)
                    for tres in account.limit
                },
                "budgets": [
                    {**asdict(one), "left": one.left, "words": str(one)}
                    for one in left_of(account, survey)
                ],
            }
            for account in survey.accounts
        ],
        "pools": {mode: [asdict(pool) for pool in pools] for mode, pools in survey.pools.items()},
        "sharing": survey.sharing,
        "sharing_reason": survey.sharing_reason,
        "total": {mode: total_slots(pools) for mode, pools in survey.pools.items()},
        "left_out": {one.account: one.reason for one in survey.left_out},
        "notes": [note.text for note in survey.notes],
    }


def left_of(account: Account, survey: Survey) -> list[Budget]:
    """Return what is left of the budgets that bound an account's jobs in any partition."""
    found = [one for where in survey.partitions.values() for one in budgets(account, where)]
    return list(dict.fromkeys(found))


def _table(survey: Survey) -> Table:
    table = Table(title=f"Accounts of {survey.user}", title_justify="left", pad_edge=False)
    table.add_column("account", no_wrap=True)
    table.add_column("")
    for name in ("CPU", "memory GB", "GPU"):
        table.add_column(name, justify="right")
    table.add_column("GPU + CPU slots", justify="right")
    for account in survey.accounts:
        slots = _slots(survey, account.name, "independent", now=False)
        table.add_row(account.name or "(none)", "limit", *_row(account.limit, "no limit"), slots)
        table.add_row(f"qos {account.qos}", "others", *_row(_others(account), "?"), "")
        table.add_row("", "mine", *_row(account.mine, "?"), "")
        free = {t: n for t in COUNTED if (n := left(account, None, t)) is not None}
        unseen = unknown_use(account)
        known = {t: n for t, n in free.items() if t not in unseen}
        unknown = account.used is None or unseen
        now = "?" if unknown else _slots(survey, account.name, "independent", now=True)
        table.add_row("", "free", *_row(known, "?"), now, end_section=True)
    return table


def _others(account: Account) -> dict[str, int] | None:
    if account.used is None or account.mine is None:
        return None
    return {tres: max(0, n - account.mine.get(tres, 0)) for tres, n in account.used.items()}


def _row(values: dict[str, int] | None, absent: str) -> list[str]:
    """Return CPUs, memory in GB and GPUs as cells."""
    cells = []
    for tres in ("cpu", "mem", "gres/gpu"):
        value = (values or {}).get(tres)
        cells.append(absent if value is None else f"{value / 1024 if tres == 'mem' else value:.0f}")
    return cells


def _slots(survey: Survey, account: str, mode: Sharing, *, now: bool) -> str:
    def count(device: Kind) -> int:
        pools = [p for p in survey.pools[mode] if (p.account, p.kind) == (account, device)]
        return sum(p.free if now else p.slots for p in pools)

    return f"{count('gpu')} + {count('cpu')}"


def _totals(survey: Survey) -> list[str]:
    """Return the totals; both counts where they differ, and which one holds."""
    counts = {mode: [(p.name, p.slots) for p in survey.pools[mode]] for mode in survey.pools}
    if counts["independent"] == counts["shared"]:
        return [f"at once: {_sum(survey, survey.sharing)}"]
    lines = [
        f"at once: {_sum(survey, 'independent')}, GPU and CPU jobs counted apart",
        f"         {_sum(survey, 'shared')}, GPU jobs first, CPU jobs in what they leave",
    ]
    bounds = [
        f"{p.account} {p.slots} ({p.bound})" for p in survey.pools["shared"] if p.kind == "cpu"
    ]
    lines.append(f"{survey.sharing} holds here: {survey.sharing_reason}")
    lines.append(f"CPU slots beside all GPU jobs: {', '.join(bounds) or 'none'}")
    return lines


def _sum(survey: Survey, mode: Sharing) -> str:
    gpu, cpu = total_slots(survey.pools[mode], "gpu"), total_slots(survey.pools[mode], "cpu")
    return f"{gpu} GPU + {cpu} CPU = {gpu + cpu} jobs"
