"""Resources of one job: CPUs, memory, GPUs and minutes, from the size of its data."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from snakemake_scheduler_plugin_tilewright import DeviceKind, ResourceModel, ResourceRequest
from tilewright.config.rules import GPU_RULES, IMAGE_RULES, RULES, BlockSizes, Cost, DataSize, Rule

#: Snakemake, which starts twice in every Slurm job.
SNAKEMAKE_MB = 280
_PYTHON_MB = 60  # a bare interpreter
_MEMORY_FACTOR = 1.25  # memory asked for over memory measured (no figure)
_GPU_MB = 1000  # host memory of a process on a GPU: CuPy's libraries and the driver (not measured)
#: Fits are done by one thread; windows of 20 planes take 240 MB a thread, 1 GB together.
_MOST_CPUS = {"illumination": 4, "tile_positions": 4, "edf_plane": 4}
_GPU_MEMORY_FACTOR = 1.6  # a device's memory over a CPU's: FFTs have workspaces there (no figure)
_GPU_CPUS = 2  # a job on a GPU: one CPU drives it, one reads and writes
_START_MIN = 10  # added to every time limit (no figure)
_TIME_FACTOR = 2  # a time limit over the time measured; the next try of a job it ends gets twice it
_GPU_FASTER = 5.0  # a time limit on CPUs over that on a GPU
_START_S = 8.0  # Snakemake starts twice in every Slurm job: 5.5 s measured on idle cores


@dataclass(frozen=True)
class DataSizes:
    """Requests and times of the image rules."""

    size_of: Callable[[str | None], DataSize]
    """Sample name to the size of its data."""
    kinds_of: Mapping[str, tuple[DeviceKind, ...]]
    """Rule to the device kinds that may run it, the preferred one first; others run on CPUs."""
    blocks: BlockSizes = field(default_factory=BlockSizes)
    """Edges of chunks and tiles."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rule to ``{"cpus": …, "mem_mb": …, "runtime_min": …, "gpu_mem_mb": …}``; absent or None means
    computed.
    """

    def models(self) -> dict[str, ResourceModel]:
        """Return the model of each rule."""
        return {
            rule: ResourceModel(
                self.kinds_of.get(rule, ("cpu",)),
                partial(self.request, rule),
                partial(self.cpu_seconds, rule),
            )
            for rule in RULES
        }

    def request(self, rule: str, wildcards: Any, device: DeviceKind) -> ResourceRequest:
        """Return the request of one job on a device kind; rules not in the table count as small."""
        size = self.size_of(wildcards.get("sample"))
        overrides = self.overrides.get(rule, {})
        cpus = overrides.get("cpus") or self._cpus(rule, size)
        cost = self._cost(rule, size, cpus)
        gpus = int(device == "gpu" and rule in GPU_RULES)
        mem_mb = overrides.get("mem_mb") or math.ceil(
            _MEMORY_FACTOR * (SNAKEMAKE_MB + _PYTHON_MB + cost.mb) + gpus * _GPU_MB
        )
        work_min: float = math.ceil(_TIME_FACTOR * cost.work_s / 60)
        if gpus:
            cpus = overrides.get("cpus") or min(cpus, _GPU_CPUS)
            work_min /= _GPU_FASTER
        minutes = overrides.get("runtime_min") or math.ceil(_START_MIN + work_min)
        gpu_mb = _GPU_MEMORY_FACTOR * self._cost(rule, size, cpus).mb
        gpu_mem_mb = gpus * (overrides.get("gpu_mem_mb") or gpu_mb)
        return ResourceRequest(cpus, mem_mb, gpus, minutes, math.ceil(gpu_mem_mb))

    def cpu_seconds(self, rule: str, wildcards: Any) -> float:
        """Return about how long one job takes on CPUs, Snakemake's two starts included."""
        size = self.size_of(wildcards.get("sample"))
        return _START_S + self._cost(rule, size, self._cpus(rule, size)).work_s

    def _cpus(self, rule: str, size: DataSize) -> int:
        """Return one CPU per 200 Mvoxel of work, at most 8 or 4: below that starting costs more."""
        voxels = size.mosaic_voxels if rule in IMAGE_RULES else 0
        if rule == "assemble":
            voxels = size.mosaic_px * size.channels
        return max(1, min(_MOST_CPUS.get(rule, 8), math.ceil(voxels / 200e6)))

    def _cost(self, rule: str, size: DataSize, cpus: int) -> Cost:
        return RULES.get(rule, Rule(rule)).cost(size, self.blocks, cpus)
