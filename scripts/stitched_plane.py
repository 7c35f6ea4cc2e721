"""Store one channel of a stitched image as the plane that is registered."""

from tilewright.io.inputs.tiles import open_tiles
from tilewright.runtime.job import job_context
from tilewright.stages.stitch.stitched_plane import stitched_plane

with job_context(snakemake.log, snakemake.threads):
    stitched_plane(
        open_tiles(snakemake.input.manifest, snakemake.wildcards.channel),
        snakemake.output[0],
        voxel_um=tuple(snakemake.params.voxel_um),
        saturation_counts=snakemake.params.saturation_counts,
        **snakemake.params.output,
    )
