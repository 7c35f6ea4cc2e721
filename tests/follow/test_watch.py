"""What is quiet is told by names, sizes and times, and by the own clock."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.config.settings import Acquisition
from tilewright.config.tables import Sample
from tilewright.follow.watch import ChangeMonitor, Files, Part, files_by_cycle, parts_of

QUIET_S = 100.0
ONE, TWO = Part("s", 1), Part("s", 2)


def files(*sizes: int) -> Files:
    return {f"f{k}": (size, 0) for k, size in enumerate(sizes)}


def sample(raw: Path, convention: str = "codex", pattern: str | None = None) -> Sample:
    own = {"convention": convention, "pattern": pattern, "pixel_um": 0.4}
    return Sample("s", raw, Acquisition.model_validate(own))


@given(st.lists(st.tuples(st.floats(0.1, 150), st.integers(0, 3)), min_size=1, max_size=30))
def test_nothing_is_quiet_that_changed_lately(steps: list[tuple[float, int]]) -> None:
    """Whatever comes when: a part is quiet just if its last change seen is long ago."""
    monitor, now_s, changed_s, before = ChangeMonitor(QUIET_S), 0.0, 0.0, -1
    for wait_s, size in steps:
        now_s += wait_s
        monitor.update({ONE: files(size)}, now_s)
        changed_s = changed_s if size == before else now_s
        before = size
        assert (ONE in monitor.quiet_parts(now_s)) == (now_s - changed_s >= QUIET_S)


@pytest.mark.parametrize(
    ("looks", "quiet_at"),
    [
        # a folder without files is not quiet
        ([(0, {ONE: {}}), (1000, {ONE: {}})], {1000: set()}),
        # a cycle that has passed needs less time; imaged again, not: the microscope has come back
        ([(0, {ONE: files(1)}), (10, {ONE: files(1, 2)}), (20, {ONE: files(1, 2), TWO: files(1)})],
         {29: set(), 31: {ONE}}),
        ([(0, {ONE: files(1)}), (10, {ONE: files(1, 2)}), (20, {ONE: files(1, 2), TWO: files(1)}),
          (40, {ONE: files(1, 3), TWO: files(1)})], {110: set(), 121: {TWO}}),
        # what was there at the first look tells no order
        ([(0, {ONE: files(1), TWO: files(1)})], {99: set(), 100: {ONE, TWO}}),
        # other samples tell nothing
        ([(0, {ONE: files(1)}), (20, {ONE: files(1), Part("other", 2): files(1)})], {50: set()}),
    ],
)  # fmt: skip
def test_what_is_quiet_when(
    looks: list[tuple[float, dict[Part, Files]]], quiet_at: dict[float, set[Part]]
) -> None:
    monitor = ChangeMonitor(QUIET_S)
    for now_s, found in looks:
        monitor.update(found, now_s)
    assert {now_s: set(monitor.quiet_parts(now_s)) for now_s in quiet_at} == quiet_at


def write(folder: Path, cycle: int, region: int = 1) -> None:
    """Write one file of CODEX, with as many bytes as its cycle's number."""
    path = folder / f"Cyc{cycle}_reg{region}" / "1_00001_Z001_CH1.tif"
    path.parent.mkdir()
    path.write_bytes(bytes(cycle))


def test_names_tell_the_cycle(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    (tmp_path / "notes.txt").write_text("of no cycle")
    sizes = {p: [size for size, _ in own.values()] for p, own in parts_of(sample(tmp_path)).items()}
    assert sizes == {ONE: [1], TWO: [2]}


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
    write(tmp_path, 1, region=1)
    write(tmp_path, 1, region=2)
    own = sample(tmp_path)
    second = Sample("s", tmp_path, own.acquisition.model_copy(update={"region": "2"}))
    assert [Path(path).parent.name for path in files_by_cycle(second)[1]] == ["Cyc1_reg2"]
