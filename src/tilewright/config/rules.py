"""What one job of a rule needs: CPUs, memory, GPUs and minutes, from the size of its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.placement.jobs import Kind, Shape

#: Rules whose kernels run on a GPU when the device is ``gpu``.
GPU_RULES = frozenset({"illumination", "tile_positions", "stitch", "deconvolve", "project",
                       "register", "assemble"})  # fmt: skip

#: All rules whose resources can be configured.
RULES = GPU_RULES | {
    "qc_illumination",
    "qc_tile_positions",
    "qc_stitch",
    "qc_deconvolve",
    "qc_edf",
    "qc_register",
    "qc_image",
    "report",
    "summary",
    "verdict",
}

_PYTHON_MB = 350  # interpreter with numpy, scipy and zarr imported, measured 290
_MB = 2**20
_GPU_CPUS = 2  # of a job on a GPU: one drives it, one reads and writes
_START_MIN = 10  # of a time limit, whatever the data
_MARGIN = 4  # of a time limit over the time measured
_START_S = 8.0  # Snakemake starts twice in every Slurm job, measured 5.5 on idle cores


@dataclass(frozen=True)
class DataSize:
    """How much one sample is.

    Attributes
    ----------
    tiles, planes, height_px, width_px : int
        Tiles of one cycle, z-planes, and pixels of one tile.
    overlap : float
        Fraction of a tile that its neighbour sees too.
    cycles, channels : int
        Cycles of the sample, and channels over all cycles.
    """

    tiles: int
    planes: int
    height_px: int
    width_px: int
    overlap: float
    cycles: int
    channels: int

    @property
    def tile_px(self) -> int:
        """Pixels of one plane of one tile."""
        return self.height_px * self.width_px

    @property
    def mosaic_px(self) -> float:
        """Pixels of one plane of the mosaic."""
        return self.tiles * self.tile_px * (1 - self.overlap) ** 2

    @property
    def row_px(self) -> float:
        """Pixels of one row of tiles, taking the grid as square."""
        return math.ceil(math.sqrt(self.tiles)) * self.tile_px


@dataclass(frozen=True)
class ShapeModel:
    """Shapes of all rules under one configuration.

    Attributes
    ----------
    chunk_px, tile_px, halo_px : int
        Chunk edge of the stores; tile edge and halo of the deconvolution.
    overrides : mapping
        Rule to ``{"cpus": …, "mem_mb": …, "runtime_min": …, "gpu_mem_mb": …}``; absent or None
        means computed.
    slowdown : float
        How much longer a CPU job may take than a GPU job.
    """

    chunk_px: int = 1024
    tile_px: int = 1024
    halo_px: int = 64
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    slowdown: float = 5.0

    def shape(self, rule: str, size: DataSize, *, gpu: bool = False) -> Shape:
        """Return the shape of one job of ``rule`` on data of ``size``.

        Parameters
        ----------
        rule : str
            Rule name; rules that are not known here count as light.
        size : DataSize
            The job's data.
        gpu : bool
            Whether the job is placed on a GPU.
        """
        own = self.overrides.get(rule, {})
        cpus = own.get("cpus") or self._cpus(rule, size)
        mem_mb = own.get("mem_mb") or math.ceil(_PYTHON_MB + self._work_mb(rule, size, cpus))
        minutes: float = own.get("runtime_min") or self._minutes(rule, size, cpus)
        gpus = int(gpu and rule in GPU_RULES)
        if gpus and not own.get("cpus"):
            cpus = min(cpus, _GPU_CPUS)
        if gpus:
            minutes = _START_MIN + max(0, minutes - _START_MIN) / self.slowdown
        gpu_mem_mb = gpus * (own.get("gpu_mem_mb") or self._work_mb(rule, size, cpus))
        return Shape(
            cpus,
            math.ceil(mem_mb),
            gpus,
            math.ceil(minutes),
            math.ceil(gpu_mem_mb),
        )

    def nominal_s(self, rule: str, size: DataSize) -> float:
        """Return about how long the job takes on CPUs, Snakemake's two starts included."""
        work_min = self._minutes(rule, size, self._cpus(rule, size)) - _START_MIN
        return _START_S + 60 * work_min / _MARGIN

    def _cpus(self, rule: str, size: DataSize) -> int:
        """One CPU per 200 Mvoxel of work, at most 8: below that starting costs more."""
        if rule not in GPU_RULES:
            return 1
        return max(1, min(8, math.ceil(size.mosaic_px * size.planes / 200e6)))

    def _work_mb(self, rule: str, size: DataSize, cpus: int) -> float:
        chunk_mb = self.chunk_px**2 * 4 / _MB
        match rule:
            case "illumination":
                return size.tiles * 256**2 * 4 * 6 / _MB + size.tile_px * 24 / _MB + 100
            case "tile_positions":
                strips = 4 * size.tiles * size.tile_px * max(size.overlap, 0.05)
                return strips * 4 * 3 / _MB + size.tile_px * 24 / _MB + 100
            case "stitch":
                return size.row_px * 3 * 2 / _MB + cpus * chunk_mb * 12 + 100
            case "deconvolve":
                edge = min(self.tile_px, math.sqrt(size.mosaic_px)) + 2 * (self.halo_px + 16)
                # 47 bytes per padded voxel measured; two tiles are in flight while reading
                return edge**2 * (size.planes + 16) * 60 / _MB + 200
            case "project":
                return cpus * chunk_mb * (6 * size.planes + 12) + 100
            case "register":
                return math.sqrt(size.mosaic_px) * self.chunk_px * 4 * 8 / _MB + 600
            case "assemble":
                return cpus * chunk_mb * 16 + math.sqrt(size.mosaic_px) * 1024 * 4 / _MB + 300
            case _:
                return 800.0

    def _minutes(self, rule: str, size: DataSize, cpus: int) -> int:
        """Return minutes at a quarter of the speed measured on 2 cores, plus ten to start."""
        voxels = size.mosaic_px * size.planes
        match rule:
            case "deconvolve":
                work = voxels / (0.6e6 * cpus)
            case "illumination" | "tile_positions":
                work = size.tiles * size.tile_px * size.planes / 20e6
            case "stitch" | "project":
                work = voxels / (15e6 * cpus)
            case "register":
                work = size.mosaic_px / 1e6
            case "assemble":
                work = size.mosaic_px * size.channels / (8e6 * cpus)
            case _:
                work = voxels * size.channels / max(size.cycles, 1) / 15e6
        return _START_MIN + math.ceil(_MARGIN * work / 60)


