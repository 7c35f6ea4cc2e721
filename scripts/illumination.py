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
given = [
    snakemake.input.get(key) or [None] * len(params.channels) for key in ("flat_file", "dark_file")
]

with job_context(snakemake.log, snakemake.threads, snakemake.resources) as backend:
    with scratch_folder(Path(snakemake.output.numbers)) as scratch:
        located = locate(
            open_scan(manifests, params.reference_channel),
            backend=backend,
            scratch=scratch,
            **params.positions,
        )
    found = estimate_channels(
        [open_scan(manifests, channel) for channel in params.channels],
        located.positions,
        list(zip(*given, strict=True)),
        backend=backend,
        offset_counts=params.camera["offset_counts"],
        saturation_counts=params.camera["saturation_counts"],
        **params.options,
    )
    write_illumination(
        Path(snakemake.output.numbers).with_suffix(""),
        dict(zip(params.channels, found, strict=True)),
    )
