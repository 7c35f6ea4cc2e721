"""Files are whole or absent; lines of several processes stay apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime.files import append_line, read_lines, whole_or_nothing, write_whole


@pytest.mark.parametrize("shared", [False, True])
def test_an_error_leaves_what_was_there(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "folder/note.txt"
    write_whole(path, "first\r\n", shared=shared)

    def fail() -> None:
        with whole_or_nothing(path, shared=shared) as partial:
            partial.write_text("half of it")
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert path.read_bytes() == b"first\r\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for name in ("old", "new"):
        with whole_or_nothing(path) as partial:
            partial.mkdir()
            (partial / name).touch()
    assert [entry.name for entry in path.iterdir()] == ["new"]


def test_two_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "both.txt"
    with whole_or_nothing(path) as one, whole_or_nothing(path, shared=True) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"


def test_a_line_cut_short_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "results/lines.jsonl"
    assert read_lines(path) == []
    append_line(path, {"number": 1})
    path.write_bytes(path.read_bytes() + b'{"number": ')
    append_line(path, {"number": 2})
    append_line(path, {"number": 3})
    assert read_lines(path) == [{"number": 1}, {"number": 2}, {"number": 3}]
