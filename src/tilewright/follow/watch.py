"""Which raw files exist and since when they are unchanged, without opening any.

Times are of this machine's clock: time stamps of the microscope's computer may be off.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.config.tables import Sample
from tilewright.io.formats import reads_names_only, scan
from tilewright.io.inputs.manifest import scan_options

#: Path to size in bytes and time of change in ns.
Files = dict[str, tuple[int, int]]

#: Share of the time without change for a cycle after which another has begun.
_EARLIER_CYCLE_SHARE = 0.2
#: No format's files are deeper; ends loops of links.
_DEPTH = 8


class Part(NamedTuple):
    """Files watched as one: a cycle of a sample, or all (None) where names have no cycle."""

    sample: str
    cycle: int | None


@dataclass(frozen=True)
class _State:
    files: Files
    changed_s: float
    #: Whether a change was observed, not only the state at the first scan.
    observed: bool


class ChangeMonitor:
    """Since when each part of the raw data is unchanged.

    Parameters
    ----------
    quiet_s : float
        A part that is unchanged for so long counts as written. A fifth is enough after a later
        cycle of the sample was observed to change.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._states: dict[Part, _State] = {}
        self._began = False

    def update(self, parts: Mapping[Part, Files], now_s: float) -> None:
        """Record the files that exist now."""
        self._states = {part: self._state(part, files, now_s) for part, files in parts.items()}
        self._began = True

    def _state(self, part: Part, files: Files, now_s: float) -> _State:
        before = self._states.get(part)
        if before is not None and before.files == files:
            return before
        return _State(files, now_s, self._began)

    def quiet_parts(self, now_s: float) -> dict[Part, Files]:
        """Return the parts with files that are unchanged for long enough."""
        return {
            part: state.files
            for part, state in self._states.items()
            if state.files and now_s - state.changed_s >= self._quiet_s * self._share(part, state)
        }

    def _share(self, part: Part, state: _State) -> float:
        for other, later in self._states.items():
            if other.cycle is None or part.cycle is None or other.sample != part.sample:
                continue
            observed = other.cycle > part.cycle and later.observed
            if observed and later.files and later.changed_s > state.changed_s:
                return _EARLIER_CYCLE_SHARE
        return 1.0


def parts_of(sample: Sample) -> dict[Part, Files]:
    """Return the raw files of each part of a sample.

    Where names have the cycle there is a part for each, else one for all files of the folder.

    Raises
    ------
    RawDataError
        The folder cannot be read.
    """
    acquisition = sample.acquisition
    if not reads_names_only(acquisition.convention, acquisition.pattern):
        return {Part(sample.name, None): dict(_walk(str(sample.raw_dir.resolve()), _DEPTH))}
    parts: dict[Part, Files] = {}
    for cycle, paths in files_by_cycle(sample).items():
        files = ((path, _status(path)) for path in paths)
        parts[Part(sample.name, cycle)] = {path: status for path, status in files if status}
    return parts


def files_by_cycle(sample: Sample) -> dict[int, list[str]]:
    """Return the raw files of each cycle of a sample; some formats open them.

    Raises
    ------
    RawDataError
        The folder cannot be read, or metadata are invalid.
    """
    options = scan_options(sample.acquisition.model_dump())
    paths: dict[int, dict[str, None]] = {}
    for plane in scan(sample.acquisition.convention, sample.raw_dir, options):
        if options.region in (None, plane.region):
            paths.setdefault(plane.cycle, {})[plane.path] = None
    return {cycle: list(of_cycle) for cycle, of_cycle in paths.items()}


def _status(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 (there may be 65,000)
    except OSError:
        return None  # removed since its name was read
    return status.st_size, status.st_mtime_ns


def _walk(folder: str, depth: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield path and status of all files below a folder but hidden ones."""
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return  # removed since its name was read
    for entry in visible:
        if entry.is_dir():
            if depth:
                yield from _walk(entry.path, depth - 1)
        elif status := _status(entry.path):
            yield entry.path, status
