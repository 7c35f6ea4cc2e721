"""A real Slurm under one temporary folder: started, broken, repaired and stopped by tests."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

from tests.support.slurm_cluster import host, parts
from tests.support.slurm_cluster.client import Client, wait_for
from tests.support.slurm_cluster.config_files import Place
from tests.support.slurm_cluster.processes import (
    Daemon,
    kill_all,
    with_descendants,
    with_environment,
)
from tests.support.slurm_cluster.settings import MemoryMode, Part, Settings

#: sinfo's words for a node that is well; completing is a job on its way out.
_WELL = frozenset({"idle", "mixed", "allocated", "completing"})
#: And for one that no job is sent to before somebody resumes it.
_OUT_OF_SERVICE = frozenset({"down", "drained", "draining", "drng", "fail", "failing"})


class Cluster(Client):
    """munge, MariaDB, slurmdbd, slurmctld and a slurmd for each node, on this machine.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. ``start`` raises
    :class:`Unavailable`, with the reason, where the machine cannot have a cluster.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        name = f"{host.FOLDER_PREFIX}{secrets.token_hex(4)}"
        super().__init__(settings or Settings(), Path(tempfile.gettempdir()) / name)
        self.memory: MemoryMode = "gather"
        self._daemons: dict[str, Daemon] = {}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def node_names(self) -> list[str]:
        return [node.name for node in self.settings.nodes]

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
        self._undo.enter_context(host.only_cluster(self.settings.lock_wait_s))
        host.clear_leftovers()
        host.require_host()  # again: another session may have come and gone meanwhile
        self._undo.callback(host.remove_users, host.create_users(self.settings.users))
        self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        place = self._choose_place()
        parts.lay_out(self.settings, place)
        host.link_default_conf(self.slurm_conf)
        self._undo.callback(host.unlink_default_conf, self.slurm_conf)
        self._daemons = parts.make_daemons(self.settings, place)
        self._undo.callback(self._end_processes)
        if self.settings.accounting:
            parts.install_database(place)
        for daemon in self._daemons.values():
            daemon.start()
            self._wait_answer(daemon)
        if self.settings.accounting:
            self._add_accounts()
        self._wait_nodes(self.node_names)

    def _choose_place(self) -> Place:
        ports = host.free_ports(3 + len(self.settings.nodes))
        self.memory = self.settings.memory or host.memory_mode()
        return Place(self.folder, ports[0], ports[1], ports[2], tuple(ports[3:]), self.memory)

    def _end_processes(self) -> None:
        kill_all(self._job_processes(self.node_names))
        for daemon in reversed(self._daemons.values()):
            daemon.end()
        kill_all(host.processes_of(self.slurm_conf))
        for node in self.node_names:
            host.remove_cgroups(node)

    def _add_accounts(self) -> None:
        """Create QOS, accounts and users by one sacctmgr (6 of the 9 s of a start)."""
        lines, names = [], []
        for account in self.settings.accounts:
            name, burst = account.name, account.burst_name
            names += [name, burst]
            lines += [
                f"add qos {name} {account.limit} Priority=100",
                f"add qos {burst} {account.burst_limit} Priority=1",
                f"add account {name} Description={name} Organization={name} parent=root "
                f"QOS={name},{burst} DefaultQOS={name}",
                f"add account {burst} Description={burst} Organization={name} parent=root "
                f"QOS={burst} DefaultQOS={burst}",
            ]
        users = ",".join(self.settings.users)
        lines.append(f"add user {users} Account={','.join(names)} DefaultAccount={names[0]}")
        commands = self.folder / "etc" / "accounts"
        commands.write_text("\n".join([*lines, "quit"]) + "\n")
        self.run(["sh", "-c", f"exec sacctmgr -i -Q <{commands}"])

    # Faults and their repair

    def kill_part(
        self, name: Part, node: str | None = None, sig: signal.Signals = signal.SIGTERM
    ) -> None:
        """End a daemon with ``sig``; SIGSTOP leaves it hanging: it accepts and never answers."""
        daemon = self._daemon(name, node)
        if sig == signal.SIGSTOP:
            daemon.send(sig)
        else:
            daemon.end(sig)

    def start_part(self, name: Part, node: str | None = None) -> None:
        """Start a daemon, or let a hanging one go on, and wait until it answers."""
        daemon = self._daemon(name, node)
        daemon.start()
        self._wait_answer(daemon)
        if node is not None:
            self._wait_nodes([node])

    def crash_node(self, node: str, *, noticed: bool = False) -> None:
        """Take a node's power away: slurmd, step daemons and jobs vanish at one blow.

        ``noticed`` tells slurmctld at once; else it finds out after ``slurmd_timeout_s``.
        """
        slurmd = self._daemon("slurmd", node)
        doomed = self._job_processes([node])
        kill_all(doomed | {slurmd.pid} if slurmd.pid else doomed)
        for _ in range(5):  # what was just being started has its marks only now
            time.sleep(0.2)
            kill_all(self._job_processes([node]))
        host.remove_cgroups(node)
        if noticed:
            self._update_node(node, "State=DOWN", "Reason=power")

    def revive_node(self, node: str) -> None:
        """Start a crashed node again and wait until it takes jobs."""
        self.start_part("slurmd", node)

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
            kill_all(self._tasks(self.node_names))
            self.cancel_all()
        self.restore_limits()
        for partition in self.settings.partitions:
            self.run(["scontrol", "update", f"PartitionName={partition}", "State=UP"])
        self._wait_nodes(self.node_names, {"idle"})

    def _daemon(self, name: Part, node: str | None) -> Daemon:
        return self._daemons[name if node is None else f"{name}-{node}"]

    def _job_processes(self, nodes: list[str]) -> set[int]:
        """Step daemons and jobs of some nodes, whether or not slurmctld still knows of them."""
        found: set[int] = set()
        for node in nodes:
            slurmd = self._daemon("slurmd", node).pid
            found |= with_environment(parts.NODE_MARK, parts.node_mark(self.folder, node)) - {
                slurmd
            }
            found |= host.processes_in_cgroups(node)
        return with_descendants(found | self._tasks(nodes))

    def _tasks(self, nodes: list[str]) -> set[int]:
        """Processes that jobs of this cluster started on some nodes, told by their environment."""
        here = with_environment("SLURM_CONF", str(self.slurm_conf))
        return {pid for node in nodes for pid in here & with_environment("SLURMD_NODENAME", node)}

    def _update_node(self, node: str, *changes: str) -> None:
        self.run(["scontrol", "update", f"NodeName={node}", *changes], check=False)

    # Waiting

    def _wait_answer(self, daemon: Daemon) -> None:
        """Wait until a daemon does its work; TimeoutError ends with its log."""
        try:
            wait_for(daemon.answers, 60, f"an answer of {daemon.name}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{daemon.tail()}") from None

    def _node_states(self) -> dict[str, str]:
        lines = self.run(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout.splitlines()
        return dict(line.split() for line in lines)

    def _wait_nodes(self, names: list[str], wanted: Collection[str] = _WELL) -> None:
        """Wait until nodes are in a wanted state; one that is down or drained is resumed."""

        def all_well() -> bool:
            states = self._node_states()
            for name in names:
                if states[name].rstrip("*") in _OUT_OF_SERVICE:
                    self._update_node(name, "State=RESUME")
            return all(states[name] in wanted for name in names)

        wait_for(all_well, 60, f"nodes {' '.join(names)}")
