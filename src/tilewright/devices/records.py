"""What is known of this machine's GPUs at one moment; sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one MIG instance of a GPU.

    Attributes
    ----------
    uuid : str
        ``GPU-…`` or ``MIG-…``: its identity everywhere; ``index`` is for people.
    index : int
        Number by PCI bus; that of the parent for a MIG instance.
    name : str
    total_b, used_b : int
        Memory, and what is in use by everybody.
    utilisation : float or None
        Share of the last second in which it computed, 0 to 1; None where NVML does not say.
    used_by_pid : tuple of (int, int)
        Processes that hold memory, as far as NVML shows them, with their bytes.
    parent : str or None
        UUID of the GPU that a MIG instance is cut from.
    divided : bool
        MIG mode is on: the GPU itself is never leased, its instances are.
    """

    uuid: str
    index: int
    name: str
    total_b: int
    used_b: int
    utilisation: float | None = None
    used_by_pid: tuple[tuple[int, int], ...] = ()
    parent: str | None = None
    divided: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The GPUs of this machine at one moment.

    Attributes
    ----------
    devices : tuple of Device
        Those that this process may use, MIG parents too.
    reason : str
        Why there are none, or why some are left out; may be empty.
    driver : str
        Version of the driver; empty where it is not known.
    hidden : tuple of str
        UUIDs that ``CUDA_VISIBLE_DEVICES`` hides.
    """

    devices: tuple[Device, ...]
    reason: str = ""
    driver: str = ""
    hidden: tuple[str, ...] = ()
