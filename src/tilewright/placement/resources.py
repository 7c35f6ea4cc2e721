"""What the rules call: ``resources: **routed("stitch")`` and ``threads: threads("stitch")``.

On one machine the answer is a static plan: every job runs here, on the device that
``TILEWRIGHT_DEVICE`` names, with memory and time from the size of its data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.placement.shapes import GPU_RULES, DataSize, Shape, ShapeModel


@dataclass(frozen=True)
class LocalPlan:
    """The static plan of one machine.

    Attributes
    ----------
    model : ShapeModel
        Shapes of all rules.
    size_of : callable
        Sample name to the size of its data.
    gpu : bool
        Whether GPU-capable rules run on a GPU.
    """

    model: ShapeModel
    size_of: Callable[[str | None], DataSize]
    gpu: bool

    def _shape(self, rule: str, wildcards: Any, attempt: int) -> Shape:
        size = self.size_of(getattr(wildcards, "sample", None))
        return self.model.shape(rule, size, gpu=self.gpu, attempt=attempt)

    def routed(self, rule: str) -> dict[str, Any]:
        """Return the resources of ``rule`` as Snakemake resource functions."""

        def mem_mb(wildcards: Any, attempt: int) -> int:
            return self._shape(rule, wildcards, attempt).mem_mb

        def runtime(wildcards: Any, attempt: int) -> int:
            return self._shape(rule, wildcards, attempt).runtime_min

        resources: dict[str, Any] = {"mem_mb": mem_mb, "runtime": runtime}
        if self.gpu and rule in GPU_RULES:
            resources["gpu"] = 1
        return resources

    def threads(self, rule: str) -> Callable[[Any], int]:
        """Return the threads of ``rule`` as a Snakemake threads function."""

        def threads(wildcards: Any) -> int:
            return self._shape(rule, wildcards, 1).cpus

        return threads
