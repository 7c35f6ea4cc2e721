"""Judge the stitched mosaics of one cycle."""

from pathlib import Path

from tilewright.report.qc_stitch import qc_stitch
from tilewright.runtime.job import running

with running(snakemake.log, snakemake.threads):
    qc_stitch(
        snakemake.input.mosaics,
        snakemake.input.flats,
        snakemake.input.darks,
        snakemake.input.manifest,
        snakemake.input.positions,
        Path(snakemake.output.numbers),
        Path(snakemake.output.picture),
        sample=snakemake.wildcards.sample,
        cycle=int(snakemake.wildcards.cycle),
        channels=snakemake.params.channels,
        markers=snakemake.params.markers,
        thresholds=snakemake.params.thresholds,
    )
