"""Collect all quality items in one table."""

from pathlib import Path

from tilewright.job import running
from tilewright.report.summary import write_summary

with running(snakemake.log, snakemake.threads):
    write_summary(
        map(Path, snakemake.input), Path(snakemake.output.json), Path(snakemake.output.csv)
    )
