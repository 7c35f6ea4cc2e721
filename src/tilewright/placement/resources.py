"""What the rules call: ``resources: **routed("stitch")`` and ``threads: threads("stitch")``.

Inside a Slurm job the answer is what Slurm granted. In the main process it is the assignment
table that the scheduler plugin writes as jobs are dispatched; where it holds nothing (greedy
scheduler, dry run), a static plan that spreads jobs over the pools by slots and speed. Without a
cluster every job runs here, on the device that ``TILEWRIGHT_DEVICE`` names.
"""

from __future__ import annotations

import inspect
import os
import zlib
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from tilewright.placement.bounds import clipped, too_big
from tilewright.placement.cluster import Cluster
from tilewright.placement.durations import Durations, local_durations
from tilewright.placement.jobs import Kind, Place, Shape, Sizes, key_of, wildcards_of
from tilewright.placement.pools import Pool, pool_name
from tilewright.slurm.accounts import Account

_local: Plan | None = None


@dataclass
class Plan:
    """Where the jobs of a run go.

    Attributes
    ----------
    sizes : Sizes
    device : {"gpu", "cpu"}
        Where jobs run that have no place: this machine's, or the one that Slurm granted.
    cluster : Cluster or None
        In the main process of a run on Slurm.
    granted_cpus : int or None
        Inside a Slurm job, its CPUs.
    ledger : Path or None
        Where decisions are written.
    count_slots : bool
        Jobs also count in the Snakemake resource of their pool: for schedulers that do not look
        at Slurm themselves.
    table : dict of str to Place
        The assignment table: job to place, written at dispatch.
    here : dict of str to {"gpu", "cpu"}
        The same on one machine: job to device kind.
    gpus : callable or None
        On one machine: how many GPUs could hold a job with so many MB of device memory now.
    close : callable
        Called when the run ends, so that the last jobs get into the ledger.
    """

    sizes: Sizes
    device: Kind = "cpu"
    cluster: Cluster | None = None
    granted_cpus: int | None = None
    ledger: Path | None = None
    count_slots: bool = False
    table: dict[str, Place] = field(default_factory=dict)
    here: dict[str, Kind] = field(default_factory=dict)
    gpus: Callable[[int], int] | None = None
    close: Callable[[], None] = lambda: None
    _static: dict[str, Place] = field(default_factory=dict)
    _sized: dict[tuple[str, ...], tuple[Shape, float]] = field(default_factory=dict)
    _durations: Durations | None = None

    def __post_init__(self) -> None:
        global _local
        if self.cluster is not None:
            self.cluster.plan = self
        elif self.gpus is not None:
            _local = self

    @property
    def durations(self) -> Durations:
        """What is known of durations on this cluster."""
        if self._durations is None:
            if self.cluster is None:
                self._durations = Durations(local_durations() if self.gpus else None)
            else:
                site = self.cluster.site
                self._durations = Durations(
                    self.cluster.durations_file, site.slowdown, site.slowdowns
                )
        return self._durations

    def routed(self, rule: str) -> dict[str, Any]:
        """Return the resources of ``rule``, as Snakemake resource functions where jobs differ.

        Each function costs a dry run of 10,000 jobs half a second, so what is the same for all
        jobs of the rule is a constant, and what placement adds later it adds to the job.
        """
        resources: dict[str, Any] = {
            name: self._function(rule, name) for name in ("mem_mb", "runtime")
        }
        able = "gpu" in self.sizes.kinds(rule)
        if self.cluster is None:
            own = ("gpu", "cpu", "gpu_mem_mb") if able and self.device == "gpu" else ()
            return resources | {name: self._function(rule, name) for name in own}
        names = ["slurm_account"]
        names += ["gpu", "slurm_partition"] if able else []
        if any(account.name_qos for account in self.cluster.survey.accounts):
            names.append("qos")
        if self.count_slots:
            names += sorted({pool.name for pool in self._pools()})
        resources |= {name: self._function(rule, name) for name in names}
        if not able and (partition := self.cluster.partition("cpu")):
            resources["slurm_partition"] = partition
        return resources

    def threads(self, rule: str) -> Callable[..., int]:
        """Return the threads of ``rule`` as a Snakemake threads function."""

        def threads(wildcards: Any) -> int:
            if self.granted_cpus is not None:
                return self.granted_cpus
            place = self.place_of(rule, wildcards)
            return place.shape.cpus if place else self._here(rule, wildcards, 1).cpus

        return _signed(threads)

    def place_of(self, rule: str, wildcards: Any) -> Place | None:
        """Return where a job goes: by the table, or the static plan; None without a cluster."""
        if self.cluster is None:
            return None
        key = key_of(rule, wildcards)
        place = self.table.get(key) or self._static.get(key)
        if place is None:
            place = self._static[key] = self._static_place(key, rule, wildcards)
        return place

    def _function(self, rule: str, name: str) -> Callable[..., Any]:
        def resource(wildcards: Any, attempt: int) -> Any:
            place = self.place_of(rule, wildcards)
            shape = place.shape if place else self._here(rule, wildcards, attempt)
            match name:
                case "mem_mb":
                    return shape.mem_mb
                case "runtime":
                    return shape.runtime_min
                case "gpu":
                    return shape.gpus or None
                case "gpu_mem_mb":
                    return shape.gpu_mem_mb
                case "cpu":
                    return None if shape.gpus else shape.cpus
                case "slurm_account":
                    return place.account if place else None
                case "slurm_partition":
                    return place.partition if place else None
                case "qos":
                    return place.qos if place else None
                case _:
                    return 1 if place and place.pool == name else None

        return _signed(resource)

    def _here(self, rule: str, wildcards: Any, attempt: int) -> Shape:
        """Return the shape of a job on this machine, on the first kind without a decision."""
        kind: Kind = "cpu"
        if self.device == "gpu":
            kind = self.here.get(key_of(rule, wildcards)) or self.sizes.kinds(rule)[0]
        return self.sizes.shape(rule, wildcards, gpu=kind == "gpu", attempt=attempt)

    def _pools(self) -> tuple[Pool, ...]:
        survey = self.cluster.survey if self.cluster else None
        return survey.pools[survey.sharing] if survey else ()

    def shape(self, rule: str, wildcards: Any, kind: Kind) -> Shape:
        """Return the shape of a job on a device kind, no longer than its partition allows."""
        key = (rule, kind, *wildcards_of(wildcards))
        if key not in self._sized:
            shape = self.sizes.shape(rule, wildcards, gpu=kind == "gpu")
            self._sized[key] = shape, self.sizes.nominal_s(rule, wildcards)
        shape, nominal_s = self._sized[key]
        minutes = max(shape.runtime_min, self.durations.factor(rule, kind) * nominal_s / 30)
        most = self.cluster.max_time_min(kind) if self.cluster else None
        runtime_min = int(min(minutes, most)) if most is not None else int(minutes)
        return replace(shape, runtime_min=max(1, runtime_min))

    def _static_place(self, key: str, rule: str, wildcards: Any) -> Place:
        """Choose a pool by the job's name, in proportion to slots and speed."""
        assert self.cluster is not None
        kinds = self.sizes.kinds(rule)
        accounts = {account.name: account for account in self.cluster.survey.accounts}
        pools = [
            pool
            for pool in self._pools()
            if pool.kind in kinds
            and not too_big(
                accounts[pool.account],
                self.shape(rule, wildcards, pool.kind),
                self.cluster.survey.partitions[pool.kind],
            )
        ]
        if not pools:
            return self.place(next(iter(accounts.values())), kinds[-1], rule, wildcards)
        speeds = {kind: 1 / self.durations.factor(rule, kind) for kind in kinds}
        ends = list(accumulate(pool.slots * speeds[pool.kind] for pool in pools))
        at = zlib.crc32(key.encode()) / 2**32 * ends[-1]
        pool = pools[bisect(ends, at)]
        return self.place(accounts[pool.account], pool.kind, rule, wildcards)

    def place(self, account: Account, kind: Kind, rule: str, wildcards: Any) -> Place:
        """Return a job's place on an account."""
        assert self.cluster is not None
        return Place(
            account.name,
            account.qos if account.name_qos else None,
            self.cluster.partition(kind),
            kind,
            clipped(
                self.shape(rule, wildcards, kind), account, self.cluster.survey.partitions[kind]
            ),
            pool_name(account.name, kind),
        )


