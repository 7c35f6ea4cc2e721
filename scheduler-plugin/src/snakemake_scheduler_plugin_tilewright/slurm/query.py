"""Runs Slurm's commands with a time limit; a failure is an error with its reason, never zero."""

import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..errors import SlurmQueryError, UnreadableError
from ..runtime.files import read_private, write_private
from . import associations, jobs, nodes, parse

#: What reads the answer to each question, or raises :class:`~UnreadableError`.
_READERS: Mapping[str, Callable[[str], object]] = {
    "squeue": jobs.parse_queue,
    "sacctmgr": parse.parse_sacctmgr,
    "assoc_mgr": parse.parse_assoc_mgr,
    "partition": parse.parse_partitions,
    "node": nodes.parse_nodes,
    "reservation": nodes.parse_reservations,
    "licenses": nodes.parse_licences,
    "config": nodes.parse_config,
    "job": partial(parse.require, r"\AJobId=(?s:.*) JobState=\w"),
    "sshare": associations.parse_shares,
    "sacct": partial(parse.require, r"\A\s*([A-Z_]+\+?( by \w+)?)?\s*\Z"),
}
#: On some clusters an answer takes 20 s; programs of Slurm give up by themselves, after 45 s where
#: slurmdbd hangs.
TIMEOUT_S = 120.0
#: What takes long is not asked again before so many times as long, whatever `ttl_s` (no figure).
_PAUSE = 4
#: An answer takes 0.02 s, a mistake in the question as long: what takes this long is not there.
_SLOW_S = 2.0
#: What sacctmgr says where there is no slurmdbd, on Slurm 22.05.
NO_ACCOUNTING = "not running a supported accounting_storage plugin"
#: Where Slurm is, and who asks: no options of its commands.
PLACE = ("SLURM_CONF", "SLURM_JWT")
#: Variables that stand for options of Slurm's commands.
_OPTION = re.compile(
    r"(?a)(?!SQUEUE_ALL$)S(BATCH|QUEUE|ACCT|ACCTMGR|CANCEL|CONTROL|INFO)_\w+"
    r"|SLURM_(BITSTR_LEN|CLUSTERS|DEBUG_FLAGS|EXIT_(ERROR|IMMEDIATE)|JSON|TIME_FORMAT|TOPO_LEN|YAML)"
)
#: Those of sbatch(1) and srun(1), 22.05 to 26.05, that are Slurm's own words within a job: there
#: the executor drops them.
_OF_JOBS = re.compile(
    r"SRUN_(?!DEBUG)\w+|SLURMD_DEBUG|SLURM_(ACCOUNT|ACCTG_FREQ|BCAST(_EXCLUDE)?|BURST_BUFFER|COMPRESS"
    r"|CONSTRAINT|CORE_SPEC|CPU_(BIND|FREQ_REQ)|CPUS_PER_(GPU|TASK)|DEBUG|DELAY_BOOT|DEPENDENCY"
    r"|DISABLE_STATUS|DIST(RIBUTION|_PLANESIZE)|EXACT|EXCLUSIVE|EXPORT_ENV|GPU_(BIND|FREQ)"
    r"|GPUS(_PER_(NODE|TASK))?|(STEP_)?GRES|GRES_FLAGS|HINT|IMMEDIATE|JOB_NAME|JOB_NUM_NODES"
    r"|KILL_BAD_EXIT|LABELIO|MEM_(BIND|PER_(CPU|GPU|NODE))|MPI_TYPE|NETWORK|NNODES|NO_KILL|NPROCS"
    r"|NTASKS(_PER_(CORE|GPU|NODE|SOCKET))?|OOMKILLSTEP|OPEN_MODE|OVERCOMMIT|OVERLAP|PARTITION"
    r"|PMI_KVS_NO_DUP_KEYS|POWER|PROFILE|QOS|REMOTE_CWD|REQ_SWITCH|RESERVATION|RESV_PORTS|SEND_LIBS"
    r"|SIGNAL|SPREAD_JOB|SRUN_REDUCE_TASK_EXIT_MSG|STD(ERR|IN|OUT)MODE|STEP_KILLED_MSG_NODE_ID"
    r"|(TASK_)?(EPILOG|PROLOG)|TEST_EXEC|THREADS(_PER_CORE)?|THREAD_SPEC|TIMELIMIT"
    r"|TRES_(BIND|PER_TASK)|UMASK|UNBUFFEREDIO|USE_MIN_NODES|WAIT|WAIT4SWITCH|WCKEY|WORKING_DIR)",
    re.ASCII,
)
_SACCTMGR = """\
show associations where user={user} format={association}
show associations where user= format={association}
show qos format={qos}
"""


