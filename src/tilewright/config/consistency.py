"""Contradictions between keys of the configuration and rows of its tables."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tilewright.config.experiment import Experiment
from tilewright.config.rules import RULES
from tilewright.config.settings import Settings
from tilewright.errors import ConfigError
from tilewright.runtime.text import few, suggestion
from tilewright.stages.edf import METHODS


def check_experiment(experiment: Experiment) -> None:
    """Refuse keys and rows of tables that contradict each other.

    Raises
    ------
    ConfigError
        With all contradictions.
    """
    complete = replace(experiment, channels=experiment.table)
    problems = (
        *_references(complete), *_tile_keys(complete), *_optics(complete), *_backgrounds(complete),
        *check_keys(complete.settings), *_cycles(complete),
    )  # fmt: skip
    if problems:
        raise ConfigError(*problems)


def _cycles(experiment: Experiment) -> Iterator[str]:
    """Yield cycles to process that are not in the table."""
    selected = experiment.settings.cycles
    for cycle in () if selected == "auto" else selected:
        if cycle not in experiment.cycles:
            yield (
                f"cycles names cycle {cycle}, but {experiment.settings.markers} has the cycles "
                f"{', '.join(map(str, experiment.cycles))}"
            )


def _references(experiment: Experiment) -> Iterator[str]:
    """Yield cycles that keys name and the table lacks."""
    table = experiment.settings.markers
    if experiment.reference_cycle not in experiment.cycles:
        yield (
            f"acquisition.reference_cycle is {experiment.reference_cycle}, but {table} has the "
            f"cycles {', '.join(map(str, experiment.cycles))}"
        )
    for cycle in experiment.settings.registration.allow_unregistered:
        if cycle not in experiment.moving_cycles:
            yield (
                f"registration.allow_unregistered names cycle {cycle}; the cycles that are "
                f"registered are {', '.join(map(str, experiment.moving_cycles)) or 'none'}"
            )


#: Sections of stages that stitched images do not have.
_OF_TILES = ("illumination", "tile_positions", "deconvolve", "edf")


def _tile_keys(experiment: Experiment) -> Iterator[str]:
    """Yield keys of stages that stitched images do not have; ``method: none`` is accepted."""
    settings = experiment.settings
    if not settings.stitched:
        if settings.tiles is None:
            yield (
                "the key 'tiles' is missing: it names the table of tile positions, which "
                "`tilewright init` writes"
            )
        return
    if settings.tiles is not None:
        yield "tiles is set, but acquisition.convention is 'stitched': it has no effect; remove it"
    for section in _OF_TILES:
        for name, value in getattr(settings, section).model_dump(exclude_defaults=True).items():
            if value != "none":
                yield (
                    f"{section}.{name} is {value!r}, but acquisition.convention is 'stitched': "
                    "it has no effect; remove it"
                )


#: Targets that need tiles, and no reference cycle.
_TILE_TARGETS = ("stitching", "deconvolution", "edf")


def check_targets(experiment: Experiment, targets: Iterable[str]) -> None:
    """Refuse targets that stitched images, or the cycles to process, do not have.

    Raises
    ------
    ConfigError
        One of them is such.
    """
    targets = set(targets)
    of_tiles = [target for target in _TILE_TARGETS if target in targets]
    if experiment.settings.stitched and of_tiles:
        raise ConfigError(
            f"the target {of_tiles[0]} needs tiles, but acquisition.convention is 'stitched'; "
            "give the targets registration and qc"
        )
    registers = not targets or targets & {"all", "registration", "qc"}
    # Otherwise the reference cycle is not in the table, which check_experiment reports.
    selected = experiment.settings.cycles != "auto"
    if selected and experiment.reference_cycle not in experiment.cycles and registers:
        raise ConfigError(
            f"cycles lacks the reference cycle {experiment.reference_cycle}, on which the "
            "others are registered; add it"
            + ("" if experiment.settings.stitched else ", or give the target edf")
        )


def _optics(experiment: Experiment) -> Iterator[str]:
    """Yield optics that are missing for a computed PSF."""
    settings = experiment.settings
    if not settings.needs_psf:
        return
    missing = ["acquisition.z_step_um"] if settings.acquisition.z_step_um is None else []
    computed, at_surface = settings.deconvolve.psf_file is None, settings.optics.depth_um == 0
    missing += [
        f"optics.{key}"
        for key, value in settings.optics
        if computed and value is None and not (key == "sample_refractive_index" and at_surface)
    ]
    no_emission = [c.marker for c in experiment.channels if c.emission_nm is None]
    if computed and no_emission:
        missing.append(f"emission_nm of {few(no_emission)} in {settings.markers}")
    if missing:
        yield (
            f"the PSF cannot be computed without {', '.join(missing)}; fill it in, or set "
            "deconvolve.psf_file, or set deconvolve.method: none"
            + ("" if settings.edf.method in ("auto", "focus_weighted") else " and edf.method: auto")
        )
    aperture, index = settings.optics.numerical_aperture, settings.optics.immersion_refractive_index
    if aperture is not None and index is not None and aperture >= index:
        yield (
            f"optics.numerical_aperture {aperture} must be smaller than "
            f"optics.immersion_refractive_index {index}"
        )


def _backgrounds(experiment: Experiment) -> Iterator[str]:
    """Yield backgrounds that are unknown, have a background themselves, or lack exposure times."""
    table, channels = experiment.settings.markers, experiment.channels
    by_marker = {channel.marker: channel for channel in channels}
    for channel in channels:
        if channel.background is None:
            continue
        what = f"{table}: the background of '{channel.marker}' is '{channel.background}'"
        source = by_marker.get(channel.background)
        if source is None:
            hint = suggestion(channel.background, by_marker)
            yield f"{what}, which is not a marker of the table; {hint}"
            continue
        if source is channel:
            yield f"{what} itself; name another marker, or none"
        elif source.background is not None:
            yield (
                f"{what}, which has the background '{source.background}' itself; name a channel "
                "from which nothing is subtracted"
            )
        missing_exposure = [c.marker for c in (channel, source) if c.exposure_ms is None]
        if missing_exposure and experiment.settings.subtract.method == "exposure":
            yield (
                f"{what}, but the table has no exposure_ms of {' and '.join(missing_exposure)}; "
                "fill it in, or set subtract.method: regression"
            )
    for channel in channels:
        if channel.remove and channel.reference and channel.cycle == experiment.reference_cycle:
            yield (
                f"{table}: '{channel.marker}' is marked remove, but it is the reference channel "
                "of the reference cycle, in whose frame the image is; leave it in"
            )


def check_keys(settings: Settings) -> Iterator[str]:
    """Yield keys that need, or exclude, others."""
    illumination = settings.illumination
    if illumination.method == "file" and illumination.flat_file is None:
        yield (
            "illumination.method is 'file', but illumination.flat_file is not set; name the "
            "flat-field, with {sample}, {cycle} and {channel} where the file depends on them"
        )
    if illumination.method != "file" and (illumination.flat_file or illumination.dark_file):
        yield (
            f"illumination.flat_file and dark_file are used by method 'file' only, and "
            f"illumination.method is '{illumination.method}'; set method: file, or leave them out"
        )
    method = settings.plane_method
    if METHODS[method].deconvolved and settings.deconvolve.method == "none":
        yield (
            f"edf.method is '{method}', which needs deconvolved stacks, but "
            "deconvolve.method is 'none'; set edf.method: auto, or deconvolve"
        )
    for rule in settings.resources:
        if rule not in RULES:
            yield f"unknown rule 'resources.{rule}'; {suggestion(rule, sorted(RULES))}"


def check_separate(results: Path, raw_dir: Path) -> None:
    """Refuse results in a raw folder, or in one above it: raw data are never written to.

    Raises
    ------
    ConfigError
        One is in the other.
    """
    written, raw = results.resolve(), raw_dir.resolve()
    if written.is_relative_to(raw) or raw.is_relative_to(written):
        raise ConfigError(
            f"results go to {results}, and the raw folder is {raw_dir}: neither may be in the "
            "other; name a folder of results beside it"
        )
