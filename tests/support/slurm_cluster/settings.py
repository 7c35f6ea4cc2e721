"""The accounts, nodes and users of the test cluster."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Account:
    """An investment: the limits of a Slurm account, kept on the QOS of the same name."""

    name: str
    cpus: int
    mem_gb: int
    gpus: int

    @property
    def limits(self) -> dict[str, str]:
        """``GrpTRES`` of its QOS and of its burst QOS, which has nine times as much and no GPU."""
        amounts = {self.name: (1, self.gpus), f"{self.name}-b": (9, 0)}
        return {
            qos: f"GrpTRES=cpu={k * self.cpus},mem={k * self.mem_gb}G,gres/gpu={gpus}"
            for qos, (k, gpus) in amounts.items()
        }


@dataclass(frozen=True)
class Node:
    """A node of a pretended size; its GPUs are names for /dev/null."""

    name: str
    partition: str
    cpus: int
    mem_mb: int
    gpu_type: str = ""
    gpus: int = 0


#: The worked example. The first is every user's default account.
ACCOUNTS = (
    Account("clive", 104, 812, 3),
    Account("maigan", 80, 625, 2),
    Account("brusko", 32, 250, 1),
)
QOS_LIMITS = {qos: limit for account in ACCOUNTS for qos, limit in account.limits.items()}
#: The first node's partition is the default one.
NODES = (
    Node("c1", "hpg-default", 128, 1_000_000),
    Node("c2", "hpg-default", 128, 1_000_000),
    Node("b1", "hpg-b200", 112, 2_000_000, "b200", 8),
    Node("t1", "hpg-turin", 96, 750_000, "l4", 3),
)
NODE_NAMES = [node.name for node in NODES]
PARTITIONS = tuple(dict.fromkeys(node.partition for node in NODES))
#: Members of every account; created where the machine lacks them.
USERS = ("root", "kuser", "labmate")
