"""The configuration and its two tables as one typed experiment.

This is the only reader of the configuration dictionary. Problems are raised before the DAG is
built, in messages that name the key or file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import ValidationError

from tilewright.config.config_file import read_config
from tilewright.config.consistency import check_experiment, check_keys
from tilewright.config.settings import Settings
from tilewright.config.tables import (
    Channel,
    Sample,
    collect_errors,
    key_of,
    problem_message,
    read_markers,
    read_samples,
)
from tilewright.errors import ConfigError


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
        """The cycle whose sizes stand for all: the reference cycle, if it is processed."""
        return min(self.cycles, key=lambda cycle: (cycle != self.reference_cycle, cycle))

    def of_cycles(self, cycles: Iterable[int]) -> Experiment:
        """Return the experiment with only some cycles of the markers table."""
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
    def shared_channels(self) -> tuple[str, ...]:
        """Channel tokens of each cycle if all cycles of the table have the same ones, else none."""
        tokens: dict[int, list[str]] = {}
        for channel in self.table:
            tokens.setdefault(channel.cycle, []).append(channel.channel)
        sets = {tuple(of_cycle) for of_cycle in tokens.values()}
        return sets.pop() if len(sets) == 1 else ()

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

        With ``keys`` only those: a job reruns when any option of its rule changes.
        """
        values = getattr(self.settings, section).model_dump()
        return {
            key: None if value == "auto" and key not in ("method", "distortion") else value
            for key, value in values.items()
            if not keys or key in keys
        }

    def optics_of(self, cycle: int, channel: str) -> dict[str, float | None]:
        """Return the optics from which the PSF of one channel is computed."""
        emission_nm = self.channel(int(cycle), channel).emission_nm
        return {**self.settings.optics.model_dump(), "emission_nm": emission_nm}

    def register_options(self, cycle: int) -> dict[str, Any]:
        """Return the options of one cycle's registration."""
        options = self.options("registration")
        options["allow_unregistered"] = int(cycle) in options["allow_unregistered"]
        return options

    def files(self, section: str, wildcards: Mapping[str, str]) -> dict[str, str]:
        """Return the files of a section (keys ending in ``_file``) for one job."""
        return {
            key: value.format(**wildcards)
            for key, value in self.options(section).items()
            if key.endswith("_file") and value is not None
        }

    def thresholds(self) -> dict[str, dict[str, Any]]:
        """Return the limits of quality numbers that the configuration sets."""
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
        """Return the background that is subtracted from a channel of the image, as plain values.

        It is multiplied by ``factor``; None: that is estimated from the images. Nothing is
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
        subtracted: tables without such columns give the same plain values, so that nothing
        reruns.
        """
        return [
            {"cycle": c.cycle, "channel": c.channel, "marker": c.marker}
            | ({"remove": True} if c.remove else {})
            | ({"background": b} if (b := self.background_of(c)) else {})
            for c in self.channels
        ]

    def image_table(self, *cycles: int) -> list[dict[str, Any]]:
        """Return the entries of the channel table in the registered image, of some cycles."""
        return [
            entry
            for entry in self.channel_table()
            if "remove" not in entry and entry["cycle"] in (cycles or self.cycles)
        ]


def read_experiment(configfile: Path) -> Experiment:
    """Return the experiment of a config file.

    Raises
    ------
    ConfigError
        As :func:`read_config`, or :func:`load_experiment`.
    """
    return load_experiment(read_config(configfile))


def load_experiment(config: Mapping[str, Any]) -> Experiment:
    """Read a configuration and its tables, and check them for contradictions.

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
        raise ConfigError(*error.args, *check_keys(settings)) from None
    experiment = Experiment(settings, samples, channels, channels)
    return experiment if settings.cycles == "auto" else experiment.of_cycles(settings.cycles)


def _refuse_keys(config: Mapping[str, Any], error: ValidationError) -> NoReturn:
    """Refuse wrong keys; where keys are only missing, the rest is checked too."""
    completed = {k: dict(v) if isinstance(v, dict) else v for k, v in config.items()}

    def report_keys() -> None:
        messages = dict[tuple[str, ...], str]()
        for problem in error.errors():  # of a key with two types one for each
            messages.setdefault(key_of(problem), problem_message(problem))
        raise ConfigError(*messages.values()) from None

    def check_rest() -> None:
        for problem in error.errors():
            *section, key = key_of(problem)
            if problem["input"] is not None or len(section) > 1:
                return
            (completed[section[0]] if section else completed).pop(key, None)
        # required, and not used by the checks
        completed.setdefault("acquisition", {}).setdefault("pixel_um", 1.0)
        with contextlib.suppress(ValidationError):
            Settings.model_validate(completed)
            check_experiment(parse_experiment(completed))

    collect_errors(report_keys, check_rest)
    raise AssertionError("report_keys always raises")
