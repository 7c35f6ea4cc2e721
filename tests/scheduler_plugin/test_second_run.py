"""A run is refused where another one is active that writes into the same results."""

import time
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.runtime.run_state import RunState, write_state
from tests.support.runs import Run

pytestmark = pytest.mark.workflow


def test_two_working_folders_on_one_results_folder(tmp_path: Path, tiny_run: Run) -> None:
    run = tiny_run.copy(tmp_path / "first")
    other = tiny_run.copy(tmp_path / "second")
    other.edit(results=str(run.results))
    manifest = run.sample / "raw/cycle1.csv"
    before = manifest.read_bytes()
    (other.folder / "tiles.csv").write_text((run.folder / "tiles.csv").read_text() + "\n")
    now_s = time.time()
    state = RunState(now_s, now_s, folder=str(run.folder))
    write_state(run.results / "placement/state.json", state)
    for words in (["-n"], ["--cores", "1"]):
        done = other.snakemake("registration", *words, ok=False)
        said = done.stdout + done.stderr
        assert f"a run in {run.folder} (process {state.pid} on {state.host}, seen" in said
        assert f"`kill -INT {state.pid}`" in said
    assert manifest.read_bytes() == before
    run.snakemake("registration", "--cores", "1", "--rerun-triggers", "mtime")
