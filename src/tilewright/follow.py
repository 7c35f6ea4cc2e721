"""``tilewright follow``: Snakemake on each cycle while the microscope images the next."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path

from snakemake_scheduler_plugin_tilewright import (
    PlacementError,
    is_locked,
    refuse_second_run,
    runs_nothing,
)
from tilewright.config.checks import check_raw, check_results, check_thresholds
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.load import read_experiment
from tilewright.config.rule_files import RuleFiles
from tilewright.config.tables import cycles_text
from tilewright.errors import ConfigError, RawDataError, ResultFileError
from tilewright.init.add import add_rows
from tilewright.init.tile_set import GridOptions
from tilewright.installed import snakefile as installed_snakefile
from tilewright.io.formats import reads_names_only
from tilewright.io.inputs.manifest import planes_of
from tilewright.quality.evaluate import apply_thresholds, read_qc
from tilewright.runtime.text import printable

Files = dict[str, tuple[int, int]]  #: Path to size in bytes and time of change in ns.


def files_at(paths: Iterable[str | Path]) -> Files:
    """Return size and time of change of the paths that exist."""
    files = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)  # noqa: PTH116 (there may be 65,000)
            files[str(path)] = status.st_size, status.st_mtime_ns
    return files


def files_by_cycle(experiment: Experiment) -> dict[int, Files]:
    """Return the raw files of the cycles that all samples have; some formats open them."""
    samples, cycles = experiment.samples.values(), experiment.reference_channels
    found = [planes_of(of.raw_dir, experiment.acquisition_of(of), cycles) for of in samples]
    there = set(experiment.cycles).intersection(*({p.cycle for p in of} for of in found))
    paths = {c: {p.path for of in found for p in of if p.cycle == c} for c in sorted(there)}
    return {cycle: files_at(of_cycle) for cycle, of_cycle in paths.items()}


class Follower:
    """Runs Snakemake on complete cycles, and tells each warning once."""

    def __init__(self, file: Path, words: list[str], quiet_s: float, notify: list[str]) -> None:
        self._configfile, self._words, self._quiet_s, self._notify = file, words, quiet_s, notify
        self._experiment = read_experiment(file)
        self._tables = self._table_files()
        self._layout = Layout(self._experiment.settings.results)
        self._last_lines = dict[str | int, str]()
        self._pending: list[str] = []  #: warnings and failures to send
        check_thresholds(self._experiment)
        check_results(self._experiment)
        self._changes: dict[
            int, tuple[Files, float]
        ] = {}  #: by cycle, -1 where names do not tell it
        self._scanned: tuple[Files, dict[int, Files]] = {}, {}
        self._checked: dict[int, tuple[Files, str]] = {}  #: to its files, and what was wrong
        self._tried, self._status = dict[int, Files](), 0

    def step(self, now_s: float) -> bool:
        """Look once, and run what can be run; return whether all is done."""
        ready: dict[int, Files] = {}
        try:
            if is_locked(Path.cwd()):
                raise ConfigError("another run is active; if it was killed: rm .snakemake/locks/*")
            refuse_second_run(self._layout.ledger)
            self._read()
            ready = self._check(self._look(now_s))
            self._last_lines.pop("all", None)
        except (ConfigError, RawDataError, PlacementError) as error:
            self._tell("all", f"warn: nothing runs: {error}")
        if new := not ready.items() <= self._tried.items():
            self._run(ready)
        missing = [cycle for cycle in self._experiment.cycles if cycle not in ready]
        if missing and "all" not in self._last_lines:
            self._tell("waiting", f"waiting for {cycles_text(missing)}")
        self._send()
        return self._status == 0 and not new and not missing

    def _read(self) -> None:
        """Read the configuration again if it or a table has changed; all is checked again."""
        if (tables := self._table_files()) == self._tables:
            return
        experiment = read_experiment(self._configfile)
        check_thresholds(experiment)
        check_results(experiment)
        if experiment.settings.results != self._layout.results:
            raise ConfigError("the key 'results' changed; start follow again")
        self._experiment, self._tables = experiment, tables
        self._checked, self._tried, self._scanned = {}, {}, ({}, {})

    def _table_files(self) -> Files:
        at = self._experiment.settings
        return files_at(filter(None, (self._configfile, at.samples, at.markers, at.tiles)))

    def _look(self, now_s: float) -> dict[int, Files]:
        """Return the files of the cycles that are unchanged for long enough in all samples."""
        experiment, own = self._experiment, self._experiment.settings.acquisition
        names_tell = reads_names_only(own.convention, own.pattern)
        if names_tell:
            found = files_by_cycle(experiment)
        else:  # files must be opened: none may change
            folders = {sample.raw_dir for sample in experiment.samples.values()}
            walks = (files for at in folders for files in os.walk(at, followlinks=True))
            paths = (f"{at}/{name}" for at, _, names in walks for name in names if name[0] != ".")
            found = {-1: files_at(paths)}
        for cycle, files in found.items():
            if cycle not in self._changes or self._changes[cycle][0] != files:
                self._changes[cycle] = files, now_s
        quiet = {c: of for c, of in found.items() if now_s - self._changes[c][1] >= self._quiet_s}
        if not names_tell and quiet and self._scanned[0] != quiet[-1]:
            self._scanned = quiet[-1], files_by_cycle(experiment)
        return quiet if names_tell or not quiet else self._scanned[1]

    def _check(self, quiet: dict[int, Files]) -> dict[int, Files]:
        """Check the cycles that have become quiet; return those that can be processed."""
        ready = {c: files for c, files in quiet.items() if self._checked.get(c) == (files, "")}
        reference = self._experiment.reference_cycle  # the first: sizes are compared with it
        for cycle, files in sorted(quiet.items(), key=lambda of: of[0] != reference):
            if self._checked.get(cycle, ({},))[0] == files:
                continue
            try:
                if not self._experiment.settings.stitched:
                    for line in add_rows(self._experiment, [cycle], GridOptions()):
                        self._tell(cycle, line)
                        self._tables |= files_at([self._experiment.settings.tiles or ""])
                check_raw(self._experiment.of_cycles([*ready, cycle]), self._layout)
                ready[cycle], problem = files, ""
                # Those that wait were compared with the complete ones.
                self._checked = {c: of for c, of in self._checked.items() if of[1][:4] != "warn"}
            except (ConfigError, RawDataError, OSError) as error:
                problem = f"warn: cycle {cycle} waits: {error}"
            self._checked[cycle] = files, problem
            self._tell(cycle, problem or f"cycle {cycle} is complete")
        return ready

    def _run(self, ready: dict[int, Files]) -> None:
        """Run Snakemake on the complete cycles, and tell what is new."""
        cycles, part = cycles_text(sorted(ready)), self._experiment.of_cycles(ready)
        targets = ["registration", "qc"]
        if part.reference_cycle not in ready:  # there is no image and no report without it
            targets = [path for cycle in ready for path in self._own(part, cycle)]
        if ready.keys() != set(self._experiment.cycles):
            targets += ["--config", f"cycles=[{','.join(map(str, sorted(ready)))}]"]
        self._tell("run", f"snakemake on {cycles}")
        words = [sys.executable, "-m", "snakemake", *targets, *self._words]
        ignore = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)  # it leaves its lock
        self._tried = ready
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=ignore) as run:
            try:
                self._status = run.wait()
            finally:  # also after a signal to end: Snakemake lets its jobs end
                run.terminate()
        if self._status == 2:
            sys.exit("tilewright follow: snakemake refuses an option after --, see above")
        if self._status and is_locked(Path.cwd()):  # by another run that was faster
            self._tried = {}
            return
        for cycle in ready if self._status else ():
            if missing := self._missing(part, cycle):
                text = f"fail: cycle {cycle} waits until it or the configuration changes: {missing}"
                self._checked[cycle], self._tried = (ready[cycle], text), {}
                self._tell(cycle, text)
        if self._tried:
            failed = f"fail: {cycles}: snakemake ended with status {self._status}"
            self._tell("run", failed if self._status else f"{cycles}: done")
        self._tell_verdicts(part)

    def _own(self, part: Experiment, cycle: int) -> dict[str, str]:
        """Return a cycle's own results, quality and transform to the reference, with samples."""
        own = [self._layout.qc("stitched" if part.settings.stitched else "edf", "json")]
        if cycle in part.moving_cycles and part.reference_cycle in part.cycles:
            own += [self._layout.transform, self._layout.qc("register", "json")]
        return {at.format(sample=s, cycle=cycle): s for s, at in product(part.samples, own)}

    def _missing(self, part: Experiment, cycle: int) -> str:
        """Return which result of a cycle's own is missing and the log of its job, "" for none."""
        for path, sample in self._own(part, cycle).items():
            manifest = self._layout.manifest.format(sample=sample, cycle=cycle)
            times = {at: time_ns for at, (_, time_ns) in files_at([path, manifest]).items()}
            if times.get(path, 0) < times[manifest]:  # of an earlier state of the raw data
                logs = self._layout.logs.glob(f"*/{sample}_cycle{cycle}[._]*")
                unfinished = [log for log in logs if b"CPU time" not in log.read_bytes()[-99:]]
                log = max(unfinished, key=os.path.getmtime, default=self._layout.logs)
                return f"{path} was not made, see {log}"
        return ""

    def _tell_verdicts(self, part: Experiment) -> None:
        """Tell warnings and failures so far: files of the stages exist before the summary."""
        stages = RuleFiles(part, self._layout).stages
        for sample, cycle, stage in product(part.samples, part.cycles, stages):
            path = Path(self._layout.qc(stage, "json").format(sample=sample, cycle=cycle))
            if path.is_file():
                try:
                    record = apply_thresholds(
                        read_qc(path), part.thresholds(), part.channel_table()
                    )
                except ResultFileError as error:
                    self._tell(str(path), f"warn: {error}")
                    continue
                for item in record.items:
                    if item.verdict != "pass":
                        where = f"{sample} cycle {cycle} {item.name} {stage}"
                        text = f"{item.verdict}: {where}: {item.sentence}"
                        self._tell(text, text)

    def _tell(self, subject: str | int, text: str) -> None:
        """Print what is new of a subject; what begins with a verdict is sent, too."""
        before, line = self._last_lines.get(subject, ""), printable(" ".join(text.split()))
        if line and before != line:
            self._last_lines[subject] = line
            print(f"follow {datetime.now():%H:%M:%S}  {line}", flush=True)
            if line[:5] in ("warn:", "fail:"):
                self._pending.append(line)

    def _send(self) -> None:
        """Send what is new."""
        command = [*self._notify, "\n".join(self._pending)]
        try:
            if self._pending and self._notify:
                subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            self._tell("notify", f"--notify failed: {error}")
        self._pending.clear()


