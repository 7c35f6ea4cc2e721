"""Judge some stages of one cycle."""

from pathlib import Path

from tilewright.quality.evaluate import evaluate_stage
from tilewright.runtime.job import job_context

params, output = snakemake.params, snakemake.output

with job_context(snakemake.log, snakemake.threads):
    for stage in params.stages:
        evaluate_stage(
            stage,
            dict(snakemake.input.items()),
            Path(output[f"{stage}_json"]),
            Path(output[f"{stage}_png"]),
            sample=snakemake.wildcards.sample,
            cycle=int(snakemake.wildcards.cycle),
            channels=params.channels,
        )
