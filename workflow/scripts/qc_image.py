"""Judge the channels of one cycle in the final image."""

from pathlib import Path

from tilewright.report.qc_image import qc_image
from tilewright.runtime.job import running

with running(snakemake.log, snakemake.threads):
    qc_image(
        snakemake.input.zarr,
        snakemake.input.tiff,
        snakemake.input.mosaics,
        snakemake.input.get("transform"),
        Path(snakemake.output.numbers),
        Path(snakemake.output.picture),
        sample=snakemake.wildcards.sample,
        cycle=int(snakemake.wildcards.cycle),
        channels=snakemake.params.channels,
        markers=snakemake.params.markers,
        image_channels=snakemake.params.image_channels,
        thresholds=snakemake.params.thresholds,
    )
