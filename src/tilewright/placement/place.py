"""A place: the account, partition and device kind that a job was given, and with what shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.placement.shapes import Shape
from tilewright.placement.workload import Kind


@dataclass(frozen=True)
class Place:
    """Where one job runs.

    Attributes
    ----------
    account : str
    qos : str or None
        None where Slurm takes the account's by itself: then the user may change the account.
    partition : str or None
    kind : {"gpu", "cpu"}
    shape : Shape
        What it asks Slurm for.
    pool : str
        Name of the Snakemake resource that counts its slot.
    exclude : tuple of str
        Nodes it must not run on.
    """

    account: str
    qos: str | None
    partition: str | None
    kind: Kind
    shape: Shape
    pool: str
    exclude: tuple[str, ...] = ()


class Sizes(Protocol):
    """What a workflow says of its rules: who may use a GPU, what a job needs, how long it takes."""

    def kinds(self, rule: str) -> tuple[Kind, ...]:
        """Return the device kinds that may run a rule."""
        ...

    def shape(self, rule: str, wildcards: Any, *, gpu: bool, attempt: int = 1) -> Shape:
        """Return what one job needs on a device kind."""
        ...

    def nominal_s(self, rule: str, wildcards: Any) -> float:
        """Return about how long one job takes on CPUs."""
        ...

    def group(self, wildcards: Any) -> str | None:
        """Return what a job belongs to that better stays on one account."""
        ...


def key_of(rule: str, wildcards: Any) -> str:
    """Return the name of a job: its rule and wildcards, as the executor's comment has them.

    Examples
    --------
    >>> key_of("stitch", {"sample": "a", "cycle": "1"})
    'rule_stitch_wildcards_a_1'
    """
    values = "_".join(wildcards_of(wildcards)).replace("/", "_")
    return f"rule_{rule}_wildcards_{values}" if values else f"rule_{rule}"


def wildcards_of(wildcards: Any) -> Iterable[str]:
    """Return the values of wildcards, which Snakemake's own container iterates over."""
    return map(str, wildcards.values() if isinstance(wildcards, Mapping) else wildcards or ())
