"""What of a test cluster can be chosen: accounts, nodes, users, timeouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MemoryMode = Literal["cgroup", "gather"]
Part = Literal["munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd"]

#: A burst QOS holds nine times the CPUs and memory of its account, and no GPU (HiPerGator's rule).
BURST_FACTOR = 9


@dataclass(frozen=True)
class Account:
    """An investment: the limits of a Slurm account, kept on the QOS of the same name."""

    name: str
    cpus: int
    mem_gb: int
    gpus: int

    @property
    def burst_name(self) -> str:
        return f"{self.name}-b"

    @property
    def limit(self) -> str:
        return f"GrpTRES=cpu={self.cpus},mem={self.mem_gb}G,gres/gpu={self.gpus}"

    @property
    def burst_limit(self) -> str:
        cpus, mem_gb = BURST_FACTOR * self.cpus, BURST_FACTOR * self.mem_gb
        return f"GrpTRES=cpu={cpus},mem={mem_gb}G,gres/gpu=0"


@dataclass(frozen=True)
class Node:
    """A node of a pretended size; its GPUs are names for /dev/null."""

    name: str
    partition: str
    cpus: int
    mem_mb: int
    gpu_type: str = ""
    gpus: int = 0


WORKED_EXAMPLE = (
    Account("clive", 104, 812, 3),
    Account("maigan", 80, 625, 2),
    Account("brusko", 32, 250, 1),
)
HIPERGATOR = (
    Node("c1", "hpg-default", 128, 1_000_000),
    Node("c2", "hpg-default", 128, 1_000_000),
    Node("b1", "hpg-b200", 112, 2_000_000, "b200", 8),
    Node("t1", "hpg-turin", 96, 750_000, "l4", 3),
)


@dataclass(frozen=True)
class Settings:
    """A cluster to start.

    Parameters
    ----------
    accounts, nodes : tuple
        The first account is every user's default, the first node's partition the default one.
    users : tuple of str
        Members of every account; created where the machine lacks them.
    slurmd_timeout_s : int
        Silence after which a node is down and its jobs end NODE_FAIL. slurmctld looks every
        half minute: with 10 and with 15 alike, that took 26 to 34 s.
    kill_wait_s : int
        Time between TERM and KILL for a job that is cancelled or out of time.
    min_job_age_s : int
        How long slurmctld remembers an ended job (``scontrol show job``).
    private_data : str
        ``PrivateData`` of slurmctld and slurmdbd, for example ``"jobs,usage"``.
    memory : {"cgroup", "gather"} or None
        How a job over its memory is ended; ``None`` takes cgroups where they can be had.
    lock_wait_s : float
        How long to wait for another test session's cluster on this machine to end.
    accounting : bool
        False: no slurmdbd, hence no accounts, no limits, and no :meth:`Client.jobs`.
    """

    accounts: tuple[Account, ...] = WORKED_EXAMPLE
    nodes: tuple[Node, ...] = HIPERGATOR
    users: tuple[str, ...] = ("root", "kuser", "labmate")
    slurmd_timeout_s: int = 15
    kill_wait_s: int = 3
    min_job_age_s: int = 300
    private_data: str = ""
    memory: MemoryMode | None = None
    lock_wait_s: float = 300
    accounting: bool = True

    @property
    def partitions(self) -> dict[str, list[Node]]:
        """The nodes of each partition, the default partition first."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.partition, []).append(node)
        return found

    @property
    def qos_limits(self) -> dict[str, str]:
        """The ``GrpTRES`` setting of every QOS, burst ones included."""
        found: dict[str, str] = {}
        for account in self.accounts:
            found[account.name] = account.limit
            found[account.burst_name] = account.burst_limit
        return found
