"""The command line; ``tilewright-placement`` has the commands for jobs on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tilewright.init.tile_set import GridOptions

app = typer.Typer(
    help="From raw multiplexed-microscopy tiles to a registered, quality-checked image.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def init(
    output: Annotated[Path, typer.Option(help="Folder to write the configuration to.")],
    raw_dir: Annotated[
        Path | None, typer.Argument(help="Folder of raw tiles; with --add not needed.")
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Write existing files again; the old ones become NAME~.")
    ] = False,
    add: Annotated[
        bool, typer.Option(help="Add the cycles and tiles that the tables lack.")
    ] = False,
    pattern: Annotated[
        str | None, typer.Option(help="File names, such as 'r{cycle}_t{tile}_c{channel}.tif'.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of the tile grid.")] = None,
    cols: Annotated[int | None, typer.Option(min=1, help="Columns of the tile grid.")] = None,
    layout: Annotated[
        str | None, typer.Option(help="Order of tile numbers, such as snake_right_down.")
    ] = None,
    overlap: Annotated[
        float | None, typer.Option(min=0, max=0.9, help="Overlap, as a fraction of a tile.")
    ] = None,
) -> None:
    """Write a configuration and tables for a folder of raw tiles.

    Positions of tiles come from the files or their overlaps; options say what these do not show.
    """
    from tilewright.init.add import add_new
    from tilewright.init.folder import create_experiment
    from tilewright.init.tile_set import GridOptions
    from tilewright.runtime.text import printable

    grid = GridOptions(rows, cols, layout, overlap)
    given = {"RAW_DIR": raw_dir, "--force": force, "--pattern": pattern}
    try:
        if wrong := _wrong_options(grid, [k for k, value in given.items() if value], add):
            raise ValueError(wrong)
        if raw_dir is None:
            typer.echo(add_new(output / "config.yaml", grid))
            return
        result = create_experiment(raw_dir, output, force=force, grid=grid, pattern=pattern)
    except (OSError, ValueError) as error:
        raise SystemExit(f"tilewright init: {printable(error)}") from None
    typer.echo(result.summary())


def _wrong_options(grid: GridOptions, given: list[str], add: bool) -> str:
    """Return which options of ``init`` are wrong or exclude each other, "" where none does."""
    from tilewright.kernels.tile_positions.tile_order import LAYOUTS

    if grid.layout not in (None, *LAYOUTS):
        return f"--layout: choose one of {', '.join(LAYOUTS)}"
    if (grid.rows is None) != (grid.cols is None):
        return "give --rows and --cols together"
    if add and given:
        rule = "--add reads the folders of samples.tsv as config.yaml says"
        return f"{rule}; leave out {', '.join(given)}"
    return "" if add or "RAW_DIR" in given else "name the folder of raw tiles"


@app.command()
def verify(
    results: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, help="Results, named as the config does."),
    ],
) -> None:
    """Compare each file of results with its checksum; status 1 if one is damaged or missing."""
    from tilewright.commands.verify import verify as verify_results

    verify_results(results)


@app.command()
def devices(
    clear: Annotated[
        str | None, typer.Option(help="Let jobs use the device with this UUID again.")
    ] = None,
) -> None:
    """Show this machine's GPUs: memory, jobs, and which get none."""
    from tilewright.commands.devices import show_devices

    show_devices(clear)


@app.command()
def follow(
    configfile: Annotated[Path, typer.Option(help="Configuration of the experiment.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            help="Options for snakemake, after --: -- --workflow-profile profiles/slurm"
        ),
    ] = None,
    quiet_min: Annotated[
        float,
        typer.Option(min=0.01, help="Minutes without change after which files count as written."),
    ] = 5.0,
    notify: Annotated[
        str, typer.Option(help="Command that gets warnings and failures as its last argument.")
    ] = "",
    snakefile: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Snakefile of the workflow.")
    ] = None,
) -> None:
    """Process and check each cycle while the microscope works on the next."""
    from tilewright.follow import show_follow

    show_follow(configfile, options or [], 60 * quiet_min, notify, snakefile or Path("Snakefile"))


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder to write the raw tiles to.")] = Path("demo"),
) -> None:
    """Make the raw tiles of the demo experiment: synthetic tissue."""
    from tilewright.phantom.make import make_phantom

    raw = output / "raw"
    if raw.is_dir():
        typer.echo(f"{raw} exists")
    else:
        make_phantom(output, seed=1)
        typer.echo(f"raw tiles: {raw}")
    typer.echo(f"a configuration for them: tilewright init {raw} --output my")


if __name__ == "__main__":
    app()
