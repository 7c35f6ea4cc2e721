"""The configuration and its two tables as one typed experiment.

This is the only reader of the configuration dictionary. Every problem is found before
the DAG is built and said in one sentence that names the key or file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import ValidationError

from tilewright.config.config_file import read_config
from tilewright.config.rules import RULES
from tilewright.config.settings import Settings, suggestion
from tilewright.config.tables import (
    Channel,
    Sample,
    collect_errors,
    cycles_text,
    key_of,
    problem_sentence,
    read_markers,
    read_samples,
)
from tilewright.errors import ConfigError

__all__ = ["Channel", "ConfigError", "Experiment", "Sample", "load_experiment", "read_config"]


@dataclass(frozen=True)
class Experiment:
    """A validated experiment.

    Attributes
    ----------
    settings : Settings
        The configuration.
    samples : dict of str to Sample
        In table order.
    channels : tuple of Channel
        Those of the cycles to process, ordered by cycle, then by table order.
    table : tuple of Channel
        The whole markers table in that order.
    """

    settings: Settings
    samples: dict[str, Sample]
    channels: tuple[Channel, ...]
    table: tuple[Channel, ...]

    @cached_property
    def cycles(self) -> tuple[int, ...]:
        """The cycles to process, ascending."""
        return tuple(sorted({channel.cycle for channel in self.channels}))

    @property
    def waiting_cycles(self) -> list[int]:
        """The cycles of the markers table that are not processed."""
        return sorted({channel.cycle for channel in self.table} - set(self.cycles))

    @property
    def first_cycle(self) -> int:
        """The cycle that stands for all where sizes are asked: the reference, if it is there."""
        return min(self.cycles, key=lambda cycle: (cycle != self.reference_cycle, cycle))

    def of_cycles(self, cycles: Iterable[int]) -> Experiment:
        """Return the same experiment with some cycles of the markers table alone."""
        wanted = set(cycles)
        return replace(self, channels=tuple(c for c in self.table if c.cycle in wanted))

    @property
    def reference_cycle(self) -> int:
        """The cycle onto which the others are registered."""
        return self.settings.acquisition.reference_cycle

    @property
    def reference_channel(self) -> str:
        """The channel (usually nuclei) that every cycle has."""
        return self.settings.acquisition.reference_channel

    @property
    def moving_cycles(self) -> tuple[int, ...]:
        """The cycles to register: all but the reference."""
        return tuple(cycle for cycle in self.cycles if cycle != self.reference_cycle)

    def channels_of(self, cycle: int) -> tuple[Channel, ...]:
        """Return the channels of one cycle."""
        return tuple(channel for channel in self.channels if channel.cycle == cycle)

    @property
    def channels_of_every_cycle(self) -> tuple[str, ...]:
        """Channel tokens of each cycle where all of the table have the same ones, else none."""
        kinds: dict[int, list[str]] = {}
        for channel in self.table:
            kinds.setdefault(channel.cycle, []).append(channel.channel)
        found = {tuple(tokens) for tokens in kinds.values()}
        return found.pop() if len(found) == 1 else ()

    def channel(self, cycle: int, channel: str) -> Channel:
        """Return one channel of one cycle."""
        return next(c for c in self.channels if (c.cycle, c.channel) == (cycle, channel))

    @property
    def voxel_um(self) -> tuple[float, float, float]:
        """Size of a voxel (z, y, x) in µm."""
        acquisition = self.settings.acquisition
        return acquisition.z_step_um, acquisition.pixel_um, acquisition.pixel_um

    def options(self, section: str, *keys: str) -> dict[str, Any]:
        """Return one section as keyword options; a number that is ``auto`` becomes None.

        With ``keys`` those alone: a job reruns when any option that its rule is given changes.
        """
        values = getattr(self.settings, section).model_dump()
        return {
            key: None if value == "auto" and key not in ("method", "distortion") else value
            for key, value in values.items()
            if not keys or key in keys
        }

    def optics_of(self, cycle: int, channel: str) -> dict[str, float | None]:
        """Return what the PSF of one channel is computed from."""
        emission_nm = self.channel(int(cycle), channel).emission_nm
        return {**self.settings.optics.model_dump(), "emission_nm": emission_nm}

    def register_options(self, cycle: int) -> dict[str, Any]:
        """Return the options of one cycle's registration."""
        options = self.options("registration")
        options["allow_unregistered"] = int(cycle) in options["allow_unregistered"]
        return options

    def files(self, section: str, wildcards: Mapping[str, str]) -> dict[str, str]:
        """Return the files that a section names (keys ending in ``_file``) for one job."""
        return {
            key: value.format(**wildcards)
            for key, value in self.options(section).items()
            if key.endswith("_file") and value is not None
        }

    def thresholds(self) -> dict[str, dict[str, Any]]:
        """Return the configured limits of quality numbers, only what was set."""
        return {
            metric: limits.model_dump(exclude_unset=True)
            for metric, limits in self.settings.qc.thresholds.items()
        }

    def as_yaml(self) -> str:
        """Return the whole configuration, defaults included."""
        return yaml.safe_dump(self.settings.model_dump(mode="json"), sort_keys=False)

    @property
    def image_channels(self) -> tuple[Channel, ...]:
        """The channels of the registered image."""
        return tuple(channel for channel in self.channels if not channel.remove)

    @property
    def image_cycles(self) -> tuple[int, ...]:
        """The cycles that have channels in the registered image, in its order."""
        return tuple(dict.fromkeys(channel.cycle for channel in self.image_channels))

    def background_of(self, channel: Channel) -> dict[str, Any] | None:
        """Return what is subtracted from a channel of the image, as plain values.

        ``factor`` is by what it is multiplied; None: it is estimated from the images. Nothing is
        subtracted while the cycle of the background is not processed.
        """
        method = self.settings.subtract.method
        if channel.background is None or channel.remove or method == "none":
            return None
        source = next((c for c in self.channels if c.marker == channel.background), None)
        if source is None:
            return None
        factor = None
        if method == "exposure" and channel.exposure_ms and source.exposure_ms:
            factor = channel.exposure_ms / source.exposure_ms
        at = {"cycle": source.cycle, "channel": source.channel, "marker": source.marker}
        return {**at, "factor": factor}

    def channel_table(self) -> list[dict[str, Any]]:
        """Return all channels in order, as plain values.

        Those of the registered image have no key ``remove``, and ``background`` where one is
        subtracted: tables without such columns are the same plain values as ever, and rerun
        nothing.
        """
        return [
            {"cycle": c.cycle, "channel": c.channel, "marker": c.marker}
            | ({"remove": True} if c.remove else {})
            | ({"background": found} if (found := self.background_of(c)) else {})
            for c in self.channels
        ]

    def image_table(self, *cycles: int) -> list[dict[str, Any]]:
        """Return the entries of the table that are in the registered image, of some cycles."""
        return [
            entry
            for entry in self.channel_table()
            if "remove" not in entry and entry["cycle"] in (cycles or self.cycles)
        ]


