"""A real Slurm under one temporary folder: started, broken, repaired and stopped by tests."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from tests.support.slurm_cluster import host, parts
from tests.support.slurm_cluster.client import Client, wait_for
from tests.support.slurm_cluster.config_files import Place
from tests.support.slurm_cluster.processes import (
    Daemon,
    kill_all,
    with_descendants,
    with_environment,
)  # fmt: skip
from tests.support.slurm_cluster.settings import ACCOUNTS, NODE_NAMES, PARTITIONS, QOS_LIMITS, USERS

#: sinfo's words for a node that is well; completing is a job on its way out.
_WELL = frozenset({"idle", "mixed", "allocated", "completing"})
#: And for one that no job is sent to before somebody resumes it.
_OUT_OF_SERVICE = frozenset({"down", "drained", "draining", "drng", "fail", "failing"})


class Cluster(Client):
    """munge, MariaDB, slurmdbd, slurmctld and a slurmd for each node, on this machine.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. ``start`` raises
    :class:`Unavailable`, with the reason, where the machine cannot have a cluster. Without
    ``accounting`` there is no slurmdbd, hence no accounts, no limits, and no :meth:`Client.jobs`.
    ``settings`` are other values of keys in slurm.conf.
    """

    def __init__(self, *, accounting: bool = True, **settings: str) -> None:
        name = f"{host.FOLDER_PREFIX}{secrets.token_hex(4)}"
        super().__init__(Path(tempfile.gettempdir()) / name, accounting)
        self._settings = settings
        self._daemons: dict[str, Daemon] = {}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Life

    def start(self) -> None:
        """Start everything and wait until all nodes are idle."""
        host.require_host()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process and leave the machine as it was; harmless when nothing runs."""
        self._undo.close()
        self._daemons = {}
        self._changed_qos.clear()

    def _start(self) -> None:
        # Each step registers how it is undone before the next may fail.
        self._undo.enter_context(host.only_cluster())
        host.clear_leftovers()
        host.require_host()  # again: another session may have come and gone meanwhile
        self._undo.callback(host.remove_users, host.create_users(USERS))
        self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        ports = host.free_ports(3 + len(NODE_NAMES))
        place = Place(self.folder, tuple(ports), host.has_cgroups())
        parts.lay_out(place, self.accounting)
        for key, value in self._settings.items():
            text, line = self.slurm_conf.read_text(), f"{key}={value}"
            self.slurm_conf.write_text(re.sub(rf"(?m)^{key}=.*$", line, text))
        host.link_default_conf(self.slurm_conf)
        self._undo.callback(host.unlink_default_conf, self.slurm_conf)
        self._daemons = parts.make_daemons(place, self.accounting)
        self._undo.callback(self._end_processes)
        if self.accounting:
            parts.install_database(place)
        for daemon in self._daemons.values():
            daemon.start()
            self._wait_answer(daemon)
        if self.accounting:
            self._add_accounts()
        self._wait_nodes(NODE_NAMES)

    def _end_processes(self) -> None:
        kill_all(self._job_processes(NODE_NAMES))
        for daemon in reversed(self._daemons.values()):
            daemon.end()
        kill_all(host.processes_of(self.slurm_conf))
        for node in NODE_NAMES:
            host.remove_cgroups(node)

    def _add_accounts(self) -> None:
        """Create QOS, accounts and users by one sacctmgr (6 of the 9 s of a start)."""
        lines = []
        for account in ACCOUNTS:
            own, burst = account.limits.items()
            lines += [f"add qos {name} {limit} Priority={priority}"
                      for (name, limit), priority in ((own, 100), (burst, 1))]  # fmt: skip
            lines += [f"add account {names[0]} Organization={account.name} parent=root "
                      f"QOS={','.join(names)} DefaultQOS={names[0]}"
                      for names in ((own[0], burst[0]), (burst[0],))]  # fmt: skip
        accounts = f"Account={','.join(QOS_LIMITS)} DefaultAccount={ACCOUNTS[0].name}"
        lines.append(f"add user {','.join(USERS)} {accounts}")
        commands = self.folder / "etc" / "accounts"
        commands.write_text("\n".join([*lines, "quit"]) + "\n")
        self.run(["sh", "-c", f"exec sacctmgr -i -Q <{commands}"])

    # Faults and their repair

    def kill_part(self, name: str) -> None:
        """End a daemon."""
        self._daemons[name].end()

    def start_part(self, name: str) -> None:
        """Start a daemon and wait until it answers."""
        self._daemons[name].start()
        self._wait_answer(self._daemons[name])

    def crash_node(self, node: str) -> None:
        """Take a node's power away: slurmd, step daemons and jobs vanish at one blow."""
        slurmd = self._daemons[f"slurmd-{node}"]
        doomed = self._job_processes([node])
        kill_all(doomed | {slurmd.pid} if slurmd.pid else doomed)
        for _ in range(5):  # what was just being started has its marks only now
            time.sleep(0.2)
            kill_all(self._job_processes([node]))
        host.remove_cgroups(node)
        self.update(f"NodeName={node}", "State=DOWN", "Reason=power", check=False)

    def revive_node(self, node: str) -> None:
        """Start a crashed node again and wait until it takes jobs."""
        self.start_part(f"slurmd-{node}")
        self._wait_nodes([node])

    def repair(self) -> None:
        """Bring the cluster back to its first state, whatever a test did: up, idle, no jobs."""
        if not self._daemons:
            self.start()
        for daemon in self._daemons.values():
            daemon.start()
        for daemon in self._daemons.values():
            self._wait_answer(daemon)
        try:
            self.cancel_all(10)
        except TimeoutError:
            # Without cgroups Slurm loses sight of a process whose parent has ended, and waits
            # for ever for what it may still write.
            kill_all(self._tasks(NODE_NAMES))
            self.cancel_all()
        self.restore_limits()
        for partition in PARTITIONS:
            self.update(f"PartitionName={partition}", "State=UP", "AllowAccounts=ALL")
        self._wait_nodes(NODE_NAMES, {"idle"})

    def end_clients(self) -> None:
        """Kill what a test has left running beside the cluster: what would still submit jobs."""
        daemons = with_descendants({one.pid for one in self._daemons.values() if one.pid})
        here = with_environment("SLURM_CONF", str(self.slurm_conf))
        kill_all(here - daemons - self._job_processes(NODE_NAMES))

    def _job_processes(self, nodes: list[str]) -> set[int]:
        """Step daemons and jobs of some nodes, whether or not slurmctld still knows of them."""
        found: set[int] = set()
        for node in nodes:
            marked = with_environment(parts.NODE_MARK, parts.node_mark(self.folder, node))
            found |= marked - {self._daemons[f"slurmd-{node}"].pid}
            found |= host.processes_in_cgroups(node)
        return with_descendants(found | self._tasks(nodes))

    def _tasks(self, nodes: list[str]) -> set[int]:
        """Processes that jobs of this cluster started on some nodes, told by their environment."""
        here = with_environment("SLURM_CONF", str(self.slurm_conf))
        return {pid for node in nodes for pid in here & with_environment("SLURMD_NODENAME", node)}

    # Waiting

    def _wait_answer(self, daemon: Daemon) -> None:
        """Wait until a daemon does its work; TimeoutError ends with its log."""
        try:
            wait_for(daemon.answers, 60, f"an answer of {daemon.name}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{daemon.tail()}") from None

    def _wait_nodes(self, names: list[str], wanted: Collection[str] = _WELL) -> None:
        """Wait until nodes are in a wanted state; one that is down or drained is resumed."""

        def all_well() -> bool:
            lines = self.run(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout.splitlines()
            states = dict(line.split() for line in lines)
            for name in names:
                if states[name].rstrip("*") in _OUT_OF_SERVICE:
                    self.update(f"NodeName={name}", "State=RESUME", check=False)
            return all(states[name] in wanted for name in names)

        wait_for(all_well, 60, f"nodes {' '.join(names)}")
