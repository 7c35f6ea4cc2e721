"""The text of every configuration file of a test cluster, and where the cluster lives."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from tests.support.slurm_cluster.settings import MemoryMode, Settings

DATABASE_PASSWORD = "only-reachable-from-this-machine"

#: Keys of ``slurm.conf`` that make scheduling quick.
#: batch_sched_delay, sched_interval, bf_interval: a job starts within a second, not a minute.
_SCHEDULING = """
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,\
bf_interval=1,bf_continue,bf_max_job_test=1000,default_queue_depth=1000
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightFairshare=10000
PriorityWeightQOS=100000
MaxJobCount=20000
"""

#: config_overrides: the sizes below are believed, not those of this machine.
#: ReturnToService=2: a node that registers again is up again, whatever took it down.
_HARDWARE = """
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
PropagateResourceLimits=NONE
"""

#: job_comment: sacct shows the comment, where Snakemake's plugin writes the rule's name.
_ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu,gres/gpu:b200
AccountingStoreFlags=job_comment
PreemptType=preempt/qos
PreemptMode=REQUEUE
"""
_GATHER = """
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
"""

#: UnkillableStepTimeout must exceed 5 x MessageTimeout: with 30 s, jobs that ended while
#: slurmctld was away were "Kill task failed" and drained their node.
_TIMEOUTS = """
MessageTimeout=10
TCPTimeout=2
SlurmctldTimeout=10
BatchStartTimeout=10
UnkillableStepTimeout=180
"""

_MEMORY: dict[MemoryMode, str] = {
    "cgroup": "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\n",
    "gather": "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
    "JobAcctGatherParams=OverMemoryKill\n",
}


@dataclass(frozen=True)
class Place:
    """Where one cluster lives: its folder, its ports, and how it holds memory limits."""

    folder: Path
    slurmctld_port: int
    slurmdbd_port: int
    database_port: int
    node_ports: tuple[int, ...]
    memory: MemoryMode

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge" / "munge.socket"

    def gpu(self, index: str) -> Path:
        return self.folder / "dev" / f"nvidia{index}"


def _who_and_where(place: Place) -> str:
    """Users, sockets and folders.

    cred_expire is also how long a requeued job waits before it may start: 120 s by default.
    """
    folder = place.folder
    return f"""\
ClusterName=tilewright
SlurmctldHost={socket.gethostname().split(".")[0]}(127.0.0.1)
SlurmctldPort={place.slurmctld_port}
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place.munge_socket},cred_expire=10
CredType=cred/munge
AccountingStoragePort={place.slurmdbd_port}
AccountingStoragePass={place.munge_socket}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.own
SlurmdPidFile={folder}/run/slurmd-%n.own
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
"""


def _nodes_and_partitions(settings: Settings, place: Place) -> str:
    host = socket.gethostname().split(".")[0]
    lines = []
    for node, port in zip(settings.nodes, place.node_ports, strict=True):
        gres = f" Gres=gpu:{node.gpu_type}:{node.gpus}" if node.gpus else ""
        lines.append(
            f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={node.cpus} RealMemory={node.mem_mb}{gres} State=UNKNOWN"
        )
    lines.append(
        "PartitionName=DEFAULT State=UP DefaultTime=10 MaxTime=31-00:00:00 DefMemPerCPU=1000"
    )
    for index, (name, nodes) in enumerate(settings.partitions.items()):
        names = ",".join(node.name for node in nodes)
        lines.append(f"PartitionName={name} Nodes={names} Default={'NO' if index else 'YES'}")
    return "\n".join(lines) + "\n"


def slurm_conf(settings: Settings, place: Place) -> str:
    """Return ``slurm.conf``."""
    chosen = (
        f"SlurmdTimeout={settings.slurmd_timeout_s}\n"
        f"KillWait={settings.kill_wait_s}\n"
        f"MinJobAge={settings.min_job_age_s}\n"
    )
    if settings.private_data:
        chosen += f"PrivateData={settings.private_data}\n"
    return (
        _who_and_where(place)
        + _HARDWARE
        + _MEMORY[place.memory]
        + _GATHER
        + (_ACCOUNTING if settings.accounting else "")
        + _SCHEDULING
        + _TIMEOUTS
        + chosen
        + _nodes_and_partitions(settings, place)
    )


def gres_conf(settings: Settings, place: Place) -> str:
    """Return ``gres.conf``: device files are what makes Slurm set CUDA_VISIBLE_DEVICES."""
    return "".join(
        f"NodeName={node.name} Name=gpu Type={node.gpu_type} "
        f"File={place.gpu(f'[0-{node.gpus - 1}]' if node.gpus > 1 else '0')}\n"
        for node in settings.nodes
        if node.gpus
    )


def cgroup_conf(place: Place) -> str:
    """Return ``cgroup.conf``; cores stay free, since the nodes pretend to have more of them."""
    if place.memory == "gather":
        return "ConstrainRAMSpace=no\nConstrainCores=no\nConstrainDevices=no\n"
    return (
        "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=no\n"
        "ConstrainCores=no\nConstrainDevices=no\n"
    )


def slurmdbd_conf(settings: Settings, place: Place) -> str:
    """Return ``slurmdbd.conf``."""
    private = f"PrivateData={settings.private_data}\n" if settings.private_data else ""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={place.munge_socket}
DbdHost={socket.gethostname().split(".")[0]}
DbdAddr=127.0.0.1
DbdPort={place.slurmdbd_port}
SlurmUser=slurm
LogFile={place.folder}/log/slurmdbd.log
PidFile={place.folder}/run/slurmdbd.own
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={place.database_port}
StorageUser=slurm
StoragePass={DATABASE_PASSWORD}
StorageLoc=slurm_acct_db
{private}"""


def database_init() -> str:
    """Return the SQL that MariaDB runs at each start: Slurm's database and its user."""
    users = ("'slurm'@'127.0.0.1'", "'slurm'@'localhost'")
    lines = ["CREATE DATABASE IF NOT EXISTS slurm_acct_db;"]
    for user in users:
        lines.append(f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{DATABASE_PASSWORD}';")
        lines.append(f"GRANT ALL ON slurm_acct_db.* TO {user};")
    return "\n".join(lines) + "\n"