def load_experiment(config: Mapping[str, Any]) -> Experiment:
    """Read a configuration and its tables, and refuse what contradicts itself.

    Raises
    ------
    ConfigError
        As :func:`parse_experiment`, or :func:`check_experiment`.
    """
    experiment = parse_experiment(config)
    check_experiment(experiment)
    return experiment


def parse_experiment(config: Mapping[str, Any]) -> Experiment:
    """Validate a configuration and read its tables.

    Parameters
    ----------
    config : mapping
        The dictionary that Snakemake made of the config file and ``--config``.

    Raises
    ------
    ConfigError
        A key is unknown, missing or out of range, or a table is wrong.
    """
    if not config:
        raise ConfigError(
            "there is no configuration; add --configfile with the file that `tilewright init` "
            "wrote, after the targets"
        )
    try:
        settings = Settings.model_validate(dict(config))
    except ValidationError as error:
        _refuse_keys(config, error)
    try:
        channels, samples = collect_errors(
            lambda: read_markers(Path(settings.markers)),
            lambda: read_samples(Path(settings.samples), settings.acquisition),
        )
    except ConfigError as error:
        raise ConfigError(*error.args, *_keys(settings)) from None
    experiment = Experiment(settings, samples, channels, channels)
    return experiment if settings.cycles == "auto" else experiment.of_cycles(settings.cycles)


