from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from tilewright.runtime.versions import made_by_another, note_version


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
    versions = [json.loads(line)["version"] for line in record.read_text().splitlines()]
    assert versions == [own, "99.1", own]
