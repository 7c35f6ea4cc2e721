"""The command line: ``tilewright init``, ``demo`` and ``accounts``."""

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
def accounts(
    site: Annotated[
        Path | None, typer.Option(help="Site file: blocked accounts, partitions, job sizes.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Whose accounts; yours by default.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show your Slurm accounts: limits, use, and how many jobs fit."""
    import json as json_text
    import os
    import pwd

    import platformdirs
    from rich.console import Console

    from tilewright.accounts_table import as_json, print_survey
    from tilewright.placement.site import SiteError, read_site
    from tilewright.placement.survey import SurveyError, survey
    from tilewright.slurm.query import SlurmClient

    try:
        person = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
        client = SlurmClient(person.pw_name, platformdirs.user_cache_path("tilewright"))
        found = survey(client, person.pw_uid, read_site(site))
    except KeyError:
        raise SystemExit(f"tilewright accounts: there is no user {user}") from None
    except (SiteError, SurveyError) as error:
        raise SystemExit(f"tilewright accounts: {error}") from None
    if json:
        typer.echo(json_text.dumps(as_json(found), indent=2))
    else:
        print_survey(found, Console())


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
