from snakemake.exceptions import WorkflowError

from tilewright.devices.choose import DeviceChoiceError, device_from_environment
from tilewright.experiment import ConfigError, load_experiment
from tilewright.layout import Layout
from tilewright.placement.resources import LocalPlan
from tilewright.prepare import (
    check_files,
    check_raw,
    check_thresholds,
    data_size,
    shape_model,
)

QC_STAGES = ("illumination", "tile_positions", "stitch", "edf")

try:
    experiment = load_experiment(config)
    layout = Layout(experiment.settings.results)
    # Jobs trust the manifests that the main process checked: raw files are looked at once.
    if workflow.is_main_process:
        check_thresholds(experiment)
        check_files(experiment)
        check_raw(experiment, layout)
    plan = LocalPlan(
        shape_model(experiment),
        data_size(experiment, layout),
        device_from_environment() == "gpu",
    )
except (ConfigError, DeviceChoiceError) as error:
    raise WorkflowError(str(error)) from None

routed = plan.routed
threads = plan.threads
DECONVOLVED = experiment.settings.deconvolve.method != "none"
VOXEL_UM = experiment.voxel_um
PLANE = "{sample}_cycle{cycle}_channel{channel}"
CYCLE = "{sample}_cycle{cycle}"


wildcard_constraints:
    sample="[A-Za-z0-9_-]+",
    cycle=r"\d+",
    channel="[A-Za-z0-9-]+",


def planes(template, cycles=experiment.cycles, sample=None):
    """Expand a template over samples (or one), and the channels of the cycles."""
    return [
        template.format(sample=name, cycle=channel.cycle, channel=channel.channel)
        for name in ([sample] if sample else experiment.samples)
        for channel in experiment.channels
        if channel.cycle in cycles
    ]


def of_cycle(template):
    """Return an input function: a template over the channels of the job's cycle."""
    return lambda wildcards: planes(template, [int(wildcards.cycle)], wildcards.sample)


def of_reference_channel(template):
    """Return a template with the reference channel filled in."""
    return template.replace("{channel}", experiment.reference_channel)


def of_reference_cycle(template):
    """Return a template with the reference cycle filled in."""
    return template.replace("{cycle}", str(experiment.reference_cycle))


def registered_images():
    return [
        template.format(sample=sample)
        for sample in experiment.samples
        for template in (layout.image_tiff, layout.image_zarr, layout.image_markers)
    ]


def quality_stages(cycle):
    """Return the stages that have quality numbers in a cycle."""
    stages = [*QC_STAGES]
    if DECONVOLVED:
        stages.append("deconvolve")
    if cycle in experiment.moving_cycles:
        stages.append("register")
    return stages


def quality_of_stages(suffix):
    return [
        layout.qc(stage, suffix).format(sample=sample, cycle=cycle)
        for sample in experiment.samples
        for cycle in experiment.cycles
        for stage in quality_stages(cycle)
    ]


def quality_files():
    return [layout.report, layout.qc_json, layout.qc_csv, layout.trusted_markers]
