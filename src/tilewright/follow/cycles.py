"""Which cycles are complete: unchanged for long enough, and then checked in every sample."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.config.checks import check_raw
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.tables import Sample
from tilewright.errors import ConfigError, RawDataError, UnusableError
from tilewright.follow.watch import ChangeMonitor, Files, Part, files_by_cycle, parts_of
from tilewright.init.add import add_rows
from tilewright.init.place_tiles import GridOptions


@dataclass(frozen=True)
class CycleEvent:
    """A change of state of a cycle, or of all raw data (None).

    ``kind``: its ``tiles`` were added to the tiles table, it is ``complete``, it ``waits`` for
    files, its files ``change`` though it was complete, or they are complete but ``unusable``.
    """

    cycle: int | None
    kind: Literal["tiles", "complete", "waits", "change", "unusable"]
    text: str


@dataclass(frozen=True)
class _Result:
    """The files of a cycle when they were checked, and the problem that was found."""

    files: Files
    problem: str = ""
    #: Whether files are missing, or missing compared with other cycles.
    waits: bool = False


class Cycles:
    """The state of the cycles of an experiment.

    Parameters
    ----------
    quiet_s : float
        See :class:`~tilewright.follow.watch.ChangeMonitor`.
    """

    def __init__(self, quiet_s: float) -> None:
        self._monitor = ChangeMonitor(quiet_s)
        self._quiet: dict[int, Files] = {}
        self._results: dict[int, _Result] = {}
        self._folders: dict[str, tuple[Files, dict[int, Files]]] = {}
        self._last_problem: dict[str, str] = {}

    def reset(self) -> None:
        """Check all cycles again, after a change of the configuration."""
        self._results, self._folders, self._last_problem = {}, {}, {}

    def exclude(self, cycle: int, problem: str) -> None:
        """Exclude a cycle that could not be processed until its files change."""
        self._results[cycle] = _Result(self._results[cycle].files, problem)

    def complete(self) -> dict[int, Files]:
        """Return the files of the cycles that can be processed now."""
        return {
            cycle: result.files
            for cycle, result in self._results.items()
            if not result.problem and self._quiet.get(cycle) == result.files
        }

    def unchecked(self) -> bool:
        """Return whether an unchanged cycle is yet to be checked."""
        return any(
            c not in self._results or self._results[c].files != f for c, f in self._quiet.items()
        )

    def update(
        self, experiment: Experiment, layout: Layout, now_s: float, *, check: bool = True
    ) -> Iterator[CycleEvent]:
        """Read names, sizes and times, and check the cycles that have become unchanged.

        Manifests of complete cycles are written, as before a run; ``check`` False leaves them to a
        run that may be reading them.
        """
        present: dict[Part, Files] = {}
        problems: dict[str, str] = {}
        for sample in experiment.samples.values():
            try:
                present.update(parts_of(sample))
            except RawDataError as error:
                problems[sample.name] = str(error)
        all_read = not problems
        self._monitor.update(present, now_s)
        before = self.complete()
        self._quiet = self._quiet_cycles(experiment, now_s, problems)
        for name in experiment.samples:
            if name in problems:
                yield from self._report_once(f"sample {name}", None, problems[name])
            else:
                self._last_problem.pop(f"sample {name}", None)
        for cycle in sorted(before.keys() - self.complete().keys()):
            if any(part.cycle == cycle for part in present):
                yield CycleEvent(cycle, "change", f"cycle {cycle}: its files change again; waiting")
            elif all_read and all(part.cycle is not None for part in present):
                yield CycleEvent(cycle, "waits", f"cycle {cycle}: its files are gone; waiting")
        # The reference first: sizes are compared with it.
        cycles = self._quiet if check else ()
        for cycle in sorted(cycles, key=lambda c: (c != experiment.reference_cycle, c)):
            yield from self._check(experiment, layout, cycle)

    def _quiet_cycles(
        self, experiment: Experiment, now_s: float, problems: dict[str, str]
    ) -> dict[int, Files]:
        """Return the cycles that are unchanged in all samples; add problems of samples."""
        parts = self._monitor.quiet_parts(now_s)
        quiet: dict[str, dict[int, Files]] = {}
        for name, sample in experiment.samples.items():
            if name not in problems:
                try:
                    quiet[name] = self._cycles_of(sample, parts)
                except RawDataError as error:
                    problems[name] = str(error)
        # A cycle is processed in all samples at once: it waits for the last of them.
        files_of = {
            cycle: [quiet.get(name, {}).get(cycle) for name in experiment.samples]
            for cycle in experiment.cycles
        }
        return {
            cycle: {path: at for files in by_sample for path, at in (files or {}).items()}
            for cycle, by_sample in files_of.items()
            if all(by_sample)
        }

    def _cycles_of(self, sample: Sample, parts: dict[Part, Files]) -> dict[int, Files]:
        """Return the files of a sample's unchanged cycles; an unchanged folder is read once."""
        folder = parts.get(Part(sample.name, None))
        if folder is None:
            return {
                part.cycle: files
                for part, files in parts.items()
                if part.sample == sample.name and part.cycle is not None
            }
        if self._folders.get(sample.name, ({}, {}))[0] != folder:
            cycles = {
                cycle: {path: folder.get(path, (0, 0)) for path in paths}
                for cycle, paths in files_by_cycle(sample).items()
            }
            self._folders[sample.name] = folder, cycles
        return self._folders[sample.name][1]

    def _check(self, experiment: Experiment, layout: Layout, cycle: int) -> Iterator[CycleEvent]:
        """Check a cycle together with the complete ones, unless these files were checked."""
        files = self._quiet[cycle]
        before = self._results.pop(cycle, None)
        if before is not None and before.files == files:
            self._results[cycle] = before
            return
        try:
            if not experiment.settings.stitched:
                for line in add_rows(experiment, [cycle], GridOptions()):
                    yield CycleEvent(cycle, "tiles", line)
            check_raw(experiment.of_cycles([*self.complete(), cycle]), layout)
        except (ConfigError, RawDataError) as error:
            problem = _short([str(text) for text in error.args])
            unusable = isinstance(error, UnusableError)
            self._results[cycle] = _Result(files, problem, waits=not unusable)
            if unusable:
                yield CycleEvent(cycle, "unusable", f"cycle {cycle} cannot be used: {problem}")
            else:
                yield from self._report_once(f"cycle {cycle}", cycle, problem)
            return
        # Cycles that wait were compared with the complete ones, and are checked again.
        self._results = {c: result for c, result in self._results.items() if not result.waits}
        self._results[cycle] = _Result(files)
        self._last_problem.pop(f"cycle {cycle}", None)
        yield CycleEvent(cycle, "complete", f"cycle {cycle} is complete ({len(files)} files)")

    def _report_once(self, subject: str, cycle: int | None, problem: str) -> Iterator[CycleEvent]:
        if self._last_problem.get(subject) != problem:
            self._last_problem[subject] = problem
            yield CycleEvent(cycle, "waits", f"{subject} waits: {problem}")


def _short(messages: Sequence[str]) -> str:
    r"""Return the first of the problems in messages, in one line.

    >>> _short(["2 problems with raw:\n  - a is empty\n  - b is empty\nCopy again."])
    '2 problems with raw: a is empty; ...'
    """
    lines = messages[0].splitlines()
    more = len(messages) > 1 or len([line for line in lines if line.startswith("  ")]) > 1
    if len(lines) == 1:
        return lines[0] + ("; ..." if more else "")
    return f"{lines[0]} {lines[1].removeprefix('  - ')}{'; ...' if more else ''}"
