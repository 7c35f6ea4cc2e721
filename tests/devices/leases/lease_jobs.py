"""A pretended machine with GPUs, and jobs on it: real processes with real leases.

``python lease_jobs.py '{"machine": …, "root": …, …}'`` runs one job. The machine is a folder:
``gpus.json`` says what there is, and each job locks a file of its own in ``uses`` and writes there
what it uses, so that over-commit is seen without asking the leases.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tilewright.devices.budget import RESERVE_B, Request
from tilewright.devices.inventory import Device, Snapshot
from tilewright.devices.lease import WAIT_EXIT_CODE, LeaseTimeoutError, lease, leases

GIB = 2**30
FOREIGN_PID = 1


class Machine:
    """The pretended machine in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uses = folder / "uses"
        self.broken = folder / "overcommitted"

    def build(self, totals_gib: dict[str, int], *, shows_pids: bool = True) -> None:
        self.uses.mkdir(parents=True)
        self.set(totals_gib=totals_gib, foreign_gib={}, shows_pids=shows_pids, divided=[])

    def set(self, **changes: Any) -> None:
        path = self.folder / "gpus.json"
        before = json.loads(path.read_bytes()) if path.exists() else {}
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({**before, **changes}))
        fresh.replace(path)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.folder / "gpus.json").read_bytes())
        return facts

    def living(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Return the records of the files that a process holds locked."""
        found = {}
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    if text := stream.read():
                        found[path.name] = json.loads(text)
        return found

    def snapshot(self) -> Snapshot:
        """Return what NVML would say, as far as CUDA_VISIBLE_DEVICES lets it be seen."""
        facts, uses = self.facts(), self.living(self.uses).values()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = []
        for index, (uuid, total) in enumerate(facts["totals_gib"].items()):
            if visible is not None and uuid not in visible.split(","):
                continue
            foreign = int(facts["foreign_gib"].get(uuid, 0) * GIB)
            own = [(use["pid"], use["bytes"]) for use in uses if use["uuid"] == uuid]
            shown = [*own, (FOREIGN_PID, foreign)] if facts["shows_pids"] else []
            used = foreign + sum(bytes_ for _, bytes_ in own)
            divided = uuid in facts["divided"]
            devices.append(
                Device(uuid, index, "fake", total * GIB, used, None, tuple(shown), None, divided)
            )
        return Snapshot(tuple(devices), driver="fake 1")

    def check(self, leases: Path | None = None) -> int:
        """Note each device on which more is used, or leased, than there is; count the holders.

        What is seen in two passes was there all the time between them, hence at once.
        """
        first = self.living(self.uses)
        held = self.living(leases) if leases else {}
        again = self.living(self.uses).keys()
        held_again = self.living(leases).keys() if leases else ()
        facts = self.facts()
        for what, records, still, field in (
            ("used", first, again, "bytes"),
            ("leased", held, held_again, "granted_b"),
        ):
            sums: Counter[str] = Counter()
            for name in still:
                if name in records:
                    sums[records[name]["uuid"]] += records[name][field]
            for uuid, bytes_ in sums.items():
                foreign = int(facts["foreign_gib"].get(uuid, 0) * GIB)
                if bytes_ + foreign + RESERVE_B > facts["totals_gib"][uuid] * GIB:
                    with self.broken.open("a") as stream:
                        stream.write(f"{uuid}: {bytes_} + {foreign} B {what}\n")
        return len(held)

    @contextlib.contextmanager
    def using(self, uuid: str, bytes_: int) -> Iterator[None]:
        """Use device memory for as long as this process lives, at most."""
        path = self.uses / f"{os.getpid()}"
        record = json.dumps({"uuid": uuid, "bytes": bytes_, "pid": os.getpid()})
        with path.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.write(record)
            stream.flush()
            yield
            path.unlink()


def start(job: dict[str, Any], **environment: str) -> subprocess.Popen[bytes]:
    """Start a job."""
    return subprocess.Popen(
        [sys.executable, __file__, json.dumps(job)], env={**os.environ, **environment}
    )


def job(
    machine: Machine,
    root: Path,
    gib: float,
    *,
    whole: bool = False,
    hold_s: float = 0.0,
    import_s: float = 0.0,
    wait_limit_s: float | None = None,
    name: str = "job",
    until: Path | None = None,
) -> dict[str, Any]:
    """Describe a job: it leases, imports, uses all that it leased, and ends."""
    asked = {"bytes_": int(gib * GIB), "job": name, "whole": whole, "wait_limit_s": wait_limit_s}
    times = {"hold_s": hold_s, "import_s": import_s, "until": str(until or "")}
    return {"machine": str(machine.folder), "root": str(root), "request": asked, **times}


def log(machine: Machine, event: str, name: str, **more: Any) -> None:
    """Append a line to what happened."""
    line = {"s": time.monotonic(), "event": event, "job": name, **more}
    stream = os.open(machine.folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(stream, json.dumps(line).encode() + b"\n")
    os.close(stream)


def read_log(machine: Machine) -> list[dict[str, Any]]:
    """Return what happened, in order."""
    path = machine.folder / "log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def until(fact: Callable[[], object], limit_s: float = 50.0) -> float:
    """Wait for a fact, less than a holder holds; return how long it took."""
    began_s = time.monotonic()
    while not fact():
        assert time.monotonic() - began_s < limit_s, "it did not happen"
        time.sleep(0.005)
    return time.monotonic() - began_s


def holders(root: Path) -> list[str]:
    return [claim.request.job for claim in leases(root) if claim.uuid]


def waiters(root: Path) -> list[str]:
    return [claim.request.job for claim in leases(root) if not claim.uuid]


def main() -> int:
    """Run one job."""
    told = json.loads(sys.argv[1])
    machine, request = Machine(Path(told["machine"])), Request(**told["request"])
    log(machine, "asks", request.job, pid=os.getpid())
    try:
        with lease(
            request,
            snapshot=machine.snapshot,
            root=Path(told["root"]),
            evidence=machine.folder / "evidence.jsonl",
        ) as held:
            log(machine, "holds", request.job, uuid=held.uuid, waited_s=held.waited_s)
            time.sleep(told["import_s"])
            with machine.using(held.uuid, held.bytes_):
                machine.check(Path(told["root"]) / "holding")
                time.sleep(told["hold_s"])
                while told["until"] and not Path(told["until"]).exists():
                    time.sleep(0.005)
            held.busy(told["hold_s"])
            log(machine, "ends", request.job, uuid=held.uuid)
    except LeaseTimeoutError:
        return WAIT_EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())


def sample(machine: str, root: str, stop: Any) -> None:
    """Look every 5 ms from outside whether more is used than there is."""
    seen = 0
    while not stop.is_set():
        seen = max(seen, Machine(Path(machine)).check(Path(root) / "holding"))
        time.sleep(0.005)
    (Path(machine) / "sampled").write_text(str(seen))
