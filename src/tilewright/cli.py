"""The command line: a thin list of commands; each has its logic in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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
    from tilewright.init.folder import InitError, create_experiment

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

    from tilewright.commands.accounts_table import as_json, print_survey
    from tilewright.placement.site import SiteError, read_site
    from tilewright.placement.survey import SurveyError, survey
    from tilewright.slurm.query import SlurmClient

    if not _slurm_wanted(site):
        raise SystemExit("tilewright accounts: no Slurm here: jobs run on this machine")
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
def plan(
    configfile: Annotated[Path, typer.Option(help="Configuration of the experiment.")],
    site: Annotated[Path | None, typer.Option(help="Site file of your profile.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Target, once for each; the default target without.")
    ] = None,
    snakefile: Annotated[Path | None, typer.Option(help="Snakefile of the workflow.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which jobs remain, where they would go now, and when they would be done."""
    import json as json_text

    from rich.console import Console

    from tilewright.commands.dag import DagError
    from tilewright.commands.plan import preview
    from tilewright.commands.plan_table import print_preview
    from tilewright.config.experiment import ConfigError
    from tilewright.placement.errors import PlacementError
    from tilewright.placement.site import SiteError
    from tilewright.placement.survey import SurveyError

    try:
        found = preview(
            configfile, target or (), site=site, snakefile=snakefile, slurm=_slurm_wanted(site)
        )
    except (ConfigError, DagError, PlacementError, SiteError, SurveyError) as error:
        raise SystemExit(f"tilewright plan: {error}") from None
    if json:
        typer.echo(json_text.dumps(found.as_json(), indent=2))
    else:
        print_preview(found, Console())


@app.command()
def doctor(
    configfile: Annotated[
        Path | None, typer.Option(help="Configuration of the experiment; looked at too if given.")
    ] = None,
    site: Annotated[Path | None, typer.Option(help="Site file of your profile.")] = None,
    snakefile: Annotated[Path | None, typer.Option(help="Snakefile of the workflow.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look for everything that would make a run fail; status 1 if something would."""
    import json as json_text

    from rich.console import Console

    from tilewright.commands.doctor import as_json, examine, print_checks

    checks = examine(configfile, site=site, snakefile=snakefile, slurm=_slurm_wanted(site))
    if json:
        typer.echo(json_text.dumps(as_json(checks), indent=2))
    else:
        print_checks(checks, Console())
    raise SystemExit(int(any(check.state == "problem" for check in checks)))


@app.command()
def stale(
    wait: Annotated[bool, typer.Option("--wait", help="Wait until they have ended.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel them.")] = False,
) -> None:
    """List jobs of a killed run that still write into this folder; status 1 if there are some."""
    from tilewright.commands.stale import stale as look
    from tilewright.placement.cluster import own_client
    from tilewright.placement.errors import PlacementError

    if wait and cancel:
        raise SystemExit("tilewright stale: give --wait or --cancel, not both")
    if not _slurm_wanted(None):
        typer.echo("no Slurm here, so no job of an earlier run is left")
        return
    choice: Literal["list", "wait", "cancel"] = "cancel" if cancel else "wait" if wait else "list"
    try:
        left = look(own_client(), str(Path.cwd()), choice, typer.echo)
    except PlacementError as error:
        raise SystemExit(f"tilewright stale: {error}") from None
    raise SystemExit(min(left, 1))


@app.command()
def devices(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 2 s.")] = False,
    clear: Annotated[
        str | None, typer.Option(help="End the quarantine of the device with this UUID.")
    ] = None,
    configfile: Annotated[
        Path | None, typer.Option(help="Also say how many jobs of each rule fit.")
    ] = None,
) -> None:
    """Show this machine's GPUs: memory, who holds them, and which get no jobs."""
    import json as json_text

    from rich.console import Console

    from tilewright.commands.device_leases import holders, memory_of_jobs
    from tilewright.commands.devices import DevicesError, as_json, clear_device, look, repeat
    from tilewright.commands.devices_table import print_view
    from tilewright.config.experiment import ConfigError
    from tilewright.devices.budget import RESERVE_B
    from tilewright.devices.health import HealthError
    from tilewright.devices.lease_queue import LeaseRootError, lease_root

    console = Console()

    def show() -> None:
        view = look(root, holders=holders(root), job_b=job_b, reserve_b=RESERVE_B)
        if json:
            typer.echo(json_text.dumps(as_json(view), indent=None if watch else 2))
            return
        if watch:
            console.clear()
        print_view(view, console)

    try:
        root = lease_root()
        job_b = memory_of_jobs(configfile) if configfile else {}
        if clear is not None:
            typer.echo(clear_device(root, clear))
        elif watch:
            repeat(show)
        else:
            show()
    except (ConfigError, DevicesError, HealthError, LeaseRootError) as error:
        raise SystemExit(f"tilewright devices: {error}") from None


def _slurm_wanted(site: Path | None) -> bool:
    """Return whether there is Slurm on this machine, or a site file says that there should be."""
    import os
    import shutil

    from tilewright.slurm.query import Unknown, run_command

    if site or os.environ.get("TILEWRIGHT_SITE"):
        return True
    if not shutil.which("sbatch"):
        return False
    # Slurm's commands alone, which name no cluster; one that is down is another matter
    said = run_command(["scontrol", "ping"])
    signs = ("DNS SRV lookup failed", "configuration source")
    return not (isinstance(said, Unknown) and any(sign in said.reason for sign in signs))


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder to write the raw tiles to.")] = Path("demo"),
) -> None:
    """Make the raw tiles of the demo experiment: synthetic tissue with known truth."""
    from tilewright.phantom.make import make_phantom

    if (output / "raw").is_dir():
        typer.echo(f"{output / 'raw'} is there already")
        return
    make_phantom(output, seed=1)
    typer.echo(f"raw tiles: {output / 'raw'}")


if __name__ == "__main__":
    app()
