"""Judge the deconvolved mosaics of one cycle."""

from pathlib import Path

from tilewright.report.qc_deconvolve import qc_deconvolve
from tilewright.runtime.job import running

with running(snakemake.log, snakemake.threads):
    qc_deconvolve(
        snakemake.input.stitched,
        snakemake.input.deconvolved,
        Path(snakemake.output.numbers),
        Path(snakemake.output.picture),
        sample=snakemake.wildcards.sample,
        cycle=int(snakemake.wildcards.cycle),
        channels=snakemake.params.channels,
        markers=snakemake.params.markers,
        thresholds=snakemake.params.thresholds,
    )
