"""Sizes of the sleeping jobs, from the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind, Shape


class Sleepers:
    """Rule ``work`` runs on either device, ``small`` on one CPU."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def kinds(self, rule: str) -> tuple[Kind, ...]:
        return ("gpu", "cpu") if rule == "work" else ("cpu",)

    def shape(self, rule: str, wildcards: Any, *, gpu: bool) -> Shape:
        if rule == "small":
            return Shape(1, 500, 0, 5)
        size = self.config["gpu_job" if gpu else "cpu_job"]
        return Shape(size["cpus"], size["mem_mb"], int(gpu), size.get("runtime_min", 5))

    def nominal_s(self, rule: str, wildcards: Any) -> float:
        return float(self.config["nominal_s"]) if rule == "work" else 5.0
