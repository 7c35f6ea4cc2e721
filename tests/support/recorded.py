"""Answers of Slurm's programs, recorded on a real cluster, and a cluster that gives them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.cluster.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.cluster.query import query_cluster
from snakemake_scheduler_plugin_tilewright.cluster.site import Site
from snakemake_scheduler_plugin_tilewright.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.jobs import JOB_FIELDS
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient

LIMITS = """\
brusko|ada||brusko|brusko|||||||||||||
clive-b|ada||clive-b|clive-b|||||||||||||
clive|ada||clive,clive-b|clive|||||||||||||
maigan|ada||maigan,maigan-b|maigan|||||||||||||
brusko|||brusko|brusko|||||||||||||
clive|||clive,clive-b|clive|||||||||||||
maigan|||maigan,maigan-b|maigan|||||||||||||
clive|cpu=104,gres/gpu=3,mem=812G||||||||||||||||||||
maigan|cpu=80,gres/gpu=2,mem=625G||||||||||||||||||||
brusko|cpu=32,gres/gpu=1,mem=250G||||||||||||||||||||
"""
USE = """\
QOS=clive(2) GrpJobs=N(2) GrpSubmitJobs=N(2) GrpTRES=cpu=104(40),mem=831488(716800),gres/gpu=3(1)\
 User Limits= 1002={MaxJobsPU=N(1) MaxTRESPU=cpu=N(32),mem=N(614400),gres/gpu=N(0)}\
 1001={MaxJobsPU=N(1) MaxTRESPU=cpu=N(8),mem=N(102400),gres/gpu=N(1)}
QOS=brusko(4) GrpJobs=N(0) GrpTRES=cpu=32(0),mem=256000(0),gres/gpu=1(0)
QOS=maigan(3) GrpJobs=N(0) GrpSubmitJobs=N(0) GrpTRES=cpu=80(0),mem=640000(0),gres/gpu=2(0)
"""
#: What each partition and each node says beside what a test is about.
PARTITION = (
    " AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO QoS=N/A ExclusiveUser=NO"
    " MaxNodes=UNLIMITED MinNodes=0 MaxCPUsPerNode=UNLIMITED RootOnly=NO ReqResv=NO"
    " PriorityTier=1 PreemptMode=OFF"
    " OverSubscribe=NO TotalNodes=0 MaxMemPerNode=UNLIMITED DefMemPerNode=1000\n"
)
NODE = " Gres=(null) ActiveFeatures=(null) Owner=N/A\n"
PARTITIONS = (
    "PartitionName=hpg-default Default=YES MaxTime=31-00:00:00 State=UP TRES=cpu=256" + PARTITION
    + "PartitionName=hpg-b200 MaxTime=7-00:00:00 State=UP TRES=cpu=112,gres/gpu=8" + PARTITION
)  # fmt: skip
NODES = NODE.join([
    "NodeName=b1 State=IDLE Partitions=hpg-b200 CfgTRES=cpu=112,mem=2000G,gres/gpu=8 AllocTRES=",
    "NodeName=c1 State=IDLE Partitions=hpg-default CfgTRES=cpu=128,mem=1000G AllocTRES=",
    "NodeName=c2 State=IDLE Partitions=hpg-default CfgTRES=cpu=128,mem=1000G AllocTRES=",
    "",
])  # fmt: skip
CONFIG = """\
ClusterName = hpg
AccountingStorageEnforce = associations,limits,qos
SelectTypeParameters = CR_CORE_MEMORY
"""
#: More than the number of any process on Linux.
NO_PROCESS = 2**22 + 1
#: What answers each question, by a word of its command.
ANSWERS = {
    "sacctmgr": LIMITS, "flags=qos": USE, "partition": PARTITIONS, "node": NODES, "config": CONFIG
}  # fmt: skip
#: What each question to Slurm is, by the name of its answer.
QUESTIONS: dict[str, Callable[[SlurmClient], object]] = {
    "squeue": lambda one: one.queue(),
    "everybody": lambda one: one.everybodys_queue(),
    "qos": lambda one: one.usage("qos", ["clive"]),
    "assoc": lambda one: one.usage("account", ["clive"]),
    **{name: partial(SlurmClient.show, what=name)
       for name in ("partition", "node", "reservation", "licenses", "config")},
    "sacctmgr": lambda one: one.limits().text,
    "job": lambda one: one.job(7),
    "sacct": lambda one: one.final_state(7),
}  # fmt: skip
FOLDER = Path(__file__).parents[1] / "slurm" / "recorded"
#: The same situation on three releases of Slurm, recorded on real clusters (`record_slurm.py`).
RELEASES: Mapping[str, Mapping[str, str]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*"))
}


def uid_of_kuser(release: str) -> int:
    """Return the number that the user had on the cluster on which a release was recorded."""
    return int(RELEASES[release]["assoc"].partition("UserName=kuser(")[2].partition(")")[0])


#: A job in the words of ``scontrol show job``.
LINE = (
    "JobId=2 JobName=wrap UserId=kuser(1001) GroupId=kuser(1001) MCS_label=N/A Priority=100000"
    " Nice=0 Account=clive QOS=clive {ended} RunTime=00:10:01 TimeLimit=00:10:00 TimeMin=N/A"
    " SubmitTime=2026-11-21T10:31:26 StartTime=2026-11-21T10:31:26 EndTime=2026-11-21T10:31:26"
    " Deadline=N/A SuspendTime=None SecsPreSuspend=0 Scheduler=Main Partition=hpg-default"
    " AllocNode:Sid=localhost:25621 ReqNodeList=(null) ExcNodeList=(null) NodeList=c1 BatchHost=c1"
    " NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=1,mem=100M,node=1"
    " Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* JOB_GRES=(null)   Nodes=c1 CPU_IDs=1"
    " Mem=100 GRES= MinCPUsNode=1 DelayBoot=00:00:00 OverSubscribe=OK Command=(null)"
    " WorkDir=/data/run Comment=rule_a_wildcards_x  StdErr=/data/run/slurm-2.out StdIn=/dev/null"
    " StdOut=/data/run/slurm-2.out Power= \n"
)
_SHOWN = {"flags=qos", "flags=assoc", "partition", "node", "config", "reservation", "licenses"}
_MIDDLE = "Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0"


def answer_with(answer: str | SlurmQueryError) -> str:
    """Answer as a program of Slurm does."""
    if isinstance(answer, SlurmQueryError):
        raise answer
    return answer


@dataclass
class Recorded:
    """Answers by the command's word; counts how often each was asked."""

    answers: dict[str, str | SlurmQueryError]
    asked: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str:
        word = next((word for word in argv if word in _SHOWN), argv[0])
        self.asked.append(word)
        if word in ("reservation", "licenses") and word not in self.answers:
            return "No reservations in the system"
        denied = SlurmQueryError(word, "Access/permission denied")
        return answer_with(self.answers.get(word, denied))


