"""A machine with GPUs for tests: answers of ``pynvml`` from a file that tests rewrite.

Child processes see the same machine: their environment is ``machine.environ()``.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.support.fake_nvml.preload.fake_nvml_library import STATE, install

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
    used_b: int = 0
    pci: str = ""
    #: MIG mode; None is not supported.
    mig: bool | None = None
    #: None is an empty place.
    instances: list[FakeDevice | None] = field(default_factory=list)
    #: NVML error code by function, for calls on this device; ``*`` is all of them.
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeMachine:
    """The GPUs of a machine; processes see nothing of it, or of a change, before ``write``."""

    #: The state file.
    path: Path
    #: In NVML's order; a device without ``pci`` gets the bus of its place.
    devices: list[FakeDevice] = field(default_factory=list)
    #: NVML error code by function, for every call of it.
    errors: dict[str, int] = field(default_factory=dict)
    #: Whether there is ``libnvidia-ml.so.1``.
    library: bool = True

    def write(self) -> None:
        """Let every process see the machine as it is here, all at once."""
        for place, device in enumerate(self.devices):
            device.pci = device.pci or f"00000000:{place + 1:02X}:00.0"
        partial = self.path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(self) | {"path": ""}))
        partial.replace(self.path)

    def environ(self) -> dict[str, str]:
        """Return an environment whose Python processes have this machine's GPUs."""
        kept = {name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        paths = [str(PRELOAD), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**kept, "PYTHONPATH": os.pathsep.join(paths), STATE: str(self.path)}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
        """Write it; give it to this process and to those that inherit its environment."""
        self.write()
        for name, text in self.environ().items():
            monkeypatch.setenv(name, text)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        install(monkeypatch.setattr)
        return self
