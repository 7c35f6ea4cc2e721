"""What rules ask for: which devices there are, what each rule needs, and where its jobs go."""

import os
import sys
from collections.abc import Callable
from typing import Any

from snakemake_scheduler_plugin_tilewright import Placement, detect
from tilewright.config.checks import data_sizes
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.rules import DataSize
from tilewright.devices.inventory import has_driver
from tilewright.devices.leases import jobs_per_gpu, use_allocated_device
from tilewright.runtime.machine import (
    device_kinds,
    gpus_of_jobs,
    usable_gpus,
    usable_slots,
)


def detect_placement(
    workflow: Any,
    experiment: Experiment,
    layout: Layout,
    size_of: Callable[[str | None], DataSize],
) -> Placement:
    """Return where the jobs of an experiment go, with the models of its rules.

    On a cluster the GPUs are those of its partitions; inside one of its jobs, those that Slurm
    allocated.

    Parameters
    ----------
    workflow : snakemake.workflow.Workflow
        The object of that name in the Snakefile.
    size_of : callable
        Sample name to the size of its data, None to the largest.

    Raises
    ------
    TilewrightError
        A rule is to run on a GPU, and there is none.
    """
    placement = detect(workflow, ledger=layout.ledger, logs=layout.logs)
    if placement.inside_job:
        use_allocated_device()
    here = not placement.on_cluster and not placement.inside_job
    gpus = usable_gpus if here else None if placement.inside_job else gpus_of_jobs
    kinds = device_kinds(experiment.settings, gpus, os.environ if here else {})
    without = gpus_of_jobs() if gpus is gpus_of_jobs or (here and has_driver()) else None
    if without and kinds != device_kinds(experiment.settings, None, os.environ if here else {}):
        sys.stderr.write(f"no job goes to a GPU: {without.reason}\n")
    placement.models |= data_sizes(experiment, size_of, kinds).models()
    if here and any("gpu" in able for able in kinds.values()):
        jobs_per_gpu()  # a wrong number ends the run here, not in its scheduler
        placement.device, placement.gpus = "gpu", usable_slots
    return placement
