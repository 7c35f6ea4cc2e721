"""What a test cluster needs of the machine, and what it must leave as it was."""

import contextlib
import fcntl
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.slurm_cluster.processes import kill_all, with_descendants, with_environment

FOLDER_PREFIX = "tilewright-slurm-"
#: Snakemake's job step drops SLURM_CONF before it calls srun, which then looks here.
DEFAULT_CONF = Path("/etc/slurm/slurm.conf")
_CGROUPS = Path("/sys/fs/cgroup")
#: A command of each package that `make test` installs (tests/install_packages).
_COMMANDS = {
    **dict.fromkeys(("slurmctld", "slurmd", "sbatch"), "slurm-wlm"),
    **dict.fromkeys(("mariadbd", "mariadb-install-db"), "mariadb-server"),
    "slurmdbd": "slurmdbd",
    "munged": "munge",
}
#: How long to wait for another test session's cluster on this machine to end.
_LOCK_WAIT_S = 300.0


class Unavailable(RuntimeError):
    """No test cluster can be had on this machine; the message is the reason."""


def search_path() -> str:
    """``PATH`` with the folders of daemons, which not every user's holds."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def require_host() -> None:
    """Raise :class:`Unavailable` with the reason where a cluster cannot be started."""
    if os.geteuid() != 0:
        raise Unavailable("a Slurm cluster for tests needs root")
    absent = {
        package
        for command, package in _COMMANDS.items()
        if shutil.which(command, path=search_path()) is None
    }
    if absent:
        raise Unavailable(f"not installed: {', '.join(sorted(absent))} (run make test as root)")
    if os.path.lexists(DEFAULT_CONF) and not _is_ours(DEFAULT_CONF):
        raise Unavailable(f"{DEFAULT_CONF} exists: this machine has a Slurm of its own")


def _is_ours(link: Path) -> bool:
    return link.is_symlink() and any(
        part.startswith(FOLDER_PREFIX) for part in link.readlink().parts
    )


@contextlib.contextmanager
def only_cluster() -> Iterator[None]:
    """Hold the machine's one test cluster: nodes' cgroups and the default conf have fixed names.

    The lock is the kernel's, so it goes with its holder; the empty file stays.
    """
    path = Path(tempfile.gettempdir()) / f"{FOLDER_PREFIX}lock"
    with path.open("w") as stream:
        limit = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise Unavailable(
                        f"another test session has held the Slurm cluster for {_LOCK_WAIT_S:.0f} s"
                    ) from None
                time.sleep(0.2)
        yield


def clear_leftovers() -> None:
    """End the clusters of test sessions that were killed; call it with the lock held."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/"):
        kill_all(processes_of(folder / "etc" / "slurm.conf"))
        shutil.rmtree(folder, ignore_errors=True)
    if _is_ours(DEFAULT_CONF):
        DEFAULT_CONF.unlink()


def processes_of(slurm_conf: Path) -> set[int]:
    """Every process of a cluster: daemons, step daemons, jobs and clients."""
    return with_descendants(with_environment("SLURM_CONF", str(slurm_conf)))


def link_default_conf(slurm_conf: Path) -> None:
    DEFAULT_CONF.parent.mkdir(exist_ok=True)
    DEFAULT_CONF.symlink_to(slurm_conf)


def unlink_default_conf(slurm_conf: Path) -> None:
    if DEFAULT_CONF.is_symlink() and DEFAULT_CONF.readlink() == slurm_conf:
        DEFAULT_CONF.unlink()


def free_ports(count: int) -> list[int]:
    """Return ports nobody listens on, below 32768: above it the kernel hands them to clients."""
    found: list[int] = []
    for port in random.sample(range(20000, 32000), 1000):
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise Unavailable("no free ports between 20000 and 32000")


def has_cgroups() -> bool:
    """Whether cgroups of version 1 can be made, as Slurm's plugin without systemd needs.

    Only then is a job over its memory OUT_OF_MEMORY; gathered figures make it FAILED 0:9.
    """
    for controller in ("memory", "freezer"):
        trial = _CGROUPS / controller / f"{FOLDER_PREFIX}trial"
        if not (_CGROUPS / controller / "tasks").exists():
            return False
        try:
            trial.mkdir()
            trial.rmdir()
        except OSError:
            return False
    return True


def _cgroups_of(node: str) -> list[Path]:
    """The cgroups that slurmd made for a node, inner ones first."""
    tops = [top for top in _CGROUPS.glob(f"*/slurm_{node}") if top.is_dir()]
    # unlike rglob, walk passes over a cgroup that goes meanwhile, as with the end of a job
    found = [Path(folder) for top in tops for folder, _, _ in os.walk(top)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def processes_in_cgroups(node: str) -> set[int]:
    pids: set[int] = set()
    for cgroup in _cgroups_of(node):
        with contextlib.suppress(OSError):
            pids.update(int(word) for word in (cgroup / "cgroup.procs").read_text().split())
    return pids


def remove_cgroups(node: str, within_s: float = 5.0) -> None:
    limit = time.monotonic() + within_s
    while cgroups := _cgroups_of(node):
        for cgroup in cgroups:
            with contextlib.suppress(OSError):  # a process that is still ending keeps its cgroup
                cgroup.rmdir()
        if time.monotonic() > limit:
            return
        time.sleep(0.05)


def create_users(names: Iterable[str]) -> list[str]:
    """Create the users that the machine lacks and return their names."""
    lacking = sorted({*names} - {entry.pw_name for entry in pwd.getpwall()})
    for name in lacking:
        subprocess.run(["useradd", "-m", "-s", "/bin/bash", name], check=True)
    return lacking


def remove_users(names: list[str]) -> None:
    for name in names:
        subprocess.run(["userdel", "-r", name], check=False, capture_output=True)
