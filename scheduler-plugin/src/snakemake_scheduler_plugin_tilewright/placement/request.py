"""What a job asks for, and where it may go."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

DeviceKind = Literal["gpu", "cpu"]

KINDS: tuple[DeviceKind, ...] = ("gpu", "cpu")
#: How much longer a CPU job takes than a GPU job where nothing is known (KINTSUGI: 4 to 6).
SLOWDOWN = 5.0


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What one job needs; ``gpu_mem_mb`` is memory of its device, 0 on CPUs.

    It goes to the ``partition`` that its rule names, and to GPUs of ``gpu_type``, where it names
    one. A partition that allows it less than ``required_min`` minutes does not take it.

    >>> ResourceRequest(2, 4000, 0, 60).double(memory=1).mem_mb
    8000
    """

    cpus: int
    mem_mb: int
    gpus: int
    runtime_min: int
    gpu_mem_mb: int = 0
    gpu_type: str = ""
    partition: str = ""
    required_min: int = 0

    def double(self, memory: int = 0, time: int = 0) -> ResourceRequest:
        """Return it after so many failures for want of memory and of time: each doubles."""
        if not (memory or time):
            return self
        return replace(
            self,
            mem_mb=self.mem_mb * 2**memory,
            runtime_min=self.runtime_min * 2**time,
            gpu_mem_mb=self.gpu_mem_mb * 2**memory,
        )


@lru_cache(maxsize=4096)  # asked for each place of each round
def tres_of(request: ResourceRequest) -> Mapping[str, int]:
    """Return what a job counts as in limits, by Slurm's names; memory in MB."""
    found = {"cpu": request.cpus, "mem": request.mem_mb, "node": 1, "jobs": 1, "submit": 1}
    if request.gpus:
        found["gres/gpu"] = request.gpus
        if request.gpu_type:
            found[f"gres/gpu:{request.gpu_type}"] = request.gpus
    return found


@dataclass(frozen=True)
class ResourceModel:
    """What the jobs of a rule need, and how long they take.

    Attributes
    ----------
    devices : tuple of str
        Device kinds that may run them, the preferred one first.
    request : callable
        Wildcards and device kind to what one job needs there.
    cpu_seconds : callable
        Wildcards to about how long one job takes on CPUs.
    slowdown : float
        How much longer it takes on CPUs than on a GPU, until jobs of the run tell.
    """

    devices: tuple[DeviceKind, ...]
    request: Callable[[Any, DeviceKind], ResourceRequest]
    cpu_seconds: Callable[[Any], float]
    slowdown: float = SLOWDOWN


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job may go: an account on one of its QOS, and a list of partitions.

    Attributes
    ----------
    account, qos : str
        Empty of a Slurm that keeps none.
    partitions : tuple of str
        Slurm starts the job in the first of them that has room; empty is Slurm's default.
    rank : int
        Of places with room those of the lowest rank are taken first.
    """

    account: str
    qos: str
    partitions: tuple[str, ...]
    kind: DeviceKind
    rank: int = 0

    @property
    def pool(self) -> str:
        """Name of the pool of its account and kind."""
        return pool_name(self.account, self.kind)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.account, self.qos, ",".join(self.partitions))))


def pool_name(account: str, device: DeviceKind) -> str:
    """Return the name of the Snakemake resource that counts the slots of an account.

    It is an identifier, and another one for each account: one with other characters than letters,
    digits and underscores, or with a digit in front, gets a number of its own.

    >>> pool_name("clive", "gpu"), pool_name("lab-x", "cpu"), pool_name("12345", "cpu")
    ('clive_gpu', 'lab_x_4198_cpu', 'a12345_3a1c_cpu')
    """
    safe = re.sub(r"\W", "_", account, flags=re.ASCII)
    if safe != account or safe[:1].isdigit():
        letter = "a" if safe[:1].isdigit() else ""
        safe = f"{letter}{safe}_{zlib.crc32(account.encode()) & 0xFFFF:04x}"
    return f"{safe or 'slurm'}_{device}"
