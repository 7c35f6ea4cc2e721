"""What ``tilewright devices`` takes from the leases: who holds what."""

from __future__ import annotations

from pathlib import Path

from tilewright.commands.devices import Holder
from tilewright.devices.lease import leases


def holders(root: Path) -> list[Holder]:
    """Return who holds memory of a device, or waits for some."""
    return [
        Holder(
            claim.uuid,
            claim.granted_b if claim.uuid else claim.request.bytes_,
            claim.request.job,
            claim.pid,
            claim.since_s,
        )
        for claim in leases(root)
    ]
