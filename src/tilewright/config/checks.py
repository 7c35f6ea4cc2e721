"""Checks of the main process before the DAG is built: raw files, results folder, named files."""

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright import DeviceKind, refuse_second_run
from tilewright.config.consistency import check_experiment, check_separate, check_targets
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.load import parse_experiment
from tilewright.config.rules import DataSize, DataSizes
from tilewright.config.tables import Places, Sample, collect_errors, read_tiles
from tilewright.errors import ConfigError, RawDataError
from tilewright.io.inputs.manifest import build_manifest
from tilewright.io.inputs.placed_planes import TilePlace, TileRows
from tilewright.io.inputs.plane_table import Manifest, read_manifest

#: Least tile side: at 10 % overlap its strips are 6 px wide.
MIN_TILE_PX = 64
#: Mosaic area per tile, in areas of a tile, from which units must be wrong.
_SPREAD = 100
#: Size of the test file in the results folder.
_PROBE_B = 1 << 20
#: Sample and cycle to the manifest.
ManifestOf = Callable[[str, int], Manifest]


def checked_experiment(config: Mapping[str, Any], targets: Iterable[str]) -> Experiment:
    """Read an experiment and check all that it names, before any work starts.

    Raises
    ------
    ConfigError
        With everything that is wrong, as far as the configuration can be read.
    PlacementError
        A run of another working directory writes the same results.
    """
    experiment = parse_experiment(config)
    layout = Layout(experiment.settings.results)
    refuse_second_run(layout.ledger)
    checks = [
        partial(check_targets, experiment, targets),
        partial(check_experiment, experiment),
        partial(check_thresholds, experiment),
        partial(check_results, experiment),
    ]
    if experiment.channels:
        checks += [partial(check_raw, experiment, layout), partial(check_files, experiment, layout)]
    collect_errors(*checks)
    return experiment


def check_results(experiment: Experiment) -> None:
    """Check that the folder of results can be written to; it is made if need be.

    Raises
    ------
    ConfigError
        It cannot be made, or not be written to, or holds raw data or is among them.
    """
    folder = Path(experiment.settings.results)
    for sample in experiment.samples.values():
        check_separate(folder, sample.raw_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(_PROBE_B))
    except OSError as error:
        raise ConfigError(
            f"results is {folder}, which cannot be written to ({error.strerror}); free space or "
            "change its permissions, or name another folder"
        ) from None


def check_raw(experiment: Experiment, layout: Layout) -> None:
    """Check every raw file of every sample and write the manifests of planes.

    A manifest is written only where it changes, so its time stamp is that of the last change of
    the raw data; files that did not change since the last manifest are not opened again, and
    pixels are read only where a manifest is new.

    Raises
    ------
    ConfigError
        Planes are missing, truncated or of different shape, or their pixels cannot be used; the
        message names them.
    """
    channels = {
        cycle: [channel.channel for channel in experiment.channels_of(cycle)]
        for cycle in experiment.cycles
    }
    settings = experiment.settings
    places: Places = {}
    if settings.tiles is not None:
        pixel_um = settings.acquisition.pixel_um
        places = read_tiles(Path(settings.tiles), experiment.samples, pixel_um)
    check = partial(_check_sample, experiment, layout, channels, places)
    collect_errors(*(partial(check, sample) for sample in experiment.samples.values()))


def _check_sample(
    experiment: Experiment,
    layout: Layout,
    channels: Mapping[int, Sequence[str]],
    places: Places,
    sample: Sample,
) -> None:
    manifests = {
        cycle: Path(layout.manifest.format(sample=sample.name, cycle=cycle))
        for cycle in experiment.cycles
    }
    acquisition = experiment.acquisition_of(sample)
    try:
        build_manifest(
            sample.raw_dir,
            acquisition,
            channels,
            rows_of(experiment, sample, places),
            manifests,
            check_pixels=partial(_check_pixels, experiment, sample, channels),
            cache_key=(
                f"{experiment.settings.camera} {acquisition} "
                f"{sorted(experiment.reference_channels.items())} "
                f"{experiment.settings.tile_positions.max_shift_px}"
            ),
        )
    except RawDataError as error:
        raise ConfigError(f"sample '{sample.name}': {error}") from None
    except OSError as error:
        check_results(experiment)
        raise ConfigError(
            f"sample '{sample.name}': {error.filename} cannot be written ({error.strerror})"
        ) from None