def show_follow(file: Path, options: list[str], quiet_s: float, notify: str, source: Path) -> None:
    """Follow the microscope until all cycles are done, or a signal comes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as with nohup
            signal.signal(number, lambda n, _: sys.exit(128 + n))
    sources = (source, Path("Snakefile"), Path("workflow/Snakefile"), installed_snakefile())
    words = [f"--snakefile={next(filter(Path.is_file, sources))}", f"--configfile={file}"]
    words += ["--scheduler", "tilewright"]  # Snakemake's own may wait for itself after SIGTERM
    words += ["--keep-going", "--quiet", "rules", "reason", "host", *options]
    try:
        command = shlex.split(notify)
        if command and shutil.which(command[0]) is None:
            raise ConfigError(f"--notify is {notify!r}, which does not exist; give its full path")
        if runs_nothing(options) or any(word.startswith(("-C", "--config")) for word in options):
            raise ConfigError("an option after -- changes the configuration, or runs nothing")
        follower = Follower(file, words, quiet_s, command)
    except ValueError as error:  # ConfigError is one
        raise SystemExit(f"tilewright follow: {error}") from None
    try:
        while not follower.step(time.monotonic()):
            time.sleep(min(max(quiet_s / 10, 0.2), 60))
    except SystemExit as end:
        if isinstance(end.code, int):  # by a signal
            print("stopped; the same command goes on", flush=True)
        raise
    print("all cycles are done")
