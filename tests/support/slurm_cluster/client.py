"""The commands that users and the administrator give to a cluster."""

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.support.slurm_cluster.host import search_path
from tests.support.slurm_cluster.records import DELIMITER, FIELDS, Job, parse_jobs
from tests.support.slurm_cluster.settings import QOS_LIMITS

T = TypeVar("T")
#: What every QOS limits anyway: setting it again is enough to restore it.
_OWN_LIMITS = frozenset(f"GrpTRES={item}=-1" for item in ("cpu", "mem", "gres/gpu"))
#: Times as long a step takes beside other work: a job of 2 s took 35 s where 20 shared a CPU.
BUSY = 3.0


class SlurmCommandError(RuntimeError):
    """A command ended with another status than 0; the message holds what it printed."""


def wait_for(condition: Callable[[], T], timeout_s: float, what: str = "the condition") -> T:
    """Return the first true value of ``condition``; TimeoutError names ``what`` and the last.

    ``timeout_s`` is for an idle machine.
    """
    limit = time.monotonic() + BUSY * timeout_s
    while not (value := condition()):
        if time.monotonic() > limit:
            raise TimeoutError(f"{what}: still {value!r} after {BUSY * timeout_s:g} s")
        time.sleep(0.1)
    return value


class Client:
    """Commands against the cluster that lives in ``folder``."""

    def __init__(self, folder: Path, accounting: bool) -> None:
        self.folder = folder
        self.accounting = accounting
        self._changed_qos: dict[str, set[str]] = {}

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def scratch(self) -> Path:
        """Where commands run; every user may write there."""
        return self.folder / "scratch"

    @property
    def env(self) -> dict[str, str]:
        """The one variable that leads Slurm's commands to this cluster."""
        return {"SLURM_CONF": str(self.slurm_conf)}

    def run(
        self,
        argv: Sequence[str | Path],
        user: str = "root",
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as ``user``, outside any Slurm job of our own; return what it printed."""
        entry = pwd.getpwnam(user)
        own = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        who = {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user, "PATH": search_path()}
        words = [str(word) for word in argv]
        done = subprocess.run(
            words, env=own | who | self.env | dict(env or {}), cwd=self.scratch, timeout=300,
            user=entry.pw_uid, group=entry.pw_gid,
            extra_groups=os.getgrouplist(user, entry.pw_gid), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if check and done.returncode:
            said = f"status {done.returncode}\n{done.stdout}{done.stderr}"
            raise SlurmCommandError(f"{' '.join(words)}: {said}")
        return done

    def sbatch(self, user: str, *args: str, command: str) -> int:
        """Submit ``command`` (shell) as ``user`` and return the job's id."""
        done = self.run(["sbatch", "--parsable", *args, f"--wrap={command}"], user)
        return int(done.stdout.split(";")[0])

    def jobs(self) -> list[Job]:
        """Every job since the cluster began, as slurmdbd knows it; one record for each run."""
        if not self.accounting:
            return []
        # %s: seconds since 1970. sacct begins at midnight without -S, and with a time of 0, which
        # 1970-01-01 is in UTC: a run across midnight lost its first jobs.
        asked = ["sacct", "-a", "-n", "-P", "-D", "-X", "-S", "1970-01-02"]
        asked += [f"--delimiter={DELIMITER}", f"--format={','.join(FIELDS)}"]
        return parse_jobs(self.run(asked, env={"SLURM_TIME_FORMAT": "%s"}).stdout)

    def job(self, job_id: int) -> Job:
        """The last run of one job; LookupError if slurmdbd has not heard of it yet."""
        runs = [job for job in self.jobs() if job.id == job_id]
        if not runs:
            raise LookupError(f"job {job_id}")
        return runs[-1]

    def wait_job(self, job_id: int, timeout_s: float = 30) -> Job:
        """Wait until a job has ended, in accounting too, and return its record."""

        def ended() -> list[Job]:
            return [job for job in self.jobs() if job.id == job_id][-1:]

        wait_for(lambda: any(job.ended for job in ended()), timeout_s, f"end of job {job_id}")
        return ended()[-1]

    def show_job(self, job_id: int) -> str:
        """The line of ``scontrol -o show job``."""
        return self.run(["scontrol", "-o", "show", "job", str(job_id)]).stdout.strip()

    def set_qos(self, name: str, *settings: str) -> None:
        """Change a QOS, for example ``set_qos("clive", "GrpTRES=cpu=40,gres/gpu=1")``."""
        changed = self._changed_qos.setdefault(name, set())
        for setting in settings:
            key, _, value = setting.partition("=")
            tres = [item.partition("=")[0] for item in value.split(",") if "=" in item]
            # -1 takes a limit away; a list of resources takes one for each of them
            removals = [f"{key}={item}=-1" for item in tres] or [f"{key}=-1"]
            changed.update(item for item in removals if item not in _OWN_LIMITS)
        self.modify("qos", name, *settings)

    def restore_limits(self) -> None:
        """Take every :meth:`set_qos` back."""
        for name, removals in self._changed_qos.items():
            self.modify("qos", name, QOS_LIMITS[name], *sorted(removals))
        self._changed_qos.clear()

    def modify(self, what: str, names: str, *settings: str) -> None:
        """Change QOS, accounts or users (``name,name account=name``) by sacctmgr."""
        where = f"name={names}".split()
        self.run(["sacctmgr", "-i", "modify", what, "where", *where, "set", *settings])

    def update(self, what: str, *settings: str, check: bool = True) -> None:
        """Change ``NodeName=...``, ``PartitionName=...`` or ``JobId=...`` by scontrol."""
        self.run(["scontrol", "update", what, *settings], check=check)

    def cancel_all(self, timeout_s: float = 30) -> None:
        """Cancel every job and wait until none is left, also none that is ending."""

        def none_left() -> bool:
            ids = self.run(["squeue", "-h", "-o", "%A"]).stdout.split()
            if ids:
                self.run(["scancel", *sorted(set(ids))], check=False)
            return not ids

        wait_for(none_left, timeout_s, "an empty queue")
