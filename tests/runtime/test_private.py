"""Caches, claims and answers are of one user alone, whatever the umask and who was there first."""

import fcntl
import json
import os
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.cluster.pending_use import PendingUse
from snakemake_scheduler_plugin_tilewright.commands.doctor import check_scratch
from snakemake_scheduler_plugin_tilewright.errors import ForeignError
from snakemake_scheduler_plugin_tilewright.placement.estimates import Durations
from snakemake_scheduler_plugin_tilewright.placement.submission_lock import SubmissionLock
from snakemake_scheduler_plugin_tilewright.runtime.files import (
    make_private,
    read_private,
    write_private,
)
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.support.forked import fork

NOBODY = 65534
NO_FOLDER = "cannot be opened (Not a directory)"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users of this machine reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def use_all(cache: Path) -> list[str]:
    """Write all that placement keeps; return what Slurm was asked."""
    asked = []

    def answer(argv: tuple[str, ...], stdin: str | None = None) -> str:
        asked.append(argv[0])
        return "\n"

    SlurmClient("ada", cache, run=answer, shared_dir=cache / "answers").queue()
    lock = SubmissionLock(cache / "claims")
    with lock.alone() as why:
        assert why == ""
        lock.add([PendingUse("clive", {"cpu": 8})])
    durations = Durations(cache / "durations-1.json")
    durations.learn("stitch", "cpu", 1.0, 2.0)
    durations.save()
    assert Durations(durations.path).factor("stitch", "cpu") == 2.0
    return asked


def modes(folder: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {"folders": {stat.S_IMODE(folder.stat().st_mode)}, "files": set()}
    for path in folder.rglob("*"):
        found["folders" if path.is_dir() else "files"].add(stat.S_IMODE(path.stat().st_mode))
    return found


def test_all_that_is_kept_is_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    home = tmp_path / "home/.cache/tilewright"
    assert use_all(home) == ["squeue"]
    assert modes(tmp_path / "home") == {"folders": {0o700}, "files": {0o600}}
    assert use_all(home) == []


def test_what_an_earlier_version_left_open_is_closed(tmp_path: Path) -> None:
    use_all(tmp_path / "cache")
    for path in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    # the answer may be another user's words by now; so may the factors, which are written anew
    assert use_all(tmp_path / "cache") == ["squeue"]
    assert modes(tmp_path / "cache") == {"folders": {0o700}, "files": {0o600}}


@AS_ROOT
@pytest.mark.parametrize("where", ["answers", "claims", ""])
def test_what_another_user_put_there_is_not_believed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "tilewright"
    use_all(cache)
    (check,) = check_scratch()
    assert check.state == "ok"
    os.chown(cache / where, NOBODY, NOBODY)
    (check,) = check_scratch()
    assert check.text == f"{cache / where} belongs to user {NOBODY}, not to you"
    assert check.fix.startswith("remove it, or set XDG_CACHE_HOME")


@AS_ROOT
def test_files_of_another_user_are_no_answers_claims_or_factors(tmp_path: Path) -> None:
    use_all(tmp_path)
    claims = tmp_path / "claims/elsewhere-1.json"
    shutil.copy(next((tmp_path / "claims").glob("*.json")), claims)
    other = SubmissionLock(tmp_path / "claims")
    assert len(other.others()) == 1
    for path in tmp_path.rglob("*.json"):
        os.chown(path, NOBODY, NOBODY)
    assert other.others() == []
    assert Durations(tmp_path / "durations-1.json").factor("stitch", "cpu", only=True) == 1.0
    assert use_all(tmp_path) == ["squeue"]
    os.chown(tmp_path / "claims/lock", NOBODY, NOBODY)
    with other.alone() as why:
        assert f"{tmp_path}/claims/lock belongs to user {NOBODY}, not to you; remove it" in why


def put_link(path: Path) -> None:
    path.symlink_to(path.parent)


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (put_link, "is a link"),
        (Path.touch, NO_FOLDER),
        (os.mkfifo, NO_FOLDER),
    ],
)
def test_what_is_no_folder_of_ours_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path], None], words: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "tilewright"
    put(cache)
    checks = list(check_scratch())
    assert {check.text for check in checks} >= {f"{cache} {words}"}
    with pytest.raises(
        ForeignError, match=rf"tilewright {re.escape(words)}; remove it, or set XDG_CACHE"
    ):
        make_private(cache)


@pytest.mark.parametrize("put", [put_link, os.mkfifo])
def test_neither_a_link_nor_a_pipe_is_read(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "kept.json")
    with pytest.raises(ForeignError, match=r"kept\.json is "):
        read_private(tmp_path / "kept.json")
    write_private(tmp_path / "kept.json", "[1]")
    assert read_private(tmp_path / "kept.json") == [1]


def hold(lock: str) -> None:
    """Hold a lock for ever as another user, by any way in."""
    os.setuid(NOBODY)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        try:
            fcntl.flock(os.open(lock, flags), fcntl.LOCK_EX)
        except PermissionError:
            continue
        signal.pause()


@AS_ROOT
def test_another_user_cannot_hold_the_lock(open_folder: Path, umask: int) -> None:
    os.umask(umask)
    lock = SubmissionLock(open_folder / "tilewright/claims")
    with lock.alone() as why:
        assert why == ""
    other = fork(hold, str(lock.folder / "lock"))
    other.join(30)
    assert other.exitcode == 0  # it was let in by no way, and ended


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{", "3", '{"stitch cpu": 3}', json.dumps({"stitch cpu": ["x"]})]
)
def test_damaged_factors_and_claims_hold_none(tmp_path: Path, text: str) -> None:
    write_private(tmp_path / "a.json", text)
    assert Durations(tmp_path / "a.json").factor("stitch", "cpu", only=True) == 1.0
    assert SubmissionLock(tmp_path).others() == []


@pytest.mark.parametrize("odd", [1e308, -1.0, 0, float("inf"), float("nan")])
def test_an_odd_factor_is_passed_over(tmp_path: Path, odd: float) -> None:
    write_private(tmp_path / "a.json", json.dumps({"stitch cpu": [odd, 2.0, odd]}))
    assert Durations(tmp_path / "a.json").factor("stitch", "cpu") == 2.0


@pytest.mark.parametrize("tres", [{"cpu": "many"}, [], {"cpu": None}, {"cpu": {}}])
def test_a_claim_of_an_odd_amount_does_not_count(tmp_path: Path, tres: object) -> None:
    write_private(tmp_path / "a.json", json.dumps([[1000.0, {"account": "a", "tres": tres}]]))
    assert SubmissionLock(tmp_path, clock=lambda: 1000.0).others() == []
