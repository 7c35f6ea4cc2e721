"""Register one cycle to the reference cycle."""

from tilewright.runtime.job import job_context
from tilewright.stages.register.cycle import register

with job_context(snakemake.log, snakemake.threads, snakemake.resources) as backend:
    register(
        snakemake.input.reference,
        snakemake.input.moving,
        snakemake.output.transform,
        snakemake.output.numbers,
        backend=backend,
        **snakemake.params.options,
    )
