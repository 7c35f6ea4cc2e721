"""A machine with GPUs for tests: answers of NVML from a file that tests rewrite.

Child processes see the same machine: their environment is ``machine.environ()``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pynvml
import pytest

from tests.support.fake_nvml.preload.fake_nvml_library import FUNCTIONS, STATE

PRELOAD = Path(__file__).parent / "preload"
GB = 10**9


def uuid(number: int, kind: str = "GPU") -> str:
    """Return a UUID that begins with its number: ``GPU-00000001-…``."""
    return f"{kind}-{number:08x}-d72c-4106-c12f-20bd9faed9f6"


@dataclass
class FakeDevice:
    """A GPU or a MIG instance, as the driver would tell of it."""

    uuid: str
    name: str = "NVIDIA Fake"
    total_b: int = 24 * GB
    #: In use beside what processes use by :func:`using`.
    used_b: int = 0
    #: 0 to 1; None is not supported.
    utilisation: float | None = 0.0
    pci: str = ""
    #: MIG mode; None is not supported.
    mig: bool | None = None
    #: None is an empty place.
    instances: list[FakeDevice | None] = field(default_factory=list)
    #: NVML error code by C symbol, for calls on this device; ``*`` is all of them.
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeMachine:
    """The GPUs of a machine; processes see nothing of it, or of a change, before ``write``."""

    #: The state file.
    path: Path
    #: In NVML's order; a device without ``pci`` gets the bus of its place.
    devices: list[FakeDevice] = field(default_factory=list)
    driver: str = "550.54.15"
    #: NVML error code by C symbol, for every call of it (``nvmlInitWithFlags`` too).
    errors: dict[str, int] = field(default_factory=dict)
    #: Symbols that an old driver lacks.
    missing: list[str] = field(default_factory=list)
    #: Whether there is ``libnvidia-ml.so.1``.
    library: bool = True

    def write(self) -> None:
        """Let every process see the machine as it is here, all at once."""
        for place, device in enumerate(self.devices):
            device.pci = device.pci or f"00000000:{place + 1:02X}:00.0"
        partial = self.path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(self) | {"path": ""}))
        partial.replace(self.path)

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
        monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
        for name, function in FUNCTIONS.items():
            monkeypatch.setattr(pynvml, name, function)


def pretend_here() -> None:
    """Give the machine of its environment to a process that was forked."""
    vars(pynvml).update(FUNCTIONS)


@contextlib.contextmanager
def using(uuid: str, bytes_: int, **more: object) -> Iterator[None]:
    """Use memory of a device, for as long as this process lives at most."""
    path = Path(os.environ[STATE]).with_suffix(".uses") / f"{os.getpid()}"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        json.dump({"uuid": uuid, "bytes": bytes_, "pid": os.getpid(), **more}, stream)
        stream.flush()
        yield
        path.unlink()
