"""What ``tilewright devices`` takes from leases and jobs: who holds what, and what jobs ask for."""

from __future__ import annotations

from pathlib import Path

from tilewright.commands.dag import read_experiment
from tilewright.commands.devices import Holder
from tilewright.config.checks import check_raw, data_sizes
from tilewright.config.layout import Layout
from tilewright.devices.budget import MIB
from tilewright.devices.evidence import CONTEXT_B
from tilewright.devices.lease import leases
from tilewright.runtime.machine import device_kinds


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


def memory_of_jobs(configfile: Path) -> dict[str, int]:
    """Return the bytes of a device that the largest job of each rule asks for, by rule.

    Raises
    ------
    ConfigError
        The configuration is wrong, or its raw files are.
    """
    experiment = read_experiment(configfile)
    layout = Layout(experiment.settings.results)
    check_raw(experiment, layout)
    kinds = device_kinds(experiment.settings, None, {})
    sizes = data_sizes(experiment, layout, kinds)
    return {
        rule: sizes.shape(rule, {}, gpu=True).gpu_mem_mb * MIB + CONTEXT_B
        for rule, able in kinds.items()
        if "gpu" in able
    }
