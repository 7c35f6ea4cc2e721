"""The folder of the leases: which one, and what makes it unusable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tilewright.devices import lease_queue
from tilewright.devices.lease_queue import LeaseRootError, file_system, lease_root

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


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x", "ext4"),
        ("/home/me", "nfs4"),
        ("/homes", "ext4"),
        ("/home/fast/me", "xfs"),
        ("/run/my disk/x", "tmpfs"),
        ("/data/x", "lustre"),
    ],
)
def test_the_file_system_of_a_path(
    path: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(monkeypatch, tmp_path, MOUNTS)
    assert file_system(Path(path)) == kind


def test_the_kernel_says_what_is_mounted_here() -> None:
    assert file_system(Path("/proc/self")) == "proc"


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "fuse.sshfs"]
)
def test_a_network_file_system_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(monkeypatch, tmp_path, {"/": "ext4", str(tmp_path): kind})
    with pytest.raises(LeaseRootError, match=rf"network file system \({kind}\); set TILEWRIGHT"):
        lease_root({"TILEWRIGHT_LEASE_ROOT": str(tmp_path / "own")})


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "true").mkdir(mode=0o700)
    (tmp_path / "own").symlink_to(tmp_path / "true")
    with pytest.raises(LeaseRootError, match="is a link"):
        lease_root({"TILEWRIGHT_LEASE_ROOT": str(tmp_path / "own")})


def test_a_wrong_mode_is_refused_with_its_fix(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o755)
    with pytest.raises(LeaseRootError, match=rf"mode 0755.*chmod 700 {tmp_path}"):
        lease_root({"TILEWRIGHT_LEASE_ROOT": str(tmp_path / "own")})


def test_a_folder_may_inherit_its_group(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    own.chmod(0o2700)
    assert lease_root({"TILEWRIGHT_LEASE_ROOT": str(own)}) == own


def test_another_owner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(LeaseRootError, match="belongs to user"):
        lease_root({"TILEWRIGHT_LEASE_ROOT": str(tmp_path / "own")})


@pytest.mark.parametrize("name", ["missing/own", "file/own"])
def test_one_that_cannot_be_made_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LeaseRootError, match=r"cannot be made: .*; set TILEWRIGHT_LEASE_ROOT"):
        lease_root({"TILEWRIGHT_LEASE_ROOT": str(tmp_path / name)})


def test_a_relative_one_is_refused() -> None:
    with pytest.raises(LeaseRootError, match="relative"):
        lease_root({"TILEWRIGHT_LEASE_ROOT": "leases"})


def test_one_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is mounted read-only."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(LeaseRootError, match="cannot be written"):
        lease_root({"TILEWRIGHT_LEASE_ROOT": str(tmp_path / "own")})
