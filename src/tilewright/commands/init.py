"""``tilewright init``: a configuration and tables for a folder of raw tiles."""

from __future__ import annotations

from pathlib import Path

import typer

from snakemake_scheduler_plugin_tilewright.runtime.words import printable
from tilewright.errors import ConfigError
from tilewright.init.folder import create_experiment


def show_init(raw_dir: Path, output: Path, *, force: bool) -> None:
    """Write them, and print what was recognised and what to fill in."""
    try:
        result = create_experiment(raw_dir, output, force=force)
    except (ConfigError, OSError, ValueError) as error:
        raise SystemExit(f"tilewright init: {printable(error)}") from None
    typer.echo(result.summary())
