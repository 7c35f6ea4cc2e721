"""Write the report of all samples."""

from pathlib import Path

from tilewright.report.page.html import ReportInputs, write_report
from tilewright.runtime.job import job_context
from tilewright.runtime.provenance import software_versions

params = snakemake.params
# In the order of the rule's input.
shown = [(name, c["cycle"], c["channel"]) for name in params.samples for c in params.channels]

with job_context(snakemake.log, snakemake.threads):
    inputs = ReportInputs(
        quality_paths=[Path(path) for path in snakemake.input.numbers],
        picture_paths=[Path(path) for path in snakemake.input.pictures],
        images=dict(zip(params.samples, map(Path, snakemake.input.images), strict=True)),
        channels=params.channels,
        reference_cycle=params.reference_cycle,
        reference_channels=params.reference_channels,
        software=software_versions(),
        config_text=params.config,
        thresholds=params.thresholds,
        ledger=Path(params.ledger),
        waiting=params.waiting,
        planes=dict(zip(shown, map(Path, snakemake.input.planes), strict=True)),
    )
    write_report(inputs, Path(snakemake.output.html))
