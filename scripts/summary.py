"""Collect all quality items in one table."""

from pathlib import Path

from tilewright.quality.summary import write_summary
from tilewright.runtime.job import job_context

with job_context(snakemake.log, snakemake.threads):
    write_summary(
        map(Path, snakemake.input),
        Path(snakemake.output.json),
        Path(snakemake.output.csv),
        channels=snakemake.params.channels,
        thresholds=snakemake.params.thresholds,
    )
