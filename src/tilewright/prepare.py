"""What the main process does before the DAG: check raw files, size the jobs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path

from tilewright.experiment import ConfigError, Experiment
from tilewright.io.manifest import RawDataError, build_manifest
from tilewright.layout import Layout
from tilewright.placement.resources import DataSizes
from tilewright.placement.shapes import DataSize, ShapeModel
from tilewright.placement.workload import Kind
from tilewright.report.verdict import resolve_thresholds


def check_raw(experiment: Experiment, layout: Layout) -> None:
    """Check every raw file of every sample and write the manifests of planes.

    A manifest is written only where it changes, so its time stamp says when the raw data
    last changed; files that the last manifest knows unchanged are not opened again.

    Raises
    ------
    ConfigError
        Planes are missing, truncated or of different shape; the message names them.
    """
    wanted: dict[int, list[str]] = {}
    for channel in experiment.channels:
        wanted.setdefault(channel.cycle, []).append(channel.channel)
    for sample in experiment.samples.values():
        manifests = {
            cycle: Path(layout.manifest.format(sample=sample.name, cycle=cycle))
            for cycle in experiment.cycles
        }
        try:
            build_manifest(sample.raw_dir, sample.acquisition.model_dump(), wanted, manifests)
        except RawDataError as error:
            raise ConfigError(f"sample '{sample.name}': {error}") from None


def check_files(experiment: Experiment) -> None:
    """Check that the flat-fields, dark-fields and PSFs which the configuration names exist.

    Raises
    ------
    ConfigError
        A file is absent, or its template has an unknown field.
    """
    for section in ("illumination", "deconvolve"):
        for sample, channel in product(experiment.samples, experiment.channels):
            fields = {"sample": sample, "cycle": str(channel.cycle), "channel": channel.channel}
            try:
                files = experiment.files(section, fields)
            except (KeyError, ValueError) as error:
                raise ConfigError(
                    f"a file of section '{section}' has the field {error}; known are "
                    "{sample}, {cycle} and {channel}"
                ) from None
            for key, path in files.items():
                if not Path(path).is_file():
                    raise ConfigError(f"{section}.{key} is {path}, which does not exist")


def check_thresholds(experiment: Experiment) -> None:
    """Check the limits of quality numbers.

    Raises
    ------
    ConfigError
        A metric is unknown, or its limits contradict each other.
    """
    try:
        resolve_thresholds(experiment.thresholds())
    except ValueError as error:
        raise ConfigError(str(error)) from None


def data_size(experiment: Experiment, layout: Layout) -> Callable[[str | None], DataSize]:
    """Return a function from sample name to the size of its data.

    ``None`` asks for the largest sample: what a job over all samples must be ready for.
    """

    @cache
    def size_of(sample: str | None) -> DataSize:
        if sample is None:
            return max((size_of(name) for name in experiment.samples), key=lambda s: s.mosaic_px)
        path = Path(layout.manifest.format(sample=sample, cycle=experiment.reference_cycle))
        tiles, planes = set(), set()
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                tiles.add((row["row"], row["col"]))
                planes.add(row["z"])
                height_px, width_px = int(row["height_px"]), int(row["width_px"])
        return DataSize(
            tiles=len(tiles),
            planes=len(planes),
            height_px=height_px,
            width_px=width_px,
            overlap=experiment.samples[sample].acquisition.overlap,
            cycles=len(experiment.cycles),
            channels=len(experiment.channels),
        )

    return size_of


def data_sizes(
    experiment: Experiment, layout: Layout, kinds_of: Mapping[str, tuple[Kind, ...]]
) -> DataSizes:
    """Return shapes and times of the rules on the experiment's data.

    Parameters
    ----------
    experiment : Experiment
    layout : Layout
    kinds_of : mapping
        As :func:`tilewright.machine.device_kinds` returns them.
    """
    return DataSizes(shape_model(experiment), data_size(experiment, layout), kinds_of)


def shape_model(experiment: Experiment) -> ShapeModel:
    """Return the shapes of all rules under the experiment's settings."""
    settings = experiment.settings
    return ShapeModel(
        chunk_px=settings.output.chunk_px,
        tile_px=settings.deconvolve.tile_px,
        halo_px=settings.deconvolve.halo_px,
        overrides={rule: own.model_dump() for rule, own in settings.resources.items()},
    )