def client(recorded: Recorded, folder: Path, now: list[float] | None = None) -> SlurmClient:
    clock = now if now is not None else [1000.0]
    return SlurmClient("ada", folder, run=recorded, clock=lambda: clock[0])


def queue_line(**values: str) -> str:
    return "|".join(values.get(name, "") for name in JOB_FIELDS) + "|"


HERE = queue_line(
    JobID="7", State="RUNNING", WorkDir="/data/run", Comment="rule_stitch_wildcards_a"
)
OTHERS = [
    queue_line(
        JobID="8", State="RUNNING", WorkDir="/data/other", Comment="rule_stitch_wildcards_a"
    ),
    queue_line(JobID="9", State="RUNNING", WorkDir="/data/run", Comment="my own job"),
    queue_line(JobID="6", State="COMPLETED", WorkDir="/data/run", Comment="rule_edf_wildcards_a"),
]


class Queue(Recorded):
    """Recorded answers with a queue whose jobs are gone once they were cancelled."""

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str:
        if argv[0] == "scancel":
            self.asked.append(" ".join(argv))
            self.answers["squeue"] = "\n".join(OTHERS)
            return ""
        return super().__call__(argv, stdin)


def cluster_with(queue: str | SlurmQueryError, folder: Path) -> tuple[Cluster, Queue]:
    recorded = Queue({**ANSWERS, "squeue": queue})
    asking = replace(client(recorded, folder), run=recorded)
    return Cluster(Site(), asking, 1001, query_cluster(asking, 1001, Site())), recorded


def named_qos(folder: Path) -> Cluster:
    """Return a cluster where the jobs of one account must name their QOS."""
    cluster, recorded = cluster_with("", folder)
    recorded.answers["sacctmgr"] = LIMITS.replace("maigan,maigan-b|maigan|", "maigan,maigan-b||")
    cluster.client._cache.clear()
    return replace(cluster, state=query_cluster(cluster.client, 1001, Site()))


def details(state: str, reason: str, code: str, derived: str) -> str:
    ended = f"JobState={state} Reason={reason} {_MIDDLE} ExitCode={code} DerivedExitCode={derived}"
    return LINE.format(ended=ended)
