from pathlib import Path

from snakemake.logging import logger

from tilewright.config.checks import checked_experiment, data_size, manifests
from tilewright.config.config_file import read_config, with_places
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment
from tilewright.config.rule_files import RuleFiles
from tilewright.config.rules import STAGES
from tilewright.errors import TilewrightError
from tilewright.resources import detect_placement
from tilewright.run_needs import run_warnings
from tilewright.runtime.provenance import keep_provenance
from snakemake_scheduler_plugin_tilewright import (
    PlacementError,
    SetUpError,
    command,
    targets,
)

try:
    placed = with_places(config, workflow.configfiles)
    if workflow.is_main_process:
        # Snakemake's own reading lets the last of two equal keys win.
        for path in workflow.configfiles:
            read_config(Path(path))
        # Writes `layout.manifest`, the rules' input that stands for the raw tiles: no rule makes it.
        experiment = checked_experiment(placed, targets(command()[1:]))
        keep_provenance(workflow, experiment.settings.results)
    else:
        # Jobs trust the manifests that the main process wrote: raw files are looked at once.
        experiment = load_experiment(placed)
    layout = Layout(experiment.settings.results)
    # The scheduler plugin finds it on the workflow object, also where this is a module.
    manifest_of = manifests(layout)
    size_of = data_size(experiment, layout, manifest_of)
    placement = detect_placement(workflow, experiment, layout, size_of)
    workflow.placement = placement
    if workflow.is_main_process:
        jobs = workflow.resource_settings.nodes or workflow.resource_settings.cores or 1
        here = not placement.on_cluster
        models = placement.models if here else None
        for sentence in run_warnings(
            experiment, layout, size_of, manifest_of, jobs, models
        ):
            logger.warning(sentence)
except (TilewrightError, PlacementError) as error:
    raise SetUpError(str(error)) from None

files = RuleFiles(experiment, layout)
threads = placement.threads
if (
    workflow.is_main_process
    and experiment.settings.edf.method == "auto"
    and not experiment.settings.stitched
):
    logger.info(
        f"in-focus planes: method {experiment.settings.plane_method} (edf.method: auto)"
        + (
            "; stacks are deconvolved only for the target 'deconvolution'"
            if experiment.settings.plane_method == "multiplane_wiener"
            else ""
        )
    )

PLANE_OF_DECONVOLVED = experiment.settings.plane_of_deconvolved
KEEPS_STACKS = experiment.settings.output.keep == "stacks"
# Rules that read a stack, and so let it be removed, go before the rule that makes the next stack.
AFTER_STITCH = 0 if KEEPS_STACKS else 2
PLANE = "{sample}_cycle{cycle}_channel{channel}"
CYCLE = "{sample}_cycle{cycle}"


wildcard_constraints:
    sample="[A-Za-z0-9_-]+",
    cycle=r"\d+",
    channel="[A-Za-z0-9-]+",


def resources_of(rule):
    """Return the resources of a rule: functions of a job, which Snakemake calls for each.

    Each of them asks `src/tilewright/config/rules.py`, as `mem_mb` does by
    `placement.request(rule, wildcards, attempt).mem_mb`. They state what a job needs; with
    `--executor tilewright` its place and device are chosen as it is sent.
    """
    return placement.resources(rule)


def stack(template):
    """Return a rule's output: a stack, removed after its last reader unless it is to be kept."""
    return directory(template) if KEEPS_STACKS else temp(directory(template))


def stitch_priority(wildcards):
    """Return less for each later cycle, so that few cycles have stacks at once; 0 to 1."""
    if KEEPS_STACKS:
        return 0
    cycles = [(s, c) for s in experiment.samples for c in experiment.cycles]
    return 1 - cycles.index((wildcards.sample, int(wildcards.cycle))) / len(cycles)


def quality_picture(stage):
    """Return a stage's picture of a cycle, as Snakemake's own report shows it."""
    return report(
        layout.qc(stage, "png"),
        caption="../report/quality.rst",
        category="{sample}",
        subcategory=STAGES[stage].title,
        labels={"cycle": "{cycle}"},
    )
