"""Which cycles are whole, of a phantom that is written file by file; by a clock of the test."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.support.convention_raw import PIXEL_UM, make_tiles, write_as
from tests.support.microscope import blur_cycle, cycle_folder, image_cycle
from tests.support.runs import TINY, make_run
from tilewright.config.config_file import read_config
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment
from tilewright.follow.cycles import CycleEvent, Cycles
from tilewright.phantom.make import make_phantom

QUIET_S = 100.0
DESIGN: dict[str, Any] = {**TINY, "cycles": 3, "planes": 2}
_opened: list[str] = []


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantom")
    make_phantom(folder, **DESIGN)
    return folder / "raw"


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


class Microscope:
    """A raw folder, the cycles that are followed in it, and a clock."""

    def __init__(self, folder: Path, stored: Path) -> None:
        self.raw, self.stored = folder / "microscope", stored
        self.raw.mkdir()
        self.run = make_run(folder, self.raw, **DESIGN)
        self.cycles = Cycles(QUIET_S)
        self.now_s = 0.0

    @property
    def experiment(self) -> Experiment:
        return load_experiment(read_config(self.run.config))

    def image(self, *cycles: int) -> None:
        for cycle in cycles:
            image_cycle(self.stored, self.raw, cycle)

    def look(self, after_s: float) -> list[CycleEvent]:
        self.now_s += after_s
        return list(self.cycles.update(self.experiment, Layout("results"), self.now_s))

    def kinds(self, after_s: float) -> list[tuple[int | None, str]]:
        return [(news.cycle, news.kind) for news in self.look(after_s)]

    def quiet(self) -> list[tuple[int | None, str]]:
        """Look now and when all has been quiet for long enough."""
        self.look(0)
        return self.kinds(QUIET_S)


@pytest.fixture
def microscope(tmp_path: Path, stored: Path, monkeypatch: pytest.MonkeyPatch) -> Microscope:
    monkeypatch.chdir(tmp_path)
    return Microscope(tmp_path, stored)


def test_no_file_is_opened_that_may_be_written(microscope: Microscope) -> None:
    """At every look: what was opened since has been the same for long enough."""
    written_s: dict[str, float] = {}
    whole: list[int] = []
    ever_read: set[str] = set()
    for cycle in (1, 2, 3):
        source, folder = (cycle_folder(at, cycle) for at in (microscope.stored, microscope.raw))
        folder.mkdir()
        for path in sorted(source.iterdir()):
            content = path.read_bytes()
            for share in (2, 1):
                (folder / path.name).write_bytes(content[: len(content) // share])
                written_s[str(folder / path.name)] = microscope.now_s
                _opened.clear()
                whole += [c for c, kind in microscope.kinds(5.0) if kind == "complete" and c]
                read = written_s.keys() & set(_opened)
                ever_read |= read
                assert all(microscope.now_s - written_s[path] >= QUIET_S / 5 for path in read)
    assert whole == [1, 2]
    assert ever_read
    assert microscope.kinds(QUIET_S) == [(3, "complete")]
    assert set(microscope.cycles.complete()) == {1, 2, 3}


def test_what_is_missing_is_said_once(microscope: Microscope) -> None:
    microscope.image(1, 2)
    last = max(cycle_folder(microscope.raw, 2).iterdir())
    content = last.read_bytes()
    last.unlink()
    microscope.look(0)
    one, two = microscope.look(QUIET_S)
    assert (one.cycle, one.kind, two.cycle, two.kind) == (1, "complete", 2, "waits")
    assert two.text.startswith("cycle 2 waits: sample 'tonsil': 1 problem with the raw data")
    assert "tile 4 lacks z-plane 2 of 2 of channel 2; copy them" in two.text
    assert not microscope.look(10)
    last.write_bytes(content[:-1000])
    assert microscope.quiet() == [(2, "waits")]  # for the other half of the file
    last.write_bytes(content)
    assert microscope.quiet() == [(2, "complete")]


def test_a_cycle_imaged_again(microscope: Microscope, tmp_path: Path) -> None:
    microscope.image(1, 2)
    assert microscope.quiet() == [(1, "complete"), (2, "complete")]
    manifest = Path("results/tonsil/raw/cycle1.csv")
    before = manifest.stat().st_mtime_ns
    blur_cycle(microscope.stored, tmp_path / "blurred", 2, 2.0)
    image_cycle(tmp_path / "blurred", microscope.raw, 2)
    assert microscope.kinds(5) == [(2, "change")]
    assert set(microscope.cycles.complete()) == {1}
    assert microscope.kinds(QUIET_S) == [(2, "complete")]
    assert manifest.stat().st_mtime_ns == before


def test_a_black_cycle_cannot_be_used(microscope: Microscope) -> None:
    microscope.image(1, 2, 3)
    for path in cycle_folder(microscope.raw, 2).glob("*.tif"):
        tifffile.imwrite(path, np.full_like(tifffile.imread(path), 100))
    microscope.look(0)
    one, two, three = microscope.look(QUIET_S)
    assert [one.kind, two.kind, three.kind] == ["complete", "unusable", "complete"]
    assert "cycle 2, channel 1 (the reference channel): every tile is constant" in two.text
    assert set(microscope.cycles.complete()) == {1, 3}
    assert not microscope.look(10)


def test_a_cycle_that_is_held_comes_back_and_a_folder_that_goes_is_said(
    microscope: Microscope,
) -> None:
    microscope.image(1)
    microscope.quiet()
    microscope.cycles.exclude(1, "it failed")
    assert not microscope.look(QUIET_S)
    assert not microscope.cycles.complete()
    microscope.image(1)
    assert microscope.quiet() == [(1, "complete")]
    microscope.cycles.exclude(1, "it failed")
    microscope.cycles.reset()
    assert microscope.kinds(5) == [(1, "complete")]
    experiment = microscope.experiment
    microscope.raw.rename(microscope.raw.with_name("away"))
    (said,) = microscope.cycles.update(experiment, Layout("results"), microscope.now_s + 5)
    assert said.text.startswith("sample tonsil waits: ")
    assert not microscope.cycles.complete()


def test_a_cycle_waits_for_all_samples(microscope: Microscope) -> None:
    other = microscope.raw.with_name("other")
    other.mkdir()
    with microscope.run.folder.joinpath("samples.tsv").open("a") as table:
        table.write(f"spleen\t{other}\n")
    microscope.image(1)
    assert not microscope.quiet()
    image_cycle(microscope.stored, other, 1)
    assert microscope.quiet() == [(1, "tiles")] * 3 + [(1, "complete")]
    tiles = microscope.run.folder.joinpath("tiles.csv").read_text().splitlines()
    assert len([line for line in tiles if line.startswith("spleen,1,")]) == 4


@pytest.mark.parametrize("convention", ["ome_tiff", "fiji", "imagexpress"])
def test_a_folder_whose_files_are_opened_is_quiet_as_a_whole(
    microscope: Microscope, tmp_path: Path, convention: str
) -> None:
    design, tiles = make_tiles(cycles=2)
    (tmp_path / "markers.csv").write_text(
        "cycle,channel,marker,reference\n1,1,D1,TRUE\n2,1,D2,TRUE\n"
    )
    microscope.run.edit(
        acquisition={"convention": convention, "pixel_um": PIXEL_UM},
        deconvolve={"method": "none"},
        edf={"method": "focus_weighted"},
    )
    table = microscope.run.folder / "tiles.csv"
    table.write_text(table.read_text().splitlines()[0] + "\n")
    step_px = round(design.step_px)
    write_as(convention, microscope.raw, {(1, 1): tiles[1, 1]}, step_px)
    assert microscope.quiet()[-1] == (1, "complete")
    half = microscope.raw / "cycle2" / "x.tif"
    half.parent.mkdir()
    half.write_bytes(b"II*")
    _opened.clear()
    assert not microscope.kinds(QUIET_S / 2)
    assert not [path for path in _opened if str(microscope.raw) in path]
    assert not microscope.cycles.complete()  # a run would look at the half file
    half.unlink()
    write_as(convention, microscope.raw, {(2, 1): tiles[2, 1]}, step_px)
    assert not microscope.kinds(QUIET_S / 2)
    assert microscope.kinds(QUIET_S)[-1] == (2, "complete")
    assert set(microscope.cycles.complete()) == {1, 2}
    assert len(table.read_text().splitlines()) == 1 + 4 + 4
