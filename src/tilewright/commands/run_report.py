"""``tilewright run-report``: where the jobs of any workflow ran, by the ledger of placement."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.report.html import write_run_report


def show_run_report(ledger: Path, output: Path) -> None:
    """Write the page, and say where it is."""
    try:
        write_run_report(ledger, output)
    except ValueError as error:
        raise SystemExit(f"tilewright run-report: {error}") from None
    typer.echo(f"report: {output}")
