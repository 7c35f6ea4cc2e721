from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tilewright.runtime.versions import made_by_another, note_version, read_versions


def test_each_version_is_noted_once_and_another_one_is_named(tmp_path: Path) -> None:
    record = tmp_path / "results/versions.jsonl"
    assert made_by_another(record) == ""
    note_version(record)
    note_version(record)
    assert made_by_another(record) == ""
    assert len(record.read_text().splitlines()) == 1
    with record.open("a") as stream:
        stream.write('{"version": "99.1", "began": "2026-01-01T00:00:00+00:00"}\n')
    said = made_by_another(record)
    own = version("tilewright")
    assert said == f"{tmp_path / 'results'} was made by tilewright 99.1, and this is {own}"
    note_version(record)
    assert made_by_another(record) == ""
    assert [one["version"] for one in read_versions(record)] == [own, "99.1", own]


@pytest.mark.parametrize(
    "text", ["", "\n", "{", '{"version": 3}\n', "[]\n", "\x00" * 9, '{"version": "0.0.1"}\n{"ver']
)
def test_a_damaged_record_of_versions_ends_no_command(tmp_path: Path, text: str) -> None:
    path = tmp_path / "versions.jsonl"
    path.write_text(text)
    before = made_by_another(path)
    assert before.startswith(f"{tmp_path} was made by tilewright 0.0.1") == ("0.0.1" in text)
    assert bool(read_versions(path).note) == bool(text.strip())
    note_version(path)
    assert made_by_another(path) == ""
