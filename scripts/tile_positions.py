"""Find the positions of one cycle's tiles on the reference channel."""

from pathlib import Path

from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.results.illumination import read_illumination
from tilewright.runtime.files import scratch_folder
from tilewright.runtime.job import job_context
from tilewright.stages.tile_positions.locate import locate, write_located

reference = snakemake.params.reference_channel
illumination, _ = read_illumination(
    snakemake.input.flat, snakemake.input.dark, snakemake.input.numbers, reference
)
folder = Path(snakemake.output.positions).parent

with (
    job_context(snakemake.log, snakemake.threads, snakemake.resources) as backend,
    scratch_folder(folder) as scratch,
):
    located = locate(
        open_tiles(Path(snakemake.input.manifest), reference),
        illumination,
        backend=backend,
        scratch=scratch,
        **snakemake.params.options,
    )
    write_located(folder, located)
