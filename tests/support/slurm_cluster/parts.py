"""The five kinds of daemon: how each is laid out on disk, started, and known to be up."""

import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.slurm_cluster import config_files
from tests.support.slurm_cluster.config_files import Place
from tests.support.slurm_cluster.host import search_path
from tests.support.slurm_cluster.processes import Daemon
from tests.support.slurm_cluster.settings import NODE_NAMES, NODES

#: Environment variable that tells which node a step daemon belongs to.
NODE_MARK = "TILEWRIGHT_TEST_NODE"


def node_mark(folder: Path, node: str) -> str:
    return f"{folder.name}/{node}"


def lay_out(place: Place, accounting: bool) -> None:
    """Write every file that the daemons want to find."""
    folder = place.folder
    folder.mkdir(mode=0o755)
    owners = {"root": "etc dev spool munge scratch", "slurm": "run log state", "mysql": "database"}
    for owner, names in owners.items():
        for name in names.split():
            (folder / name).mkdir(mode=0o755)
            shutil.chown(folder / name, owner)
    (folder / "scratch").chmod(0o1777)
    for node in NODES:
        (folder / "spool" / node.name).mkdir()
    place.slurm_conf.write_text(config_files.slurm_conf(place, accounting))
    (folder / "etc" / "gres.conf").write_text(config_files.gres_conf(place))
    (folder / "etc" / "cgroup.conf").write_text(config_files.cgroup_conf(place))
    _private(folder / "etc" / "slurmdbd.conf", config_files.slurmdbd_conf(place).encode(), "slurm")
    _private(folder / "munge" / "key", secrets.token_bytes(128), "root")
    _private(folder / "database" / "init.sql", config_files.database_init().encode(), "mysql")
    for index in range(max(node.gpus for node in NODES)):
        _make_gpu(place.gpu(str(index)))


def _private(path: Path, content: bytes, owner: str) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
    shutil.chown(path, owner)


def _make_gpu(path: Path) -> None:
    """Make a second /dev/null: Slurm wants a device file of each GPU, nothing more."""
    os.mknod(path, 0o666 | stat.S_IFCHR, Path("/dev/null").stat().st_rdev)
    path.chmod(0o666)


def install_database(place: Place) -> None:
    """Create MariaDB's own tables (1.6 s)."""
    subprocess.run(
        [
            *("mariadb-install-db", "--no-defaults", "--user=mysql", "--skip-test-db"),
            *("--auth-root-authentication-method=normal", "--innodb-log-file-size=8M"),
            f"--datadir={place.folder / 'database' / 'data'}",
        ],
        check=True,
        capture_output=True,
        timeout=300,
        env={**os.environ, "PATH": search_path()},
    )


def make_daemons(place: Place, accounting: bool) -> dict[str, Daemon]:
    """Return the daemons by name (``slurmd-NODE`` for nodes), in the order of starting."""
    conf = str(place.slurm_conf)
    daemons = [_munged(place)]
    if accounting:
        asked = ["sacctmgr", "-n", "list", "cluster"]
        daemons += [_mariadbd(place), _daemon(place, "slurmdbd", ["slurmdbd", "-D"], asked)]
    argv = ["slurmctld", "-D", "-f", conf]
    daemons.append(_daemon(place, "slurmctld", argv, ["scontrol", "ping"]))
    for node, port in zip(NODE_NAMES, place.ports[3:], strict=True):
        argv = ["slurmd", "-D", "-f", conf, "-N", node]
        marks = {NODE_MARK: node_mark(place.folder, node)}
        daemons.append(_daemon(place, f"slurmd-{node}", argv, port, marks))
    return {daemon.name: daemon for daemon in daemons}


def _daemon(
    place: Place,
    name: str,
    argv: list[str],
    probe: list[str] | int,
    marks: Mapping[str, str] = MappingProxyType({}),
) -> Daemon:
    env = {"PATH": search_path(), "LC_ALL": "C.UTF-8", "SLURM_CONF": str(place.slurm_conf)}
    return Daemon(name, argv, {**env, **marks}, place.folder / "log" / f"{name}.out", probe)


def _munged(place: Place) -> Daemon:
    folder = place.folder / "munge"
    argv = [
        *("munged", "--foreground", f"--socket={place.munge_socket}", "--num-threads=4"),
        *(f"--key-file={folder / 'key'}", f"--seed-file={folder / 'seed'}"),
        f"--pid-file={folder / 'munged.own'}",
    ]
    return _daemon(place, "munged", argv, ["munge", "-n", "-S", str(place.munge_socket)])


def _mariadbd(place: Place) -> Daemon:
    folder = place.folder / "database"
    argv = [
        *("mariadbd", "--no-defaults", "--user=mysql", f"--datadir={folder / 'data'}"),
        *(f"--socket={folder / 'socket'}", f"--pid-file={folder / 'mariadbd.own'}"),
        *("--bind-address=127.0.0.1", f"--port={place.ports[2]}"),
        *(f"--init-file={folder / 'init.sql'}", "--innodb-log-file-size=8M"),
        # slurmdbd complains of less than these two
        *("--innodb-buffer-pool-size=256M", "--innodb-lock-wait-timeout=900"),
        # a test's database need not outlive the machine: no flush for each commit
        *("--innodb-flush-log-at-trx-commit=0", "--skip-log-bin"),
    ]
    return _daemon(place, "mariadbd", argv, place.ports[2])
