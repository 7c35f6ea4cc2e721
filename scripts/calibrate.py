"""Find tile positions, flat-fields and dark-fields of one cycle from one reading of its tiles."""

from pathlib import Path

from tilewright.io.inputs.tiles import open_scan
from tilewright.io.results.illumination import write_illumination
from tilewright.runtime.files import scratch_folder
from tilewright.runtime.job import job_context
from tilewright.stages.calibrate.cycle import CalibrationSettings, calibrate
from tilewright.stages.tile_positions.locate import write_located

params, files, output = snakemake.params, snakemake.input, snakemake.output
manifests = dict(zip(params.samples, files.manifest, strict=True))
none = [None] * len(params.channels)
given = [files.get(key) or none for key in ("flat_file", "dark_file")]
folder = Path(output.positions).parent

with (
    job_context(snakemake.log, snakemake.threads, snakemake.resources) as backend,
    scratch_folder(folder) as scratch,
):
    found = calibrate(
        [open_scan(manifests, channel) for channel in params.channels],
        list(params.channels).index(params.reference_channel),
        list(zip(*given, strict=True)),
        CalibrationSettings(**params.options),
        workers=backend.workers,
        scratch=scratch,
    )
    write_illumination(
        Path(output.numbers).with_suffix(""),
        dict(zip(params.channels, found.channels, strict=True)),
    )
    write_located(folder, found.located)
