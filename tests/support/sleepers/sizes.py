"""Sizes of the sleeping jobs, from the config."""

from collections.abc import Mapping
from typing import Any

from snakemake_scheduler_plugin_tilewright import DeviceKind, ResourceModel, ResourceRequest


class Sleepers:
    """Rule ``work`` runs on either device, ``small`` and ``beside`` on one CPU."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    @property
    def models(self) -> dict[str, ResourceModel]:
        return {
            "work": ResourceModel(("gpu", "cpu"), self.work, self.seconds, self.config["slowdown"]),
            "small": ResourceModel(
                ("cpu",),
                lambda wildcards, kind: ResourceRequest(1, 500, 0, 5),
                lambda wildcards: 5.0,
            ),
        }

    def work(self, wildcards: Any, kind: DeviceKind) -> ResourceRequest:
        size = self.config[f"{kind}_job"]
        gpus = int(kind == "gpu")
        return ResourceRequest(size["cpus"], size["mem_mb"], gpus, size.get("runtime_min", 5))

    def seconds(self, wildcards: Any) -> float:
        return float(self.config["cpu_seconds"])
