"""Resample all channels of a sample into the reference cycle and write the final image."""

from pathlib import Path

from tilewright.runtime.job import running
from tilewright.stages.register.assemble import assemble
from tilewright.stages.register.subtract import Background

channels, output = snakemake.params.channels, snakemake.params.output
transforms = dict(zip(snakemake.params.moving_cycles, snakemake.input.transforms, strict=True))
files = {
    (c["cycle"], c["channel"]): (plane, transforms.get(c["cycle"]))
    for c, plane in zip(channels, snakemake.input.planes, strict=True)
}
kept = [(c, files[c["cycle"], c["channel"]]) for c in channels if not c.get("remove")]
backgrounds = {
    c["marker"]: Background(b["marker"], *files[b["cycle"], b["channel"]], b["factor"])
    for c, _ in kept
    if (b := c.get("background"))
}
npz, json = snakemake.output.subtraction, snakemake.output.subtraction_json
if not backgrounds:  # what an earlier image said
    for suffix in (".npz", ".json"):
        Path(snakemake.output.markers).with_name(f"subtraction{suffix}").unlink(missing_ok=True)

with running(snakemake.log, snakemake.threads, snakemake.resources, snakemake.wildcards) as backend:
    assemble(
        [(c["marker"], c["cycle"], c["channel"], *own) for c, own in kept],
        snakemake.output.tiff,
        snakemake.output.zarr,
        snakemake.output.markers,
        backend=backend,
        chunk_px=output["chunk_px"],
        compression=output["tiff_compression"],
        tile_px=output["tiff_tile_px"],
        ome_zarr_version=output["ome_zarr_version"],
        backgrounds=backgrounds,
        subtraction=(npz, json) if backgrounds else None,
    )
