"""``tilewright follow`` where it refuses, and what it decides; Snakemake itself: tests/workflow."""

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.microscope import cycle_folder, image_cycle
from tests.support.runs import TINY, Run, make_run
from tilewright.cli import app
from tilewright.follow.runs import Stop


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "microscope").mkdir()
    return make_run(tmp_path, tmp_path / "microscope", **TINY)


def followed(run: Run, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["follow", "--configfile", str(run.config), *options])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--notify", "no-such-command"], "--notify is 'no-such-command', which does not exist"),
        (["--snakefile", "nowhere"], "no Snakefile nowhere"),
        (["--", "--config", "a=1"], "--config after -- would replace the cycles"),
        (["--", "-n"], "snakemake runs nothing"),
    ],
)
def test_refused_in_one_sentence(run: Run, options: list[str], message: str) -> None:
    status, said = followed(run, *options)
    assert status == 2
    assert said.startswith("tilewright follow: ")
    assert message in said
    assert said.count("\n") == 1


def test_a_wrong_configuration(run: Run) -> None:
    run.edit(cycles=[7])
    assert "cycles names cycle 7" in followed(run)[1]


def test_a_folder_that_another_run_has_locked_is_waited_for(
    run: Run, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_cycle(tiny_raw, Path("microscope"), 1)
    locks = Path(".snakemake/locks")
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results\n")
    looks = iter([0] * 7 + [15])

    def wait(stop: Stop, seconds: float) -> bool:
        time.sleep(seconds)
        stop.signal = next(looks)
        return stop.signal > 0

    monkeypatch.setattr(Stop, "wait", wait)
    _, said = followed(run, "--quiet-min", "0.01")
    assert said.count("another snakemake has locked this folder") == 1
    assert "snakemake on" not in said
    assert not list(Path("results").rglob("raw/*.csv"))  # the other run may be reading them


@pytest.mark.workflow
def test_an_option_that_snakemake_does_not_know_ends_it(run: Run, tiny_raw: Path) -> None:
    image_cycle(tiny_raw, Path("microscope"), 1)
    status, said = followed(run, "--quiet-min", "0.01", "--", "--no-such-option")
    assert status == 2
    assert "snakemake refuses an option after --" in said


@pytest.mark.workflow
def test_what_can_be_made_is_made_of_cycles_as_they_come(
    run: Run, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own stages before the reference cycle; then one cycle that fails does not stop the other."""
    run.edit(acquisition={"reference_cycle": 2})
    microscope = Path("microscope")
    image_cycle(tiny_raw, microscope, 1)
    Path("Snakefile").write_text(_FAILS)

    def wait(stop: Stop, _: float) -> bool:
        ended = Path("results/follow.jsonl").read_text().count('"ended"')
        if ended == 1 and not cycle_folder(microscope, 2).exists():
            image_cycle(tiny_raw, microscope, 2)
        stop.signal = 15 if ended == 3 else 0
        return ended == 3

    monkeypatch.setattr(Stop, "wait", wait)
    status, said = followed(run, "--quiet-min", "0.01", "--", "--cores", "1")
    assert status == 128 + 15
    first, second = said.split("cycle 2 is complete")
    assert "snakemake on cycle 1: edf\n" in first
    assert "cycle 1: done in" in first
    assert Path("results/tonsil/qc/edf_cycle1.json").is_file()
    assert "fail  cycle 1 could not be processed: results/tonsil/register/cycle1.npz" in second
    assert "results/logs/register/tonsil_cycle1.log" in second
    assert "cycle 2: done in" in second
    assert "ended; the same command resumes" in second


#: Stands for a cycle that does not match: its registration is not made.
_FAILS = """
import json
cycles = [int(cycle) for cycle in config.get("cycles", (1, 2))]
content = dict(sample="tonsil", stage="edf", items=[], numbers=dict(), caption="")

rule registration:
    input:
        expand("results/tonsil/qc/edf_cycle{cycle}.json", cycle=cycles),
        expand("results/tonsil/register/cycle{cycle}.npz", cycle=[c for c in cycles if c != 2])

rule qc:

rule edf:

rule one:
    output: "results/tonsil/qc/edf_cycle{cycle}.json"
    params: text=lambda wildcards: json.dumps(dict(content, cycle=int(wildcards.cycle)))
    shell: "echo '{params.text}' > {output}"

rule register:
    output: "results/tonsil/register/cycle{cycle}.npz"
    log: "results/logs/register/tonsil_cycle{cycle}.log"
    shell: "echo no match > {log}; false"
"""
