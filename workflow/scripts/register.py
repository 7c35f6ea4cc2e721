"""Register one cycle to the reference cycle."""

from pathlib import Path

from tilewright.runtime.job import running
from tilewright.stages.register import register

with running(snakemake.log, snakemake.threads, snakemake.resources, snakemake.wildcards) as backend:
    register(
        Path(snakemake.input.reference),
        Path(snakemake.input.moving),
        Path(snakemake.output.transform),
        Path(snakemake.output.numbers),
        backend=backend,
        **snakemake.params.options,
    )
