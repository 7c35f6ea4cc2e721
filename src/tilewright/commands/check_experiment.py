"""What doctor looks at in a configuration: keys, tables, raw files, and room for the results."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.commands.checks import (
    Check,
    count,
    ok,
    problem,
    said_by,
    warning,
)
from tilewright.config.checks import data_size, preflight_checks
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.rules import RULES
from tilewright.config.settings import Settings
from tilewright.config.tables import Channel
from tilewright.errors import ConfigError
from tilewright.io.formats.stitched import lossy_warnings, read_images

#: Blosc and deflate leave about three quarters of 16-bit counts; less of empty ground.
_COMPRESSED = 0.7
_PYRAMID = 4 / 3
_GB = 1e9


def check_config(experiment: Experiment) -> Iterable[Check]:
    """Check what the Snakefile checks, one line for each problem."""
    well = True
    for about, look in preflight_checks(experiment).items():
        try:
            look()
        except ConfigError as error:
            well = False
            for sentence in error.args:
                yield said_by(about, sentence, "fix the configuration or the files")
    if well and experiment.settings.stitched:
        for sample in experiment.samples.values():
            located = read_images(str(sample.raw_dir.resolve()))
            for sentence in lossy_warnings(located):
                yield warning("raw files", sentence, "export the images without JPEG")
    if well:
        samples = count(len(experiment.samples), "sample")
        channels = count(len(experiment.channels), "channel")
        yield ok("config", f"{samples}, {channels}; every raw file is there")


def check_space(need: DiskNeed, jobs: int, results: Path) -> Check:
    """Check that what is to come finds room on the disk, with so many jobs at once."""
    needed = need.most(jobs)
    folder = results.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = (
        f"{disk_text(need, jobs)}, compressed {_size(_COMPRESSED * needed)}; "
        f"{_size(free)} are free (a quota is not seen)"
    )
    fix = f"free space, or put the results elsewhere: results: in the config is {results}"
    if free < _COMPRESSED * needed:
        return problem("disk", text, fix)
    return warning("disk", text, fix) if free < needed else ok("disk", text)


@dataclass(frozen=True)
class DiskNeed:
    """Bytes of the images that are not there yet, before compression.

    Attributes
    ----------
    stays : float
        Of what the run leaves.
    stack : float
        Of one channel's stacks, the largest, which go after the last job that reads them; 0 where
        they stay.
    open : int
        Channels whose stacks are to be made.
    of_cycle : int
        The most channels of one cycle.
    """

    stays: float
    stack: float = 0.0
    open: int = 0
    of_cycle: int = 0

    def most(self, jobs: int) -> float:
        """Return about the most that a run of so many jobs at once holds.

        Each job works on the stacks of one channel. Stacks also wait until all channels of their
        cycle are judged. Stacks are made cycle by cycle, and what reads them goes first, so two
        cycles are counted as waiting.
        """
        return self.stays + self.stack * min(self.open, jobs + 2 * self.of_cycle)


def rules_of(settings: Settings) -> set[str]:
    """Return the rules that the default target runs."""
    of_tiles = {"illumination", "tile_positions", "stitch", "deconvolve", "edf_plane"}
    absent = of_tiles if settings.stitched else {"stitched_plane"}
    return RULES.keys() - (absent if settings.plane_of_deconvolved else absent | {"deconvolve"})


def missing_bytes(experiment: Experiment, layout: Layout) -> DiskNeed:
    """Return the size of the images of the default target that are not there yet.

    Of every channel: the mosaic z-stack in the raw type, the deconvolved one in 4 bytes, the
    in-focus plane in 2, and its part of the registered image as Zarr and TIFF pyramids of 2
    bytes. Mosaics are taken as tiles side by side less their overlap; everything else is small.
    """
    size_of = data_size(experiment, layout)
    settings = experiment.settings
    keeps = settings.output.keep == "stacks"
    stays = largest = 0.0
    stitches = 0
    for sample in experiment.samples:
        size = size_of(sample)
        stack, plane = size.mosaic_px * size.planes, size.mosaic_px
        stacks = [
            (layout.stitch, stack * _raw_bytes(experiment, layout, sample)),
            (layout.deconvolve, 4 * stack * settings.plane_of_deconvolved),
        ]
        if settings.stitched:
            stacks = []
        for at in experiment.channels:
            own = _missing(layout.edf, sample, at, 2 * plane)
            stitches += own > 0 and bool(stacks) and not keeps
            passing = sum(_missing(path, sample, at, needed) for path, needed in stacks)
            stays += own + keeps * passing
            largest = max(largest, passing * (not keeps))
        for template in (layout.image_tiff, layout.image_zarr):
            if not Path(template.format(sample=sample)).exists():
                stays += 2 * _PYRAMID * plane * len(experiment.channels)
    of_cycle = max(len(experiment.channels_of(cycle)) for cycle in experiment.cycles)
    return DiskNeed(stays, largest, stitches, of_cycle)


def _missing(template: str, sample: str, at: Channel, needed: float) -> float:
    path = template.format(sample=sample, cycle=at.cycle, channel=at.channel)
    return 0.0 if Path(path).exists() else needed


def _raw_bytes(experiment: Experiment, layout: Layout, sample: str) -> int:
    """Return the bytes of a raw pixel, which a mosaic's has too."""
    path = layout.manifest.format(sample=sample, cycle=experiment.first_cycle)
    with Path(path).open(newline="", encoding="utf-8") as stream:
        return 1 if next(csv.DictReader(stream))["dtype"] == "uint8" else 2


def disk_text(need: DiskNeed, jobs: int) -> str:
    """Say what is to come, and how much of it is there at once."""
    text = f"results to come: about {_size(need.stays)}"
    if need.open:
        at_once = f"about {_size(need.most(jobs))} at once with {jobs} jobs"
        text += f"; with temporary stacks {at_once}"
    return text


def _size(count: float) -> str:
    return f"{count / _GB:.1f} GB" if count >= _GB / 10 else f"{count / 1e6:.0f} MB"
