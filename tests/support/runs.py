"""Real Snakemake runs on phantom experiments."""

from __future__ import annotations

import atexit
import contextlib
import csv
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.forked import fork
from tests.support.tile_tables import write_tiles
from tilewright.phantom.make import PhantomDesign, make_phantom

REPO = Path(__file__).resolve().parents[2]
#: The smallest experiment that still has everything real data have.
SMALL: dict[str, Any] = {
    **{"seed": 3, "cycles": 3, "channels": 2, "rows": 2, "cols": 3},
    **{"planes": 5, "tile_px": 256, "overlap": 0.15},
}
#: The smallest experiment that a workflow runs.
SMALLER = {"seed": 5, "cycles": 2, "cols": 2, "planes": 3, "tile_px": 224, "empty_tile": False}
TINY: dict[str, Any] = {**SMALL, **SMALLER}
#: ``TINY`` and a cycle that comes later.
LATER: dict[str, Any] = {**TINY, "cycles": 3}
CONFIG = """
samples: samples.tsv
tiles: tiles.csv
markers: markers.csv
results: results
acquisition:
  convention: codex
  pixel_um: {plan.pixel_um}
  z_step_um: {plan.z_step_um}
optics:
  numerical_aperture: {plan.aperture}
  immersion_refractive_index: {plan.immersion_index}
  sample_refractive_index: 1.44
"""


@contextlib.contextmanager
def changed(path: Path, text: str) -> Iterator[None]:
    """Write other text into a file for a while."""
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


@dataclass(frozen=True)
class Run:
    """An experiment in a folder of its own."""

    folder: Path
    config: Path

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def sample(self) -> Path:
        return self.results / "tonsil"

    def edit(self, **sections: Any) -> None:
        """Change sections of the config file."""
        config = yaml.safe_load(self.config.read_text())
        for name, values in sections.items():
            config[name] = (
                {**config.get(name, {}), **values} if isinstance(values, dict) else values
            )
        self.config.write_text(yaml.safe_dump(config))

    @contextlib.contextmanager
    def edited(self, **sections: Any) -> Iterator[None]:
        """Change sections of the config file for a while."""
        with changed(self.config, self.config.read_text()):
            self.edit(**sections)
            yield

    def copy(self, folder: Path) -> Run:
        """Copy it and its raw tiles with the times of their files: nothing is to be made again."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        table = folder / "samples.tsv"
        raw = table.read_text().split("\t")[-1].strip()
        shutil.copytree(raw, folder / "raw")
        table.write_text(table.read_text().replace(raw, str(folder / "raw")))
        return Run(folder, folder / "config.yaml")

    def command(self, *args: str) -> list[str]:
        workflow = "--snakefile", str(REPO / "workflow/Snakefile")
        end = "--configfile", str(self.config)  # takes all words that follow
        return [sys.executable, "-m", "snakemake", *workflow, *args, *end]

    def snakemake(
        self, *args: str, ok: bool = True, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake; fail the test with its output when it ends otherwise than ``ok``."""
        more = {"TILEWRIGHT_DEVICE": "cpu", **(env or {})}
        run = _started if "PYTHONPATH" in more else _forked
        done = run(self.command(*args), self.folder, {**os.environ, **more})
        assert (done.returncode == 0) == ok, done.stdout[-6000:] + done.stderr[-6000:]
        return done

    def planned(self, *args: str) -> dict[str, int]:
        """Return how many jobs of each rule a dry run would start."""
        return job_counts(self.snakemake(*args, "-n", "--quiet", "rules").stdout)


def _started(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _forked(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Do the same by the server, of which Python has read ``PYTHONPATH``."""
    with tempfile.TemporaryDirectory() as said:
        paths = [Path(said, name) for name in ("stdout", "stderr")]
        for path in paths:
            path.touch()
        process = fork(_snakemake, command[2:], folder, environment, paths)
        try:
            process.join()
        finally:
            process.kill()
        texts = [path.read_text() for path in paths]
    return subprocess.CompletedProcess(command, process.exitcode or 0, *texts)


def _snakemake(
    argv: list[str], folder: Path, environment: dict[str, str], said: list[Path]
) -> None:
    from snakemake.cli import main

    for number, path in enumerate(said, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out


def job_counts(said: str) -> dict[str, int]:
    """Return the jobs of each rule in Snakemake's table of them, targets left out."""
    jobs: dict[str, int] = {}
    for line in said.partition("Job stats:")[2].splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            jobs[words[0]] = int(words[1])
            if words[0] == "total":
                break
    targets = ("total", "all", "stitching", "deconvolution", "edf", "registration", "qc")
    return {name: count for name, count in jobs.items() if name not in targets}


def make_run(folder: Path, raw: Path | None = None, **design: Any) -> Run:
    """Make a phantom (or take the raw tiles of another) and its configuration."""
    values = {**SMALL, **design}
    folder.mkdir(parents=True, exist_ok=True)
    if raw is None:
        make_phantom(folder, **values)
        raw = folder / "raw"
    plan = PhantomDesign(**values)
    (folder / "samples.tsv").write_text(f"sample\traw_dir\ntonsil\t{raw}\n")
    write_tiles(folder / "tiles.csv", ["tonsil"], range(1, plan.cycles + 1), *plan.grid)
    blank = plan.blank_cycle
    lines = [
        "cycle,channel,marker,reference,emission_nm"
        + ",exposure_ms,background" * (blank is not None)
    ]
    for cycle, names in enumerate(plan.markers(), 1):
        for channel, name in enumerate(names, 1):
            reference = "TRUE" if channel == 1 else ""
            line = f"{cycle},{channel},{name},{reference},{plan.wavelengths_nm[channel - 1]}"
            if blank is not None:
                background = f"Blank-{channel}" if cycle != blank and channel > 1 else ""
                line += f",{plan.exposure_ms(cycle, channel):g},{background}"
            lines.append(line)
    (folder / "markers.csv").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text(CONFIG.format(plan=plan))
    return Run(folder, folder / "config.yaml")


def peak_mb(log: Path) -> int:
    """Return the most memory that a job has held, by its log."""
    return int(re.findall(r"peak memory (\d+) MB", log.read_text("utf-8"))[-1])


def mark_references(markers: Path) -> None:
    """Mark the first channel of each cycle of a markers table as reference, if none is."""
    with markers.open(newline="", encoding="utf-8") as stream:
        lines = list(csv.reader(stream))
    marked = {line[0] for line in lines if line[3] == "TRUE"}
    for line in lines[1:]:
        if line[0] not in marked:
            line[3] = "TRUE"
            marked.add(line[0])
    with markers.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(lines)


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first worker makes and the others find; nobody changes it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    made = folder.with_suffix(".made")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            make(folder)
            made.touch()
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every result file, logs and timings left out."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.relative_to(folder).parts[0] not in ("logs", "benchmarks")
        and path.parent.name != "raw"
        and path.name != ".snakemake_timestamp"
    }
