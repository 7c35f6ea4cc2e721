"""The last line of a failed job's log: its cause, for whoever decides about the next try."""

from __future__ import annotations

import json
from typing import Literal

#: ``device``: its GPU did not work, and another node may do. ``error``: anything else.
LogCause = Literal["device", "error"]
_MARK = "tilewright-cause "


def cause_line(cause: LogCause, words: str) -> str:
    """Return the line that a job writes last.

    Examples
    --------
    >>> cause_line("error", "ValueError: no nuclei")
    'tilewright-cause {"cause": "error", "words": "ValueError: no nuclei"}'
    """
    return _MARK + json.dumps({"cause": cause, "words": words})


def read_cause(line: str) -> tuple[LogCause, str]:
    """Return the cause and words of the last line of any log, an error where it states none.

    Examples
    --------
    >>> read_cause(cause_line("device", "DeviceError: no CUDA device"))
    ('device', 'DeviceError: no CUDA device')
    >>> read_cause("ValueError: no nuclei")
    ('error', 'ValueError: no nuclei')
    """
    if line.startswith(_MARK):
        try:
            said = json.loads(line.removeprefix(_MARK))
            return ("device" if said["cause"] == "device" else "error"), str(said["words"])
        except (ValueError, KeyError, TypeError):
            pass
    return "error", line