def _refuse_keys(config: Mapping[str, Any], error: ValidationError) -> NoReturn:
    """Refuse wrong keys; where they are only not filled in, the rest is looked at too."""
    filled = {k: dict(v) if isinstance(v, dict) else v for k, v in config.items()}

    def wrong() -> None:
        said = dict[tuple[str, ...], str]()
        for problem in error.errors():  # of a key of two kinds of values one for each
            said.setdefault(key_of(problem), problem_sentence(problem))
        raise ConfigError(*said.values()) from None

    def others() -> None:
        for problem in error.errors():
            *section, key = key_of(problem)
            if problem["input"] is not None or len(section) > 1:
                return
            (filled[section[0]] if section else filled).pop(key, None)
        # needed, and compared with nothing here
        filled.setdefault("acquisition", {}).setdefault("pixel_um", 1.0)
        with contextlib.suppress(ValidationError):
            Settings.model_validate(filled)
            check_experiment(parse_experiment(filled))

    collect_errors(wrong, others)
    raise AssertionError  # every raised what is wrong


def check_experiment(experiment: Experiment) -> None:
    """Refuse keys and lines of tables that contradict each other.

    Raises
    ------
    ConfigError
        With all that do.
    """
    whole = replace(experiment, channels=experiment.table)
    found = (
        *_references(whole), *_of_no_stage(whole), *_optics(whole), *_backgrounds(whole),
        *_keys(whole.settings), *_cycles(whole),
    )  # fmt: skip
    if found:
        raise ConfigError(*found)


def _cycles(experiment: Experiment) -> Iterator[str]:
    """Yield cycles to process that the table has not."""
    wanted = experiment.settings.cycles
    for cycle in () if wanted == "auto" else wanted:
        if cycle not in experiment.cycles:
            yield (
                f"cycles names cycle {cycle}, but {experiment.settings.markers} has the cycles "
                f"{', '.join(map(str, experiment.cycles))}"
            )


def _references(experiment: Experiment) -> Iterator[str]:
    """Yield cycles without the reference channel, and a reference cycle that is not there."""
    table = experiment.settings.markers
    if experiment.reference_cycle not in experiment.cycles:
        yield (
            f"acquisition.reference_cycle is {experiment.reference_cycle}, but {table} has the "
            f"cycles {', '.join(map(str, experiment.cycles))}"
        )
    wanted = experiment.reference_channel
    tokens = {c: [one.channel for one in experiment.channels_of(c)] for c in experiment.cycles}
    if lacking := [cycle for cycle in tokens if wanted not in tokens[cycle]]:
        yield (
            f"acquisition.reference_channel is '{wanted}', which {table} lacks in "
            f"{cycles_text(lacking)}; cycle {lacking[0]} has the channels "
            f"{', '.join(tokens[lacking[0]])}; name one that all cycles have"
        )
    for cycle in experiment.settings.registration.allow_unregistered:
        if cycle not in experiment.moving_cycles:
            yield (
                f"registration.allow_unregistered names cycle {cycle}; the cycles that are "
                f"registered are {', '.join(map(str, experiment.moving_cycles)) or 'none'}"
            )


#: Keys of the sections that no stage of stitched images reads: None is all of them.
_OF_TILES: dict[str, tuple[str, ...] | None] = {
    "acquisition": (
        *("pattern", "rows", "cols", "layout", "overlap"),
        *("region", "flip_x", "flip_y", "missing", "counts_per_unit"),
    ),
    "camera": ("offset_counts", "gain_counts_per_photon"),
    "illumination": None,
    "tile_positions": None,
    "stitch": None,
    "deconvolve": None,
    "edf": None,
}


def _of_no_stage(experiment: Experiment) -> Iterator[str]:
    """Yield keys of stages that stitched images do not have; ``method: none`` says just that."""
    settings = experiment.settings
    if not settings.stitched:
        return
    for section, names in _OF_TILES.items():
        given = [getattr(settings, section)]
        if section == "acquisition":
            given = [sample.acquisition for sample in experiment.samples.values()]
        for values in given:
            for name, field in type(values).model_fields.items():
                value = getattr(values, name)
                of_tiles = names is None or name in names
                if of_tiles and value != field.default and (name, value) != ("method", "none"):
                    yield (
                        f"{section}.{name} is {value!r}, but acquisition.convention is 'stitched': "
                        "no stage reads it; leave it out"
                    )


