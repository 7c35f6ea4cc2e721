"""``tilewright follow``: each cycle is processed and judged while the next is being stained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from pathlib import Path

import typer

from snakemake_scheduler_plugin_tilewright.commands.checks import count
from tilewright.commands.files import find_snakefile, read_experiment
from tilewright.config.checks import check_results, check_thresholds
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.tables import cycles_text
from tilewright.errors import ConfigError
from tilewright.follow.cycles import Cycles
from tilewright.follow.runs import Runs, Stop
from tilewright.follow.verdicts import Teller, Told, judged_items
from tilewright.follow.watch import Files

#: Looks at the raw data within the time without change, and their least and greatest distance in s.
_LOOKS, _LEAST_S, _MOST_S = 10, 0.2, 60.0
#: Snakemake's status where it does not understand its options.
_REFUSED = 2
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
        Minutes without change after which files are taken for written.
    notify : str
        Command that is told what warns or fails; empty for none.
    """
    with Stop() as stop:
        try:
            experiment = read_experiment(configfile)
            check_thresholds(experiment)
            check_results(experiment)
            record = Layout(experiment.settings.results).followed
            runs = Runs(find_snakefile(snakefile), configfile, options, record, stop)
            teller = Teller(record, notify)
            follower = Follower(configfile, experiment, runs, teller, Cycles(60 * quiet_min))
            cycles, samples = len(experiment.cycles), len(experiment.samples)
            _say(
                f"{count(cycles, 'cycle')} of {count(samples, 'sample')}; files that do not change "
                f"for {quiet_min:g} min are taken for written"
            )
            done = runs.alone(_say) and follower.follow(stop, 60 * quiet_min / _LOOKS)
        except ConfigError as error:
            typer.echo(f"tilewright follow: {error}", err=True)
            raise typer.Exit(2) from error
    if not done:
        _say("ended; the same command goes on")
        raise typer.Exit(128 + stop.signal)


def _say(text: str) -> None:
    typer.echo(f"follow {datetime.now():%H:%M:%S}  {text}")