def rows_of(experiment: Experiment, sample: Sample, places: Places) -> dict[int, TileRows]:
    """Return the rows of a sample by cycle, and the tiles of other samples of its folder."""
    if experiment.settings.stitched:
        return dict.fromkeys(experiment.cycles, TileRows([TilePlace("1", 0.0, 0.0)]))
    others = [name for name in experiment.samples_of_scan(sample.name) if name != sample.name]
    return {
        cycle: TileRows(
            places.get((sample.name, cycle), []),
            {place.tile for name in others for place in places.get((name, cycle), [])},
        )
        for cycle in experiment.cycles
    }


def _check_pixels(
    experiment: Experiment,
    sample: Sample,
    channels: Mapping[int, Sequence[str]],
    tables: Mapping[int, Manifest],
) -> list[str]:
    """Return what is wrong with the pixels of a sample; heavy imports only where they are new."""
    from tilewright.io.inputs.raw_pixels import pixel_problems

    for cycle, size in tables.items():
        spread = math.prod(size.mosaic_px) / math.prod(size.tile_px)
        if spread > _SPREAD * size.tiles:
            return [
                f"{size.tiles} tiles of cycle {cycle} are spread over {size.mosaic_px[0]} x "
                f"{size.mosaic_px[1]} px; correct acquisition.pixel_um, or y, x and unit in the "
                "tiles table; pieces of tissue far apart are samples of their own"
            ]
        if min(size.tile_px) < MIN_TILE_PX:
            return [
                f"tiles are {size.tile_px[0]} x {size.tile_px[1]} px; the overlaps of tiles of "
                f"less than {MIN_TILE_PX} px cannot be compared"
            ]
    problems = pixel_problems(
        tables,
        channels,
        str(sample.raw_dir.resolve()),
        reference_channels=experiment.reference_channels,
        stitched=experiment.settings.stitched,
        **experiment.options("camera", "offset_counts", "saturation_counts"),
    )
    if problems or experiment.settings.stitched:
        return problems
    found = [_stage_problem(experiment, sample, *item) for item in sorted(tables.items())]
    return [problem for problem in found if problem]


def _stage_problem(experiment: Experiment, sample: Sample, cycle: int, table: Manifest) -> str:
    """Return how overlaps contradict the positions of a cycle, "" where they do not."""
    from tilewright.io.inputs.tiles import tiles_of
    from tilewright.stages.tile_positions.stage_check import stage_problem

    raw_dir = str(sample.raw_dir.resolve())
    tiles = tiles_of(table, experiment.reference_channels[cycle], raw_dir)
    if tiles is None:
        return ""
    shift_px = experiment.settings.tile_positions.max_shift_px
    try:
        problem = stage_problem(tiles, max_shift_px=None if shift_px == "auto" else shift_px)
    except RawDataError as error:
        return str(error)
    return f"cycle {cycle}: {problem}" if problem else ""


def manifests(layout: Layout) -> ManifestOf:
    """Return a function from sample and cycle to the manifest, which is read once."""

    @cache
    def read(sample: str, cycle: int) -> Manifest:
        return read_manifest(layout.manifest.format(sample=sample, cycle=cycle))

    return read


def check_files(experiment: Experiment, layout: Layout) -> None:
    """Check the flat-fields, dark-fields and PSFs which the configuration names.

    Their content is compared with the raw data where the manifests exist (:func:`check_raw`).

    Raises
    ------
    ConfigError
        A file is absent or unusable.
    """
    problems, compared = dict[str, None](), set[Any]()
    manifest_of = manifests(layout)
    for section, sample, channel in product(
        ("illumination", "deconvolve"), experiment.samples, experiment.channels
    ):
        fields = {"sample": sample, "cycle": str(channel.cycle), "channel": channel.channel}
        if not (files := experiment.files(section, fields)):
            continue
        known = Path(layout.manifest.format(**fields)).is_file()
        manifest = manifest_of(sample, channel.cycle) if known else None
        size = (manifest.tile_px, manifest.depths[channel.channel]) if manifest else None
        if (of := (section, *files.items(), size)) not in compared:
            compared.add(of)
            problems |= dict.fromkeys(_file_problems(section, files, size, experiment.voxel_um))
    if problems:
        raise ConfigError(*problems)


