"""Estimate the flat-field and dark-field of the channels of one cycle."""

from pathlib import Path

from snakemake_scheduler_plugin_tilewright.runtime.files import scratch_beside
from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.results.illumination import write_illumination
from tilewright.runtime.job import running
from tilewright.stages.illumination.estimate import estimate_illumination
from tilewright.stages.tile_positions.locate import locate

params = snakemake.params
manifest = Path(snakemake.input.manifest)
# The job's own channel, or all of the cycle.
own = snakemake.wildcards.get("channel")
made = [own] if own else params.channels
given = {key: snakemake.input.get(key) for key in ("flat_file", "dark_file")}

with running(snakemake.log, snakemake.threads, snakemake.resources) as backend:
    with scratch_beside(Path(snakemake.output.numbers[0])) as scratch:
        located = locate(
            open_tiles(manifest, params.reference_channel),
            backend=backend,
            distortion="none",
            scratch=scratch,
            **params.positions,
        )
    for channel, numbers in zip(made, snakemake.output.numbers, strict=True):
        at = params.channels.index(channel)
        files = {key: paths and paths[at] for key, paths in given.items()}
        illumination, found = estimate_illumination(
            open_tiles(manifest, channel),
            located.positions,
            backend=backend,
            offset_counts=params.camera["offset_counts"],
            saturation_counts=params.camera["saturation_counts"],
            **{**params.options, **files},
        )
        write_illumination(Path(numbers).with_suffix(""), illumination, found)
