"""Which raw files are there, and for how long they have not changed; none is opened to know it.

Only the own clock counts: that of the microscope's computer, which files wear, may be off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.config.tables import Sample
from tilewright.io.formats import reads_names_only, scan
from tilewright.io.inputs.manifest import scan_options

#: Path to size in bytes and time of change in ns.
Files = dict[str, tuple[int, int]]

#: A cycle after which another has begun needs this share of the time without change.
_PASSED = 0.2
#: No convention's files lie deeper; a link that leads back ends here.
_DEPTH = 8


class Part(NamedTuple):
    """What is watched as one: a cycle of a sample, or all of it (None) where names do not tell."""

    sample: str
    cycle: int | None


@dataclass(frozen=True)
class _Seen:
    files: Files
    changed_s: float
    #: Whether the change was seen, and not only what was there at the first look.
    watched: bool


class Quiet:
    """Since when each part of the raw data has not changed.

    Parameters
    ----------
    quiet_s : float
        A part whose files have been the same for so long is taken for written. A fifth is enough
        where a later cycle of the sample was seen to change after it: the microscope is there now.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._seen: dict[Part, _Seen] = {}
        self._began = False

    def look(self, found: Mapping[Part, Files], now_s: float) -> None:
        """Take note of what is there now."""
        self._seen = {part: self._noted(part, files, now_s) for part, files in found.items()}
        self._began = True

    def _noted(self, part: Part, files: Files, now_s: float) -> _Seen:
        before = self._seen.get(part)
        if before is not None and before.files == files:
            return before
        return _Seen(files, now_s, self._began)

    def parts(self, now_s: float) -> dict[Part, Files]:
        """Return the parts that have files, none of which changed lately."""
        return {
            part: seen.files
            for part, seen in self._seen.items()
            if seen.files and now_s - seen.changed_s >= self._quiet_s * self._share(part, seen)
        }

    def _share(self, part: Part, own: _Seen) -> float:
        for other, seen in self._seen.items():
            if other.cycle is None or part.cycle is None or other.sample != part.sample:
                continue
            later = other.cycle > part.cycle and seen.watched
            if later and seen.files and seen.changed_s > own.changed_s:
                return _PASSED
        return 1.0


def parts_of(sample: Sample) -> dict[Part, Files]:
    """Return the raw files of a sample by the part that they belong to.

    Where names tell the cycle there is a part for each, else one for all files of the folder.

    Raises
    ------
    RawDataError
        The folder cannot be read.
    """
    own = sample.acquisition
    if not reads_names_only(own.convention, own.pattern):
        return {Part(sample.name, None): dict(_walk(str(sample.raw_dir.resolve()), _DEPTH))}
    found: dict[Part, Files] = {}
    for cycle, files in by_cycle(sample).items():
        known = ((path, _status(path)) for path in files)
        found[Part(sample.name, cycle)] = {path: status for path, status in known if status}
    return found


def by_cycle(sample: Sample) -> dict[int, list[str]]:
    """Return the raw files of each cycle of a sample; conventions that need it open them.

    Raises
    ------
    RawDataError
        The folder cannot be read, or a file that tells of others is wrong.
    """
    options = scan_options(sample.acquisition.model_dump())
    found: dict[int, dict[str, None]] = {}
    for plane in scan(sample.acquisition.convention, sample.raw_dir, options):
        if options.region in (None, plane.region):
            found.setdefault(plane.cycle, {})[plane.path] = None
    return {cycle: list(paths) for cycle, paths in found.items()}


def _status(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 (there may be 65,000)
    except OSError:
        return None  # gone since its name was read
    return status.st_size, status.st_mtime_ns


def _walk(folder: str, depth: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield path and status of all files below a folder but hidden ones."""
    try:
        with os.scandir(folder) as entries:
            listed = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return  # gone since its name was read: what was in it is missing then
    for entry in listed:
        if entry.is_dir():
            if depth:
                yield from _walk(entry.path, depth - 1)
        elif status := _status(entry.path):
            yield entry.path, status