def _file_problems(
    section: str,
    files: dict[str, str],
    size: tuple[tuple[int, int], int] | None,
    voxel_um: tuple[float, float, float],
) -> Iterator[str]:
    """Yield what is wrong with files of a channel; ``size`` is of its tiles, and its planes.

    Of unknown size only whether they exist.
    """
    from tilewright.io.inputs.psf_file import read_psf
    from tilewright.io.tiff.metadata import DAMAGE_ERRORS
    from tilewright.kernels.deconvolve.psf import measured_psf
    from tilewright.stages.illumination.estimate import read_files

    absent = {key: path for key, path in files.items() if not os.path.isfile(path)}  # noqa: PTH113
    for key, path in absent.items():
        yield f"{section}.{key} is {path[:200]}, which does not exist"
    if absent or not size:
        return
    tile_px, planes = size
    try:
        if "flat_file" in files:
            read_files(files["flat_file"], files.get("dark_file"), tile_px, 0.0)
        if "psf_file" in files:
            image, pitch_um = read_psf(files["psf_file"])
            measured_psf(image, pitch_um or voxel_um, voxel_um, 2 * planes - 1)
    except DAMAGE_ERRORS as error:
        names = " and ".join(f"{section}.{key} ({path})" for key, path in files.items())
        yield f"{names} cannot be used: {error}"


def check_thresholds(experiment: Experiment) -> None:
    """Check the limits of quality numbers.

    Raises
    ------
    ConfigError
        A metric is unknown, or its limits contradict each other.
    """
    from tilewright.quality.results import resolve_thresholds  # not imported by jobs

    resolve_thresholds(experiment.thresholds())


def data_size(
    experiment: Experiment, layout: Layout, manifest_of: ManifestOf
) -> Callable[[str | None], DataSize]:
    """Return a function from sample name to the size of its data.

    ``None`` stands for the largest sample, for jobs over all samples; ``manifest_of`` is of
    :func:`manifests`.
    """

    @cache
    def longest(sample: str) -> Manifest:
        # Cycles may have other grids: the longest manifest stands for all.
        def size_bytes(cycle: int) -> int:
            return Path(layout.manifest.format(sample=sample, cycle=cycle)).stat().st_size

        return manifest_of(sample, max(experiment.cycles, key=lambda c: (size_bytes(c), c)))

    @cache
    def size_of(sample: str | None) -> DataSize:
        if sample is None:
            return max((size_of(name) for name in experiment.samples), key=lambda s: s.mosaic_px)
        manifest = longest(sample)
        (height_px, width_px), tiles = manifest.tile_px, manifest.tiles
        return DataSize(
            tiles=tiles,
            planes=max(manifest.depths.values()),
            height_px=height_px,
            width_px=width_px,
            overlap=1.0 - math.sqrt(math.prod(manifest.mosaic_px) / (tiles * height_px * width_px)),
            cycles=len(experiment.cycles),
            channels=len(experiment.channels),
            scan_tiles=sum(longest(name).tiles for name in experiment.scan_of(sample)),
        )

    return size_of


def data_sizes(
    experiment: Experiment,
    size_of: Callable[[str | None], DataSize],
    kinds_of: Mapping[str, tuple[DeviceKind, ...]],
) -> DataSizes:
    """Return shapes and times of the rules on the experiment's data.

    ``size_of`` is of :func:`data_size`, ``kinds_of`` of
    :func:`tilewright.runtime.machine.device_kinds`.
    """
    limits = {rule: of.model_dump() for rule, of in experiment.settings.resources.items()}
    return DataSizes(size_of, kinds_of, limits)
