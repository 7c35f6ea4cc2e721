"""``tilewright export``: the registered images as other tools and archives want them."""

from __future__ import annotations

import csv
from pathlib import Path

import typer

from tilewright.commands.files import read_experiment
from tilewright.config.experiment import Channel, Experiment
from tilewright.config.layout import Layout
from tilewright.errors import ConfigError, ResultFileError
from tilewright.io.results.exports import CONSUMERS, ImageChannel, RegisteredImage
from tilewright.io.results.ome_zarr import open_image


def show_export(configfile: Path, to: str, output: Path, cells: str | None) -> None:
    """Export the image of every sample, and say what was written."""
    try:
        if to not in CONSUMERS:
            raise ConfigError(f"--to is {to!r}; give one of {', '.join(CONSUMERS)}")
        if cells is not None and to != "hubmap":
            raise ConfigError("--cells is for hubmap alone")
        experiment = read_experiment(configfile)
        results = Path(experiment.settings.results).resolve()
        if output.resolve() == results or results in output.resolve().parents:
            raise ConfigError(f"-o is {output}, in the results; give another folder")
        images = registered_images(experiment, cells)
        written = [path for image in images for path in CONSUMERS[to](image, output)]
    except (ConfigError, ResultFileError, OSError) as error:
        typer.echo(f"tilewright export: {error}", err=True)
        raise typer.Exit(2) from error
    for sample in sorted(set(experiment.samples) - {image.sample for image in images}):
        typer.echo(f"{sample} has no registered image yet and is left out", err=True)
    for path in written:
        typer.echo(path)


def registered_images(experiment: Experiment, cells: str | None = None) -> list[RegisteredImage]:
    """Return the images that are there.

    Parameters
    ----------
    cells : str, optional
        Marker by which cells may be segmented.

    Raises
    ------
    ConfigError
        No image is there, it is of other markers, or the marker is not known.
    """
    layout = Layout(experiment.settings.results)
    channels = experiment.image_channels
    markers = [channel.marker for channel in channels]
    if cells is not None and cells not in markers:
        raise ConfigError(f"--cells is {cells!r}; the markers are {', '.join(markers)}")
    order = {cycle: k for k, cycle in enumerate(sorted({c.cycle for c in channels}), 1)}
    verdicts = _verdicts(Path(layout.trusted_markers))
    found = []
    for sample in experiment.samples:
        tiff, zarr = (
            Path(path.format(sample=sample)) for path in (layout.image_tiff, layout.image_zarr)
        )
        if not (tiff.is_file() and zarr.is_dir()):
            continue
        if (names := list(open_image(zarr).channel_names)) != markers:
            raise ConfigError(
                f"{zarr} has the channels {', '.join(names)}, the table {', '.join(markers)}; "
                "run `snakemake registration` again"
            )
        handed_on = tuple(
            ImageChannel(
                channel.marker,
                order[channel.cycle],
                channel.emission_nm,
                channel.exposure_ms,
                channel.channel == experiment.reference_channel,
                channel.marker == cells,
                verdicts.get((sample, str(channel.cycle), channel.channel), ""),
                _still_to_subtract(experiment, channel),
            )
            for channel in channels
        )
        found.append(RegisteredImage(sample, tiff, zarr, handed_on))
    if not found:
        raise ConfigError(
            f"{layout.results} holds no registered image; run `snakemake registration` first"
        )
    return found


def _still_to_subtract(experiment: Experiment, channel: Channel) -> str:
    """Return the background that others may subtract: in the image, and still in the channel."""
    there = [other.marker for other in experiment.image_channels]
    done = experiment.background_of(channel) is not None
    return "" if done or channel.background not in there else str(channel.background)


def _verdicts(table: Path) -> dict[tuple[str, str, str], str]:
    """Return the verdict of each sample, cycle and channel; none without the table."""
    if not table.is_file():
        return {}
    with table.open(newline="", encoding="utf-8") as stream:
        return {
            (row["sample"], row["cycle"], row["channel"]): row["verdict"]
            for row in csv.DictReader(stream)
        }
