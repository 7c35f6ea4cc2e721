"""Project one mosaic z-stack onto its in-focus plane."""

from tilewright.runtime.job import job_context
from tilewright.stages.edf.plane import edf_plane

with job_context(snakemake.log, snakemake.threads, snakemake.resources) as backend:
    edf_plane(
        snakemake.input.mosaic,
        snakemake.output.plane,
        snakemake.output.height,
        backend=backend,
        method=snakemake.params.method,
        optics=snakemake.params.optics,
        psf_file=snakemake.input.get("psf_file"),
        ome_zarr_version=snakemake.params.output["ome_zarr_version"],
    )
