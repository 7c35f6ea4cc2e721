"""Resample all channels of a sample into the reference cycle and write the final image."""

from tilewright.runtime.job import running
from tilewright.stages.assemble import assemble

transforms = dict(zip(snakemake.params.moving_cycles, snakemake.input.transforms, strict=True))
planes = [
    (c["marker"], c["cycle"], c["channel"], plane, transforms.get(c["cycle"]))
    for c, plane in zip(snakemake.params.channels, snakemake.input.planes, strict=True)
]
output = snakemake.params.output

with running(snakemake.log, snakemake.threads, snakemake.resources, snakemake.wildcards) as backend:
    assemble(
        planes,
        snakemake.output.tiff,
        snakemake.output.zarr,
        snakemake.output.markers,
        backend=backend,
        chunk_px=output["chunk_px"],
        compression=output["tiff_compression"],
        tile_px=output["tiff_tile_px"],
        ome_zarr_version=output["ome_zarr_version"],
    )
