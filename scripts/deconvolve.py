"""Deconvolve one mosaic z-stack."""

from tilewright.runtime.job import job_context
from tilewright.stages.deconvolve.stack import deconvolve

options = {**snakemake.params.options, "psf_file": snakemake.input.get("psf_file")}

with job_context(snakemake.log, snakemake.threads, snakemake.resources) as backend:
    deconvolve(
        snakemake.input.mosaic,
        snakemake.output.mosaic,
        backend=backend,
        optics=snakemake.params.optics,
        ome_zarr_version=snakemake.params.output["ome_zarr_version"],
        **options,
    )
