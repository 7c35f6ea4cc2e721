"""A job's request of device memory, its lease, and the record of its use."""

import time
from dataclasses import dataclass, field

#: CUDA's context and the kernels that libraries load, which no pool's limit counts: 520 MiB for the
#: context alone on an H200 with CUDA 13, 692 with cuFFT, cuSOLVER and cuBLAS.
CONTEXT_B = 768 * 2**20


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a device by a job."""

    bytes_: int
    """Device memory; for a whole device the least that is sufficient."""
    job: str
    """Its name in messages."""
    whole: bool = False
    """No other lease on the device; the job may use all free memory."""
    wait_limit_s: float | None = None
    """Seconds after which waiting ends in an error."""
    job_id: str = ""
    """Unique among the jobs of all experiments: a retry avoids a device on which it failed."""


@dataclass
class DeviceLease:
    """A device that this job holds."""

    request: Request
    """What the job asked for."""
    uuid: str = ""
    """The device; empty where the job got none."""
    bytes_: int = 0
    """Device memory that it may use; 0 where it is not known."""
    waited_s: float = 0.0
    driver: str = ""
    """Seconds that the job waited, and the version of the driver."""
    visible: str | None = None
    """``CUDA_VISIBLE_DEVICES`` as Slurm set it, which is not changed."""
    busy_s: float | None = None
    utilisation: float | None = None
    """Seconds in which the device computed, and the mean share of time, by NVML."""
    peak_b: int | None = None
    splits: int = 0
    reason: str = ""
    """Set by the job for its record: peak use, tiles that were halved, cause of a failure."""
    _since_s: float = field(default_factory=time.monotonic)

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a process uses this device."""
        arrays_b = self.bytes_ - CONTEXT_B
        limit = {"CUPY_GPU_MEMORY_LIMIT": str(max(arrays_b, 2**26))} if self.bytes_ else {}
        return {
            "CUDA_VISIBLE_DEVICES": self.visible or self.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TILEWRIGHT_DEVICE": "gpu",
            **limit,
        }

    def usage_record(self, outcome: str) -> dict[str, object]:
        """Return the record of the device's use at the end of the lease."""
        held_s = time.monotonic() - self._since_s
        idle = None if self.busy_s is None else round(max(0.0, 1 - self.busy_s / held_s), 3)
        return {
            "time_s": round(time.time() - held_s, 3),
            "job": self.request.job,
            "uuid": self.uuid,
            "driver": self.driver,
            "requested_b": self.request.bytes_,
            "whole": self.request.whole,
            "granted_b": self.bytes_,
            "waited_s": round(self.waited_s, 3),
            "held_s": round(held_s, 3),
            "idle_fraction": idle,
            "utilisation": None if self.utilisation is None else round(self.utilisation, 3),
            "peak_b": self.peak_b,
            "splits": self.splits,
            "outcome": outcome,
            "reason": self.reason,
        }
