"""``tilewright follow`` on a phantom that is written file by file; whole runs: tests/workflow."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from snakemake_scheduler_plugin_tilewright.runtime.run_state import RunState, write_state
from tests.support.convention_raw import PIXEL_UM, make_tiles, write_as
from tests.support.microscope import cycle_folder, image_cycle
from tests.support.runs import LATER, Run, make_run
from tests.support.slurm_cluster import wait_for
from tilewright.cli import app
from tilewright.follow import Files, Follower
from tilewright.quality.results import QcContext, resolve_thresholds

QUIET_S = 100.0
_opened: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _watched() -> Iterator[None]:
    """Note the files that this process opens; a hook cannot be taken away again."""
    watching = True

    def note(event: str, given: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(given[0], str | os.PathLike):
            _opened.append(os.fspath(given[0]))

    sys.addaudithook(note)
    yield
    watching = False


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "microscope").mkdir()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [signal.getsignal(number) for number in signals]
    yield make_run(tmp_path, tmp_path / "microscope", **LATER)
    for number, handler in zip(signals, heard, strict=True):
        signal.signal(number, handler)


class Microscope(Follower):
    """A raw folder that is followed by a clock of the test, and runs that end well at once."""

    def __init__(self, run: Run, capsys: pytest.CaptureFixture[str], *notify: str) -> None:
        super().__init__(run.config, [], QUIET_S, list(notify))
        self.run, self.raw, self.now_s, self.capsys = run, Path("microscope"), 0.0, capsys
        self.runs: list[list[int]] = []
        self.done = False

    def _run(self, ready: dict[int, Files]) -> None:
        self.runs.append(sorted(ready))
        self._tried = ready

    def look(self, after_s: float = 0.0) -> list[str]:
        """Return what is said at a look some time later, without the times."""
        self.now_s += after_s
        self.capsys.readouterr()
        self.done = self.step(self.now_s)
        return [line[17:] for line in self.capsys.readouterr().out.splitlines()]

    def quiet(self) -> list[str]:
        """Look now and when all has been quiet for long enough."""
        self.look()
        return self.look(QUIET_S)


@pytest.fixture
def microscope(run: Run, capsys: pytest.CaptureFixture[str]) -> Microscope:
    return Microscope(run, capsys)


def test_no_file_is_opened_that_may_be_written(microscope: Microscope, tiny_later: Path) -> None:
    """At every look: what was opened since has been the same for long enough."""
    written_s: dict[str, float] = {}
    ever_read: set[str] = set()
    for cycle in (1, 2):
        source = cycle_folder(tiny_later / "raw", cycle)
        folder = cycle_folder(microscope.raw, cycle).absolute()
        folder.mkdir()
        for path in sorted(source.iterdir()):
            content = path.read_bytes()
            for share in (2, 1):
                (folder / path.name).write_bytes(content[: len(content) // share])
                written_s[str(folder / path.name)] = microscope.now_s
                _opened.clear()
                microscope.look(5.0)
                read = written_s.keys() & set(_opened)
                ever_read |= read
                assert all(microscope.now_s - written_s[path] >= QUIET_S for path in read)
    assert microscope.runs == [[1]]
    assert ever_read
    assert microscope.look(QUIET_S) == ["cycle 2 is complete", "waiting for cycle 3"]
    assert microscope.runs == [[1], [1, 2]]
    image_cycle(tiny_later / "later", microscope.raw, 3)
    assert microscope.quiet() == ["cycle 3 is complete"]
    assert not microscope.done
    assert not microscope.look()
    assert microscope.done


def test_what_is_missing_is_said_once(microscope: Microscope, tiny_raw: Path) -> None:
    image_cycle(tiny_raw, microscope.raw, 1)
    image_cycle(tiny_raw, microscope.raw, 2)
    last = max(cycle_folder(microscope.raw, 2).iterdir())
    content = last.read_bytes()
    last.unlink()
    one, two, rest = microscope.quiet()
    assert (one, rest) == ("cycle 1 is complete", "waiting for cycles 2, 3")
    assert two.startswith("warn: cycle 2 waits: sample 'tonsil': 1 problem with the raw data")
    assert "lacks z-plane 3 of 3 of channel 2" in two
    assert not microscope.look(10)
    last.write_bytes(content)
    assert microscope.quiet() == ["cycle 2 is complete", "waiting for cycle 3"]
    # Imaged again: unchanged cycles keep their manifests.
    manifest = Path("results/tonsil/raw/cycle1.csv")
    before = manifest.stat().st_mtime_ns
    image_cycle(tiny_raw, microscope.raw, 2)
    assert microscope.look(5) == ["waiting for cycles 2, 3"]
    assert microscope.look(QUIET_S) == ["waiting for cycle 3"]
    assert microscope.runs == [[1], [1, 2], [1, 2]]
    assert manifest.stat().st_mtime_ns == before
    microscope.raw.rename("away")
    assert "nothing runs: " in microscope.look(5)[0]


def test_a_cycle_waits_for_all_samples(microscope: Microscope, tiny_raw: Path) -> None:
    other = microscope.raw.with_name("other")
    other.mkdir()
    with Path("samples.tsv").open("a") as table:
        table.write(f"spleen\t{other.absolute()}\n")
    image_cycle(tiny_raw, microscope.raw, 1)
    assert microscope.quiet() == []
    image_cycle(tiny_raw, other, 1)
    # Half of the overlaps of its four tiles show anything, which is no fact: it is asked.
    question = " ".join(microscope.quiet())
    assert "tiles.csv, cycle 1: y and x: the overlap of tiles is not" in question
    assert Path("tiles.csv").read_text().count("\nspleen,1,") == 4
    assert microscope.runs == []


def test_the_configuration_is_read_when_it_changes(
    microscope: Microscope, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_cycle(tiny_raw, microscope.raw, 1)
    microscope.quiet()
    text = microscope.run.config.read_text()
    microscope.run.config.write_text(text + "no_such_key: 1\n")
    assert "nothing runs: unknown key 'no_such_key'" in microscope.look(5)[0]
    assert not microscope.look(5)
    microscope.run.config.write_text(text.replace("results: results", "results: elsewhere"))
    assert "the key 'results' changed" in microscope.look(5)[0]
    microscope.run.config.write_text(text + "qc: {thresholds: {}}\n")
    assert not microscope.look(5)
    assert microscope.runs == [[1], [1]]
    monkeypatch.setattr("tilewright.follow.read_experiment", None)  # would raise
    assert not microscope.look(5)


@pytest.mark.parametrize("convention", ["ome_tiff", "fiji"])
def test_a_folder_whose_files_are_opened_is_quiet_as_a_whole(
    run: Run, capsys: pytest.CaptureFixture[str], convention: str
) -> None:
    design, tiles = make_tiles(cycles=2)
    Path("markers.csv").write_text("cycle,channel,marker,reference\n1,1,D1,TRUE\n2,1,D2,TRUE\n")
    run.edit(
        acquisition={"convention": convention, "pixel_um": PIXEL_UM},
        deconvolve={"method": "none"},
        edf={"method": "focus_weighted"},
    )
    table = Path("tiles.csv")
    table.write_text(table.read_text().splitlines()[0] + "\n")
    microscope, step_px = Microscope(run, capsys), round(design.step_px)
    write_as(convention, microscope.raw, {(1, 1): tiles[1, 1]}, step_px)
    assert microscope.quiet()[-2:] == ["cycle 1 is complete", "waiting for cycle 2"]
    half = microscope.raw / "cycle2" / "x.tif"
    half.parent.mkdir()
    half.write_bytes(b"II*")
    _opened.clear()
    assert microscope.look(QUIET_S / 2) == ["waiting for cycles 1, 2"]
    assert not [path for path in _opened if str(microscope.raw.absolute()) in path]
    half.unlink()
    write_as(convention, microscope.raw, {(2, 1): tiles[2, 1]}, step_px)
    assert not microscope.look(QUIET_S / 2)
    assert microscope.look(QUIET_S)[-1] == "cycle 2 is complete"
    assert microscope.runs == [[1], [1, 2]]
    assert len(table.read_text().splitlines()) == 1 + 4 + 4


def test_a_locked_folder_is_left_alone(microscope: Microscope, tiny_raw: Path) -> None:
    image_cycle(tiny_raw, microscope.raw, 1)
    lock = Path(".snakemake/locks/0.output.lock")
    lock.parent.mkdir(parents=True)
    lock.write_text("results\n")
    assert "another run is active" in microscope.look()[0]
    assert not microscope.look(QUIET_S)
    assert not list(Path("results").rglob("raw/*.csv"))  # the other run may be reading them
    lock.unlink()
    now_s, state = time.time(), Path("results/placement/state.json")
    write_state(state, RunState(now_s, now_s, pid=os.getppid(), folder="/data"))
    assert "warn: nothing runs: a run in /data (process" in microscope.look()[0]
    assert not list(Path("results").rglob("raw/*.csv"))
    state.unlink()
    microscope.quiet()
    assert microscope.runs == [[1]]


def test_each_warning_is_sent_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """And again where it comes back after a change."""
    script = Path("say.py")
    script.write_text("import sys; open('there/told', 'a').write(sys.argv[1] + '|')")
    microscope = Microscope(run, capsys, sys.executable, str(script))
    context = QcContext("tonsil", 2, "stitch", resolve_thresholds({}), "1", "DAPI")
    microscope._tell(2, "warn: x")
    assert "--notify failed" in microscope.look()[1]
    Path("there").mkdir()
    for value in (0.5, 0.5, 0.6):
        microscope._tell("saturated", f"fail: {context.evaluate('saturated', value).sentence}")
    microscope._tell(3, "warn: cycle 3 waits")
    microscope._tell(4, "cycle 4 is complete")
    microscope.look()
    told = Path("there/told").read_text()
    assert told.startswith("fail: ")
    assert told.endswith("\nwarn: cycle 3 waits|")
    for text in ("warn: cycle 3 waits", "cycle 3 is complete", "warn: cycle 3 waits"):
        microscope._tell(3, text)
    microscope.look()
    assert Path("there/told").read_text() == f"{told}warn: cycle 3 waits|"


def followed(run: Run, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["follow", "--configfile", str(run.config), *options])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--notify", "no-such-command"], "--notify is 'no-such-command', which does not exist"),
        (["--notify", "'unclosed"], "No closing quotation"),
        (["--", "--config", "a=1"], "an option after -- changes the configuration"),
        (["--", "-n"], "or runs nothing"),
    ],
)
def test_refused_in_one_sentence(run: Run, options: list[str], message: str) -> None:
    status, said = followed(run, *options)
    assert status == 1
    assert said.startswith("tilewright follow: ")
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.workflow
def test_what_can_be_made_is_made_of_cycles_as_they_come(
    run: Run, tiny_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own stages before the reference cycle; then one cycle that fails does not stop the other."""
    run.edit(acquisition={"reference_cycle": 2})
    microscope = Path("microscope")
    image_cycle(tiny_raw, microscope, 1)
    Path("Snakefile").write_text(_FAILS)
    quality = Path("results/tonsil/qc")

    def wait(_: float) -> None:
        if (quality / "edf_cycle1.json").exists() and not cycle_folder(microscope, 2).exists():
            image_cycle(tiny_raw, microscope, 2)
        if Path("results/only2").exists():
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("time.sleep", wait)
    status, said = followed(run, "--quiet-min", "0.01", "--", "--cores", "1")
    assert status == 128 + 15
    first, second = said.split("cycle 2 is complete")
    assert "cycle 1: done" in first
    assert "fail: cycle 1 waits until it or the configuration changes: results/tonsil/re" in second
    assert "register/cycle1.npz was not made, see results/logs/register/tonsil_cycle1.log" in second
    assert second.index("cycle 1 waits") < second.index("snakemake on cycle 2")
    assert "cycle 2: done" in second


