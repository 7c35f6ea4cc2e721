"""Say which markers can be trusted; fail where the configuration wants that."""

import sys
from pathlib import Path

from tilewright.quality.summary import stop_on_failure, verdict_line, write_trusted_markers
from tilewright.runtime.job import job_context

with job_context(snakemake.log, snakemake.threads):
    table = Path(snakemake.output[0])
    items, rows = write_trusted_markers(
        Path(snakemake.input.quality), snakemake.params.channels, table
    )
    # On the terminal, not in the log: Snakemake calls no ``onsuccess`` of a module.
    line = verdict_line(rows, table, Path(snakemake.input.report))
    sys.__stderr__.write(f"{line}\n")
    stop_on_failure(items, snakemake.params.on_fail)