@dataclass(frozen=True)
class DataSizes:
    """Shapes and times of the image rules.

    Attributes
    ----------
    model : ShapeModel
    size_of : callable
        Sample name to the size of its data.
    kinds_of : mapping
        Rule to the device kinds that may run it, the preferred one first; others run on CPUs.
    """

    model: ShapeModel
    size_of: Callable[[str | None], DataSize]
    kinds_of: Mapping[str, tuple[Kind, ...]]

    def kinds(self, rule: str) -> tuple[Kind, ...]:
        """Return the device kinds that may run a rule."""
        return self.kinds_of.get(rule, ("cpu",))

    def shape(self, rule: str, wildcards: Any, *, gpu: bool) -> Shape:
        """Return what one job needs on a device kind."""
        size = self.size_of(wildcards.get("sample"))
        return self.model.shape(rule, size, gpu=gpu)

    def nominal_s(self, rule: str, wildcards: Any) -> float:
        """Return about how long one job takes on CPUs."""
        return self.model.nominal_s(rule, self.size_of(wildcards.get("sample")))

    def group(self, wildcards: Any) -> str | None:
        """Return the sample and cycle of a job."""
        sample, cycle = wildcards.get("sample"), wildcards.get("cycle")
        return f"{sample} {cycle}" if cycle else None
