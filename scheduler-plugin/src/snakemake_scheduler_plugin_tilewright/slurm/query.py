"""Runs Slurm's commands with a time limit; a failure is an error with its reason, never zero."""

import os
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..runtime.errors import SlurmQueryError, UnreadableError
from . import parse
from .jobs import JOB_FORMAT, SlurmJob, parse_queue
from .records import Association, Partition, Qos, Tres, Usage

_T = TypeVar("_T")
#: On some clusters an answer takes 20 s; programs of Slurm give up by themselves, after 45 s where
#: slurmdbd hangs.
TIMEOUT_S = 120.0
#: Slurm is asked at most so often in a minute, by most sites' rules for their users (no figure).
MOST_QUESTIONS_A_MIN = 12
#: Where Slurm is, and who asks: no options of its commands.
_PLACE = ("SLURM_CONF", "SLURM_JWT")
_OF_SLURM = re.compile(r"S(LURMD?|BATCH|RUN|QUEUE|ACCT|ACCTMGR|CANCEL|CONTROL|INFO)_\w+", re.ASCII)
_SACCTMGR = """\
show associations where user={user} format={association}
show associations where user= format={association}
show qos format={qos}
"""


def options_in_environment() -> list[str]:
    """Return the variables that stand for options of Slurm's commands; none is handed on."""
    return sorted(name for name in os.environ if _OF_SLURM.fullmatch(name) and name not in _PLACE)


