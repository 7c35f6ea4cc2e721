"""``tilewright demo``: the raw tiles of the demo experiment."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.phantom.make import make_phantom


def make_demo(output: Path) -> None:
    """Make them, unless they exist."""
    if (output / "raw").is_dir():
        typer.echo(f"{output / 'raw'} exists")
    else:
        make_phantom(output, seed=1)
        typer.echo(f"raw tiles: {output / 'raw'}")
    typer.echo(f"a configuration for them: tilewright init {output / 'raw'} --output my")