#: Stands for a cycle that does not match: its registration is not made.
_FAILS = """
import json
cycles = [int(cycle) for cycle in config.get("cycles", (1, 2))]
content = dict(sample="tonsil", stage="edf", items=[], numbers=dict(), caption="")

rule registration:
    input:
        expand("results/tonsil/qc/edf_cycle{cycle}.json", cycle=cycles),
        expand("results/tonsil/register/cycle{cycle}.npz", cycle=[c for c in cycles if c != 2])
    output: "results/only2"
    shell: "touch {output}"

rule qc:

rule one:
    output: "results/tonsil/qc/edf_cycle{cycle}.json"
    params: text=lambda wildcards: json.dumps(dict(content, cycle=int(wildcards.cycle)))
    shell: "echo '{params.text}' > {output}"

rule register:
    output: "results/tonsil/register/cycle{cycle}.npz"
    log: "results/logs/register/tonsil_cycle{cycle}.log"
    shell: "echo no match > {log}; false"
"""


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("number", "group"),
    [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, True)],
)
def test_a_signal_ends_the_run(
    run: Run, tiny_raw: Path, number: signal.Signals, group: bool
) -> None:
    """Ctrl-C, to the group of a terminal, ends jobs too; without it Snakemake lets them end."""
    image_cycle(tiny_raw, Path("microscope"), 1)
    sleep_s = 600 if number == signal.SIGINT else 3
    Path("Snakefile").write_text(
        'rule registration:\n    output: "out"\n'
        f'    shell: "touch on; sleep {sleep_s}; touch out"\n'
        "rule qc:\n"
    )
    command = [sys.executable, "-m", "tilewright.cli", "follow", "--quiet-min", "0.01"]
    command += ["--configfile", str(run.config), "--", "--cores", "1"]

    def heed_signals() -> None:  # those that the tests' own shell may ignore, as nohup does
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    follow = subprocess.Popen(command, start_new_session=True, preexec_fn=heed_signals)
    wait_for(Path("on").exists, 100)
    (os.killpg if group else os.kill)(follow.pid, number)
    assert follow.wait(600) == 128 + number
    assert not any(Path(".snakemake/locks").glob("*"))
