"""Device kinds that the rules may use, by the configuration and the GPUs of this machine."""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Literal, cast, get_args

from snakemake_scheduler_plugin_tilewright import DeviceKind
from tilewright.config.rules import GPU_RULES
from tilewright.config.settings import Settings
from tilewright.devices.inventory import NO_NVML, NOT_INSTALLED, Snapshot, snapshot
from tilewright.devices.lease_folder import failures, lease_root
from tilewright.devices.leases import MIB, jobs_on, sufficient
from tilewright.errors import ConfigError, DeviceError, LeaseError

DeviceChoice = Literal["auto", "gpu", "cpu"]
_NO_CUPY = f"CuPy is {NOT_INSTALLED}"


def usable_gpus(environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Return the GPUs that are visible, healthy and usable by CuPy, without a CUDA context.

    ``reason`` says why there are none.

    Raises
    ------
    LeaseError
        There are GPUs, and the folder of their leases cannot be used.
    """
    gpus = snapshot(environ)
    if not gpus.devices:
        return Snapshot((), gpus.reason)
    if find_spec("cupy") is None:
        return Snapshot((), _NO_CUPY)
    failed = failures(lease_root(environ))
    healthy = tuple(device for device in gpus.devices if device.uuid not in failed)
    reasons = [f"CUDA failed on {uuid}: {text}" for uuid, text in failed.items()]
    return Snapshot(healthy, gpus.reason if healthy else "; ".join(reasons))


def gpus_of_jobs() -> Snapshot | None:
    """Return that jobs can use no GPU, as a package is not in their environment; else None.

    Their environment is this one.
    """
    for module, reason in (("cupy", _NO_CUPY), ("pynvml", NO_NVML)):
        if find_spec(module) is None:
            return Snapshot((), reason)
    return None


def device_from_environment(
    environ: Mapping[str, str] = os.environ, otherwise: DeviceChoice = "auto"
) -> DeviceChoice:
    """Return what ``TILEWRIGHT_DEVICE`` asks for, or ``otherwise``.

    Raises
    ------
    DeviceError
        The variable is none of ``cpu``, ``gpu`` and ``auto``.

    Examples
    --------
    >>> device_from_environment({"TILEWRIGHT_DEVICE": "gpu"})
    'gpu'
    """
    choice = environ.get("TILEWRIGHT_DEVICE") or otherwise
    if choice not in get_args(DeviceChoice):
        raise DeviceError(f"TILEWRIGHT_DEVICE is '{choice}'; set it to cpu, gpu or auto")
    return cast(DeviceChoice, choice)


def device_kinds(
    settings: Settings,
    query: Callable[[], Snapshot | None] | None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, tuple[DeviceKind, ...]]:
    """Return the device kinds that may run each rule that a GPU can run, the preferred one first.

    A rule's own ``device`` wins over ``TILEWRIGHT_DEVICE``, and that over the config's.

    Parameters
    ----------
    query : callable or None
        Returns the GPUs of this machine, called only if a rule may use one; where it returns None,
        or is None, they are not known here.

    Raises
    ------
    ConfigError
        A rule requires a GPU, and there is none.
    """
    for rule in sorted(settings.resources.keys() - GPU_RULES):
        if settings.resources[rule].device == "gpu":
            raise ConfigError(f"resources.{rule}.device: rule {rule} uses no GPU; remove the key")
    general = device_from_environment(environ, settings.device)
    kinds: dict[str, tuple[DeviceKind, ...]] = {}
    gpus: Snapshot | None = None
    for rule in sorted(GPU_RULES):
        own = settings.resources.get(rule)
        choice: DeviceChoice = own.device if own and own.device else general
        if choice != "cpu" and query is not None and gpus is None:
            gpus = query()
        present = gpus is None or bool(gpus.devices)
        if choice == "gpu" and gpus is not None and not present:
            general_key = "TILEWRIGHT_DEVICE" if "TILEWRIGHT_DEVICE" in environ else "device"
            key = f"resources.{rule}.device" if own and own.device else general_key
            raise ConfigError(
                f"rule {rule} requires a GPU, but no usable GPU was found ({gpus.reason}); "
                f"set {key} to auto or cpu, or see `tilewright devices`"
            )
        kinds_of: dict[DeviceChoice, tuple[DeviceKind, ...]] = {
            "cpu": ("cpu",), "gpu": ("gpu",), "auto": ("gpu", "cpu") if present else ("cpu",)
        }  # fmt: skip
        kinds[rule] = kinds_of[choice]
    return kinds


def usable_slots(need_mb: int = 0) -> int:
    """Return how many jobs the GPUs can run at once, jobs of other runs not counted.

    That is one on each GPU, or ``TILEWRIGHT_JOBS_PER_GPU`` jobs that need no more than their share.

    Parameters
    ----------
    need_mb : int
        Device memory of a job's arrays.
    """
    need_b = need_mb * MIB
    return sum(jobs_on(device, need_b) for device in sufficient(usable_gpus().devices, need_b))


def pools() -> dict[str, int]:
    """Return the local pools, for ``resources`` of a profile; nothing on a machine without GPU.

    ``gpu`` counts the jobs on GPUs. ``cpu`` counts the CPUs of jobs that could use a GPU and run on
    CPUs: two are reserved for each job on a GPU.

    Where the folder of the leases cannot be used there are none; the Snakefile reports it if a rule
    requires a GPU.
    """
    try:
        jobs = usable_slots()
    except LeaseError:
        return {}
    except DeviceError as error:
        raise SystemExit(str(error)) from None  # within a profile Snakemake prints no reason
    return {"gpu": jobs, "cpu": max(1, len(os.sched_getaffinity(0)) - 2 * jobs)} if jobs else {}
