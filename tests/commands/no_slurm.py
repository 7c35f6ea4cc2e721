"""Commands in a run's folder, on a machine without Slurm."""

import shutil

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.support.runs import Run


def command(app: typer.Typer, run: Run, monkeypatch: pytest.MonkeyPatch, *args: str) -> Result:
    """Call a command in a run's folder, with what Snakemake itself needs, and no Slurm."""
    programs = run.folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("bash", "which"):
        path = shutil.which(name)
        if path and not (programs / name).exists():
            (programs / name).symlink_to(path)
    monkeypatch.chdir(run.folder)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("TILEWRIGHT_DEVICE", "cpu")
    return CliRunner().invoke(app, args, env={"COLUMNS": "80"})
