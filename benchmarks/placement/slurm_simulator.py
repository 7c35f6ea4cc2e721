"""A Slurm of which only the clock is not real: it takes commands, and answers as programs do."""

import contextlib
import math
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from snakemake_scheduler_plugin_tilewright.runtime.errors import SlurmQueryError

from . import answers
from .records import Request, Scenario
from .scheduler import Scheduler, SlurmJob

#: Seconds that a command takes (no figure): 0.02 s where Slurm idles, 20 s where it is busy.
CALL_S = 1.0
#: Seconds that a job runs that is none of the workflow, and does not sleep (no figure).
_RUN_S = 600.0
#: Commands of threads that take as long as one (no figure).
_AT_ONCE = 8
_INVALID_ACCOUNT = "Invalid account or account/partition combination specified"
_INVALID_QOS = "Invalid qos specification"
_INVALID_PARTITION = "Invalid partition name specified"
_NO_SUCH_NODE = "Requested node configuration is not available"
_NOT_PENDING = "Job is no longer pending execution"
_POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
_DENIED = "Access/permission denied"
#: Options of the commands that have a value, by their other name.
_LONG = {"A": "account", "p": "partition", "t": "time", "c": "cpus-per-task", "J": "job-name",
         "D": "chdir", "q": "qos", "N": "nodes", "n": "ntasks", "o": "output", "e": "error",
         "x": "exclude", "C": "constraint", "G": "gpus", "w": "nodelist"}  # fmt: skip
_QUEUE = {"u": "user", "t": "states", "j": "jobs", "n": "name", "o": "format", "O": "Format",
          "A": "account", "p": "partition", "q": "qos", "S": "sort"}  # fmt: skip
_FLAGS = {"parsable", "requeue", "no-requeue", "hold", "exclusive", "noheader", "all", "me",
          "parsable2", "allocations", "test-only"}  # fmt: skip


def parse_options(
    argv: Sequence[str], names: dict[str, str]
) -> tuple[dict[str, str], list[str], set[str]]:
    """Return the options of a command with values, its words, and its flags."""
    values, words, flags = dict[str, str](), list[str](), set[str]()
    rest = list(argv)
    while rest:
        one = rest.pop(0)
        if one.startswith("--"):
            name, equals, value = one[2:].partition("=")
            if name in _FLAGS and not equals:
                flags.add(name)
            else:
                values[name] = value if equals else rest.pop(0)
        elif len(one) > 1 and one[0] == "-":
            if one[1] in names:
                values[names[one[1]]] = one[2:] or rest.pop(0)
            else:
                flags.update(one[1:])
        else:
            words.append(one)
    return values, words, flags


