"""What Slurm's words mean: why a job pends, why sbatch refused it, and why one ended (pure)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .parse import fields_of

Obstacle = Literal["order", "held", "nodes", "limit", "invalid", "unknown"]
Cause = Literal[
    "memory", "time", "node", "preempted", "cancelled", "device", "refused", "error", "unknown"
]
#: What is said of a job that Slurm holds by itself, as after a prolog that failed.
NOT_STARTED = "Slurm could not start it, and holds it"
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
    "limit": {
        r"(QOS|Assoc)Grp(\w+(?<!Run)Minutes|WallLimit)|QOSUsageThreshold": (
            "a budget of its account or QOS is used up, or cannot end it"
        ),
        r"(QOS|Assoc)(Grp|Max)|Max\w+Per(Account|User)|(QOS|Association)(Job|Resource|Time)Limit"
        r"|AccountingPolicy": "a limit of its account or QOS is reached",
    },
    "held": {
        r"launch failed requeued held|JobHoldMaxRequeue|SpecialExit": NOT_STARTED,
        r"JobHeld|.*\bheld\b|BurstBufferOperation": (
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
#: Words of sbatch where it may take the same job later: a limit is reached, or Slurm is away.
_LATER = re.compile(
    r"violates accounting/QOS policy|contact|connect|communication|timed? ?out|temporarily|again"
    r"|zero bytes|inactive or drain|authentication|standby|SubmitJob",
    re.IGNORECASE,
)
#: Words of sbatch with which it may have taken the job all the same.
_PERHAPS = re.compile(r"timed? ?out|zero bytes|send/recv|connection reset", re.IGNORECASE)
_CAUSES: Mapping[str, Cause] = {
    "OUT_OF_MEMORY": "memory",
    "TIMEOUT": "time",
    "DEADLINE": "time",
    "TimeLimit": "time",  # for some seconds the state is still COMPLETING
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
    "LAUNCH_FAILED": "node",
    "NodeDown": "node",
    "BadConstraints": "refused",  # what sbatch refuses is recorded as a job that failed
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "REVOKED": "preempted",
}


@dataclass(frozen=True)
class Waiting:
    """Why a job pends.

    Attributes
    ----------
    obstacle : str
        ``order``: Slurm has jobs to start before it, or no node free for it.
        ``held``: by a person, by Slurm, or by what no other place has sooner.
        ``nodes``: those that it may use are not up.
        ``limit``: one of its account or QOS is reached.
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


def may_pass(words: str) -> bool:
    """Return whether sbatch may take a job later that it refuses now in these words.

    >>> may_pass("QOSMaxSubmitJobPerUserLimit"), may_pass("Invalid qos specification")
    (True, False)
    """
    obstacle = why_pending(words).obstacle
    return obstacle == "limit" or (obstacle != "invalid" and bool(_LATER.search(words)))


def may_have_taken(words: str) -> bool:
    """Return whether sbatch may have taken a job although it says that it did not.

    >>> may_have_taken("Socket timed out on send/recv operation")
    True
    """
    return bool(_PERHAPS.search(words))


def refusal_words(text: str) -> str:
    """Return the words of sbatch without its name and heading.

    >>> refusal_words("sbatch: error: Batch job submission failed: Invalid qos specification")
    'Invalid qos specification'
    """
    head = r"\s*((sbatch|error|Batch job submission failed): )*"
    lines = (re.sub(head, "", line, count=1).strip() for line in text.split("\n"))
    return "; ".join(filter(None, lines)) or "sbatch refused it without a word"


def cause_of(details: str) -> tuple[Cause, str]:
    """Return why a job ended badly, and the words of Slurm, from ``scontrol -o show job``.

    A step that ran out of memory shows in the derived exit code only: the job itself is
    ``FAILED 1:0``. By a limit on resident memory it ends with signal 9.

    >>> cause_of("JobId=7 JobState=FAILED Reason=NonZeroExitCode DerivedExitCode=0:125")
    ('memory', 'FAILED, NonZeroExitCode, exit 0:125')
    """
    pairs = fields_of(details)
    state, reason = pairs.get("JobState", ""), pairs.get("Reason", "None")
    codes = {pairs.get("ExitCode", ""), pairs.get("DerivedExitCode", "")}
    code = _worst(codes)
    said = [state, reason if reason != "None" else "", code and f"exit {code}"]
    words = ", ".join(filter(None, said))
    found = next((_CAUSES[word] for word in (reason, state) if word in _CAUSES), None)
    node = pairs.get("NodeList", "(null)")
    unsaid = reason == "None" and not codes - {"0:0", ""}  # scancel leaves a signal, or a reason
    if state == "CANCELLED" and unsaid and node not in ("(null)", ""):
        return "node", f"{state} as it was to begin on {node}: Slurm could not start it there"
    if found is not None:
        return found, words
    if state != "FAILED":
        return "unknown", words if state else ""
    return "memory" if codes & {"0:125", "0:9", "9:0", "137:0", "125:0"} else "error", words


def _worst(codes: set[str]) -> str:
    """Return the code with the highest signal, or else status: ``0:125`` before ``1:0``."""
    return max(
        codes, key=lambda code: [int(n) for n in re.findall(r"\d{1,9}", code)[::-1]], default=""
    )
