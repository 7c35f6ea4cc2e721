"""What a job asks for, and where it may go."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from typing import Literal

DeviceKind = Literal["gpu", "cpu"]

KINDS: tuple[DeviceKind, ...] = ("gpu", "cpu")


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What one job needs.

    ``gpu_mem_mb`` is memory of its device, 0 on CPUs; its node has all ``features``, and GPUs of
    ``gpu_type`` where it names one; ``licences`` are names and numbers. ``partition`` is the one
    that its rule names, empty for that of its device kind. A target that allows it less than
    ``required_min`` minutes does not take it. It runs in the ``reservation``, on ``only_nodes`` and
    on none of ``not_nodes``, where any are named.

    >>> ResourceRequest(2, 4000, 0, 60).double(memory=1).mem_mb
    8000
    """

    cpus: int
    mem_mb: int
    gpus: int
    runtime_min: int
    gpu_mem_mb: int = 0
    features: tuple[str, ...] = ()
    gpu_type: str = ""
    licences: tuple[tuple[str, int], ...] = ()
    partition: str = ""
    required_min: int = 0
    reservation: str = ""
    only_nodes: tuple[str, ...] = ()
    not_nodes: tuple[str, ...] = ()

    def double(self, memory: int = 0, time: int = 0) -> ResourceRequest:
        """Return it after so many failures for want of memory and of time: each doubles."""
        return replace(
            self,
            mem_mb=self.mem_mb * 2**memory,
            runtime_min=self.runtime_min * 2**time,
            gpu_mem_mb=self.gpu_mem_mb * 2**memory,
        )


@dataclass(frozen=True, slots=True)
class Target:
    """Where a job may go.

    Attributes
    ----------
    account : str
        Empty of a Slurm that keeps none.
    qos : str
        One that the account's jobs may name; empty where it has none.
    partition : str or None
        None where Slurm's default is taken.
    """

    account: str
    qos: str
    partition: str | None
    device: DeviceKind

    @property
    def name(self) -> str:
        """Account, QOS, partition and device in one text."""
        return f"{self.account} {self.qos} {self.partition} {self.device}"

    @property
    def pool(self) -> str:
        """Name of the Snakemake resource that counts its slots."""
        return pool_name(self.account, self.device)


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
