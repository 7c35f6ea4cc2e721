"""What a run found of the cluster, in a few lines at its start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Kind
from snakemake_scheduler_plugin_tilewright.placement.limits import largest, left, unknown_use
from snakemake_scheduler_plugin_tilewright.placement.survey import Survey
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account
from snakemake_scheduler_plugin_tilewright.slurm.records import Partition

#: Accounts with words of their own, and names of those left out for one reason.
_ACCOUNTS, _LEFT_OUT = 3, 4
_SHOWN = {"cpu": "CPU", "mem": "GB", "gres/gpu": "GPU", "jobs": "job"}


def first_look(survey: Survey) -> list[str]:
    """Return the accounts and their limits, what is left out and why, and the partitions."""
    shown = survey.accounts[:_ACCOUNTS]
    lines = [
        f"  {account.name}: {_limits(account, survey.partitions)}"
        for account in shown
        if account.name
    ]
    count = len(survey.accounts)
    head = f"jobs go to {count} account{'s' * (count != 1)} of {survey.user}"
    if not lines:
        head = "this Slurm keeps no accounts, so jobs go where its nodes have room"
    hint = "; see `tilewright-placement accounts`" if lines else ""
    if others := [account.name for account in survey.accounts[_ACCOUNTS:]]:
        lines.append(f"  and {_names(others)}")
    why: dict[str, list[str]] = {}
    for one in survey.left_out:
        why.setdefault(one.reason, []).append(one.account)
    lines += [f"  left out: {_names(names)}: {reason}" for reason, names in why.items()]
    found = {kind: survey.partitions[kind] for kind in KINDS}
    lines.append(
        "  partitions: "
        + "; ".join(
            f"{kind.upper()} jobs to {where.name}" if where else f"none for {kind.upper()} jobs"
            for kind, where in found.items()
        )
    )
    return [head + hint, *lines, *_notes(note.text for note in survey.notes)]


def _limits(account: Account, partitions: Mapping[Kind, Partition | None]) -> str:
    """Return what an account may use, and what of it is free now."""
    where = {tres: partitions["gpu" if tres == "gres/gpu" else "cpu"] for tres in _SHOWN}
    most = {tres: largest(account, where[tres], tres) for tres in _SHOWN}
    limits = [_amount(tres, n) for tres, n in most.items() if n is not None]
    own = f"QOS {account.qos}, " if account.qos else ""
    if not limits:
        return f"{own}no limit of its own"
    known = [
        _amount(tres, n)
        for tres in _SHOWN
        if not any(tres in unknown for unknown in unknown_use(account, where[tres]).values())
        and (n := left(account, where[tres], tres)) is not None
    ]
    now = f"{', '.join(known)} free now" if known else "what is free now is not known"
    return f"{own}{', '.join(limits)}; {now}"


def _names(names: list[str]) -> str:
    rest = len(names) - _LEFT_OUT
    return ", ".join(names[:_LEFT_OUT]) + (f" and {rest} more" if rest > 0 else "")


def _amount(tres: str, count: int) -> str:
    if tres == "mem":
        return f"{count / 1024:.0f} GB"
    return f"{count} {_SHOWN[tres]}{'s' * (count != 1)}"


def _notes(texts: Iterable[str]) -> list[str]:
    return [f"  note: {text}" for text in dict.fromkeys(texts)]
