"""The folder of the leases: which one, and what makes it unusable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tilewright.devices import lease_queue
from tilewright.devices.lease_queue import file_system, lease_root
from tilewright.errors import LeaseError

MOUNTS = {
    "/": "ext4",
    "/home": "nfs4",
    "/run/my disk": "tmpfs",
    "/home/fast": "xfs",
    "/data": "xfs",
    "/data/": "lustre",  # mounted over the one before
}


def mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mounts: Mapping[str, str]) -> None:
    table = tmp_path / "mounts"
    names = [(point.replace(" ", "\\040"), kind) for point, kind in mounts.items()]
    table.write_text("".join(f"none {point} {kind} rw,noatime 0 0\n" for point, kind in names))
    monkeypatch.setattr(lease_queue, "MOUNTS", table)


def refused(root: object, words: str) -> None:
    with pytest.raises(LeaseError, match=words):
        lease_root({"TILEWRIGHT_LEASE_ROOT": str(root)})


def test_the_order_of_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_queue, "RUNTIMES", tmp_path / "user")
    monkeypatch.setattr(lease_queue, "TEMPORARY", tmp_path)
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


def test_the_file_system_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_system(Path("/proc/self")) == "proc"  # as the kernel says
    mount(monkeypatch, tmp_path, MOUNTS)
    paths = ("/var/x", "/home/me", "/homes", "/home/fast/me", "/run/my disk/x", "/data/x")
    kinds = ["ext4", "nfs4", "ext4", "xfs", "tmpfs", "lustre"]
    assert [file_system(Path(path)) for path in paths] == kinds


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "fuse.sshfs"]
)
def test_a_network_file_system_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(monkeypatch, tmp_path, {"/": "ext4", str(tmp_path): kind})
    refused(tmp_path / "own", rf"network file system \({kind}\); set TILEWRIGHT")


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
