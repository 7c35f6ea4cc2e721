"""That a run is active: what its process writes now and then, and others read."""

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

#: A run says so every 10 s.
_SILENT_S = 300.0
#: Clocks are set while processes run.
_CLOCK_S = 60.0

#: What became of a run; one that runs on another machine and no longer writes is silent.
Life = Literal["active", "ended", "killed", "silent"]


@dataclass(frozen=True)
class RunState:
    """A run at one time.

    Attributes
    ----------
    began_s, at_s : float
        When it began and when it was so, in seconds since the epoch.
    ended : bool
        Whether it has ended.
    host, pid : str, int
        Where the process that says this runs.
    folder : str
        Its working directory.
    """

    began_s: Time
    at_s: Time
    ended: bool = False
    host: Annotated[Text, Field(pattern=r"^\P{C}*$")] = field(default_factory=socket.gethostname)
    # kill takes others than positive ones for groups of processes
    pid: Annotated[Count, Field(gt=0)] = field(default_factory=os.getpid)
    folder: Text = field(default_factory=os.getcwd)

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


_VALUES: dict[str, Any] = {one.name: (one.type, ...) for one in fields(RunState)}
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
        raise ValueError(f"{path} does not say whose run it is of; remove it") from None
    return RunState(**values)
