"""Judge the registration of one cycle."""

from pathlib import Path

from tilewright.report.qc_register import qc_register
from tilewright.runtime.job import running

with running(snakemake.log, snakemake.threads):
    qc_register(
        snakemake.input.reference,
        snakemake.input.moving,
        snakemake.input.transform,
        Path(snakemake.output.numbers),
        Path(snakemake.output.picture),
        sample=snakemake.wildcards.sample,
        cycle=int(snakemake.wildcards.cycle),
        thresholds=snakemake.params.thresholds,
    )
