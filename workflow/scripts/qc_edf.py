"""Judge the in-focus planes of one cycle."""

from pathlib import Path

from tilewright.report.qc_edf import qc_edf
from tilewright.runtime.job import running

with running(snakemake.log, snakemake.threads):
    qc_edf(
        snakemake.input.planes,
        snakemake.input.heights,
        Path(snakemake.output.numbers),
        Path(snakemake.output.picture),
        sample=snakemake.wildcards.sample,
        cycle=int(snakemake.wildcards.cycle),
        channels=snakemake.params.channels,
        markers=snakemake.params.markers,
        thresholds=snakemake.params.thresholds,
    )
