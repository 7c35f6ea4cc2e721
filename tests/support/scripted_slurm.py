"""A Slurm of a few lines that does what a test says, and a run that asks it by its commands."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.ends import Ends
from snakemake_scheduler_plugin_tilewright.placement.jobs import End, Task
from snakemake_scheduler_plugin_tilewright.placement.request import Place, ResourceRequest
from snakemake_scheduler_plugin_tilewright.placement.room import Settings
from snakemake_scheduler_plugin_tilewright.placement.run import Run
from snakemake_scheduler_plugin_tilewright.placement.sender import Submission
from snakemake_scheduler_plugin_tilewright.runtime.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.runtime.ledger import Ledger, read_ledger
from snakemake_scheduler_plugin_tilewright.slurm.jobs import JOB_FIELDS
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.support.placement_rules import tasks
from tests.support.recorded import PARTITION, qos_line

PARTITIONS = (
    f"PartitionName=cpu MaxTime=10:00:00 State=UP Nodes=c1 TRES=cpu=256,mem=999G{PARTITION}"
    f"PartitionName=gpu MaxTime=10:00:00 State=UP Nodes=b1 TRES=cpu=64,mem=999G,gres/gpu=8"
    f"{PARTITION}"
)
IDLE = "cpu|0/256/0/256|(null)|(null)|1|\ngpu|0/64/0/64|gpu:8|gpu:0|1|\n"
AWAY = SlurmQueryError("squeue", "Unable to contact slurm controller (connect failure)")


@dataclass
class Job:
    """A job as this Slurm has it."""

    id: int
    name: str
    place: dict[str, str]
    request: ResourceRequest
    state: str = "PENDING"
    reason: str = "None"
    node: str = ""
    start_s: float = 0.0
    end_s: float = 0.0
    comment: str = "(null)"


@dataclass
class ScriptedSlurm:
    """Answers Slurm's commands; jobs pend until a test starts and ends them.

    Attributes
    ----------
    accounts : dict
        Name to the group limits of the account's QOS, by Slurm's words.
    answers : dict
        By program, or ``update`` and ``show job``, what is answered next instead: errors or text.
    idle : str
        What sinfo says; where it says nothing, a few jobs go to each place at first.
    refuses : callable
        A place to the words with which sbatch refuses a job there; empty where it takes it.
    """

    accounts: dict[str, str] = field(default_factory=lambda: {"a": "", "b": ""})
    answers: dict[str, deque[str | SlurmQueryError]] = field(default_factory=dict)
    refuses: Callable[[dict[str, str]], str] = lambda place: ""
    partitions: str = PARTITIONS
    idle: str = ""
    accounting: bool = True
    now_s: float = 10_000.0
    jobs: dict[int, Job] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str:
        self.calls.append([*argv])
        words = {*argv}
        name = (
            "show job" if {"show", "job"} <= words else "update" if "update" in words else argv[0]
        )
        if waiting := self.answers.get(name):
            answer = waiting.popleft()
            if isinstance(answer, SlurmQueryError):
                raise answer
            if answer:
                return answer
        texts: dict[str, Callable[[Sequence[str]], str]] = {
            "sbatch": self._sbatch, "squeue": self._squeue, "scancel": self._scancel,
            "update": self._update, "show job": self._details, "sacct": self._sacct,
            "scontrol": self._shown, "sacctmgr": self._limits, "sinfo": self._idle,
        }  # fmt: skip
        return texts[name](argv)

    def names(self, program: str) -> list[str]:
        """Return the last word of each call of a program."""
        return [argv[-1] for argv in self.calls if argv[0] == program]

    # What a test does

    def pend(self, *ids: int, reason: str) -> None:
        """Say why jobs pend."""
        for one in ids:
            self.jobs[one].reason = reason

    def start(self, *ids: int, node: str = "c1") -> None:
        """Start jobs."""
        for one in ids:
            job = self.jobs[one]
            job.state, job.reason, job.node, job.start_s = "RUNNING", "None", node, self.now_s

    def end(self, *ids: int, state: str = "COMPLETED", reason: str = "None") -> None:
        """End jobs; the queue shows them still."""
        for one in ids:
            job = self.jobs[one]
            job.state, job.reason, job.end_s = state, reason, self.now_s

    def forget(self, *ids: int) -> None:
        """Take jobs out of the queue; accounting knows how they ended."""
        for one in ids:
            self.ended[one] = self.jobs.pop(one).state

    def at(self, account: str) -> list[int]:
        """Return the jobs of an account."""
        return [job.id for job in self.jobs.values() if job.place["account"] == account]

    # What its programs do

    def _sbatch(self, argv: Sequence[str]) -> str:
        given = dict(one.removeprefix("--").split("=", 1) for one in argv if one.startswith("--"))
        place = {name: given[name] for name in ("account", "qos", "partition")}
        if words := self.refuses(place):
            raise SlurmQueryError("sbatch", f"sbatch: error: Batch job submission failed: {words}")
        number = 1 + max([*self.jobs, *self.ended], default=100)
        cpus, mem_mb, gpus = (int(given[name]) for name in ("cpus", "mem", "gpus"))
        request = ResourceRequest(cpus, mem_mb, gpus, 1)
        self.jobs[number] = Job(number, given["name"], place, request)
        return f"{number}\n"

    def _squeue(self, argv: Sequence[str]) -> str:
        lines = []
        for job in self.jobs.values():
            shown = {
                "JobID": job.id, "State": job.state, "Account": job.place["account"],
                "QOS": job.place["qos"], "Partition": job.place["partition"],
                "StartTime": int(job.start_s) or "N/A", "EndTime": int(job.end_s) or "N/A",
                "NodeList": job.node, "Reason": job.reason, "WorkDir": "/data/run",
                "Name": job.name, "Comment": job.comment,
            }  # fmt: skip
            lines.append("|".join(str(shown[name]) for name in JOB_FIELDS) + "|")
        return "\n".join([*lines, ""])

    def _scancel(self, argv: Sequence[str]) -> str:
        pending_only = "--state=PENDING" in argv
        for job in map(self.jobs.get, map(int, filter(str.isdecimal, argv[1:]))):
            if job is not None and (job.state == "PENDING" or not pending_only):
                job.state = "CANCELLED"
        return ""

    def _update(self, argv: Sequence[str]) -> str:
        given = dict(one.split("=", 1) for one in argv[2:])
        for one in given.pop("JobId").split(","):
            place = self.jobs[int(one)].place
            place.update({name.lower(): value for name, value in given.items()})
            self.jobs[int(one)].reason = "None"
        return ""

    def _details(self, argv: Sequence[str]) -> str:
        job = self.jobs.get(int(argv[-1]))
        if job is None:
            raise SlurmQueryError("scontrol", "Invalid job id specified")
        return f"JobId={job.id} JobState={job.state} Reason={job.reason} ExitCode=1:0\n"

    def _sacct(self, argv: Sequence[str]) -> str:
        if not self.accounting:
            raise SlurmQueryError("sacct", "Slurm accounting storage is disabled")
        return f"{self.ended.get(int(argv[argv.index('-j') + 1]), '')}\n"

    def _shown(self, argv: Sequence[str]) -> str:
        if "partition" in argv:
            return self.partitions
        lines = []
        for name, limit in self.accounts.items():
            running = [job.request for job in self.jobs.values()
                       if job.place["account"] == name and job.state == "RUNNING"]  # fmt: skip
            used = {"cpu": sum(one.cpus for one in running),
                    "mem": sum(one.mem_mb for one in running),
                    "gres/gpu": sum(one.gpus for one in running)}  # fmt: skip
            limits = dict(one.split("=") for one in limit.split(",") if one)
            shown = ",".join(f"{tres}={limits.get(tres, 'N')}({n})" for tres, n in used.items())
            lines.append(f"QOS={name}(1) GrpJobs=N({len(running)}) GrpTRES={shown}\n")
        return "".join(lines)

    def _idle(self, argv: Sequence[str]) -> str:
        if not self.idle:
            raise SlurmQueryError("sinfo", "Access/permission denied")
        return self.idle

    def _limits(self, argv: Sequence[str]) -> str:
        lines = []
        for name, limit in self.accounts.items():
            lines += [f"{name}|ada||{name}|{name}|||||||||", qos_line(name, grptres=limit)]
        return "\n".join([*lines, ""])


@dataclass
class Played:
    """A run on a scripted Slurm; each `step` is a poll later."""

    slurm: ScriptedSlurm
    run: Run
    said: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    def step(self, seconds: float = 10.0) -> list[End]:
        """Let time pass, and return what has ended."""
        self.slurm.now_s += seconds
        return self.run.step()

    def submit(self, number: int, *of: Any, **task: Any) -> list[Task]:
        """Make jobs ready, and place them."""
        made = tasks(number, *of, **task)
        self.run.submit(made)
        self.step(0)
        return made

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the ledger's events of a name."""
        return [one for one in read_ledger(self.run.ledger.path) if one["event"] == name]


def command(task: Task, place: Place, request: ResourceRequest, name: str) -> Submission:
    """Return the call of sbatch for a job."""
    return [
        "sbatch", f"--account={place.account}", f"--qos={place.qos}",
        f"--partition={','.join(place.partitions)}", f"--name={name}", f"--cpus={request.cpus}",
        f"--mem={request.mem_mb}", f"--gpus={request.gpus}",
    ], f"echo {task.name}"  # fmt: skip


def play(folder: Path, slurm: ScriptedSlurm, **settings: Any) -> Played:
    """Return a run that has looked at the cluster."""
    cluster = Cluster(SlurmClient("ada", slurm, lambda: slurm.now_s))
    cluster.look()
    played: Played
    (folder / "ends").mkdir()
    run = Run(
        cluster, Settings(**settings), Ledger(folder / "ledger.jsonl"),
        Ends(cluster.client, folder / "ends"), command,
        sent=lambda task: played.sent.append(f"{task.name} {task.slurm_id}"),
        say=lambda sentence: played.said.append(sentence),
    )  # fmt: skip
    played = Played(slurm, run)
    return played
