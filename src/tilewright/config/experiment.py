"""The configuration and its two tables as one typed experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tilewright.config.settings import Settings
from tilewright.config.tables import Channel, Sample


@dataclass(frozen=True)
class Experiment:
    """A validated experiment.

    Attributes
    ----------
    settings : Settings
        The configuration.
    samples : dict[str, Sample]
        In table order.
    channels : tuple[Channel, ...]
        Those of the cycles to process, ordered by cycle, then by table order.
    table : tuple[Channel, ...]
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

    def of_cycles(self, cycles: Iterable[int]) -> Experiment:
        """Return the experiment with only some cycles of the markers table."""
        selected = set(cycles)
        return replace(self, channels=tuple(c for c in self.table if c.cycle in selected))

    @property
    def reference_cycle(self) -> int:
        """The cycle onto which the others are registered."""
        return self.settings.acquisition.reference_cycle

    @cached_property
    def reference_channels(self) -> dict[int, str]:
        """The channel (usually nuclei) of each cycle of the table by which it is registered."""
        return {channel.cycle: channel.channel for channel in self.table if channel.reference}

    def samples_of_scan(self, sample: str) -> list[str]:
        """Return the samples of one raw folder and region: pieces of tissue, itself among them."""

        def source(name: str) -> tuple[Path, str | None]:
            of = self.samples[name]
            return of.raw_dir.resolve(), of.region

        own = source(sample)
        return [name for name in self.samples if source(name) == own]

    def scan_of(self, sample: str) -> list[str]:
        """Return the samples of which all tiles tell the flat-fields of one, the first by name."""
        own = self.settings.illumination
        if any("{sample}" in (path or "") for path in (own.flat_file, own.dark_file)):
            return [sample]

        def scan(name: str) -> str | Path:
            return self.samples[name].scan or self.samples[name].raw_dir.resolve()

        return [name for name in self.samples if scan(name) == scan(sample)]

    def acquisition_of(self, sample: Sample) -> dict[str, Any]:
        """Return the section ``acquisition`` with the region of a sample, as readers take it."""
        return {**self.settings.acquisition.model_dump(), "region": sample.region}

    @property
    def moving_cycles(self) -> tuple[int, ...]:
        """The cycles to register: all but the reference."""
        return tuple(cycle for cycle in self.cycles if cycle != self.reference_cycle)

    def channels_of(self, cycle: int) -> tuple[Channel, ...]:
        """Return the channels of one cycle."""
        return tuple(channel for channel in self.channels if channel.cycle == cycle)

    def channel(self, cycle: int, channel: str) -> Channel:
        """Return one channel of one cycle."""
        return next(c for c in self.channels if (c.cycle, c.channel) == (cycle, channel))

    @property
    def voxel_um(self) -> tuple[float, float, float]:
        """Size of a voxel (z, y, x) in µm; z in planes where their distance is unknown."""
        acquisition = self.settings.acquisition
        return acquisition.z_step_um or 1.0, acquisition.pixel_um, acquisition.pixel_um

    def options(self, section: str, *keys: str) -> dict[str, Any]:
        """Return one section as keyword options; a number that is ``auto`` becomes None.

        With ``keys`` only those: a job reruns when any option of its rule changes.
        """
        values = getattr(self.settings, section).model_dump()
        return {
            key: None if value == "auto" and key != "method" else value
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
        """Return the configuration, defaults included, without the places of tables and results.

        They change nothing in the results.
        """
        places = {"samples", "tiles", "markers", "results"}
        return yaml.safe_dump(
            self.settings.model_dump(mode="json", exclude=places), sort_keys=False
        )

    @property
    def image_cycles(self) -> tuple[int, ...]:
        """The cycles that have channels in the registered image, in its order."""
        return tuple(dict.fromkeys(c.cycle for c in self.channels if not c.remove))

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

    def image_channels(self, cycle: int) -> list[dict[str, Any]]:
        """Return the entries of a cycle in the image; their places stand for markers.

        So no pixel depends on a name.
        """
        return [_without_names(entry) for entry in self.image_table(cycle)]


def _without_names(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of the channel table with the places of its markers in place of names."""
    inner = {key: _without_names(value) for key, value in entry.items() if key == "background"}
    return {**entry, **inner, "marker": "cycle {cycle} channel {channel}".format_map(entry)}
