"""What one job of a rule needs: CPUs, memory, GPUs and minutes, from the size of its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind, Shape
from tilewright.config.rules import GPU_RULES, RULES, BlockSizes, Cost, DataSize, Rule

_PYTHON_MB = 350  # interpreter with numpy, scipy and zarr imported, measured 290
_GPU_CPUS = 2  # of a job on a GPU: one drives it, one reads and writes
_START_MIN = 10  # of a time limit, whatever the data
_MARGIN = 4  # of a time limit over the time measured
_START_S = 8.0  # Snakemake starts twice in every Slurm job, measured 5.5 on idle cores


@dataclass(frozen=True)
class ShapeModel:
    """Shapes of all rules under one configuration.

    Attributes
    ----------
    blocks : BlockSizes
    overrides : mapping
        Rule to ``{"cpus": …, "mem_mb": …, "runtime_min": …, "gpu_mem_mb": …}``; absent or None
        means computed.
    slowdown : float
        How much longer a CPU job may take than a GPU job.
    """

    blocks: BlockSizes = field(default_factory=BlockSizes)
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    slowdown: float = 5.0

    def shape(self, rule: str, size: DataSize, *, gpu: bool = False) -> Shape:
        """Return the shape of one job of ``rule`` on data of ``size``.

        Parameters
        ----------
        rule : str
            Rule name; rules that are not in the table count as light.
        size : DataSize
            The job's data.
        gpu : bool
            Whether the job is placed on a GPU.
        """
        own = self.overrides.get(rule, {})
        cpus = own.get("cpus") or self._cpus(rule, size)
        cost = self._cost(rule, size, cpus)
        mem_mb = own.get("mem_mb") or math.ceil(_PYTHON_MB + cost.mb)
        minutes: float = own.get("runtime_min") or self._minutes(cost.work_s)
        gpus = int(gpu and rule in GPU_RULES)
        if gpus and not own.get("cpus"):
            cpus = min(cpus, _GPU_CPUS)
        if gpus and not own.get("runtime_min"):
            minutes = _START_MIN + max(0, minutes - _START_MIN) / self.slowdown
        gpu_mem_mb = gpus * (own.get("gpu_mem_mb") or self._cost(rule, size, cpus).mb)
        return Shape(cpus, math.ceil(mem_mb), gpus, math.ceil(minutes), math.ceil(gpu_mem_mb))

    def nominal_s(self, rule: str, size: DataSize) -> float:
        """Return about how long the job takes on CPUs, Snakemake's two starts included."""
        return _START_S + self._cost(rule, size, self._cpus(rule, size)).work_s

    def _cpus(self, rule: str, size: DataSize) -> int:
        """One CPU per 200 Mvoxel of work, at most 8: below that starting costs more."""
        if rule not in GPU_RULES:
            return 1
        return max(1, min(8, math.ceil(size.mosaic_voxels / 200e6)))

    def _cost(self, rule: str, size: DataSize, cpus: int) -> Cost:
        return RULES.get(rule, Rule(rule)).cost(size, self.blocks, cpus)

    def _minutes(self, work_s: float) -> int:
        """Return minutes at a quarter of the speed measured on 2 cores, plus ten to start."""
        return _START_MIN + math.ceil(_MARGIN * work_s / 60)


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
        return self.model.shape(rule, self.size_of(wildcards.get("sample")), gpu=gpu)

    def nominal_s(self, rule: str, wildcards: Any) -> float:
        """Return about how long one job takes on CPUs."""
        return self.model.nominal_s(rule, self.size_of(wildcards.get("sample")))

    def group(self, wildcards: Any) -> str | None:
        """Return the sample and cycle of a job."""
        sample, cycle = wildcards.get("sample"), wildcards.get("cycle")
        return f"{sample} {cycle}" if cycle else None
