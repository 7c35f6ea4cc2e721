"""Fuse the tiles of one cycle and channel into a mosaic z-stack."""

from pathlib import Path

from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.results.illumination import read_illumination
from tilewright.io.results.positions import read_positions
from tilewright.runtime.job import job_context
from tilewright.stages.stitch.fuse import stitch

illumination, numbers = read_illumination(
    snakemake.input.flat,
    snakemake.input.dark,
    snakemake.input.numbers,
    snakemake.wildcards.channel,
)

with job_context(snakemake.log, snakemake.threads, snakemake.resources) as backend:
    stitch(
        open_tiles(snakemake.input.manifest, snakemake.wildcards.channel),
        read_positions(Path(snakemake.input.positions), snakemake.wildcards.sample),
        illumination,
        snakemake.output[0],
        backend=backend,
        voxel_um=tuple(snakemake.params.voxel_um),
        ome_zarr_version=snakemake.params.output["ome_zarr_version"],
        saturation_counts=numbers["saturation_counts"],
        defects=numbers["defects"],
        shift_px=tuple(snakemake.params.shift_px),
    )
