"""Which cycles are whole: quiet for long enough, and then found complete in every sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.config.checks import check_raw
from tilewright.config.experiment import Experiment, Sample
from tilewright.config.layout import Layout
from tilewright.errors import ConfigError, RawDataError, UnusableError
from tilewright.follow.watch import Files, Part, Quiet, by_cycle, parts_of


@dataclass(frozen=True)
class News:
    """Something to say of a cycle, or of the raw data as such (None).

    ``kind``: it is ``whole``, it ``waits`` for files, its files ``change`` though it was whole, or
    they are whole but ``unusable``.
    """

    cycle: int | None
    kind: Literal["whole", "waits", "change", "unusable"]
    text: str


@dataclass(frozen=True)
class _Checked:
    """The files of a cycle when they were checked, and what kept it from being processed."""

    files: Files
    problem: str = ""
    #: Whether the problem is what is missing, so far or beside other cycles.
    waits: bool = False


class Cycles:
    """What is known of the cycles of an experiment.

    Parameters
    ----------
    quiet_s : float
        See :class:`~tilewright.follow.watch.Quiet`.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet = Quiet(quiet_s)
        self._now: dict[int, Files] = {}
        self._checked: dict[int, _Checked] = {}
        self._folders: dict[str, tuple[Files, dict[int, Files]]] = {}
        self._said: dict[str, str] = {}

    def forget(self) -> None:
        """Check all cycles again: the configuration is another one."""
        self._checked, self._folders, self._said = {}, {}, {}

    def hold(self, cycle: int, problem: str) -> None:
        """Take a cycle out until its files change: it could not be processed."""
        self._checked[cycle] = _Checked(self._checked[cycle].files, problem)

    def whole(self) -> dict[int, Files]:
        """Return the files of the cycles that can be processed now."""
        return {
            cycle: found.files
            for cycle, found in self._checked.items()
            if not found.problem and self._now.get(cycle) == found.files
        }

    def unchecked(self) -> bool:
        """Return whether a quiet cycle is still to be checked."""
        return any(
            c not in self._checked or self._checked[c].files != f for c, f in self._now.items()
        )

    def look(
        self, experiment: Experiment, layout: Layout, now_s: float, *, check: bool = True
    ) -> Iterator[News]:
        """Look at names, sizes and times, and check the cycles that have become quiet.

        Manifests of whole cycles are written, as before a run of them: not to ``check`` leaves
        them to a run that may be reading them.
        """
        there: dict[Part, Files] = {}
        quiet: dict[str, dict[int, Files]] = {}
        samples = experiment.samples.values()
        wrong: dict[str, str] = {}
        for sample in samples:
            try:
                there.update(parts_of(sample))
            except RawDataError as error:
                wrong[sample.name] = str(error)
        readable = not wrong
        self._quiet.look(there, now_s)
        parts = self._quiet.parts(now_s)
        for sample in samples:
            if sample.name in wrong:
                continue
            try:
                quiet[sample.name] = self._cycles_of(sample, parts)
            except RawDataError as error:
                wrong[sample.name] = str(error)
        for name in experiment.samples:
            if name in wrong:
                yield from self._once(f"sample {name}", None, wrong[name])
            else:
                self._said.pop(f"sample {name}", None)
        before = self.whole()
        # A cycle is processed in all samples at once: it waits for the last of them.
        of_cycle = {
            c: [quiet.get(name, {}).get(c) for name in experiment.samples]
            for c in experiment.cycles
        }
        self._now = {
            cycle: {path: at for own in found for path, at in (own or {}).items()}
            for cycle, found in of_cycle.items()
            if all(found)
        }
        for cycle in sorted(before.keys() - self.whole().keys()):
            if any(part.cycle == cycle for part in there):
                yield News(cycle, "change", f"cycle {cycle}: its files change again; waiting")
            elif readable and all(part.cycle is not None for part in there):
                yield News(cycle, "waits", f"cycle {cycle}: its files are gone; waiting")
        # The reference first: sizes are compared with it.
        judged = self._now if check else ()
        for cycle in sorted(judged, key=lambda c: (c != experiment.reference_cycle, c)):
            yield from self._judge(experiment, layout, cycle)

    def _cycles_of(self, sample: Sample, parts: dict[Part, Files]) -> dict[int, Files]:
        """Return the files of the quiet cycles of a sample; a quiet folder is opened once."""
        folder = parts.get(Part(sample.name, None))
        if folder is None:
            own = {part.cycle: files for part, files in parts.items() if part.sample == sample.name}
            return {cycle: files for cycle, files in own.items() if cycle is not None}
        if self._folders.get(sample.name, ({}, {}))[0] != folder:
            cycles = {
                cycle: {path: folder.get(path, (0, 0)) for path in paths}
                for cycle, paths in by_cycle(sample).items()
            }
            self._folders[sample.name] = folder, cycles
        return self._folders[sample.name][1]

    def _judge(self, experiment: Experiment, layout: Layout, cycle: int) -> Iterator[News]:
        """Check a cycle together with those that are whole, unless these files were checked."""
        files = self._now[cycle]
        before = self._checked.pop(cycle, None)
        if before is not None and before.files == files:
            self._checked[cycle] = before
            return
        try:
            check_raw(experiment.of_cycles([*self.whole(), cycle]), layout)
        except ConfigError as error:
            problem, unusable = _short(error.args), isinstance(error, UnusableError)
            self._checked[cycle] = _Checked(files, problem, waits=not unusable)
            if unusable:
                yield News(cycle, "unusable", f"cycle {cycle} cannot be used: {problem}")
            else:
                yield from self._once(f"cycle {cycle}", cycle, problem)
            return
        # What waits was compared with other cycles, of which this is now one.
        self._checked = {c: found for c, found in self._checked.items() if not found.waits}
        self._checked[cycle] = _Checked(files)
        self._said.pop(f"cycle {cycle}", None)
        yield News(cycle, "whole", f"cycle {cycle} is whole ({len(files)} files)")

    def _once(self, about: str, cycle: int | None, problem: str) -> Iterator[News]:
        if self._said.get(about) != problem:
            self._said[about] = problem
            yield News(cycle, "waits", f"{about} waits: {problem}")


def _short(sentences: Sequence[str]) -> str:
    r"""Return the first of the problems that sentences tell or list, in one line.

    >>> _short(["2 problems with raw:\n  - a is empty\n  - b is empty\nCopy again."])
    '2 problems with raw: a is empty; ...'
    """
    lines = sentences[0].splitlines()
    more = len(sentences) > 1 or len([line for line in lines if line.startswith("  ")]) > 1
    if len(lines) == 1:
        return lines[0] + ("; ..." if more else "")
    return f"{lines[0]} {lines[1].removeprefix('  - ')}{'; ...' if more else ''}"
