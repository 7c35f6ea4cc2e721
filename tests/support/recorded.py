"""Answers of Slurm's programs, recorded on a real cluster, and a cluster that gives them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.accounts import Chosen
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.runtime.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.jobs import JOB_FIELDS
from snakemake_scheduler_plugin_tilewright.slurm.parse import QOS_FIELDS
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.support.recorded_texts import RELEASES


def qos_line(name: str, **values: str) -> str:
    """Return a line of sacctmgr for a QOS, by the names of its fields."""
    return "|".join({"name": name, **values}.get(field, "") for field in QOS_FIELDS)


LIMITS = "\n".join([
    "brusko|ada||brusko|brusko|||||||||",
    "clive-b|ada||clive-b|clive-b|||||||||",
    "clive|ada||clive,clive-b|clive|||||||||",
    "maigan|ada||maigan,maigan-b|maigan|||||||||",
    "brusko|||brusko|brusko|||||||||root",
    "clive|||clive,clive-b|clive|||||||||root",
    "maigan|||maigan,maigan-b|maigan|||||||||root",
    qos_line("clive", grptres="cpu=104,gres/gpu=3,mem=812G"),
    qos_line("maigan", grptres="cpu=80,gres/gpu=2,mem=625G"),
    qos_line("brusko", grptres="cpu=32,gres/gpu=1,mem=250G"),
    "",
])  # fmt: skip
USE = """\
QOS=clive(2) GrpJobs=N(2) GrpSubmitJobs=N(2) GrpTRES=cpu=104(40),mem=831488(716800),gres/gpu=3(1)\
 User Limits= 1002={MaxJobsPU=N(1) MaxTRESPU=cpu=N(32),mem=N(614400),gres/gpu=N(0)}\
 1001={MaxJobsPU=N(1) MaxTRESPU=cpu=N(8),mem=N(102400),gres/gpu=N(1)}
QOS=brusko(4) GrpJobs=N(0) GrpTRES=cpu=32(0),mem=256000(0),gres/gpu=1(0)
QOS=maigan(3) GrpJobs=N(0) GrpSubmitJobs=N(0) GrpTRES=cpu=80(0),mem=640000(0),gres/gpu=2(0)
"""
#: What each partition says beside what a test is about.
PARTITION = (
    " AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO MaxNodes=UNLIMITED MinNodes=0"
    " RootOnly=NO ReqResv=NO PriorityTier=1 PreemptMode=OFF\n"
)
PARTITIONS = (
    "PartitionName=hpg-default Default=YES MaxTime=31-00:00:00 State=UP Nodes=c[1-2]"
    " TRES=cpu=256,mem=2000G" + PARTITION
    + "PartitionName=hpg-b200 MaxTime=7-00:00:00 State=UP Nodes=b1"
    " TRES=cpu=112,mem=2000G,gres/gpu=8" + PARTITION
)  # fmt: skip
#: By sinfo: CPUs allocated/idle/other/total, GPUs, those in use, and nodes that are alike.
IDLE = "hpg-default|0/128/0/128|(null)|(null)|2|\nhpg-b200|0/112/0/112|gpu:b200:8|gpu:b200:0|1|\n"
CONFIG = "ClusterName = hpg\nSLURM_VERSION = 22.05.8\n"
#: More than the number of any process on Linux.
NO_PROCESS = 2**22 + 1
#: What answers each question, by a word of its command.
ANSWERS = {"sacctmgr": LIMITS, "use": USE, "partition": PARTITIONS, "config": CONFIG, "squeue": "",
           "sinfo": IDLE}  # fmt: skip
#: What each question to Slurm is, by the name of its answer.
QUESTIONS: dict[str, Callable[[SlurmClient], object]] = {
    "squeue": SlurmClient.queue,
    "use": partial(SlurmClient.usage, qos=["clive"], accounts=["clive"], uids={"1001": "kuser"}),
    "assoc": SlurmClient.associations,
    "partition": SlurmClient.partitions,
    "config": SlurmClient.config,
    "sacctmgr": SlurmClient.limits,
    "sinfo": SlurmClient.idle,
    "job": partial(SlurmClient.job, job_id=7),
    "sacct": partial(SlurmClient.final_state, job_id=7),
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
_SHOWN = {"flags=qos,assoc": "use", "flags=assoc": "assoc"}
_WORDS = {"partition", "config", "job"}
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
        word = next(
            (_SHOWN.get(word, word) for word in argv if word in _SHOWN or word in _WORDS), argv[0]
        )
        self.asked.append(word)
        denied = SlurmQueryError(word, "Access/permission denied")
        return answer_with(self.answers.get(word, denied))


def client(
    run: Callable[..., str], now: Sequence[float] = (1000.0,), user: str = "ada", uid: int = 1001
) -> SlurmClient:
    """Return what asks a recorded Slurm, on a clock that a test may move."""
    return SlurmClient(user, run, lambda: now[0], uid)


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


def cluster_with(queue: str | SlurmQueryError = "", **settings: Any) -> tuple[Cluster, Queue]:
    """Return a cluster that was looked at, with settings of it or other answers."""
    said = {word: settings.pop(word) for word in [*ANSWERS, "assoc"] if word in settings}
    recorded = Queue({**ANSWERS, "squeue": queue, **said})
    # site's habit: burst accounts end in -b
    chosen = settings.pop("chosen", Chosen(leave_out=["*-b"]))
    cluster = Cluster(client(recorded), chosen, **settings)
    cluster.look()
    return cluster, recorded


def details(state: str, reason: str, code: str, derived: str) -> str:
    ended = f"JobState={state} Reason={reason} {_MIDDLE} ExitCode={code} DerivedExitCode={derived}"
    return LINE.format(ended=ended)
