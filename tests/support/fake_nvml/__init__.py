"""A machine with GPUs for tests: NVML's own C answers, from a file that tests rewrite.

The real ``pynvml`` runs; only the library that it loads is a fake. Child processes see the
same machine: their environment is ``machine.environ()``.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.fake_nvml.preload.fake_nvml_library import STATE, Library

PRELOAD = Path(__file__).parent / "preload"
GB = 10**9


def uuid(number: int, kind: str = "GPU") -> str:
    """Return a UUID that begins with its number: ``GPU-00000001-…``."""
    return f"{kind}-{number:08x}-d72c-4106-c12f-20bd9faed9f6"


@dataclass
class FakeDevice:
    """A GPU or a MIG instance, as the driver would tell of it.

    Attributes
    ----------
    used_b : int
        In use beside what ``compute`` and ``graphics`` hold: that of a container, the driver.
    utilisation : float or None
        0 to 1; None is not supported.
    compute, graphics : list of (pid, bytes)
        A process in both lists holds its bytes once; None bytes are not available.
    mig : bool or None
        MIG mode; None is not supported.
    instances : list of FakeDevice or None
        None is an empty place.
    errors : dict
        NVML error code by C symbol, for calls on this device; ``*`` is all of them.
    """

    uuid: str
    name: str = "NVIDIA Fake"
    total_b: int = 24 * GB
    used_b: int = 0
    utilisation: float | None = 0.0
    pci: str = ""
    compute: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    mig: bool | None = None
    instances: list[FakeDevice | None] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeMachine:
    """The GPUs of a machine; processes see nothing of it, or of a change, before ``write``.

    Attributes
    ----------
    path : Path
        The state file.
    devices : list of FakeDevice
        In NVML's order; a device without ``pci`` gets the bus of its place.
    errors : dict
        NVML error code by C symbol, for every call of it (``nvmlInitWithFlags`` too).
    missing : list of str
        Symbols that an old driver lacks.
    library : bool
        Whether there is ``libnvidia-ml.so.1``.
    real_pids : bool
        Whether the driver takes the memory of dead processes back, as a real one does.
    """

    path: Path
    devices: list[FakeDevice] = field(default_factory=list)
    driver: str = "550.54.15"
    errors: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    library: bool = True
    real_pids: bool = False

    @classmethod
    def read(cls, path: Path | None = None) -> FakeMachine:
        """Return the machine of a state file; that of this process' environment without one."""
        path = path or Path(os.environ[STATE])
        state = json.loads(path.read_text())
        return cls(path, [_device(device) for device in state.pop("devices")], **state)

    def write(self) -> None:
        """Let every process see the machine as it is here, all at once."""
        for place, device in enumerate(self.devices):
            device.pci = device.pci or f"00000000:{place + 1:02X}:00.0"
        state = asdict(self)
        state.pop("path")
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        partial.write_text(json.dumps(state))
        partial.replace(self.path)

    @contextmanager
    def change(self) -> Iterator[FakeMachine]:
        """Read the machine afresh, to change it; written at the end, one process at a time."""
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            machine = FakeMachine.read(self.path)
            yield machine
            machine.write()
        self.__dict__.update(machine.__dict__)

    def device(self, uuid: str) -> FakeDevice:
        """Return a GPU or an instance by its UUID."""
        parts = [part for device in self.devices for part in (device, *device.instances) if part]
        return next(part for part in parts if part.uuid == uuid)

    def hold(self, uuid: str, pid: int, held_b: int) -> None:
        """Let a process hold memory of a device; 0 bytes ends it."""
        with self.change() as machine:
            device = machine.device(uuid)
            others = [process for process in device.compute if process[0] != pid]
            device.compute = [*others, *([(pid, held_b)] if held_b else [])]

    def environ(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return an environment whose Python processes have this machine's GPUs."""
        kept = {name: text for name, text in base.items() if name != "CUDA_VISIBLE_DEVICES"}
        paths = [str(PRELOAD), *filter(None, [base.get("PYTHONPATH")])]
        return {**kept, "PYTHONPATH": os.pathsep.join(paths), STATE: str(self.path)}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Write it; give it to this process and to those that inherit its environment."""
        self.write()
        for name, text in self.environ().items():
            monkeypatch.setenv(name, text)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(pynvml, "CDLL", Library)
        for name, fresh in (
            ("nvmlLib", None),
            ("_nvmlLib_refcount", 0),
            ("_nvmlGetFunctionPointer_cache", {}),
        ):
            monkeypatch.setattr(pynvml, name, fresh)


def _device(state: dict[str, Any]) -> FakeDevice:
    pairs = {kind: [(pid, used) for pid, used in state[kind]] for kind in ("compute", "graphics")}
    parts = [part and _device(part) for part in state["instances"]]
    return FakeDevice(**{**state, **pairs, "instances": parts})