@dataclass
class Follower:
    """What is done and what was tried, by the files of the cycles it was done with."""

    configfile: Path
    experiment: Experiment
    runs: Runs
    teller: Teller
    cycles: Cycles
    _done: dict[int, Files] = field(default_factory=dict)
    _failed: list[dict[int, Files]] = field(default_factory=list)
    _waits: set[str] = field(default_factory=set)

    def follow(self, stop: Stop, look_s: float) -> bool:
        """Look and run until all cycles are done; return False when the end was asked for."""
        done = self._step()
        while not done and not stop.wait(min(max(look_s, _LEAST_S), _MOST_S)):
            done = self._step()
        self._tell([], last=True)
        if not done:
            return False
        _say(f"all {count(len(self.experiment.cycles), 'cycle')} are done")
        return True

    def _step(self) -> bool:
        """Look once, and run what can be run; return whether all is done."""
        self._read()
        self._tell([])  # what could not be told
        alone, now_s = not self.runs.locked(), time.monotonic()
        news = list(self.cycles.look(self.experiment, self._layout, now_s, check=alone))
        for one in news:
            if one.kind in ("unusable", "waits"):
                verdict = "fail" if one.kind == "unusable" else "warn"
                self._tell([self.teller.trouble(one.cycle, one.text, verdict)])
            else:
                _say(one.text)
        if self.runs.stop.signal:
            return False
        ready = self.cycles.whole()
        new = any(self._done.get(cycle) != files for cycle, files in ready.items())
        to_do = new and ready not in self._failed
        if (to_do or self.cycles.unchecked()) and self.runs.locked():
            self._wait(_LOCKED)
            return False
        if to_do:
            self._run(ready)
            return False  # files may have changed meanwhile: the next look tells
        missing = [cycle for cycle in self.experiment.cycles if cycle not in ready]
        if missing:
            self._wait(f"waiting for {cycles_text(missing)}")
        return not new and not missing

    @property
    def _layout(self) -> Layout:
        return Layout(self.experiment.settings.results)

    def _read(self) -> None:
        """Read the configuration again: a changed one is a new start, a wrong one waits."""
        try:
            experiment = read_experiment(self.configfile)
            check_thresholds(experiment)
            wrong = ""
            if experiment.settings.results != self.experiment.settings.results:
                raise ConfigError("the key 'results' changed; start follow again")
        except ConfigError as error:
            experiment, wrong = self.experiment, str(error)
        if wrong:
            self._wait(f"the configuration stays as it was: {wrong}")
        if experiment != self.experiment:
            _say("the configuration or a table changed")
            self.experiment, self._done, self._failed = experiment, {}, []
            self.cycles.forget()

    def _wait(self, why: str) -> None:
        """Say once why nothing is done."""
        if why not in self._waits:
            _say(why)
        self._waits.add(why)

    def _run(self, ready: dict[int, Files]) -> None:
        """Process the cycles that are whole, and tell what comes of it."""
        self._waits.clear()
        whole = sorted(ready)
        part = self.experiment.of_cycles(whole)
        targets = self._targets(part)
        if not targets:
            self._failed.append(ready)
            _say(f"{cycles_text(whole)}: nothing can be made before the reference cycle is there")
            return
        everything = part.channels == self.experiment.channels
        began = time.monotonic()
        _say(
            f"snakemake on {cycles_text(whole)}: {' and '.join(filter(str.isidentifier, targets))}"
        )
        status = self.runs.run(targets, None if everything else whole)
        if self.runs.stop.signal:
            return
        if status == _REFUSED:
            raise ConfigError("snakemake refuses an option after --; its words are above")
        if status and self.runs.locked():  # it came first; this run ended before its first job
            self._wait(_LOCKED)
            return
        took = f"{(time.monotonic() - began) / 60:.1f} min"
        told = self.teller.verdicts(judged_items(part, self._layout))
        if status == 0:
            self._done = ready
            _say(f"{cycles_text(whole)}: done in {took}, {count(len(told), 'new verdict')}")
        else:
            told += self._blame(part, ready, status)
        self._tell(told)

    def _targets(self, part: Experiment) -> list[str]:
        """Return what can be made of some cycles; the quality of each by name without a report."""
        if part.reference_cycle in part.cycles:
            return ["registration", "qc"]
        if part.settings.stitched:
            return []
        quality = self._layout.qc("edf", "json")
        at = product(part.samples, part.cycles)
        return ["edf", *(quality.format(sample=sample, cycle=cycle) for sample, cycle in at)]

    def _blame(self, part: Experiment, ready: dict[int, Files], status: int) -> list[Told]:
        """Hold the cycles whose own results are not there; the others are run without them."""
        told = []
        for cycle in part.cycles:
            missing = _missing(part, self._layout, cycle)
            if missing:
                text = (
                    f"cycle {cycle} could not be processed: {missing}; it is tried again when its "
                    "files or the configuration change"
                )
                self.cycles.hold(cycle, text)
                told.append(self.teller.trouble(cycle, text))
        if not told:
            self._failed.append(ready)
            text = f"snakemake ended with status {status}; see above, and {self._layout.logs}"
            told.append(self.teller.trouble(None, text))
        return told

    def _tell(self, told: Sequence[Told], *, last: bool = False) -> None:
        for one in sorted(told, key=lambda one: ("fail", "warn", "pass").index(one.verdict)):
            _say(f"{one.verdict}  {one.text}")
        for problem in self.teller.notify(told, last=last):
            _say(problem)


def _missing(part: Experiment, layout: Layout, cycle: int) -> str:
    """Return which of a cycle's own results is missing and the log that says why, or nothing."""
    stage = "stitched" if part.settings.stitched else "edf"
    wanted = [layout.qc(stage, "json")]
    if cycle in part.moving_cycles and part.reference_cycle in part.cycles:
        wanted += [layout.transform, layout.qc("register", "json")]
    for sample, template in product(part.samples, wanted):
        path, manifest = (
            Path(at.format(sample=sample, cycle=cycle)) for at in (template, layout.manifest)
        )
        # What is older than the raw data is of those before.
        if not path.is_file() or path.stat().st_mtime_ns < manifest.stat().st_mtime_ns:
            name = f"{sample}_cycle{cycle}"
            logs = [*layout.logs.glob(f"*/{name}.log"), *layout.logs.glob(f"*/{name}_*.log")]
            last = max(logs, key=_unfinished_then_newest, default=layout.logs)
            return f"{path} was not made, see {last}"
    return ""


def _unfinished_then_newest(log: Path) -> tuple[bool, int]:
    """Order logs: that of a job that failed does not end with what the job took."""
    return "CPU time" not in log.read_text(errors="replace")[-100:], log.stat().st_mtime_ns
