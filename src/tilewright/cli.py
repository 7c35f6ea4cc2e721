"""The command line: ``tilewright init`` and ``tilewright demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="From raw multiplexed-microscopy tiles to a registered, quality-checked image.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """Run one of the commands below; the image work itself is done by Snakemake."""


@app.command()
def init(
    raw_dir: Annotated[Path, typer.Argument(help="Folder of raw tiles.")],
    output: Annotated[Path, typer.Option(help="Folder to write the configuration to.")],
    force: Annotated[bool, typer.Option(help="Overwrite an existing configuration.")] = False,
) -> None:
    """Write a configuration and tables for a folder of raw tiles."""
    from tilewright.init import InitError, create_experiment

    try:
        result = create_experiment(raw_dir, output, force=force)
    except (InitError, OSError, ValueError) as error:
        raise SystemExit(f"tilewright init: {error}") from None
    typer.echo(result.summary())


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder to write the raw tiles to.")] = Path("demo"),
) -> None:
    """Make the raw tiles of the demo experiment: synthetic tissue with known truth."""
    from tilewright.phantom import make_phantom

    if (output / "raw").is_dir():
        typer.echo(f"{output / 'raw'} is there already")
        return
    make_phantom(output, seed=1)
    typer.echo(f"raw tiles: {output / 'raw'}")


if __name__ == "__main__":
    app()
