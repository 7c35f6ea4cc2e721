"""Resample the channels of a cycle into the reference cycle."""

from tilewright.runtime.job import job_context
from tilewright.stages.register.resample import resample
from tilewright.stages.register.subtract import Background

channels = snakemake.params.channels
planes = zip(channels, snakemake.input.planes, strict=True)
with_background = [c for c in channels if "background" in c]
transforms = iter(snakemake.input.background_transforms)
backgrounds = {}
for channel, plane in zip(with_background, snakemake.input.backgrounds, strict=True):
    b = channel["background"]
    moved = None if b["cycle"] == snakemake.params.reference_cycle else next(transforms)
    backgrounds[channel["marker"]] = Background(b["marker"], plane, moved, b["factor"])
with job_context(snakemake.log, snakemake.threads, snakemake.resources) as backend:
    resample(
        int(snakemake.wildcards.cycle),
        [(c["marker"], c["channel"], plane) for c, plane in planes],
        snakemake.input.get("transform") or None,
        snakemake.input.frame,
        snakemake.output.zarr,
        (snakemake.output.subtraction, snakemake.output.subtraction_json),
        backend=backend,
        ome_zarr_version=snakemake.params.output["ome_zarr_version"],
        backgrounds=backgrounds,
    )
