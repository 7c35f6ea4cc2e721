"""Jobs as squeue shows them (pure)."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..runtime.errors import UnreadableError
from .reasons import Waiting, why_pending

#: squeue cuts what is longer than its field, and separates nothing by itself.
JOB_FIELDS = {
    "JobID": 16, "State": 20, "Account": 64, "QOS": 64, "Partition": 400, "StartTime": 24,
    "EndTime": 24, "NodeList": 400, "Reason": 200, "WorkDir": 1000, "Name": 200, "Comment": 1000,
}  # fmt: skip
JOB_FORMAT = ",".join(f"{name}:{width}|" for name, width in JOB_FIELDS.items())
_ENDS = list(itertools.accumulate(width + 1 for width in JOB_FIELDS.values()))
_CELLS = [slice(start, end - 1) for start, end in itertools.pairwise([0, *_ENDS])]
_BEGIN = re.compile(r"[0-9]{1,18}\|[A-Z_]+")
#: Any other state is of a job that may still write, or write again.
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
        "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "SPECIAL_EXIT", "TIMEOUT",
    }
)  # fmt: skip


@dataclass(frozen=True)
class SlurmJob:
    """One job of the queue, as :data:`JOB_FIELDS`; times in seconds since the epoch, or None.

    Attributes
    ----------
    end_s : float or None
        Of a running job, when its time limit ends it.
    """

    id: int
    state: str
    account: str = ""
    qos: str = ""
    partition: str = ""
    start_s: float | None = None
    end_s: float | None = None
    nodes: str = ""
    reason: str = ""
    workdir: str = ""
    name: str = ""
    comment: str = ""

    @property
    def active(self) -> bool:
        """Whether it pends or runs, as far as is known."""
        return self.state not in ENDED

    @property
    def pending(self) -> bool:
        """Whether it has not begun."""
        return self.state in ("PENDING", "CONFIGURING")

    @property
    def waiting(self) -> Waiting:
        """Why it pends."""
        return why_pending(self.reason)


def parse_queue(text: str) -> list[SlurmJob]:
    """Return the jobs of ``squeue -h -O`` with :data:`JOB_FORMAT`, or raise `UnreadableError`.

    Times are seconds since the epoch (``SLURM_TIME_FORMAT=%s``).
    """
    found = []
    for line in _lines(text):
        cells = _cells(line)
        if len(cells) != len(JOB_FIELDS) or not _BEGIN.fullmatch("|".join(cells[:2])):
            raise UnreadableError(line.decode(errors="replace"))
        row = zip(JOB_FIELDS, cells, strict=True)
        found.append(SlurmJob(*(_READERS.get(name, str)(cell) for name, cell in row)))
    return found


def _time_s(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


#: Fields that are no words.
_READERS: Mapping[str, Callable[[str], Any]] = {
    "JobID": int, "StartTime": _time_s, "EndTime": _time_s
}  # fmt: skip


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
