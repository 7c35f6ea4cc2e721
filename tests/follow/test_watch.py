"""What is quiet is told by names, sizes and times, and by the own clock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.config.settings import Acquisition
from tilewright.config.tables import Sample
from tilewright.follow.watch import Files, Part, Quiet, by_cycle, parts_of

QUIET_S = 100.0
ONE, TWO = Part("s", 1), Part("s", 2)


def files(*sizes: int) -> Files:
    return {f"f{k}": (size, 0) for k, size in enumerate(sizes)}


def sample(raw: Path, convention: str = "codex", pattern: str | None = None) -> Sample:
    own = {"convention": convention, "pattern": pattern, "pixel_um": 0.4, "reference_channel": "1"}
    return Sample("s", raw, Acquisition.model_validate(own))


@given(st.lists(st.tuples(st.floats(0.1, 150), st.integers(0, 3)), min_size=1, max_size=30))
def test_nothing_is_quiet_that_changed_lately(steps: list[tuple[float, int]]) -> None:
    """Whatever comes when: a part is quiet just if its last change seen is long ago."""
    quiet, now_s, changed_s, before = Quiet(QUIET_S), 0.0, 0.0, -1
    for wait_s, size in steps:
        now_s += wait_s
        quiet.look({ONE: files(size)}, now_s)
        changed_s = changed_s if size == before else now_s
        before = size
        assert (ONE in quiet.parts(now_s)) == (now_s - changed_s >= QUIET_S)


def test_a_folder_without_files_is_not_quiet() -> None:
    quiet = Quiet(QUIET_S)
    for now_s in (0, 1000):
        quiet.look({ONE: {}}, now_s)
    assert not quiet.parts(1000)


def test_a_cycle_that_has_passed_needs_less_time() -> None:
    quiet = Quiet(QUIET_S)
    quiet.look({ONE: files(1)}, 0)
    quiet.look({ONE: files(1, 2)}, 10)
    quiet.look({ONE: files(1, 2), TWO: files(1)}, 20)
    assert not quiet.parts(29)
    assert set(quiet.parts(31)) == {ONE}
    # Imaged again it does not: the microscope has come back to it.
    quiet.look({ONE: files(1, 3), TWO: files(1)}, 40)
    assert not quiet.parts(110)
    assert set(quiet.parts(121)) == {TWO}


def test_what_was_there_at_the_first_look_tells_no_order() -> None:
    quiet = Quiet(QUIET_S)
    quiet.look({ONE: files(1), TWO: files(1)}, 0)
    assert not quiet.parts(99)
    assert set(quiet.parts(100)) == {ONE, TWO}


def test_other_samples_tell_nothing() -> None:
    quiet = Quiet(QUIET_S)
    quiet.look({ONE: files(1)}, 0)
    quiet.look({ONE: files(1), Part("other", 2): files(1)}, 20)
    assert not quiet.parts(50)


def test_names_tell_the_cycle(tmp_path: Path) -> None:
    for cycle in (1, 2):
        folder = tmp_path / f"Cyc{cycle}_reg1"
        folder.mkdir()
        (folder / "1_00001_Z001_CH1.tif").write_bytes(bytes(cycle))
    (folder / "notes.txt").write_text("of no cycle")
    found = parts_of(sample(tmp_path))
    assert {part: [size for size, _ in own.values()] for part, own in found.items()} == {
        ONE: [1],
        TWO: [2],
    }


def test_a_pattern_tells_it_where_it_names_the_channel(tmp_path: Path) -> None:
    (tmp_path / "c1_t1_k2.tif").write_bytes(b"")
    assert set(parts_of(sample(tmp_path, "pattern", "c{cycle}_t{tile}_k{channel}.tif"))) == {ONE}
    assert set(parts_of(sample(tmp_path, "pattern", "c{cycle}_t{tile}_*.tif"))) == {Part("s", None)}


@pytest.mark.parametrize("convention", ["ome_tiff", "czi", "stitched", "imagexpress", "fiji"])
def test_a_folder_is_one_part_where_files_must_be_opened(tmp_path: Path, convention: str) -> None:
    """What is no image of its cycle would be an error if it were opened."""
    (tmp_path / "cycle1").mkdir()
    (tmp_path / "cycle1" / "half.ome.tif").write_bytes(b"II")
    (tmp_path / ".hidden.tif").write_bytes(b"")
    (tmp_path / "cycle1" / "around").symlink_to(tmp_path)
    (found,) = parts_of(sample(tmp_path, convention)).items()
    assert found[0] == Part("s", None)
    assert next(iter(found[1].items()))[1][0] == 2
    assert {os.path.basename(path) for path in found[1]} == {"half.ome.tif"}  # noqa: PTH119


def test_regions_are_samples(tmp_path: Path) -> None:
    for region in (1, 2):
        folder = tmp_path / f"Cyc1_reg{region}"
        folder.mkdir()
        (folder / "1_00001_Z001_CH1.tif").write_bytes(b"")
    own = sample(tmp_path)
    second = Sample("s", tmp_path, own.acquisition.model_copy(update={"region": "2"}))
    assert [Path(path).parent.name for path in by_cycle(second)[1]] == ["Cyc1_reg2"]
