"""``tilewright run-report``: where the jobs of any workflow ran."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.report.html import write_run_report


def make_run_report(ledger: Path, output: Path) -> None:
    """Write the page of a ledger's runs and name it."""
    try:
        write_run_report(ledger, output)
    except ValueError as error:
        raise SystemExit(f"tilewright run-report: {error}") from None
    typer.echo(f"report: {output}")
