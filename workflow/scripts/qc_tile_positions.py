"""Judge the tile positions of one cycle."""

from pathlib import Path

from tilewright.report.qc_tile_positions import qc_tile_positions
from tilewright.runtime.job import running

with running(snakemake.log, snakemake.threads):
    qc_tile_positions(
        snakemake.input.positions,
        snakemake.input.edges,
        Path(snakemake.output.numbers),
        Path(snakemake.output.picture),
        sample=snakemake.wildcards.sample,
        cycle=int(snakemake.wildcards.cycle),
        thresholds=snakemake.params.thresholds,
    )
