"""The folder of the leases: which one, and what makes it unusable."""

import contextlib
import fcntl
import os
from pathlib import Path

import pytest

from tilewright.devices.lease_folder import lease_root, lock
from tilewright.errors import LeaseError


def refused(root: object, words: str) -> None:
    with pytest.raises(LeaseError, match=f"{words}.*; set TILEWRIGHT_LEASE_ROOT"):
        lease_root({"TILEWRIGHT_LEASE_ROOT": str(root)})


def test_it_is_the_users_own_whatever_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    assert lease_root({"TILEWRIGHT_LEASE_ROOT": str(own)}) == own
    assert own.stat().st_mode & 0o7777 == 0o700
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    monkeypatch.setattr(Path, "lstat", lambda _: own.stat())
    monkeypatch.setenv("TMPDIR", str(tmp_path / "of this job"))
    usual = Path(f"/tmp/tilewright-{os.getuid()}")
    assert lease_root({"XDG_RUNTIME_DIR": str(tmp_path)}) == usual


def test_folders_that_cannot_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    refused("leases", "relative")
    (tmp_path / "file").touch()
    for name in ("missing/own", "file/own"):
        refused(tmp_path / name, "cannot be made")
    own.mkdir()
    own.chmod(0o2700)  # a folder may inherit its group
    assert lease_root({"TILEWRIGHT_LEASE_ROOT": str(own)}) == own
    (tmp_path / "link").symlink_to(own)
    refused(tmp_path / "link", "is a link")
    own.chmod(0o755)
    refused(own, f"changed by others: run chmod 700 {tmp_path}")
    own.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    refused(own, "another user's")


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: int) -> None:
        raise OSError(38, "Function not implemented")  # as Lustre mounted without them

    monkeypatch.setattr(fcntl, "flock", flock)
    words = r"has no locks: Function not .*; set TILEWRIGHT"
    with pytest.raises(LeaseError, match=words), contextlib.ExitStack() as held:
        lock(tmp_path / "GPU-a.0", held)
