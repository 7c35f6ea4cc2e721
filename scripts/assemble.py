"""Write the final image of a sample from its registered cycles."""

from tilewright.runtime.job import job_context
from tilewright.stages.register.assemble import assemble

output = snakemake.params.output
with job_context(snakemake.log, snakemake.threads):
    assemble(
        list(zip(snakemake.params.cycles, snakemake.input, strict=True)),
        snakemake.output.tiff,
        snakemake.output.zarr,
        snakemake.output.markers,
        compression=output["tiff_compression"],
        tile_px=output["tiff_tile_px"],
        workers=snakemake.threads,
        names=snakemake.params.names,
    )
