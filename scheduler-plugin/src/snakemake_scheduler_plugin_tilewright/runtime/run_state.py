"""How far a run is: what its process writes now and then, and others read."""

import json
import math
import os
import re
import socket
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from .files import STRICT, Count, Text, Time, open_regular, write_text_atomic

#: Below this share of the work no time left is estimated.
_TOLD = 0.05
#: A run writes its state every minute.
_SILENT_S = 300.0
#: Clocks are set while processes run.
_CLOCK_S = 60.0

#: What became of a run; one that runs on another machine and no longer writes is silent.
Life = Literal["active", "ended", "killed", "silent"]


@dataclass(frozen=True)
class RunState:
    """A run at one time."""

    began_s: Time
    at_s: Time
    """When it began and when it was so, in seconds since the epoch."""
    jobs: dict[Text, Count]
    done: dict[Text, Count]
    """Rule to all its jobs and to those that are done."""
    running: Count = 0
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Of the work, counted in the estimated seconds of each job, what is done; 0 to 1."""
    waiting: dict[Text, Count] = field(default_factory=dict)
    """Reason to the ready jobs that wait for it, where placement knows it; 0 of what is known
    although no job is ready."""
    ended: bool = False
    host: Annotated[Text, Field(pattern=r"^\P{C}*$")] = field(default_factory=socket.gethostname)
    # kill takes others than positive ones for groups of processes
    pid: Annotated[Count, Field(gt=0)] = field(default_factory=os.getpid)
    """Where the process that says this runs."""
    ledger: Text = ""
    """Where its decisions are written; empty: next to the state, if anywhere."""
    queued: Count = 0
    """Jobs that were handed to Slurm and pend there."""
    folder: Text = field(default_factory=os.getcwd)
    """Its working directory."""

    @property
    def complete(self) -> bool:
        """Whether all jobs are done."""
        return sum(self.done.values()) == sum(self.jobs.values())

    @property
    def left_s(self) -> float | None:
        """Seconds until all is done, at the pace so far; None as long as too little is done."""
        if self.share < _TOLD:
            return None
        return (self.at_s - self.began_s) * (1 - self.share) / self.share

    @property
    def where(self) -> str:
        """The process of the run."""
        return f"process {self.pid} on {self.host}"

    @property
    def stop(self) -> str:
        """How to stop it."""
        return f"Ctrl-C in its terminal, or `kill -INT {self.pid}` on {self.host}"

    def life(self, now_s: float) -> Life:
        """Return what became of the run, as far as that is known on this machine."""
        if self.ended:
            return "ended"
        if self.host == socket.gethostname():
            return "active" if _lives(self.pid, self.began_s) else "killed"
        return "silent" if now_s - self.at_s > _SILENT_S else "active"

    def line(self) -> str:
        """Return jobs done, running and queued, the share of the work, the time left, waits."""
        texts = [f"{sum(self.done.values())} of {sum(self.jobs.values())} jobs done"]
        texts += [f"{100 * self.share:.0f} % of the work"]
        texts += [f"{self.running} running"] if self.running else []
        texts += [f"{self.queued} in Slurm's queue"] if self.queued else []
        if self.left_s and not self.ended:
            texts.append(f"about {span_text(self.left_s)} left")
        begun = [f"{rule} {self.done.get(rule, 0)}/{n}" for rule, n in self.jobs.items()
                 if 0 < self.done.get(rule, 0) < n]  # fmt: skip
        rules = f" ({', '.join(begun)})" if begun else ""
        return ", ".join(texts) + rules + "".join(f"; {text}" for text in self.waits())

    def waits(self) -> list[str]:
        """Return why ready jobs wait, the most frequent reason first."""
        ordered = sorted(self.waiting.items(), key=lambda item: (-item[1], item[0]))
        return [f"{n} wait{'s' * (n == 1)}: {why}" if n else why for why, n in ordered]


_VALUES: dict[str, Any] = {one.name: (one.type, ...) for one in fields(RunState)}
_VALUES["folder"] = Text, ""  # earlier versions did not say it
_FILE = create_model("RunStateFile", __config__={**STRICT, "extra": "forbid"}, **_VALUES)


def span_text(seconds: float) -> str:
    """Return a length of time with its unit.

    >>> span_text(75), span_text(600), span_text(9000), span_text(302400)
    ('75 s', '10.0 min', '2.5 h', '3.5 d')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    units = ((5400, 60, "min"), (172800, 3600, "h"), (math.inf, 86400, "d"))
    return next(f"{seconds / size:.1f} {unit}" for below, size, unit in units if seconds < below)


def _lives(pid: int, since_s: float) -> bool:
    """Return whether a process of this machine lives that was there at a time.

    The number of one that has ended is given to another.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        booted = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(encoding="utf-8"), re.M)
    except OSError:
        return True
    state, *numbers = after_name.split()
    began_s = int(booted[1]) + int(numbers[18]) / os.sysconf("SC_CLK_TCK") if booted else 0.0
    return state != "Z" and began_s < since_s + _CLOCK_S


def write_state(path: Path, state: RunState) -> None:
    """Write a state whole.

    Raises
    ------
    OSError
        It could not be written.
    """
    write_text_atomic(path, json.dumps(asdict(state), indent=1) + "\n")


def read_state(path: Path) -> RunState:
    """Read what :func:`write_state` wrote.

    Raises
    ------
    OSError
        There is none, or it cannot be read.
    ValueError
        The file is not a state; the message names it.
    """
    try:
        with open_regular(path) as stream:
            entry = json.load(stream)
        values = _FILE.model_validate(entry).model_dump()
    except (ValueError, RecursionError):
        raise ValueError(f"{path} does not say how far a run is; remove it") from None
    return RunState(**values)
