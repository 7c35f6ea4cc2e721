"""The jobs of a run as the dispatcher keeps them, and what the queue says of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.placement.place import Place
from tilewright.placement.retry import Past
from tilewright.placement.shapes import Shape
from tilewright.placement.workload import Kind
from tilewright.slurm.jobs import SlurmJob


@dataclass(frozen=True)
class Fixed:
    """What the user chose for a rule with ``--set-resources`` or ``--set-threads``."""

    account: str | None = None
    cpus: int | None = None
    mem_mb: int | None = None
    runtime_min: int | None = None

    def applied(self, shape: Shape) -> Shape:
        """Return a shape with what was chosen."""
        return replace(
            shape,
            cpus=self.cpus or shape.cpus,
            mem_mb=self.mem_mb or shape.mem_mb,
            runtime_min=self.runtime_min or shape.runtime_min,
        )


@dataclass
class Task:
    """One job.

    Attributes
    ----------
    name, rule : str
        Name as in the executor's comment.
    wildcards : object
    kinds : tuple of str
        Kind kinds that may run it.
    needs : tuple of str
        Names of the jobs it waits for.
    nominal_s : float
        About how long it takes on CPUs.
    group : str or None
        What it better shares an account with.
    fixed : Fixed
    log : str
        Its log file.
    place : Place or None
        Where it was sent.
    sent_s : float
        When; seconds since the epoch.
    after_id : int
        The queue's jobs up to this number are not this try.
    seen : SlurmJob or None
        What the queue last said of this try.
    past : Past
    moved : str
        Why it was cancelled to be placed anew; empty if it was not.
    anew : bool
        It was ended on CPUs to begin anew on a GPU, and is not moved again.
    """

    name: str
    rule: str
    wildcards: Any
    kinds: tuple[Kind, ...]
    needs: tuple[str, ...] = ()
    nominal_s: float = 60.0
    group: str | None = None
    fixed: Fixed = Fixed()
    log: str = ""
    place: Place | None = None
    sent_s: float = 0.0
    after_id: int = 0
    seen: SlurmJob | None = None
    past: Past = field(default_factory=Past)
    moved: str = ""
    anew: bool = False

    @property
    def waiting(self) -> bool:
        """Whether it was sent and the queue does not show it yet."""
        return self.place is not None and self.seen is None

    @property
    def active(self) -> bool:
        """Whether it was sent and has not ended, as far as the queue says."""
        return self.place is not None and (self.seen is None or self.seen.active)


def observe(tasks: Iterable[Task], queue: Iterable[SlurmJob], workdir: str) -> None:
    """Note what the queue says of each job that was sent from a folder."""
    last: dict[str, SlurmJob] = {}
    for job in queue:
        if job.workdir == workdir and (job.comment not in last or job.id > last[job.comment].id):
            last[job.comment] = job
    for task in tasks:
        found = last.get(task.name)
        if task.place is not None and found is not None and found.id > task.after_id:
            task.seen = found