def run_command(argv: Sequence[str], stdin: str | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """Return what a command prints that is killed after ``timeout_s``.

    Raises
    ------
    SlurmQueryError
        It fails, takes too long, or its answer ends early.
    """
    own = {
        name: value for name, value in os.environ.items() if name not in options_in_environment()
    }
    environment = {**own, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
    if argv[0] == "sbatch":  # whose jobs get this environment
        environment = own
    try:
        done = subprocess.run(
            argv, input=stdin or "", capture_output=True, text=True, errors="replace",
            timeout=timeout_s, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SlurmQueryError(argv[0], f"no answer within {timeout_s:g} s: timed out") from None
    except OSError as error:
        raise SlurmQueryError(argv[0], f"{error.strerror or error}") from None
    # sacctmgr fed through stdin reports a dead slurmdbd by text only
    if done.returncode != 0 or (not done.stdout.strip() and "error:" in done.stderr):
        message = done.stderr.strip() or done.stdout.strip()
        raise SlurmQueryError(argv[0], message[:1000] or f"exit status {done.returncode}")
    if argv[0] != "sbatch" and done.stdout and not done.stdout.endswith("\n"):
        raise SlurmQueryError(argv[0], f"its answer ends early, in {done.stdout[-40:]!r}")
    return done.stdout


def has_slurm() -> bool:
    """Return whether there is Slurm on this machine."""
    if not shutil.which("sbatch"):
        return False
    # Slurm's commands alone, which name no cluster; one that is down is another matter
    try:
        run_command(["scontrol", "ping"])
    except SlurmQueryError as error:
        signs = ("DNS SRV lookup failed", "configuration source")
        return not any(sign in error.reason for sign in signs)
    return True


@dataclass
class SlurmClient:
    """Asks Slurm, and tells it what to do; what it does not answer is a :class:`SlurmQueryError`.

    Parameters
    ----------
    run, clock : callable
        :func:`run_command`, and the time in seconds since the epoch.
    uid : int
        The user's number, by which the use of a QOS is told apart.
    """

    user: str
    run: Callable[..., str] = run_command
    clock: Callable[[], float] = time.time
    uid: int = field(default_factory=os.getuid)
    _asked_s: deque[tuple[float, str]] = field(default_factory=deque)

    def may_ask(self, questions: int = 1) -> bool:
        """Return whether questions that can wait may be asked now.

        One is left for the queue, which is asked in any case. Where the user has that asked so
        often that nothing is left, half as many others may be asked all the same.
        """
        while self._asked_s and self._asked_s[0][0] <= self.clock() - 60:
            self._asked_s.popleft()
        others = sum(program != "squeue" for _, program in self._asked_s)
        return (
            len(self._asked_s) + questions < MOST_QUESTIONS_A_MIN
            or others + questions < MOST_QUESTIONS_A_MIN // 2
        )

    def limits(self) -> tuple[list[Association], list[Qos]]:
        """Return the user's associations, those of accounts, and all QOS, by one sacctmgr."""
        fields = {"association": parse.ASSOCIATION_FIELDS, "qos": parse.QOS_FIELDS}
        asked = _SACCTMGR.format(
            user=self.user, **{name: ",".join(one) for name, one in fields.items()}
        )
        return self._ask(parse.parse_sacctmgr, "sacctmgr", "-n", "-P", "-Q", stdin=asked)

    def usage(
        self, qos: Iterable[str], accounts: Iterable[str], uids: dict[str, str]
    ) -> dict[str, Usage]:
        """Return live limits and use of QOS and of associations of the user and of accounts."""
        names = [
            f"{key}={','.join(of)}" for key, of in (("qos", qos), ("accounts", accounts)) if of
        ]
        argv = ("scontrol", "-o", "show", "assoc_mgr", "flags=qos,assoc", f"users={self.user}")
        return self._ask(lambda text: parse.parse_assoc_mgr(text, uids), *argv, *names)

    def associations(self) -> list[Association]:
        """Return the user's accounts where sacctmgr shows none: by slurmctld, else by sshare."""
        argv = ("scontrol", "-o", "show", "assoc_mgr", "flags=assoc", f"users={self.user}")
        try:
            return self._ask(parse.parse_associations, *argv)
        except SlurmQueryError:
            fields = ("-o", "Account,User,Partition")
            return self._ask(
                parse.parse_shares, "sshare", "-U", "-n", "-P", "-u", self.user, *fields
            )

    def partitions(self) -> list[Partition]:
        """Return all partitions, hidden ones too."""
        return self._ask(parse.parse_partitions, "scontrol", "-a", "-o", "show", "partition")

    def idle(self) -> dict[str, Tres]:
        """Return the idle CPUs and GPUs of each partition."""
        return self._ask(parse.parse_idle, "sinfo", "-a", "-h", "-O", parse.IDLE_FORMAT)

    def config(self) -> dict[str, str]:
        """Return the fields of ``scontrol show config``."""

        def read(text: str) -> dict[str, str]:
            found = dict(re.findall(r"(?m)^(\w+)\s*= *(.*?) *$", text))
            if "ClusterName" not in found:
                raise UnreadableError(text)
            return found

        return self._ask(read, "scontrol", "show", "config")

    def queue(self) -> list[SlurmJob]:
        """Return this user's jobs, those that ended in the last minutes too."""
        argv = ("squeue", "-a", "-h", "-u", self.user, "-t", "all", "-O", JOB_FORMAT)
        return self._ask(parse_queue, *argv)

    def job(self, job_id: int) -> str:
        """Return all that slurmctld says of one job, with its derived exit code."""
        # the only sign of a step that ran out of memory
        return self._ask(_details, "scontrol", "-a", "-d", "-o", "show", "job", str(job_id))

    def final_state(self, job_id: int) -> str:
        """Return how a job ended that slurmctld has forgotten; empty if the database has it not."""
        argv = ("sacct", "-n", "-X", "-P", "-j", str(job_id), "-o", "State")
        return self._ask(lambda text: re.split(r"[ +\n]", text.strip())[0], *argv)

    def submit(self, argv: Sequence[str], script: str | None = None) -> int:
        """Submit a job; return its number, the last line of sbatch: banners come before it."""
        answer = self.run(argv, script)
        for line in reversed(answer.strip().splitlines()):
            found = re.fullmatch(
                r"(?:Submitted batch job )?([0-9]{1,18})(;\S*|\s.*)?", line.strip()
            )
            if found:
                return int(found[1])
        raise SlurmQueryError("sbatch", f"it printed no number of a job: {answer.strip()[:200]!r}")

    def cancel(self, job_ids: Iterable[int], *, pending_only: bool = False) -> None:
        """Cancel jobs, or only those of them that have not started meanwhile."""
        state = ("--state=PENDING",) if pending_only else ()
        self.run(("scancel", *state, *map(str, job_ids)))

    def move(self, job_ids: Iterable[int], account: str, qos: str, partitions: str) -> None:
        """Give pending jobs another account, QOS and list of partitions; an empty one stays."""
        names = {"Account": account, "QOS": qos, "Partition": partitions}
        # an empty QOS is the default one of the account; without it that of the other one stays
        values = [f"{name}={value}" for name, value in names.items() if value or name == "QOS"]
        self.run(("scontrol", "update", f"JobId={','.join(map(str, job_ids))}", *values))

    def _ask(self, read: Callable[[str], _T], *argv: str, stdin: str | None = None) -> _T:
        """Return an answer as records; one in which a line cannot be read is none."""
        self._asked_s.append((self.clock(), argv[0]))
        try:
            return read(self.run(argv, stdin))
        except UnreadableError as error:
            raise SlurmQueryError(argv[0], str(error)) from None


def _details(text: str) -> str:
    if not re.match(r"JobId=(?s:.*) JobState=\w", text):
        raise UnreadableError(text)
    return text