def local_plan() -> Plan | None:
    """Return the plan of this process for one machine with GPUs, None without."""
    return _local


def _signed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a function's parameters where Snakemake looks for them before it inspects.

    It inspects its own method twice and the function once for every resource of every job, 45 µs
    each: a quarter of the time of a dry run.
    """
    from snakemake.common import FUNC_OVERWRITE_PARAMS_ATTR as REMEMBERED
    from snakemake.resources import Resource

    setattr(function, REMEMBERED, inspect.signature(function).parameters)
    if not hasattr(Resource.evaluate, REMEMBERED):
        bound = inspect.signature(Resource("name", 1).evaluate).parameters
        setattr(Resource.evaluate, REMEMBERED, bound)
    return function


def other_scheduler(argv: Sequence[str]) -> bool:
    """Return whether a Snakemake command names a scheduler other than ours.

    Examples
    --------
    >>> other_scheduler(["snakemake", "--scheduler", "greedy"]), other_scheduler(["snakemake"])
    (True, False)
    """
    named = [argv[i + 1] for i, word in enumerate(argv[:-1]) if word == "--scheduler"]
    named += [word.partition("=")[2] for word in argv if word.startswith("--scheduler=")]
    return any(name != "tilewright" for name in named)


def granted_cpus(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the CPUs that Slurm granted this job, None where it does not say."""
    text = environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE") or ""
    return int(text) if text.isdigit() else None