#: Targets whose results stitched images do not have, and that need no reference cycle.
_TARGETS_OF_TILES = ("stitching", "deconvolution", "edf")


def check_targets(experiment: Experiment, targets: Iterable[str]) -> None:
    """Refuse targets that stitched images, or the cycles to process, do not have.

    Raises
    ------
    ConfigError
        One of them is such.
    """
    targets = set(targets)
    wrong = [target for target in _TARGETS_OF_TILES if target in targets]
    if experiment.settings.stitched and wrong:
        raise ConfigError(
            f"the target {wrong[0]} needs tiles, but acquisition.convention is 'stitched'; "
            "give the targets registration and qc"
        )
    needs = not targets or targets & {"all", "registration", "qc"}
    # Otherwise the reference cycle is in no table, and that is said.
    chosen = experiment.settings.cycles != "auto"
    if chosen and experiment.reference_cycle not in experiment.cycles and needs:
        raise ConfigError(
            f"cycles is without the reference cycle {experiment.reference_cycle}, on which the "
            "others are registered; add it"
            + ("" if experiment.settings.stitched else ", or give the target edf")
        )


def _optics(experiment: Experiment) -> Iterator[str]:
    """Yield what a computed PSF lacks of its optics."""
    settings = experiment.settings
    if not settings.needs_psf or settings.deconvolve.psf_file is not None:
        return
    at_surface = settings.optics.depth_um == 0
    missing = [
        f"optics.{key}"
        for key, value in settings.optics
        if value is None and not (key == "sample_refractive_index" and at_surface)
    ]
    dark = [c for c in experiment.channels if c.emission_nm is None]
    if dark:
        missing.append(f"emission_nm of {dark[0].marker} in {settings.markers}")
    if missing:
        yield (
            f"the PSF cannot be computed without {', '.join(missing)}; fill it in, or give "
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
    """Yield backgrounds that are no marker's, subtracted from themselves, or of unknown scale."""
    table, channels = experiment.settings.markers, experiment.channels
    named = {channel.marker: channel for channel in channels}
    for channel in channels:
        if channel.background is None:
            continue
        what = f"{table}: the background of '{channel.marker}' is '{channel.background}'"
        source = named.get(channel.background)
        if source is None:
            hint = suggestion(channel.background, named, "markers")
            yield f"{what}, which is no marker of the table; {hint}"
            continue
        if source is channel:
            yield f"{what} itself; name another marker, or none"
        elif source.background is not None:
            yield (
                f"{what}, which has the background '{source.background}' itself; name a channel "
                "from which nothing is subtracted"
            )
        dark = [c.marker for c in (channel, source) if c.exposure_ms is None]
        if dark and experiment.settings.subtract.method == "exposure":
            yield (
                f"{what}, but the table has no exposure_ms of {' and '.join(dark)}; fill it in, "
                "or set subtract.method: regression"
            )
    frame = experiment.reference_cycle, experiment.reference_channel
    for channel in channels:
        if channel.remove and (channel.cycle, channel.channel) == frame:
            yield (
                f"{table}: '{channel.marker}' is marked remove, but it is the reference channel "
                "of the reference cycle, in whose frame the image is; leave it in"
            )


def _keys(settings: Settings) -> Iterator[str]:
    """Yield keys that only make sense with others."""
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
    if method == "sum_projection" and settings.deconvolve.method == "none":
        yield (
            "edf.method is 'sum_projection', which needs deconvolved stacks, but "
            "deconvolve.method is 'none'; set edf.method: auto, or deconvolve"
        )
    for rule in settings.resources:
        if rule not in RULES:
            early = ("illumination", "tile_positions", "stitch", "deconvolve", "edf")
            renamed = {"project": "edf_plane", **{f"qc_{s}": "qc_cycle" for s in early}}
            hint = suggestion(renamed.get(rule, rule), sorted(RULES), "rules")
            yield f"'resources.{rule}' names no rule; {hint}"