@dataclass(frozen=True)
class Answer:
    """Text that a command printed, how old it is, and why an old one was taken from disk."""

    text: str
    age_s: float = 0.0
    failure: SlurmQueryError | None = None


def drop_options() -> list[str]:
    """Take the variables that Slurm's commands read as options out of the environment, by name."""
    outside = "SLURM_JOB_ID" not in os.environ
    names = sorted(
        n for n in os.environ if _OPTION.fullmatch(n) or (outside and _OF_JOBS.fullmatch(n))
    )
    for name in names:
        del os.environ[name]
    os.environ["SQUEUE_ALL"] = "1"  # the executor sees jobs in hidden partitions, as we do
    return names


def run_command(argv: Sequence[str], stdin: str | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """Return what a command prints that is killed after ``timeout_s``.

    Raises
    ------
    SlurmQueryError
        It fails, takes too long, or its answer ends early.
    """
    own = {name: value for name, value in os.environ.items() if not _OPTION.fullmatch(name)}
    environment = {**own, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            argv,
            input=stdin or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmQueryError(argv[0], f"no answer within {timeout_s:g} s", refused=False) from None
    except OSError as error:
        raise SlurmQueryError(argv[0], f"{error.strerror or error}", refused=False) from None
    message = " ".join(done.stderr.split())
    # sacctmgr fed through stdin reports a dead slurmdbd by text only.
    if done.returncode != 0 or (not done.stdout.strip() and "error:" in message):
        raise SlurmQueryError(argv[0], message[:300] or f"exit status {done.returncode}")
    if done.stdout and not done.stdout.endswith("\n"):
        raise SlurmQueryError(argv[0], f"its answer ends early, in {done.stdout[-40:]!r}")
    return done.stdout


def _read(argv: Sequence[str], answer: str) -> str:
    """Return an answer; one in which a line cannot be read is none."""
    question = argv[argv.index("show") + 1] if "show" in argv else argv[0]
    if question in _READERS:
        try:
            _READERS[question](answer)
        except UnreadableError as error:
            raise SlurmQueryError(argv[0], str(error)) from None
    return answer


@dataclass
class SlurmClient:
    """Asks Slurm, and remembers answers for a while.

    What Slurm does not answer is a :class:`SlurmQueryError`, remembered for as long.

    Parameters
    ----------
    ttl_s : float
        Seconds for which live usage is not asked again; limits for ten times as long.
    run, clock : callable
        :func:`run_command`, and the time in seconds since the epoch.
    shared_dir : Path or None
        Where all runs of a user on one host share what Slurm answered, so that several ask about
        as often as one, and the last good limits stay.
    """

    user: str
    cache_dir: Path
    ttl_s: float = 30.0
    run: Callable[..., str] = run_command
    clock: Callable[[], float] = time.time
    shared_dir: Path | None = None
    _cache: dict[tuple[str, ...], tuple[float, str | SlurmQueryError]] = field(default_factory=dict)
    _silent: dict[str, tuple[float, SlurmQueryError]] = field(default_factory=dict)
    _forgot_s: float = float("-inf")
    _ttl_s: dict[tuple[str, ...], float] = field(default_factory=dict)
    _took_s: dict[tuple[str, ...], float] = field(default_factory=dict)

    def slow(self) -> list[str]:
        """Return which programs answered slowly when they were last asked, and what follows."""
        longest: dict[str, int] = {}
        for (program, *_), took_s in self._took_s.items():
            rounded_s = int(round(took_s, -(took_s >= 10)))
            longest[program] = max(rounded_s, longest.get(program, 0))
        return [
            f"{program} takes about {s} s to answer, so it is asked at most every {_PAUSE * s} s"
            for program, s in longest.items()
            if s > _SLOW_S
        ]

    def limits(self) -> Answer:
        """Return associations and QOS as :func:`parse_sacctmgr` reads them.

        One sacctmgr process answers all. Where it fails, the last good answer on this host is
        returned with its age and the reason, if there is one.
        """
        asked = _SACCTMGR.format(
            user=self.user,
            association=",".join(parse.ASSOCIATION_FIELDS),
            qos=",".join(parse.QOS_FIELDS),
        )
        argv = ("sacctmgr", "-n", "-P", "-Q")
        try:
            return Answer(self._ask(argv, 10 * self.ttl_s, asked))
        except SlurmQueryError as error:
            if (stored := self._stored(argv, asked)) is None:
                raise
            return Answer(stored[1], max(0.0, self.clock() - stored[0]), error)

    def usage(self, of: str, names: Sequence[str]) -> str:
        """Return live limits and use of the ``qos``, ``account`` or ``users`` of these names."""
        flags, asked = f"flags={'qos' if of == 'qos' else 'assoc'}", f"{of}={','.join(names)}"
        return self._ask(("scontrol", "-o", "show", "assoc_mgr", flags, asked), self.ttl_s)

    def shares(self) -> str:
        """Return the user's accounts as :func:`~associations.parse_shares` reads them."""
        fields = ("-o", "Account,User,Partition")
        return self._ask(("sshare", "-U", "-n", "-P", "-u", self.user, *fields), 10 * self.ttl_s)

    def show(self, what: str) -> str:
        """Return all of a kind, hidden ones too: partition, node …; or the ``config``."""
        times = 1 if what == "node" else 10
        # -d: with the GPUs in use, also where Slurm counts none (AccountingStorageTRES)
        return self._ask(("scontrol", "-a", "-d", "-o", "show", what), times * self.ttl_s)

    def ask_at_once(self) -> None:
        """Ask what a look begins with, all at once: where an answer takes 20 s, six take 20."""
        kinds = ("config", "node", "reservation", "partition", "licenses")
        with ThreadPoolExecutor() as pool:
            asked: list[Future[object]] = [pool.submit(self.limits)]
            asked += [pool.submit(self.show, kind) for kind in kinds]
        for one in asked:
            with contextlib.suppress(SlurmQueryError):  # that there is no answer is remembered too
                one.result()

    def queue(self) -> str:
        """Return this user's jobs, those that ended in the last minutes too."""
        argv = ("squeue", "-a", "-h", "-u", self.user, "-t", "all", "-O", jobs.JOB_FORMAT)
        before = self._cache.get(argv)
        try:
            return self._ask(argv, self.ttl_s)
        finally:
            # after it live use and nodes: a job that started meanwhile would be in neither
            if self._cache.get(argv) is not before:
                for key in [key for key in self._cache if {"assoc_mgr", "node"} & set(key)]:
                    del self._cache[key]

    def queue_asked_s(self) -> float:
        """Return when Slurm was last asked for this user's jobs, in seconds since the epoch."""
        times = [at_s for argv, (at_s, _) in self._cache.items()
                 if argv[0] == "squeue" and "-u" in argv]  # fmt: skip
        return max(times, default=float("-inf"))

    def everybodys_queue(self) -> str:
        """Return the jobs that the site lets this user see."""
        return self._ask(("squeue", "-a", "-h", "-O", jobs.JOB_FORMAT), self.ttl_s)

    def job(self, job_id: int) -> str:
        """Return all that slurmctld says of one job."""
        # -d: with the derived exit code, the only sign of a step that ran out of memory
        return self._call(("scontrol", "-a", "-d", "-o", "show", "job", str(job_id)))

    def final_state(self, job_id: int) -> str:
        """Return how a job ended that slurmctld has forgotten; empty if the database has it not."""
        answer = self._call(("sacct", "-n", "-X", "-P", "-j", str(job_id), "-o", "State"))
        return re.split(r"[ +\n]", answer)[0]

    def cancel(self, job_ids: Sequence[int], *, pending_only: bool = False) -> str:
        """Cancel jobs, or only those of them that have not started meanwhile."""
        state = ("--state=PENDING",) if pending_only else ()
        return self._call(("scancel", *state, *map(str, job_ids)))

    def forget(self, *, limits: bool = False, but_last_s: float = 0.0) -> None:
        """Ask again for live use and the queue, and for partitions and ``limits`` too.

        What another run learned in the last ``but_last_s`` seconds is taken all the same.
        """
        self._forgot_s = self.clock() - but_last_s
        for argv in list(self._cache):
            if limits or (argv[0] != "sacctmgr" and "partition" not in argv):
                del self._cache[argv]

    def answered_s(self) -> dict[tuple[str, ...], float] | None:
        """Return when each question was answered; None where one would be asked again now."""
        now, found = self.clock(), {argv: at_s for argv, (at_s, _) in self._cache.items()}
        fresh = all(0 <= now - at_s < self._ttl_s[argv] for argv, at_s in found.items())
        return found if fresh else None

    def _ask(self, argv: tuple[str, ...], ttl_s: float, stdin: str | None = None) -> str:
        now = self.clock()
        ttl_s = self._ttl_s[argv] = max(ttl_s, _PAUSE * self._took_s.get(argv, 0))
        asked_s, answer = self._cache.get(argv, (float("-inf"), ""))
        if not 0 <= now - asked_s < ttl_s:
            shared = self._shared(argv, stdin, now, ttl_s)
            self._cache[argv] = shared or (now, self._call_again(argv, stdin))
            answer = self._cache[argv][1]
            if shared is None and isinstance(answer, str):
                self._took_s[argv] = self.clock() - now
                with contextlib.suppress(OSError):  # a full home must not end the run
                    if self.shared_dir:
                        path = self.shared_dir / self._question(argv, stdin)
                        write_private(path, json.dumps([now, answer]))
        if isinstance(answer, SlurmQueryError):
            raise SlurmQueryError(*answer.args)
        return answer

    def _stored(self, argv: tuple[str, ...], stdin: str | None) -> tuple[float, str] | None:
        """Return the last good answer to any run, and when that was asked."""
        if self.shared_dir is None:
            return None
        try:
            path = self.shared_dir / self._question(argv, stdin)
            asked_s, answer = read_private(path)
            return float(asked_s), _read(argv, str(answer))
        except (OSError, ValueError, ArithmeticError, TypeError, SlurmQueryError):
            return None

    def _shared(
        self, argv: tuple[str, ...], stdin: str | None, now: float, ttl_s: float
    ) -> tuple[float, str] | None:
        """Return the answer to another run of not long ago, None where it would be too old."""
        if (stored := self._stored(argv, stdin)) is None:
            return None
        least_s = self._forgot_s
        if {"assoc_mgr", "node"} & set(argv):  # a job that started meanwhile would be in neither
            queues = [at_s for key, (at_s, _) in self._cache.items() if key[0] == "squeue"]
            least_s = max([least_s, *queues])
        return stored if 0 <= now - stored[0] < ttl_s and stored[0] > least_s else None

    def _question(self, argv: tuple[str, ...], stdin: str | None) -> str:
        """Return the name of the file of a question to this host's cluster."""
        asked = [socket.gethostname(), os.environ.get("SLURM_CONF"), self.user, stdin, *argv]
        return f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]}.json"

    def _call(self, argv: tuple[str, ...], stdin: str | None = None) -> str:
        """Run a command, unless the same program has just taken long only to fail."""
        # where slurmctld is down each call takes 9 s: 100 jobs that ended would take 15 min
        failed_s, failure = self._silent.get(argv[0], (float("-inf"), None))
        began_s = self.clock()
        if failure is not None and 0 <= began_s - failed_s < self.ttl_s:
            raise SlurmQueryError(*failure.args)
        try:
            return _read(argv, self.run(argv, stdin))
        except SlurmQueryError as error:
            if self.clock() - began_s > _SLOW_S:
                self._silent[argv[0]] = (self.clock(), error)
            raise

    def _call_again(
        self, argv: tuple[str, ...], stdin: str | None, tries: int = 2
    ) -> str | SlurmQueryError:
        """Run a command, and once more where it fails at once and has answered before."""
        # where one of five calls fails, ready jobs else wait three rounds for the queue (16 s)
        try:
            return self._call(argv, stdin)
        except SlurmQueryError as error:
            if tries > 1 and error.refused and argv in self._took_s:
                return self._call_again(argv, stdin, tries - 1)
            return error