def _minutes(text: str) -> int | None:
    """Return the minutes of ``90``, ``1:30:00`` or ``1-0``."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        return None
    days, *parts = (int(part or 0) for part in found.groups())
    if found[1]:
        return days * 1440 + parts[0] * 60 + parts[1]
    return parts[0] * 60 + parts[1] if found[4] else parts[0]


def _mem_mb(text: str) -> int:
    units = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
    return int(float(text.rstrip("KMGTB")) * units.get(text.rstrip("B")[-1], 1))


@dataclass
class _Failure(Exception):
    reason: str


class SimulatedSlurm(Scheduler):
    """Slurm in virtual time; `run` takes the place of the client's ``run_command``.

    Attributes
    ----------
    asked : Counter of str
        How often each program was run.
    moves : int
        Pending jobs that were cancelled, or sent to another place.
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.asked: Counter[str] = Counter()
        self.moves = 0
        self._lock = threading.Lock()
        self._beside = False
        self._at_once = 0
        self._commands: dict[str, Callable[[Sequence[str], str | None], str]] = {
            "squeue": self._squeue, "sbatch": self._sbatch, "scontrol": self._scontrol,
            "scancel": self._scancel, "sacctmgr": self._sacctmgr, "sacct": self._sacct,
            "sshare": self._sshare, "sinfo": self._sinfo,
        }  # fmt: skip

    def now_s(self) -> float:
        """Return the time in seconds since the epoch."""
        return answers.EPOCH_S + self.clock_s

    def run(self, argv: Sequence[str], stdin: str | None = None, timeout_s: float = 120.0) -> str:
        """Return what a command prints, `CALL_S` later.

        Commands of other threads run at once, before the next of the main thread.

        Raises
        ------
        SlurmQueryError
            The command fails.
        """
        with self._lock:
            self.asked[argv[0]] += 1
            alone = threading.current_thread() is threading.main_thread() and not self._beside
            if alone:
                others_s = math.ceil(self._at_once / _AT_ONCE) * CALL_S
                self.advance(self.clock_s + others_s + CALL_S / 2)
                self._at_once = 0
            try:
                return self._commands[argv[0]](argv[1:], stdin)
            except _Failure as failure:
                raise SlurmQueryError(argv[0], failure.reason[:300]) from None
            finally:
                if alone:
                    self.advance(self.clock_s + CALL_S / 2)
                elif not self._beside:
                    self._at_once += 1

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Have commands take no time: they run while another one does."""
        before, self._beside = self._beside, True
        try:
            yield
        finally:
            self._beside = before

    def _squeue(self, argv: Sequence[str], stdin: str | None) -> str:
        of, _, flags = parse_options(argv, _QUEUE)
        user, states = of.get("user"), of.get("states", "PENDING,RUNNING").upper()
        user = self.scenario.user if "me" in flags else user
        wanted = None if "ALL" in states.split(",") else set(states.split(","))
        found: list[SlurmJob] = list(self.jobs.values())
        if "jobs" in of:
            ids = [int(one) for one in of["jobs"].split(",")]
            found = [self.jobs[one] for one in ids if one in self.jobs and self._kept(one)]
            if not found and len(ids) == 1:
                raise _Failure("slurm_load_jobs error: Invalid job id specified")
            wanted = None if "states" not in of else wanted
        private = self.scenario.seen == "no limits"
        found = [
            job for job in found
            if self._kept(job.id)
            and (wanted is None or job.state in wanted or answers.COMPACT[job.state] in wanted)
            and (user is None or job.user in user.split(","))
            and ("name" not in of or job.name in of["name"].split(","))
            and ("account" not in of or job.account in of["account"].split(","))
            and ("partition" not in of or {*job.partitions} & {*of["partition"].split(",")})
            and (not private or job.user == self.scenario.user)
        ]  # fmt: skip
        found.sort(key=lambda job: (job.state != "PENDING", job.id))
        text = answers.queue_text(self, found, of.get("Format", ""), of.get("format", "%i|%T"))
        return text if flags & {"h", "noheader"} else f"HEADER\n{text}"

    def _kept(self, job_id: int) -> bool:
        """Return whether slurmctld still knows a job."""
        job = self.jobs[job_id]
        return job.active or self.clock_s - (job.end_s or 0) < self.scenario.forget_s

    def _sbatch(self, argv: Sequence[str], stdin: str | None) -> str:
        of, _, _ = parse_options(argv, _LONG)
        refused = "Batch job submission failed: "
        user, minutes = self.scenario.user, _minutes(of.get("time", "10"))
        if minutes is None:
            raise _Failure("sbatch: error: Invalid --time specification")
        account, qos = self._account(of.get("account"), of.get("qos"))
        default = next((one.name for one in self.scenario.partitions if one.default), "")
        partitions = tuple(of.get("partition", default).split(","))
        request = Request(
            int(of.get("cpus-per-task") or of.get("cpus-per-gpu") or 1),
            _mem_mb(of.get("mem", "1000")), self._gpus(of), minutes,
        )  # fmt: skip
        self._check_place(partitions, request)
        if limit := self.limits.submit_reached(user, qos):
            raise _Failure(f"sbatch: error: {limit} sbatch: error: {refused}{_POLICY}")
        wrapped = re.fullmatch(r"sleep (\d+)", of.get("wrap", ""))
        job = SlurmJob(
            self.new_id(), user, account, qos, partitions, request, self.clock_s,
            float(wrapped[1]) if wrapped else _RUN_S, of.get("job-name", "wrap"),
            of.get("comment", ""), of.get("chdir", "/home/ada"),
            frozenset(filter(None, of.get("exclude", "").split(","))),
        )  # fmt: skip
        return f"{self.submit(job).id}\n"

    def _gpus(self, of: dict[str, str]) -> int:
        text = of.get("gpus") or of.get("gpus-per-node") or of.get("gres", "")
        found = re.search(r"(?:^|:|=)(\d+)$", text)
        return int(found[1]) if found else int(text.startswith("gpu"))

    def _account(self, account: str | None, qos: str | None) -> tuple[str, str]:
        """Return account and QOS of a job that names these, or raise."""
        if self.scenario.seen == "no accounts":
            return "", ""
        account = account or next(iter(self.limits.accounts))
        known = self.limits.accounts.get(account)
        if known is None or not known.qos:
            raise _Failure(f"Batch job submission failed: {_INVALID_ACCOUNT}")
        if qos and qos not in known.qos:
            raise _Failure(f"Batch job submission failed: {_INVALID_QOS}")
        return account, qos or known.qos[0]

    def _check_place(self, partitions: Sequence[str], request: Request) -> None:
        if not {*partitions} <= self.partitions.keys():
            raise _Failure(f"Batch job submission failed: {_INVALID_PARTITION}")
        if not self.can_hold(request, partitions):
            raise _Failure(f"Batch job submission failed: {_NO_SUCH_NODE}")

    def _scontrol(self, argv: Sequence[str], stdin: str | None) -> str:
        words = [one for one in argv if not one.startswith("-")]
        if words[0] == "update":
            return self._update(dict(one.split("=", 1) for one in words[1:]))
        what, names = words[1], words[2:]
        match what:
            case "partition" | "partitions":
                return "".join(answers.partition_text(self, p) for p in self.partitions.values())
            case "node" | "nodes":
                return "".join(answers.node_text(self, name) for name in self.rooms)
            case "config":
                return answers.config_text(self)
            case "reservation" | "reservations":
                return "No reservations in the system\n"
            case "lic" | "licenses":
                return "No licenses configured in Slurm.\n"
            case "job":
                ids = [int(one) for name in names for one in name.split(",")] or list(self.jobs)
                found = [self.jobs[one] for one in ids if one in self.jobs and self._kept(one)]
                if not found and names:
                    raise _Failure("slurm_load_jobs error: Invalid job id specified")
                return "".join(answers.job_text(self, job) for job in found)
            case "assoc_mgr":
                return self._show_use(dict(one.split("=", 1) for one in names))
        raise _Failure(f"invalid entity:{what} for keyword:show")

    def _show_use(self, of: dict[str, str]) -> str:
        if self.scenario.seen != "all":
            raise _Failure(f"slurm_load_assoc_mgr_info error: {_DENIED}")
        flags = of.get("flags", "assoc,qos").split(",")
        text = "Current Association Manager state\n"
        named = of.get("accounts") or of.get("account")
        accounts = named.split(",") if named else list(self.limits.accounts)
        if "assoc" in flags:
            text += "Association Records\n"
            for name in accounts:
                if name in self.limits.accounts:
                    text += answers.account_use_text(self, name)
                    text += answers.account_use_text(self, name, self.scenario.user)
        if "qos" in flags:
            names = of["qos"].split(",") if of.get("qos") else list(self.limits.qos)
            text += "QOS Records\n"
            text += "".join(answers.qos_use_text(self, n) for n in names if n in self.limits.qos)
        return text

    def _update(self, of: dict[str, str]) -> str:
        """Send pending jobs to another place; those that cannot go stay as they are."""
        of = {name.lower(): value for name, value in of.items()}
        failures = []
        for one in of.pop("jobid").split(","):
            try:
                self._update_one(int(one), of)
            except _Failure as failure:
                failures.append(failure.reason.removeprefix("Batch job submission failed: "))
        self.wake()
        if failures:
            raise _Failure(" ".join(f"slurm_update error: {why}" for why in failures))
        return ""

    def _update_one(self, job_id: int, of: dict[str, str]) -> None:
        job = self.jobs.get(job_id)
        if job is None or not self._kept(job_id):
            raise _Failure("Invalid job id specified")
        if job.user != self.scenario.user:
            raise _Failure(_DENIED)
        if job.state != "PENDING":
            raise _Failure(
                _NOT_PENDING if job.active else "Job/step already completing or completed"
            )
        if unknown := of.keys() - {"account", "qos", "partition", "timelimit", "excnodelist"}:
            raise _Failure(f"Update of this parameter is not supported: {min(unknown)}")
        account, qos = self._account(of.get("account", job.account), of.get("qos", job.qos))
        partitions = tuple(of["partition"].split(",")) if "partition" in of else job.partitions
        minutes = _minutes(of["timelimit"]) if "timelimit" in of else job.request.minutes
        if minutes is None or minutes > job.request.minutes:
            raise _Failure(_DENIED)  # only an operator makes it longer
        self._check_place(partitions, job.request)
        if (account, qos) != (job.account, job.qos) and self.limits.submit_reached(job.user, qos):
            raise _Failure(_POLICY)
        job.request = Request(job.request.cpus, job.request.mem_mb, job.request.gpus, minutes)
        self.moves += (account, qos, partitions) != (job.account, job.qos, job.partitions)
        self.recount(job, account, qos)
        job.partitions, job.partition = partitions, ",".join(partitions)
        if "excnodelist" in of:
            job.exclude = frozenset(filter(None, of["excnodelist"].split(",")))
        job.reason, job.planned_s = "None", None

    def _scancel(self, argv: Sequence[str], stdin: str | None) -> str:
        of, ids, _ = parse_options(argv, _QUEUE)
        state = of.get("state") or of.get("states")
        found = [self.jobs[int(one)] for one in ids if int(one) in self.jobs]
        if not ids:
            found = [job for job in self.jobs.values() if job.user == self.scenario.user
                     and ("name" not in of or job.name == of["name"])]  # fmt: skip
        for job in found:
            if job.user != self.scenario.user:
                raise _Failure(f"scancel: error: Kill job error on job id {job.id}: {_DENIED}")
            if job.active and state in (None, job.state):
                self.moves += job.state == "PENDING"
                self.end(job, "CANCELLED", "0:15")
                job.reason = "None"
        return ""

    def _sacctmgr(self, argv: Sequence[str], stdin: str | None) -> str:
        if self.scenario.seen == "no accounts":
            raise _Failure("You are not running a supported accounting_storage plugin")
        if self.scenario.seen == "no limits":
            raise _Failure(f"sacctmgr: error: Problem with query: {_DENIED}")
        words = " ".join(one for one in argv if not one.startswith("-"))
        questions = [words] if words else (stdin or "").splitlines()
        return "".join(answers.database_text(self, one) for one in questions if one.strip())

    def _sacct(self, argv: Sequence[str], stdin: str | None) -> str:
        names = {"j": "jobs", "o": "format", "u": "user", "S": "starttime", "E": "endtime",
                 "s": "state"}  # fmt: skip
        of, _, _ = parse_options(argv, names)
        if self.scenario.seen == "no accounts":
            raise _Failure("Slurm accounting storage is disabled")
        lines = []
        for one in of.get("jobs", "").split(","):
            job = self.jobs.get(int(one)) if one else None
            if job:
                state = "CANCELLED by 1001" if job.state == "CANCELLED" else job.state
                row = {"state": state, "jobid": one, "jobidraw": one, "exitcode": job.exit,
                       "nodelist": job.node or "None assigned", "account": job.account,
                       "qos": job.qos, "partition": job.partition,
                       "start": answers.time_text(job.start_s), "end": answers.time_text(job.end_s),
                       "derivedexitcode": job.derived}  # fmt: skip
                fields = of.get("format", "state").lower().split(",")
                lines.append(
                    "|".join(row.get(name.partition("%")[0], "") for name in fields) + "\n"
                )
        return "".join(lines)

    def _sshare(self, argv: Sequence[str], stdin: str | None) -> str:
        if self.scenario.seen == "no accounts":
            return ""
        of, _, _ = parse_options(argv, {"o": "format", "u": "user", "A": "account"})
        fields = of.get("format", "Account,User").lower().split(",")
        rows = [{"account": one.name, "user": self.scenario.user}
                for one in self.limits.accounts.values() if one.qos]  # fmt: skip
        return "".join("|".join(row.get(name, "") for name in fields) + "\n" for row in rows)

    def _sinfo(self, argv: Sequence[str], stdin: str | None) -> str:
        of, _, _ = parse_options(argv, {"o": "format", "p": "partition", "O": "Format"})
        if "Format" in of:
            return "".join(
                answers.idle_text(self, where, name, of["Format"])
                for where in self.scenario.partitions for name in where.nodes
            )  # fmt: skip
        short, lines = of.get("format", "%P|%a|%l|%D|%T|%N"), []
        for where in self.scenario.partitions:
            states: dict[str, list[str]] = {}
            for name in where.nodes:
                states.setdefault(answers.node_state(self, name).lower(), []).append(name)
            for state, names in states.items():
                cells = {"P": where.name + "*" * where.default, "a": "up", "T": state, "t": state,
                         "l": answers.span_text(where.longest_min), "D": str(len(names)),
                         "N": ",".join(names)}  # fmt: skip
                known = re.sub(r"%\.?\d*(\w)", r"{\1}", short)
                lines.append(known.format_map(defaultdict(lambda: "N/A", cells)) + "\n")
        return "".join(lines)
