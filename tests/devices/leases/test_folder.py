"""The folder of the leases: which one, and what makes it unusable."""

import fcntl
import os
from pathlib import Path

import pytest

from tilewright.devices import lease_folder
from tilewright.devices.lease_folder import lease_root, locked
from tilewright.errors import LeaseError


def refused(root: object, words: str) -> None:
    with pytest.raises(LeaseError, match=words):
        lease_root({"TILEWRIGHT_LEASE_ROOT": str(root)})


def test_the_order_of_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_folder, "RUNTIMES", tmp_path / "user")
    monkeypatch.setattr(lease_folder, "TEMPORARY", tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "of this job"))
    names = {"TILEWRIGHT_LEASE_ROOT": str(tmp_path / "own"), "XDG_RUNTIME_DIR": str(tmp_path)}
    assert lease_root(names) == tmp_path / "own"
    assert lease_root({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "tilewright"
    assert lease_root({}) == tmp_path / f"tilewright-{os.getuid()}"
    session = tmp_path / "user" / str(os.getuid())
    session.mkdir(parents=True, mode=0o700)
    assert lease_root({}) == lease_root({"XDG_RUNTIME_DIR": str(session)})
    for made in (tmp_path / "own", session / "tilewright", tmp_path / "tilewright"):
        assert made.stat().st_mode & 0o7777 == 0o700
    assert lease_root(names) == tmp_path / "own"


def test_folders_that_cannot_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    refused("leases", "relative")
    (tmp_path / "file").touch()
    for name in ("missing/own", "file/own"):
        refused(tmp_path / name, r"cannot be made: .*; set TILEWRIGHT_LEASE_ROOT")
    own.mkdir()
    own.chmod(0o2700)  # a folder may inherit its group
    assert lease_root({"TILEWRIGHT_LEASE_ROOT": str(own)}) == own
    (tmp_path / "link").symlink_to(own)
    refused(tmp_path / "link", "is a link")
    own.chmod(0o755)
    refused(own, rf"mode 0755.*chmod 700 {tmp_path}")
    own.chmod(0o700)
    monkeypatch.setattr(os, "access", lambda *_: False)  # a disk that is mounted read-only
    refused(own, "cannot be written")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    refused(own, "belongs to user")


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: int) -> None:
        raise OSError(38, "Function not implemented")  # as Lustre mounted without them

    monkeypatch.setattr(fcntl, "flock", flock)
    words = r"has no locks: Function not .*; set TILEWRIGHT"
    with pytest.raises(LeaseError, match=words), locked(tmp_path):
        pass
