"""What may go wrong in a run that is set up rightly: too little disk or memory, lossy images."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tilewright.config.checks import data_size, data_sizes
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.rules import RULES, DataSizes
from tilewright.config.settings import Settings
from tilewright.config.tables import Channel
from tilewright.io.formats.stitched import lossy_warnings, read_images

#: Blosc and deflate leave about three quarters of 16-bit counts; less of empty ground.
_COMPRESSED = 0.7
_PYRAMID = 4 / 3
#: Share of the memory for jobs, as in profiles/default.
_MEMORY_SHARE = 0.9
_GB = 1e9


def run_warnings(experiment: Experiment, layout: Layout, jobs: int, *, here: bool) -> list[str]:
    """Return what may go wrong in a run whose configuration and raw files are right.

    Parameters
    ----------
    jobs : int
        The most jobs at once.
    here : bool
        Whether they run on this machine: then the largest one has to fit into its memory.
    """
    settings = experiment.settings
    found = [check_space(missing_bytes(experiment, layout), jobs, Path(layout.results))]
    if here:
        found.append(check_memory(data_sizes(experiment, layout, {}), rules_of(settings)))
    if settings.stitched:
        for sample in experiment.samples.values():
            located = read_images(str(sample.raw_dir.resolve()))
            found += [f"{one}; export the images without JPEG" for one in lossy_warnings(located)]
    return [*filter(None, found)]


def check_space(need: DiskNeed, jobs: int, results: Path) -> str:
    """Return why the remaining results may not fit on the disk; empty where they do."""
    needed = need.peak(jobs)
    folder = results.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free >= needed:
        return ""
    at_once = f"at once with {min(jobs, need.channels)} jobs"
    stacks = f"; with temporary stacks about {_size(needed)} {at_once}"
    return (
        f"the disk may get full: the remaining results take about {_size(need.permanent)}"
        f"{stacks if need.channels else ''}, compressed {_size(_COMPRESSED * needed)}, and "
        f"{_size(free)} are free (quotas are not checked); free space, or put the results "
        f"elsewhere (results: in the configuration is {results})"
    )


def check_memory(sizes: DataSizes, rules: Iterable[str]) -> str:
    """Return why the largest job of some rules may not fit into this machine's memory, else ""."""
    most_mb, rule = max((sizes.request(rule, {}, "cpu").mem_mb, rule) for rule in rules)
    have_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE / 2**20
    if most_mb <= have_mb:
        return ""
    return (
        f"the largest job, of {rule}, asks for {most_mb / 1024:.1f} GB, and jobs of this machine "
        f"have {have_mb / 1024:.1f} GB; use a larger one, or a cluster"
    )


@dataclass(frozen=True)
class DiskNeed:
    """Bytes of the images that do not exist yet, before compression.

    Attributes
    ----------
    permanent : float
        Of results that remain after the run.
    stack : float
        Of the largest temporary stacks of a channel; 0 where stacks are kept.
    channels : int
        Channels whose stacks are to be made.
    channels_of_cycle : int
        The most channels of one cycle.
    """

    permanent: float
    stack: float = 0.0
    channels: int = 0
    channels_of_cycle: int = 0

    def peak(self, jobs: int) -> float:
        """Return about the peak of a run of so many jobs at once.

        Each job works on the stacks of one channel. Stacks also remain until the quality of all
        channels of their cycle is measured. They are made cycle by cycle, and their readers run
        first, so two cycles are counted.
        """
        stacks = min(self.channels, jobs + 2 * self.channels_of_cycle)
        return self.permanent + self.stack * stacks


def rules_of(settings: Settings) -> set[str]:
    """Return the rules that the default target runs."""
    of_tiles = {"calibrate", "stitch", "deconvolve", "edf_plane"}
    absent = of_tiles if settings.stitched else {"stitched_plane"}
    return RULES.keys() - (absent if settings.plane_of_deconvolved else absent | {"deconvolve"})


def missing_bytes(experiment: Experiment, layout: Layout) -> DiskNeed:
    """Return the size of the images of the default target that do not exist yet.

    Of every channel: the mosaic z-stack in the raw type, the deconvolved one in 4 bytes, the
    in-focus plane in 2, and its part of the registered image as Zarr and TIFF pyramids of 2
    bytes. Mosaics are counted as tiles less their overlap; everything else is small.
    """
    size_of = data_size(experiment, layout)
    settings = experiment.settings
    keeps = settings.output.keep == "stacks"
    permanent = largest = 0.0
    stitched_channels = 0
    for sample in experiment.samples:
        size = size_of(sample)
        stack, plane = size.mosaic_px * size.planes, size.mosaic_px
        stacks = [
            (layout.mosaic, stack * _raw_bytes(experiment, layout, sample)),
            (layout.deconvolved_mosaic, 4 * stack * settings.plane_of_deconvolved),
        ]
        if settings.stitched:
            stacks = []
        for channel in experiment.channels:
            plane_b = _missing(layout.plane, sample, channel, 2 * plane)
            stitched_channels += plane_b > 0 and bool(stacks) and not keeps
            stacks_b = sum(_missing(path, sample, channel, size_b) for path, size_b in stacks)
            permanent += plane_b + keeps * stacks_b
            largest = max(largest, stacks_b * (not keeps))
        for template in (layout.image_tiff, layout.image_zarr):
            if not Path(template.format(sample=sample)).exists():
                permanent += 2 * _PYRAMID * plane * len(experiment.channels)
    of_cycle = max(len(experiment.channels_of(cycle)) for cycle in experiment.cycles)
    return DiskNeed(permanent, largest, stitched_channels, of_cycle)


def _missing(template: str, sample: str, channel: Channel, size_b: float) -> float:
    path = template.format(sample=sample, cycle=channel.cycle, channel=channel.channel)
    return 0.0 if Path(path).exists() else size_b


def _raw_bytes(experiment: Experiment, layout: Layout, sample: str) -> int:
    """Return the bytes of a pixel of raw files and mosaics."""
    path = layout.manifest.format(sample=sample, cycle=experiment.first_cycle)
    with Path(path).open(newline="", encoding="utf-8") as stream:
        return 1 if next(csv.DictReader(stream))["dtype"] == "uint8" else 2


def _size(count: float) -> str:
    return f"{count / _GB:.1f} GB" if count >= _GB / 10 else f"{count / 1e6:.0f} MB"
