"""Jobs as squeue and scontrol tell them (pure), and why one ended."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from ..errors import UnreadableError
from .parse import fields_of, parse_minutes, parse_seconds, parse_time_s, parse_tres
from .records import Tres, Usage

#: squeue cuts what is longer than its field, and separates nothing by itself.
JOB_FIELDS = {
    "JobID": 16, "State": 20, "Account": 64, "QOS": 64, "Partition": 64, "UserName": 64,
    "tres-alloc": 200, "StartTime": 24, "EndTime": 24, "NodeList": 200, "Reason": 200,
    "TimeLimit": 24, "WorkDir": 1000, "Name": 200, "Comment": 1000,
}  # fmt: skip
JOB_FORMAT = ",".join(f"{name}:{width}|" for name, width in JOB_FIELDS.items())
#: Those that are no words.
_READERS: Mapping[str, Callable[[str], Any]] = {
    "JobID": int, "tres-alloc": parse_tres, "StartTime": parse_time_s, "EndTime": parse_time_s,
    "TimeLimit": parse_minutes,
}  # fmt: skip
_ENDS = list(itertools.accumulate(width + 1 for width in JOB_FIELDS.values()))
_CELLS = [slice(start, end - 1) for start, end in itertools.pairwise([0, *_ENDS])]

_BEGIN = re.compile(r"[0-9]{1,18}\|[A-Z_]+")

#: Any other state is of a job that may still write, or write again.
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "SPECIAL_EXIT",
        "TIMEOUT",
    }
)
#: What scontrol says of each job, by which it is known why it ended.
_END_FIELDS = ("JobState", "Reason", "ExitCode", "DerivedExitCode", "RunTime", "TimeLimit")
#: Slurm tells times of jobs in whole seconds.
_ROUNDED_S = 2
Obstacle = Literal["order", "held", "nodes", "limit", "spent", "invalid", "unknown"]
Cause = Literal[
    "memory", "time", "budget", "node", "preempted", "cancelled", "device", "refused", "error",
    "unknown",
]  # fmt: skip
#: What a pending job's reason says of its place, by Slurm's words for it: matched at the beginning,
#: small and capital letters alike, with spaces for underscores. Of two that match the first holds.
_REASONS: Mapping[Obstacle, Mapping[str, str]] = {
    "invalid": {
        r"InvalidQOS|QOSNotAllowed|Job's QOS not permitted": "its QOS may not be used there",
        r"InvalidAccount|(Account|Assoc)\w*NotAllowed|Job's account not permitted"
        r"|User's group not permitted": "its account may not be used there",
        r"PartitionTimeLimit": "its time limit is above that of its partition",
        r"PartitionConfig|PartitionNodeLimit": "its partition takes no such job",
        r"(QOS|Assoc)Max\w+Per(Job|Node)|QOSMin|MaxMemPerLimit": (
            "one job may not ask there for what it asks"
        ),
        r"(Bad)?Constraints": "no node there can hold it",
        r"Reservation(Deleted|Invalid)": "its reservation cannot be used any more",
    },
    "spent": {
        r"(QOS|Assoc)Grp(\w+(?<!Run)Minutes|WallLimit)|QOSUsageThreshold": (
            "a budget of its account or QOS is used up, or cannot end it; "
            "`tilewright-placement accounts` shows what is left"
        ),
    },
    "limit": {
        r"(QOS|Assoc)(Grp|Max)|Max\w+Per(Account|User)|(QOS|Association)(Job|Resource|Time)Limit"
        r"|AccountingPolicy": "a limit of its account or QOS is reached",
    },
    "held": {
        r"JobHeld|.*\bheld\b|JobHoldMaxRequeue|SpecialExit|BurstBufferOperation": (
            "it is held, by an administrator or by you: `scontrol release` lets it go, `scancel` "
            "has it placed again"
        ),
        r"Licenses": "the licences that it asks for are all in use",
        r"Dependency": "it waits for another job of Slurm that must end first",
        r"JobArrayTaskLimit|BurstBuffer": "its array or a burst buffer is full",
    },
    "nodes": {
        r"ReqNodeNotAvail|Partition(Down|Inactive)|.*\bDOWN\b|.*\bReserv|(Node|FrontEnd)Down": (
            "its nodes are down, drained or reserved"
        ),
    },
    "order": {
        r"Priority": "jobs that wait before it go first",
        r"Resources|Power(NotAvail|Reserved)|MaxPoweredUpNodes|MPIPortsBusy": (
            "no node has room for it yet"
        ),
        r"None|WaitingForScheduling|SchedDefer|FedJobLock": "Slurm has yet to look at it",
        r"BeginTime": "it may not begin yet, as after it was requeued",
        r"Prolog|Cleaning": "Slurm prepares it, or cleans up after its last try",
        r"SystemFailure|JobLaunchFailure|NonZeroExitCode|RaisedSignal|TimeLimit|InactiveLimit"
        r"|DeadLine|OutOfMemory": "its last try ended, and Slurm has yet to start it again",
    },
}


@dataclass(frozen=True)
class Waiting:
    """Why a job pends.

    Attributes
    ----------
    obstacle : str
        ``order``: Slurm has jobs to start before it, or no node free for it.
        ``held``: by a person, or by what no other place has sooner.
        ``nodes``: those that it may use are not up.
        ``limit``: one of its account or QOS is reached; ``spent``: a budget of it is used up.
        ``invalid``: Slurm does not take it as it was sent.
        ``unknown``: a reason of which nothing is known here.
    words : str
        What Slurm means by it, as a sentence's end.
    """

    obstacle: Obstacle
    words: str


@lru_cache(maxsize=256)
def why_pending(reason: str) -> Waiting:
    """Return why a job pends, by the reason that squeue shows.

    Some releases of Slurm, and some of its commands, print underscores for spaces.

    >>> why_pending("QOSGrpCpuLimit").obstacle, why_pending("InvalidQOS").obstacle
    ('limit', 'invalid')
    >>> why_pending("ReqNodeNotAvail,_Reserved_for_maintenance").obstacle
    'nodes'
    """
    spaced = reason.replace("_", " ").strip()
    for obstacle, meanings in _REASONS.items():
        for pattern, words in meanings.items():
            if re.match(pattern, spaced, re.IGNORECASE):
                return Waiting(obstacle, words)
    return Waiting("unknown", "what it means is not known" if spaced else "Slurm gives no reason")


@dataclass(frozen=True)
class SlurmJob:
    """One job of the queue, as :data:`JOB_FIELDS`; times in seconds since the epoch, or None.

    Attributes
    ----------
    state, reason : str
        ``PENDING`` …, and why it pends.
    tres : dict
        What it holds or, pending, asks for; mem in MB.
    start_s, end_s : float or None
        ``end_s`` of a running job is when its time limit ends it.
    """

    id: int
    state: str
    account: str = ""
    qos: str = ""
    partition: str = ""
    user: str = ""
    tres: Tres = field(default_factory=dict)
    start_s: float | None = None
    end_s: float | None = None
    nodes: str = ""
    reason: str = ""
    limit_min: int | None = None
    workdir: str = ""
    name: str = ""
    comment: str = ""

    @property
    def active(self) -> bool:
        """Whether it pends or runs, as far as is known."""
        return self.state not in ENDED

    @property
    def obstacle(self) -> Obstacle:
        """What keeps it from starting, see :class:`Waiting`."""
        return why_pending(self.reason).obstacle


def is_held(job: SlurmJob) -> bool:
    """Return whether a job pends for what no other place has sooner."""
    return job.state == "PENDING" and job.obstacle == "held"


@lru_cache(maxsize=2)  # asked for each job that ended, 10 µs a line
def parse_queue(text: str) -> tuple[SlurmJob, ...]:
    """Return the jobs of ``squeue -h -O`` with :data:`JOB_FORMAT`, or raise `UnreadableError`."""
    found = []
    for line in _lines(text):
        cells = _cells(line)
        if len(cells) != len(JOB_FIELDS) or not _BEGIN.fullmatch("|".join(cells[:2])):
            raise UnreadableError(line.decode(errors="replace"))
        row = zip(JOB_FIELDS, cells, strict=True)
        found.append(SlurmJob(*(_READERS.get(name, str)(cell) for name, cell in row)))
    return tuple(found)


def _lines(text: str) -> Iterator[bytes]:
    """Yield the lines of squeue that are not blank; names and comments may hold line breaks."""
    data, start = text.encode(errors="replace") + b"\n", 0
    while start < len(data):
        end = start + _ENDS[-1]
        if data[end - 1 : end + 1] != b"|\n":
            end = data.index(b"\n", start)
        if line := data[start:end].strip(b" "):
            yield line
        start = end + 1


def _cells(line: bytes) -> list[str]:
    """Return the cells of a line of squeue, which pads them to so many bytes."""
    # folders and comments may hold the separator
    if len(line) == _ENDS[-1]:
        cells = [line[cell] for cell in _CELLS]
    else:
        cells = line.removesuffix(b"|").split(b"|", len(JOB_FIELDS) - 1)
    return [cell.decode(errors="replace").strip() for cell in cells]


def orphaned_jobs(queue: Iterable[SlurmJob], workdir: str) -> list[SlurmJob]:
    """Return the jobs of Snakemake that may write into a folder."""
    return [
        job
        for job in queue
        if job.active and job.workdir == workdir and re.match(r"(rule|group)_", job.comment)
    ]


def usage_of_queue(
    jobs: Iterable[SlurmJob], names_of: Callable[[SlurmJob], Iterable[str]]
) -> dict[str, Usage]:
    """Return what the jobs of a queue use of all that they count on; some may be hidden."""
    found: dict[str, Counter[str]] = {}
    for job in jobs:
        if not job.active:
            continue
        held = Counter({"submit": 1})
        if job.state != "PENDING":
            held.update({**job.tres, "jobs": 1})
        for name in names_of(job):
            found.setdefault(name, Counter()).update(held)
    return {name: Usage({}, dict(used)) for name, used in found.items()}


def cause_of(details: str) -> tuple[Cause, str]:
    """Return why a job ended badly, and the words of Slurm, from ``scontrol -o show job``.

    A step that ran out of memory shows in the derived exit code only: the job itself is
    ``FAILED 1:0``. By a limit on resident memory it ends with signal 9. What ends it before its
    own time limit is a budget that is used up.

    >>> cause_of("JobId=7 JobState=FAILED Reason=NonZeroExitCode DerivedExitCode=0:125")
    ('memory', 'FAILED, NonZeroExitCode, exit 0:125')
    """
    pairs = fields_of(details)
    state = pairs.get("JobState", "")
    codes = {pairs.get("ExitCode", ""), pairs.get("DerivedExitCode", "")}
    words = ", ".join([state, *({pairs.get("Reason", "None")} - {"None"}), f"exit {_worst(codes)}"])
    known: dict[str, Cause] = {
        "OUT_OF_MEMORY": "memory",
        "TIMEOUT": "time",
        "DEADLINE": "time",
        "TimeLimit": "time",  # for some seconds the state is still COMPLETING
        "NODE_FAIL": "node",
        "BOOT_FAIL": "node",
        "NodeDown": "node",
        "BadConstraints": "node",  # all nodes that fit are excluded
        "CANCELLED": "cancelled",
        "PREEMPTED": "preempted",
        "FAILED": "memory" if codes & {"0:125", "0:9", "9:0", "137:0", "125:0"} else "error",
    }
    lacks = [name for name in _END_FIELDS if name not in pairs]
    if lacks and state and known.get(state) != "memory":
        return "unknown", f"{words}; Slurm does not say {', '.join(lacks)}"
    for word in (pairs.get("Reason", ""), state):
        if word in known:
            cause = known[word]
            early = word in ("TIMEOUT", "TimeLimit") and _before_its_limit(pairs)
            return ("budget", f"{words}, before its own time limit") if early else (cause, words)
    return "unknown", words if state else ""


def _before_its_limit(pairs: Mapping[str, str]) -> bool:
    """Return whether a job that ran out of time had some left of its own."""
    if "at_or_exceeds" in pairs.get("Reason", ""):
        return True
    ran, limit = (parse_seconds(pairs.get(name, "")) for name in ("RunTime", "TimeLimit"))
    return ran is not None and limit is not None and ran + _ROUNDED_S < limit


def _worst(codes: set[str]) -> str:
    """Return the code with the highest signal, or else status: ``0:125`` before ``1:0``."""
    return max(
        codes, key=lambda code: [int(n) for n in re.findall(r"\d{1,9}", code)[::-1]], default=""
    )


def node_of(details: str) -> str:
    """Return the nodes a job ran on, from ``scontrol -o show job``."""
    return fields_of(details).get("NodeList", "").removeprefix("(null)")


def stdout_of(details: str) -> str:
    """Return the file of a job's output, from ``scontrol -o show job``.

    >>> stdout_of("JobId=7 StdIn=/dev/null StdOut=/data/a run/7.log Power= ")
    '/data/a run/7.log'
    """
    match = re.search(r" StdOut=(.+?)(?= \w+=|\s*$)", details)
    return match.group(1) if match else ""
