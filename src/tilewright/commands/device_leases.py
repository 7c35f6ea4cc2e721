"""What ``tilewright devices`` takes from the leases: their folder, their holders, the reserve."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.commands.devices import DevicesError, Holder


def lease_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of leases and failures of this user on this machine.

    Raises
    ------
    DevicesError
        It cannot be used.
    """
    if module := _module("root"):
        try:
            return Path(module.lease_root(environ))
        except module.LeaseRootError as error:
            raise DevicesError(str(error)) from None
    named = environ.get("TILEWRIGHT_LEASE_ROOT") or environ.get("XDG_RUNTIME_DIR")
    return Path(named or tempfile.gettempdir()) / f"tilewright-{os.getuid()}"


def holders(root: Path) -> list[Holder]:
    """Return who holds memory of a device, or waits for some."""
    module = _module("lease")
    claims = module.leases(root) if module else []
    return [
        Holder(
            claim.uuid,
            claim.granted_b if claim.uuid else claim.request.bytes_,
            claim.request.job,
            claim.pid,
            claim.since_s,
        )
        for claim in claims
    ]


def reserve_b() -> int:
    """Return the bytes of each device that no job gets."""
    module = _module("budget")
    return int(module.RESERVE_B) if module else 0


def _module(name: str) -> Any | None:
    try:
        return importlib.import_module(f"tilewright.devices.{name}")
    except ModuleNotFoundError:
        return None
