"""Judge the flat-fields of one cycle."""

from pathlib import Path

from tilewright.report.qc_illumination import qc_illumination
from tilewright.runtime.job import running

with running(snakemake.log, snakemake.threads):
    qc_illumination(
        snakemake.input.flats,
        snakemake.input.numbers,
        Path(snakemake.output.numbers),
        Path(snakemake.output.picture),
        sample=snakemake.wildcards.sample,
        cycle=int(snakemake.wildcards.cycle),
        channels=snakemake.params.channels,
        markers=snakemake.params.markers,
        thresholds=snakemake.params.thresholds,
    )
