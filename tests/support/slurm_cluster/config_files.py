"""The text of every configuration file of a test cluster, and where the cluster lives."""

import socket
from dataclasses import dataclass
from pathlib import Path

from tests.support.slurm_cluster.settings import NODES, PARTITIONS

_DATABASE_PASSWORD = "only-reachable-from-this-machine"
_HOST = socket.gethostname().split(".")[0]

#: Keys of ``slurm.conf`` for all clusters, alike.
#: cred_expire is also how long a requeued job waits before it may start: 120 s by default.
#: config_overrides: the sizes of nodes below are believed, not those of this machine.
#: ReturnToService=2: a node that registers again is up again, whatever took it down.
#: batch_sched_delay, sched_interval, bf_interval: a job starts within a second, not a minute.
#: MinJobAge: how long slurmctld remembers an ended job (``scontrol show job``).
#: UnkillableStepTimeout must exceed 5 x MessageTimeout: with 30 s, jobs that ended while
#: slurmctld was away were "Kill task failed" and drained their node.
_SLURM = """\
ClusterName=tilewright
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire=10
CredType=cred/munge
AccountingStoragePort={ports[1]}
AccountingStoragePass={munge}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.own
SlurmdPidFile={folder}/run/slurmd-%n.own
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
PropagateResourceLimits=NONE
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,\
bf_interval=1,bf_continue,bf_max_job_test=1000,default_queue_depth=1000
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightFairshare=10000
PriorityWeightQOS=100000
MaxJobCount=20000
MessageTimeout=10
TCPTimeout=2
SlurmctldTimeout=10
BatchStartTimeout=10
UnkillableStepTimeout=180
SlurmdTimeout=15
KillWait=3
MinJobAge=300
PartitionName=DEFAULT State=UP DefaultTime=10 MaxTime=31-00:00:00 DefMemPerCPU=1000
"""
#: job_comment: sacct shows the comment, where Snakemake's plugin writes the rule's name.
_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu,gres/gpu:b200
AccountingStoreFlags=job_comment
PreemptType=preempt/qos
PreemptMode=REQUEUE
"""
_SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={ports[1]}
SlurmUser=slurm
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.own
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports[2]}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
"""


@dataclass(frozen=True)
class Place:
    """Where one cluster lives: its folder, its ports, and whether cgroups hold memory limits.

    The ports are those of slurmctld, slurmdbd, the database and the nodes.
    """

    folder: Path
    ports: tuple[int, ...]
    cgroups: bool

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge" / "munge.socket"

    def gpu(self, index: str) -> Path:
        return self.folder / "dev" / f"nvidia{index}"


def _filled(template: str, place: Place) -> str:
    return template.format(
        host=_HOST, folder=place.folder, ports=place.ports, munge=place.munge_socket,
        password=_DATABASE_PASSWORD,
    )  # fmt: skip


def slurm_conf(place: Place, accounting: bool) -> str:
    """Return ``slurm.conf``."""
    lines = [_filled(_SLURM, place) + (_ACCOUNTING if accounting else "")]
    if place.cgroups:
        lines.append("ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup")
    else:
        lines.append("ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none")
        lines.append("JobAcctGatherParams=OverMemoryKill")
    for node, port in zip(NODES, place.ports[3:], strict=True):
        gres = f" Gres=gpu:{node.gpu_type}:{node.gpus}" if node.gpus else ""
        lines.append(
            f"NodeName={node.name} NodeHostname={_HOST} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={node.cpus} RealMemory={node.mem_mb}{gres} State=UNKNOWN"
        )
    for index, name in enumerate(PARTITIONS):
        names = ",".join(node.name for node in NODES if node.partition == name)
        lines.append(f"PartitionName={name} Nodes={names} Default={'NO' if index else 'YES'}")
    return "\n".join(lines) + "\n"


def gres_conf(place: Place) -> str:
    """Return ``gres.conf``: device files are what makes Slurm set CUDA_VISIBLE_DEVICES."""
    return "".join(
        f"NodeName={node.name} Name=gpu Type={node.gpu_type} "
        f"File={place.gpu(f'[0-{node.gpus - 1}]')}\n"
        for node in NODES
        if node.gpus
    )


def cgroup_conf(place: Place) -> str:
    """Return ``cgroup.conf``; cores stay free, since the nodes pretend to have more of them."""
    memory = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=no\n"
    return (
        memory if place.cgroups else "ConstrainRAMSpace=no\n"
    ) + "ConstrainCores=no\nConstrainDevices=no\n"


def slurmdbd_conf(place: Place) -> str:
    """Return ``slurmdbd.conf``."""
    return _filled(_SLURMDBD, place)


def database_init() -> str:
    """Return the SQL that MariaDB runs at each start: Slurm's database and its user."""
    lines = ["CREATE DATABASE IF NOT EXISTS slurm_acct_db;"]
    for user in ("'slurm'@'127.0.0.1'", "'slurm'@'localhost'"):
        lines.append(f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{_DATABASE_PASSWORD}';")
        lines.append(f"GRANT ALL ON slurm_acct_db.* TO {user};")
    return "\n".join(lines) + "\n"
