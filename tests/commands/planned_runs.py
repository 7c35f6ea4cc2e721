"""Jobs to plan, and ``tilewright`` in a run's folder without Slurm."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, Kind, Shape, Task
from tests.support.runs import Run
from tilewright.cli import app


@dataclass
class TenMinutes:
    """Jobs of 8 CPUs and ten minutes; QC of one CPU and half a minute."""

    cpus: int = 8
    nominal: Mapping[str, float] = field(default_factory=dict)

    def kinds(self, rule: str) -> tuple[Kind, ...]:
        return ("cpu",) if rule == "qc" else ("gpu", "cpu")

    def shape(self, rule: str, wildcards: Any, *, gpu: bool) -> Shape:
        return Shape(1 if rule == "qc" else self.cpus, 4096, int(gpu), 60)

    def nominal_s(self, rule: str, wildcards: Any) -> float:
        return 30.0 if rule == "qc" else 600.0


def tasks_of(count: int) -> list[Task]:
    sizes = TenMinutes()
    jobs = [("stitch", f"s{k}", ()) for k in range(count)]
    checks = [("qc", f"q{k}", (f"s{k}", "done before")) for k in range(count)]
    return [
        Task(Job(name, rule, sizes.kinds(rule), needs, sizes.nominal_s(rule, None)))
        for rule, name, needs in [*jobs, *checks]
    ]


def command(run: Run, monkeypatch: pytest.MonkeyPatch, *args: str) -> Result:
    """Call the command in a run's folder, with what Snakemake itself needs, and no Slurm."""
    programs = run.folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("bash", "which"):
        path = shutil.which(name)
        if path and not (programs / name).exists():
            (programs / name).symlink_to(path)
    monkeypatch.chdir(run.folder)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("TILEWRIGHT_DEVICE", "cpu")
    monkeypatch.delenv("TILEWRIGHT_SITE", raising=False)
    return CliRunner().invoke(app, args, env={"COLUMNS": "80"})
