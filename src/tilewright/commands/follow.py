"""``tilewright follow``: processes and checks each cycle while the next is being stained."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from pathlib import Path

import typer

from tilewright.config.checks import check_results, check_thresholds
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.load import read_experiment
from tilewright.config.tables import cycles_text
from tilewright.errors import ConfigError
from tilewright.follow.cycles import Cycles
from tilewright.follow.runs import Runs, Stop
from tilewright.follow.verdicts import Notice, Notifier, current_items
from tilewright.follow.watch import Files
from tilewright.installed import snakefile as installed_snakefile
from tilewright.runtime.text import count

#: Scans of the raw data within the time without change, and their shortest and longest interval.
_SCANS, _SHORTEST_S, _LONGEST_S = 10, 0.2, 60.0
#: Snakemake's status for invalid options.
_INVALID_OPTIONS = 2
_LOCKED = "another snakemake has locked this folder; if none runs: snakemake --unlock"


def show_follow(
    configfile: Path,
    options: Sequence[str],
    *,
    quiet_min: float,
    notify: str,
    snakefile: Path | None,
) -> None:
    """Follow the microscope until all cycles are done, or a signal comes.

    Parameters
    ----------
    options : sequence of str
        For Snakemake.
    quiet_min : float
        Minutes without change after which files count as written.
    notify : str
        Command that is called with warnings and failures; empty for none.
    """
    with Stop() as stop:
        try:
            experiment = read_experiment(configfile)
            check_thresholds(experiment)
            check_results(experiment)
            record = Layout(experiment.settings.results).follow_record
            runs = Runs(_find_snakefile(snakefile), configfile, options, record, stop)
            notifier = Notifier(record, notify)
            follower = Follower(configfile, experiment, runs, notifier, Cycles(60 * quiet_min))
            cycles, samples = len(experiment.cycles), len(experiment.samples)
            _say(
                f"{count(cycles, 'cycle')} of {count(samples, 'sample')}; files that do not change "
                f"for {quiet_min:g} min count as written"
            )
            done = runs.acquire(_say) and follower.follow(stop, 60 * quiet_min / _SCANS)
        except ConfigError as error:
            typer.echo(f"tilewright follow: {error}", err=True)
            raise typer.Exit(2) from error
    if not done:
        _say("ended; the same command resumes")
        raise typer.Exit(128 + stop.signal)


def _find_snakefile(path: Path | None) -> Path:
    """Return ``path``, or else the Snakefile of the current folder, or the installed one."""
    if path is not None and not path.is_file():
        raise ConfigError(f"no Snakefile {path}; correct --snakefile, or remove it")
    local = [at for at in (Path("Snakefile"), Path("workflow/Snakefile")) if at.is_file()]
    return path or next(iter(local), installed_snakefile())


def _say(text: str) -> None:
    typer.echo(f"follow {datetime.now():%H:%M:%S}  {text}")


@dataclass
class Follower:
    """Runs Snakemake on complete cycles; remembers the files of runs that ended."""

    configfile: Path
    experiment: Experiment
    runs: Runs
    notifier: Notifier
    cycles: Cycles
    _done: dict[int, Files] = field(default_factory=dict)
    _failed: list[dict[int, Files]] = field(default_factory=list)
    _waits: set[str] = field(default_factory=set)
    _tiles: str = field(init=False)

    def __post_init__(self) -> None:
        self._tiles = _tiles_table(self.experiment)

    def follow(self, stop: Stop, interval_s: float) -> bool:
        """Scan and run until all cycles are done; return False after a signal to end."""
        done = self._step()
        while not done and not stop.wait(min(max(interval_s, _SHORTEST_S), _LONGEST_S)):
            done = self._step()
        self._notify([], last=True)
        if not done:
            return False
        number = len(self.experiment.cycles)
        _say(f"all {number} cycles are done" if number > 1 else "the cycle is done")
        return True

    def _step(self) -> bool:
        """Scan once, and run what can be run; return whether all is done."""
        self._read()
        self._notify([])  # what could not be sent
        unlocked, now_s = not self.runs.locked(), time.monotonic()
        events = list(self.cycles.update(self.experiment, self._layout, now_s, check=unlocked))
        for event in events:
            if event.kind in ("unusable", "waits"):
                verdict = "fail" if event.kind == "unusable" else "warn"
                self._notify([self.notifier.record_problem(event.cycle, event.text, verdict)])
            else:
                _say(event.text)
        self._tiles = _tiles_table(self.experiment)  # with the rows that were added
        if self.runs.stop.signal:
            return False
        ready = self.cycles.complete()
        new = any(self._done.get(cycle) != files for cycle, files in ready.items())
        to_do = new and ready not in self._failed
        if (to_do or self.cycles.unchecked()) and self.runs.locked():
            self._wait(_LOCKED)
            return False
        if to_do:
            self._run(ready)
            return False  # files may have changed meanwhile, as the next scan shows
        missing = [cycle for cycle in self.experiment.cycles if cycle not in ready]
        if missing:
            self._wait(f"waiting for {cycles_text(missing)}")
        return not new and not missing

    @property
    def _layout(self) -> Layout:
        return Layout(self.experiment.settings.results)

    def _read(self) -> None:
        """Read the configuration again: a changed one restarts, an invalid one is ignored."""
        try:
            experiment = read_experiment(self.configfile)
            check_thresholds(experiment)
            problem = ""
            if experiment.settings.results != self.experiment.settings.results:
                raise ConfigError("the key 'results' changed; start follow again")
        except ConfigError as error:
            experiment, problem = self.experiment, str(error)
        if problem:
            self._wait(f"the previous configuration stays in use: {problem}")
        if (experiment, _tiles_table(experiment)) != (self.experiment, self._tiles):
            _say("the configuration or a table changed")
            self.experiment, self._done, self._failed = experiment, {}, []
            self.cycles.reset()
        self._tiles = _tiles_table(experiment)

    def _wait(self, reason: str) -> None:
        """Print once why nothing is done."""
        if reason not in self._waits:
            _say(reason)
        self._waits.add(reason)

    def _run(self, ready: dict[int, Files]) -> None:
        """Process the complete cycles, and report the result."""
        self._waits.clear()
        cycles = sorted(ready)
        part = self.experiment.of_cycles(cycles)
        targets = self._targets(part)
        if not targets:
            self._failed.append(ready)
            _say(f"{cycles_text(cycles)}: nothing can be made before the reference cycle is there")
            return
        everything = part.channels == self.experiment.channels
        began = time.monotonic()
        _say(
            f"snakemake on {cycles_text(cycles)}: {' and '.join(filter(str.isidentifier, targets))}"
        )
        status = self.runs.run(targets, None if everything else cycles)
        if self.runs.stop.signal:
            return
        if status == _INVALID_OPTIONS:
            raise ConfigError("snakemake refuses an option after --; see its message above")
        if status and self.runs.locked():  # by another run that started first
            self._wait(_LOCKED)
            return
        duration = f"{(time.monotonic() - began) / 60:.1f} min"
        notices = self.notifier.record_verdicts(current_items(part, self._layout))
        if status == 0:
            self._done = ready
            _say(f"{cycles_text(cycles)}: done in {duration}, {count(len(notices), 'new verdict')}")
        else:
            notices += self._exclude_failed(part, ready, status)
        self._notify(notices)

    def _targets(self, part: Experiment) -> list[str]:
        """Return the targets of some cycles; files of quality by name where there is no report."""
        if part.reference_cycle in part.cycles:
            return ["registration", "qc"]
        if part.settings.stitched:
            return []
        quality = self._layout.qc("edf", "json")
        at = product(part.samples, part.cycles)
        return ["edf", *(quality.format(sample=sample, cycle=cycle) for sample, cycle in at)]

    def _exclude_failed(
        self, part: Experiment, ready: dict[int, Files], status: int
    ) -> list[Notice]:
        """Exclude the cycles without results of their own; the others are run without them."""
        notices = []
        for cycle in part.cycles:
            missing = _missing(part, self._layout, cycle)
            if missing:
                text = (
                    f"cycle {cycle} could not be processed: {missing}; retrying when its "
                    "files or the configuration change"
                )
                self.cycles.exclude(cycle, text)
                notices.append(self.notifier.record_problem(cycle, text))
        if not notices:
            self._failed.append(ready)
            text = f"snakemake ended with status {status}; see above, and {self._layout.logs}"
            notices.append(self.notifier.record_problem(None, text))
        return notices

    def _notify(self, notices: Sequence[Notice], *, last: bool = False) -> None:
        order = ("fail", "warn", "pass")
        for notice in sorted(notices, key=lambda notice: order.index(notice.verdict)):
            _say(f"{notice.verdict}  {notice.text}")
        for problem in self.notifier.notify(notices, last=last):
            _say(problem)


def _tiles_table(experiment: Experiment) -> str:
    """Return the text of the tiles table, "" where there is none."""
    path = experiment.settings.tiles
    if path is None or not Path(path).is_file():
        return ""
    return Path(path).read_text("utf-8", errors="replace")


def _missing(part: Experiment, layout: Layout, cycle: int) -> str:
    """Return which result of a cycle is missing and the log of the failed job, "" if none is."""
    stage = "stitched" if part.settings.stitched else "edf"
    templates = [layout.qc(stage, "json")]
    if cycle in part.moving_cycles and part.reference_cycle in part.cycles:
        templates += [layout.transform, layout.qc("register", "json")]
    for sample, template in product(part.samples, templates):
        path, manifest = (
            Path(at.format(sample=sample, cycle=cycle)) for at in (template, layout.manifest)
        )
        # A result older than the raw data is of an earlier state.
        if not path.is_file() or path.stat().st_mtime_ns < manifest.stat().st_mtime_ns:
            name = f"{sample}_cycle{cycle}"
            logs = [*layout.logs.glob(f"*/{name}.log"), *layout.logs.glob(f"*/{name}_*.log")]
            log = max(logs, key=_unfinished_then_newest, default=layout.logs)
            return f"{path} was not made, see {log}"
    return ""


def _unfinished_then_newest(log: Path) -> tuple[bool, int]:
    """Sort key of logs: that of a failed job does not end with its CPU time."""
    return "CPU time" not in log.read_text(errors="replace")[-100:], log.stat().st_mtime_ns
