"""The commands that users and the administrator give to a cluster."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.support.slurm_cluster.host import search_path
from tests.support.slurm_cluster.records import DELIMITER, FIELDS, Job, parse_jobs
from tests.support.slurm_cluster.settings import Settings

T = TypeVar("T")
#: What every QOS limits anyway: setting it again is enough to restore it.
_OWN_LIMITS = frozenset(f"GrpTRES={item}=-1" for item in ("cpu", "mem", "gres/gpu"))


class SlurmCommandError(RuntimeError):
    """A command ended with another status than 0; the message holds what it printed."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        words = " ".join(str(word) for word in done.args)
        super().__init__(f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")
        self.done = done


#: Times as long a step takes beside other work: a job of 2 s took 35 s where 20 shared a CPU.
BUSY = 3.0


def wait_for(condition: Callable[[], T], timeout_s: float, what: str = "") -> T:
    """Return the first true value of ``condition``; TimeoutError names ``what`` and the last.

    ``timeout_s`` is for an idle machine.
    """
    limit = time.monotonic() + BUSY * timeout_s
    while not (value := condition()):
        if time.monotonic() > limit:
            name = what or getattr(condition, "__name__", "the condition")
            raise TimeoutError(f"{name}: still {value!r} after {BUSY * timeout_s:g} s")
        time.sleep(0.1)
    return value


class Client:
    """Commands against the cluster of one ``slurm.conf``.

    Parameters
    ----------
    settings : Settings
        What the cluster was configured with.
    folder : Path
        Where it lives.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self._changed_qos: dict[str, set[str]] = {}

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def scratch(self) -> Path:
        """Where commands run unless told otherwise; every user may write there."""
        return self.folder / "scratch"

    @property
    def env(self) -> dict[str, str]:
        """The one variable that leads Slurm's commands to this cluster."""
        return {"SLURM_CONF": str(self.slurm_conf)}

    def _as_user(self, user: str, env: Mapping[str, str], cwd: Path | None) -> dict[str, Any]:
        """Arguments for :mod:`subprocess` to be ``user``, outside any Slurm job of our own."""
        entry = pwd.getpwnam(user)
        own = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        who = {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user, "PATH": search_path()}
        return {
            "env": own | who | self.env | dict(env),
            "cwd": cwd or self.scratch,
            "user": entry.pw_uid,
            "group": entry.pw_gid,
            "extra_groups": os.getgrouplist(user, entry.pw_gid),
            "stdin": subprocess.DEVNULL,
            "text": True,
        }

    def run(
        self,
        argv: Sequence[str | Path],
        user: str = "root",
        check: bool = True,
        timeout_s: float = 60,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as ``user`` and return what it printed.

        Raises
        ------
        SlurmCommandError
            Its status is not 0 and ``check`` is true.
        """
        words = [str(word) for word in argv]
        done: subprocess.CompletedProcess[str] = subprocess.run(
            words,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            **self._as_user(user, env or {}, cwd),
        )
        if check and done.returncode:
            raise SlurmCommandError(done)
        return done

    def popen(
        self,
        argv: Sequence[str | Path],
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        output: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command as ``user`` and leave it running; ``output`` takes what it prints."""
        words = [str(word) for word in argv]
        with (output or Path(os.devnull)).open("ab") as stream:
            process: subprocess.Popen[str] = subprocess.Popen(
                words,
                stdout=stream,
                stderr=subprocess.STDOUT,
                **self._as_user(user, env or {}, cwd),
            )
        return process

    def sbatch(self, user: str, *args: str, command: str) -> int:
        """Submit ``command`` (shell) as ``user`` and return the job's id."""
        done = self.run(["sbatch", "--parsable", *args, f"--wrap={command}"], user)
        return int(done.stdout.split(";")[0])

    def jobs(self) -> list[Job]:
        """Every job since the cluster began, as slurmdbd knows it; one record for each run."""
        if not self.settings.accounting:
            return []
        # %s: seconds since 1970; without -S, sacct begins at midnight
        done = self.run(
            [
                *("sacct", "-a", "-n", "-P", "-D", "-S", "1970-01-01"),
                *(f"--delimiter={DELIMITER}", f"--format={','.join(FIELDS)}"),
            ],
            env={"SLURM_TIME_FORMAT": "%s"},
        )
        return parse_jobs(done.stdout)

    def job(self, job_id: int) -> Job:
        """The last run of one job; LookupError if slurmdbd has not heard of it yet."""
        runs = [job for job in self.jobs() if job.id == job_id]
        if not runs:
            raise LookupError(f"job {job_id}")
        return runs[-1]

    def wait_job(self, job_id: int, timeout_s: float = 30) -> Job:
        """Wait until a job has ended, in accounting too, and return its record."""

        def ended() -> Job | None:
            runs = [job for job in self.jobs() if job.id == job_id]
            return runs[-1] if runs and runs[-1].ended else None

        found = wait_for(ended, timeout_s, f"end of job {job_id}")
        assert found is not None
        return found

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
        self._modify_qos(name, list(settings))

    def restore_limits(self) -> None:
        """Take every :meth:`set_qos` back."""
        for name, removals in self._changed_qos.items():
            self._modify_qos(name, [self.settings.qos_limits[name], *sorted(removals)])
        self._changed_qos.clear()

    def _modify_qos(self, name: str, settings: list[str]) -> None:
        self.run(["sacctmgr", "-i", "modify", "qos", "where", f"name={name}", "set", *settings])

    def cancel_all(self, timeout_s: float = 30) -> None:
        """Cancel every job and wait until none is left, also none that is ending."""

        def none_left() -> bool:
            ids = self.run(["squeue", "-h", "-o", "%A"]).stdout.split()
            if ids:
                self.run(["scancel", *sorted(set(ids))], check=False)
            return not ids

        wait_for(none_left, timeout_s, "an empty queue")
