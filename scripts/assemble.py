"""Write the final image of a sample from its registered cycles."""

from tilewright.runtime.job import job_context
from tilewright.stages.register.assemble import assemble

with job_context(snakemake.log, snakemake.threads):
    assemble(
        list(zip(snakemake.params.cycles, snakemake.input, strict=True)),
        snakemake.output.tiff,
        snakemake.output.zarr,
        snakemake.output.markers,
        workers=snakemake.threads,
        names=snakemake.params.names,
    )
