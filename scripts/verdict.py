"""Say which markers can be trusted; fail where the configuration wants that."""

from pathlib import Path

from tilewright.quality.summary import stop_on_failure, write_trusted_markers
from tilewright.runtime.job import job_context

with job_context(snakemake.log, snakemake.threads):
    items = write_trusted_markers(
        Path(snakemake.input.quality), snakemake.params.channels, Path(snakemake.output[0])
    )
    stop_on_failure(items, snakemake.params.on_fail)
