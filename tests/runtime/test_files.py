"""Files that others may read meanwhile."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from snakemake_scheduler_plugin_tilewright.runtime import files as files_of_plugin
from tilewright.runtime import files
from tilewright.runtime.files import atomic_path

Write = Callable[[Path, str], None]


@pytest.fixture(params=[files, files_of_plugin], ids=["tilewright", "plugin"])
def write_text(request: pytest.FixtureRequest) -> Write:
    written: Write = request.param.write_text_atomic
    return written


def test_a_file_is_written_whole_and_nothing_is_left_beside_it(
    tmp_path: Path, write_text: Write
) -> None:
    path = tmp_path / "new/folder/kept.json"
    for text in ("größer\n", "", "x" * 100_000):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert [file.name for file in path.parent.iterdir()] == ["kept.json"]


def test_a_reader_meanwhile_sees_the_old_or_the_new(tmp_path: Path, write_text: Write) -> None:
    path = tmp_path / "kept"
    texts = ["a" * 300_000, "b" * 200_000]
    write_text(path, texts[0])

    def write() -> None:
        for k in range(60):
            write_text(path, texts[k % 2])

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            assert path.read_text() in texts
        writing.result()


@pytest.mark.parametrize("failing", ["write_text", "replace"])
def test_what_was_there_stays_where_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_text: Write, failing: str
) -> None:
    path = tmp_path / "kept"
    write_text(path, "before")
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(Path, failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "after")
    assert path.read_bytes() == b"before"
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "folder/note.txt"
    files.write_text_atomic(path, "first\r\n")

    def fail() -> None:
        with atomic_path(path) as partial:
            partial.write_text("half of it")
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert path.read_bytes() == b"first\r\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_takes_the_place_of_another_and_of_what_a_killed_job_left(tmp_path: Path) -> None:
    path = tmp_path / "store"
    (tmp_path / ".store.partial/rest").mkdir(parents=True)
    for name in ("old", "new"):
        with atomic_path(path) as partial:
            partial.mkdir()
            (partial / name).touch()
    assert [entry.name for entry in path.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]


def test_two_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "both.txt"
    with atomic_path(path) as one, atomic_path(path, shared=True) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"


def test_what_is_written_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flushed = tmp_path / "a", list[tuple[str, str, bool]]()

    def note(call: str, descriptor: int) -> int:
        flushed.append((call, Path(f"/proc/self/fd/{descriptor}").readlink().name, path.exists()))
        return 0

    monkeypatch.setattr("os.fsync", partial(note, "fsync"))
    monkeypatch.setattr(
        "ctypes.CDLL", lambda *_, **__: SimpleNamespace(syncfs=partial(note, "syncfs"))
    )
    with atomic_path(path) as file:
        file.write_text("a")
    assert flushed == [("fsync", ".a.partial", False), ("fsync", tmp_path.name, True)]
    path.unlink()
    flushed.clear()
    with atomic_path(path) as folder:
        folder.mkdir()
    assert flushed == [("syncfs", ".a.partial", False), ("fsync", tmp_path.name, True)]
