"""Budgets of accounts: minutes of CPUs, GPUs and jobs that may be used in all (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from snakemake_scheduler_plugin_tilewright.placement.needs import in_hours
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account
from snakemake_scheduler_plugin_tilewright.slurm.records import BUDGETS, Partition


@dataclass(frozen=True)
class Budget:
    """What is left of one budget of an account.

    Attributes
    ----------
    name : str
        Of :data:`~snakemake_scheduler_plugin_tilewright.slurm.records.BUDGETS`.
    holder : str
        Whose it is: a QOS, an account, or one above it.
    used : int or None
        With what running jobs may still take; None where Slurm did not say.
    """

    name: str
    holder: str
    limit: int
    used: int | None

    @property
    def left(self) -> int | None:
        """Minutes that are left; None where that is not known."""
        return None if self.used is None else max(0, self.limit - self.used)

    def __str__(self) -> str:
        """Return what is left in hours."""
        left = "?" if self.left is None else in_hours(self.name, self.left)
        return f"{left} of {in_hours(self.name, self.limit)} ({self.holder})"


def budgets(account: Account, partition: Partition | None = None) -> list[Budget]:
    """Return what is left of the budgets that bound an account's jobs."""
    return [
        Budget(name, holder.name, holder.limit[name], (holder.used or {}).get(name))
        for name in BUDGETS
        for holder in account.within(partition).holders
        if name in holder.limit
    ]
