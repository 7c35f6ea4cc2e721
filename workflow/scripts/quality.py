"""Judge one stage of one cycle."""

from pathlib import Path

from tilewright.report.quality import judge_stage
from tilewright.runtime.job import running

params = snakemake.params

with running(snakemake.log, snakemake.threads):
    judge_stage(
        params.stage,
        dict(snakemake.input.items()),
        Path(snakemake.output.numbers),
        Path(snakemake.output.picture),
        sample=snakemake.wildcards.sample,
        cycle=int(snakemake.wildcards.cycle),
        channels=params.channels,
        thresholds=params.thresholds,
        options=params.options,
    )
