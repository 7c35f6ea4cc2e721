import os
from pathlib import Path

from snakemake.logging import logger

from tilewright.devices.slurm_allocation import use_granted_device
from tilewright.config.config_file import read_config
from tilewright.config.load import load_experiment
from tilewright.config.layout import Layout
from tilewright.config.rules import STAGES
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_command
from tilewright.runtime.machine import (
    device_kinds,
    healthy_gpus,
    usable_gpus,
    write_evidence_to,
)
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.routing import in_slurm_job, set_up
from tilewright.config.checks import checked_experiment, data_sizes
from tilewright.errors import TilewrightError

try:
    if workflow.is_main_process:
        # Snakemake's own reading lets the last of two equal keys win.
        for path in workflow.configfiles:
            read_config(Path(path))
        experiment = checked_experiment(
            config, snakemake_command.targets(snakemake_command.command()[1:])
        )
    else:
        # Jobs trust the manifests that the main process checked: raw files are looked at once.
        experiment = load_experiment(config)
    layout = Layout(experiment.settings.results)
    in_job = in_slurm_job(workflow)
    if in_job:
        use_granted_device()
    # On a cluster the GPUs are those of its partitions.
    here = cluster.current() is None and not in_job
    kinds = device_kinds(
        experiment.settings,
        usable_gpus if here else None,
        os.environ if here else {},
    )
    write_evidence_to(layout.device_evidence)
    any_gpu = here and any("gpu" in able for able in kinds.values())
    plan = set_up(
        workflow,
        data_sizes(experiment, layout, kinds),
        ledger=layout.ledger,
        device=None if in_job else "gpu" if any_gpu else "cpu",
        gpus=healthy_gpus if any_gpu else None,
        logs=layout.logs,
    )
except (TilewrightError, PlacementError) as error:
    raise snakemake_command.SetUpError(str(error)) from None

routed = plan.routed
threads = plan.threads
# Raw images that are stitched already come in where tiles have become an in-focus plane.
STITCHED = experiment.settings.stitched
if (
    workflow.is_main_process
    and experiment.settings.edf.method == "auto"
    and not STITCHED
):
    logger.info(
        f"in-focus planes: method {experiment.settings.plane_method} (edf.method: auto)"
        + (
            "; stacks are deconvolved only for the target 'deconvolution'"
            if experiment.settings.plane_method == "multiplane_wiener"
            else ""
        )
    )

# Whether stacks can be deconvolved, and whether the in-focus plane is made of such.
DECONVOLVED = experiment.settings.deconvolves
PLANE_OF_DECONVOLVED = experiment.settings.plane_of_deconvolved
KEEPS_STACKS = experiment.settings.output.keep == "stacks"
STAGES_JUDGED = [
    stage
    for stage in (
        ("stitched", "register", "image")
        if STITCHED
        else [name for name in STAGES if name != "stitched"]
    )
    if stage != "deconvolve" or PLANE_OF_DECONVOLVED
]
# What reads a stack that is on the disk goes before what makes the next one.
AFTER_STITCH = 0 if KEEPS_STACKS else 2
PLANE = "{sample}_cycle{cycle}_channel{channel}"
CYCLE = "{sample}_cycle{cycle}"
# One job for all channels of a cycle where cycles have the same ones: they share the places of the
# tiles, and of 9 cycles of 4 channels 36 jobs become 9. A cycle added later may change which of
# both it is: parameters and inputs are the same either way, so that nothing is made again.
SHARED_CHANNELS = experiment.shared_channels
ILLUMINATION_WILDCARDS = CYCLE if SHARED_CHANNELS else PLANE


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


def illumination_outputs(template):
    """Return the outputs of one job: of all channels, or of the one that the wildcard tells."""
    return [
        template.replace("{channel}", name) for name in SHARED_CHANNELS or ["{channel}"]
    ]


def channels_of_cycle(wildcards):
    return [channel.channel for channel in experiment.channels_of(int(wildcards.cycle))]


def illumination_files(wildcards):
    """Return the flat-fields and dark-fields that the configuration names, one per channel."""
    found = [
        experiment.files("illumination", {**dict(wildcards.items()), "channel": name})
        for name in channels_of_cycle(wildcards)
    ]
    return {key: [files[key] for files in found] for key in found[0]}


def stack(template):
    """Return a rule's output: a stack, removed after its last reader unless it is to be kept."""
    return directory(template) if KEEPS_STACKS else temp(directory(template))


def stitch_priority(wildcards):
    """Return less for each later cycle, so that few cycles have stacks at once; 0 to 1."""
    if KEEPS_STACKS:
        return 0
    cycles = [(s, c) for s in experiment.samples for c in experiment.cycles]
    return 1 - cycles.index((wildcards.sample, int(wildcards.cycle))) / len(cycles)


def judged_stacks():
    """Return what must be judged of the stacks before they are gone."""
    return [
        layout.qc("stitch", "json").format(sample=sample, cycle=cycle)
        for sample in experiment.samples
        for cycle in experiment.cycles
        if not KEEPS_STACKS and not STITCHED
    ]


def of_cycle(template):
    """Return an input function: a template over the channels of the job's cycle."""
    return lambda wildcards: planes(template, [int(wildcards.cycle)], wildcards.sample)


def of_image_channels(template):
    """Return an input function: a template over the image's channels of the job's cycle."""
    return lambda wildcards: [
        template.format(**{**entry, "sample": wildcards.sample})
        for entry in experiment.image_table(int(wildcards.cycle))
    ]


def of_backgrounds(template, cycles=experiment.cycles):
    """Return an input function: a template over what is subtracted from those, of some cycles."""
    return lambda wildcards: [
        template.format(**{**entry["background"], "sample": wildcards.sample})
        for entry in experiment.image_table(int(wildcards.cycle))
        if "background" in entry and entry["background"]["cycle"] in cycles
    ]


def of_moving_cycle(template):
    """Return an input function: a template, nothing for the reference cycle."""
    return lambda wildcards: (
        template.format(**wildcards)
        if int(wildcards.cycle) in experiment.moving_cycles
        else []
    )


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


def quality_picture(stage):
    """Return a stage's picture of a cycle, as Snakemake's own report shows it."""
    return report(
        layout.qc(stage, "png"),
        caption="../report/quality.rst",
        category="{sample}",
        subcategory=STAGES[stage].title,
        labels={"cycle": "{cycle}"},
    )


def quality_of_stages(suffix):
    return [
        layout.qc(stage, suffix).format(sample=sample, cycle=cycle)
        for sample in experiment.samples
        for cycle in experiment.cycles
        for stage in STAGES_JUDGED
        if stage != "register" or cycle in experiment.moving_cycles
        # Of a cycle that was only a background the image may have nothing.
        if stage != "image" or cycle in experiment.image_cycles
    ]


def quality_files():
    return [layout.report, layout.qc_json, layout.qc_csv, layout.trusted_markers]
