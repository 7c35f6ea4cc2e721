"""Rules, accounts and partitions as tests of placement name them, and the room they leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity, Claim, capacity_now
from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind, Shape
from snakemake_scheduler_plugin_tilewright.slurm.accounts import COUNTED, Account
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.records import JOBS, Partition

GROUP_REASONS = (
    "AssocGrpCPUMinutesLimit",
    "QOSGrpGRESMinutes",
    "QOSGrpGRES",
    "QOSGrpCpuLimit",
    "AssocGrpMemLimit",
    "QOSMaxCpuPerUserLimit",
)
GPU, CPU = Shape(8, 100, 1, 60), Shape(8, 50, 0, 60)
LIMIT = {"cpu": 40, "mem": 400, "gres/gpu": 2}


@dataclass(frozen=True)
class Rules:
    """Rules as a test names them: a shape for each device kind."""

    shapes: Mapping[str, Mapping[Kind, Shape]]
    seconds: float = 60.0

    def kinds(self, rule: str) -> tuple[Kind, ...]:
        return tuple(self.shapes[rule])

    def shape(self, rule: str, wildcards: Any, *, gpu: bool) -> Shape:
        shapes = self.shapes[rule]
        return shapes["gpu"] if gpu else shapes.get("cpu", shapes[next(iter(shapes))])

    def nominal_s(self, rule: str, wildcards: Any) -> float:
        return self.seconds

    def group(self, wildcards: Any) -> str | None:
        return None


def account(name: str, **values: Any) -> Account:
    free = dict.fromkeys((*COUNTED, *JOBS), 0)
    given_ = {"used": free, "mine": free, "limit": {}, **values}
    return Account(name, name, limit_from={}, limit_per_user={}, **given_)


def partition(name: str, **values: Any) -> Partition:
    plain = {"max_time_min": 600, "tres": {"cpu": 9999}, "allow_accounts": None, **values}
    return Partition(name, None, up=True, default=True, allow_qos=None, **plain)


PLACES: dict[Kind, Partition | None] = {"gpu": partition("g"), "cpu": partition("c")}


def room(*accounts: Account, waiting: tuple[SlurmJob, ...] = (), **claims: Shape) -> Capacity:
    sent = [Claim(name, {"cpu": shape.cpus, "mem": shape.mem_mb, "gres/gpu": shape.gpus, "jobs": 1})
            for name, shape in claims.items()]  # fmt: skip
    return capacity_now(accounts, waiting, sent, mode="shared", utilisation=1.0, partitions=PLACES)
