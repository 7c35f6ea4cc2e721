"""Estimate the flat-field and dark-field of the channels of one cycle."""

from pathlib import Path

from tilewright.io.inputs.tiles import open_scan
from tilewright.io.results.illumination import write_illumination
from tilewright.runtime.files import scratch_folder
from tilewright.runtime.job import job_context
from tilewright.stages.illumination.estimate import estimate_channels
from tilewright.stages.tile_positions.locate import locate

params = snakemake.params
manifests = [Path(path) for path in snakemake.input.manifest]
# The job's own channel, or all of the cycle.
own = snakemake.wildcards.get("channel")
wanted = [params.channels.index(own)] if own else range(len(params.channels))
given = [snakemake.input.get(key) for key in ("flat_file", "dark_file")]

with job_context(snakemake.log, snakemake.threads, snakemake.resources) as backend:
    with scratch_folder(Path(snakemake.output.numbers[0])) as scratch:
        located = locate(
            open_scan(manifests, params.reference_channel),
            backend=backend,
            distortion="none",
            scratch=scratch,
            **params.positions,
        )
    # Channels that another job makes tell the camera's offset here too.
    found = estimate_channels(
        [open_scan(manifests, channel) for channel in params.channels],
        wanted,
        located.positions,
        [tuple(paths and paths[k] for paths in given) for k in wanted],
        backend=backend,
        offset_counts=params.camera["offset_counts"],
        saturation_counts=params.camera["saturation_counts"],
        **params.options,
    )
    for numbers, one in zip(snakemake.output.numbers, found, strict=True):
        write_illumination(Path(numbers).with_suffix(""), *one)
