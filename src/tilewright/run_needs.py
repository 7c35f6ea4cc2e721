"""What may go wrong in a run that is set up rightly: disk, memory, lossy images, lost planes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from snakemake_scheduler_plugin_tilewright import ResourceModel
from tilewright.config.checks import ManifestOf
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.rules import RULES, DataSize
from tilewright.config.settings import Settings
from tilewright.io.inputs.raw_headers import pixel_doubts
from tilewright.runtime.text import count, few

#: Share of 16-bit counts that Blosc and deflate leave, about; less of empty ground.
_COMPRESSED = 0.7
_PYRAMID = 4 / 3
#: Share of the memory for jobs, as in profiles/default.
_MEMORY_SHARE = 0.9
_GB = 1e9


def run_warnings(
    experiment: Experiment,
    layout: Layout,
    size_of: Callable[[str | None], DataSize],
    manifest_of: ManifestOf,
    jobs: int,
    models: Mapping[str, ResourceModel] | None,
) -> list[str]:
    """Return what may go wrong in a run whose configuration and raw files are right.

    Parameters
    ----------
    size_of : callable
        Sample name to the size of its data.
    manifest_of : callable
        Sample and cycle to the manifest of its planes.
    jobs : int
        The most jobs at once.
    models : mapping, optional
        Of rules whose jobs run on this machine: the largest one has to fit into its memory.
    """
    settings = experiment.settings
    need = missing_bytes(experiment, layout, size_of, jobs)
    found = [check_space(*need, Path(layout.results))]
    if models:
        found.append(check_memory(models, rules_of(settings)))
    found += pixel_doubts(first_files(experiment, manifest_of))
    if not settings.stitched:
        found.append(check_depths(channel_depths(experiment, manifest_of)))
    return [*filter(None, found)]


def first_files(experiment: Experiment, manifest_of: ManifestOf) -> list[str]:
    """Return a raw file of each sample and cycle: one microscope saves all of a cycle alike."""
    return [
        str(sample.raw_dir.resolve() / manifest_of(name, cycle).rows[0].path)
        for name, sample in experiment.samples.items()
        for cycle in experiment.cycles
    ]


def channel_depths(experiment: Experiment, manifest_of: ManifestOf) -> dict[int, dict[str, int]]:
    """Return the z-planes of each channel by cycle, of all samples the fewest, by the manifests."""
    found: dict[int, dict[str, int]] = {cycle: {} for cycle in experiment.cycles}
    for one in experiment.channels:
        depths = [manifest_of(of, one.cycle).depths[one.channel] for of in experiment.samples]
        named = one.marker != one.channel
        name = f"{one.channel} ({one.marker})" if named else one.channel
        found[one.cycle][name] = min(depths)
    return found


def check_depths(depths: Mapping[int, Mapping[str, int]]) -> str:
    """Return which channels have other z-planes than most of their cycle; empty where none has.

    Nuclei may be imaged in one plane and markers in several, and the files of a plane may not have
    been copied: nothing in them tells which.

    >>> check_depths({1: {"DAPI": 3, "CD3": 3}, 2: {"DAPI": 1, "CD3": 3, "CD8": 3}})[:68]
    'cycle 2, channel DAPI has 1 z-plane and the others 3; copy the files'
    """
    names = []
    for cycle, of_cycle in depths.items():
        usual = max(Counter(of_cycle.values()).items(), key=lambda item: item[::-1])[0]
        for channel, depth in of_cycle.items():
            if depth != usual:
                planes = count(depth, "z-plane")
                names.append(
                    f"cycle {cycle}, channel {channel} has {planes} and the others {usual}"
                )
    if not names:
        return ""
    return f"{few(names)}; copy the files of planes that were imaged and are missing"


def check_space(lasting: float, passing: float, results: Path) -> str:
    """Return why the remaining results may not fit on the disk; empty where they do.

    ``lasting`` and ``passing`` are bytes of results, and of stacks that are removed again.
    """
    folder = results.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    needed = lasting + passing
    if free >= needed:
        return ""
    stacks = f" and temporary stacks {_size(passing)}" if passing else ""
    return (
        f"the disk may get full: the remaining results take about {_size(lasting)}{stacks}, "
        f"compressed {_size(_COMPRESSED * needed)}, and {_size(free)} are free (quotas are not "
        f"checked); free space, or put the results elsewhere (results: in the configuration is "
        f"{results})"
    )


def check_memory(models: Mapping[str, ResourceModel], rules: Iterable[str]) -> str:
    """Return why the largest job of some rules may not fit into this machine's memory, else ""."""
    most_mb, rule = max((models[rule].request({}, "cpu").mem_mb, rule) for rule in rules)
    need = most_mb * 2**20
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE
    if need <= have:
        return ""
    return (
        f"the largest job, of {rule}, asks for {_size(need)}, and jobs of this machine have "
        f"{_size(have)}; use a larger one, or a cluster"
    )


def rules_of(settings: Settings) -> set[str]:
    """Return the rules that the default target runs."""
    of_tiles = {"calibrate", "stitch", "deconvolve", "edf_plane"}
    absent = of_tiles if settings.stitched else {"stitched_plane"}
    return RULES.keys() - (absent if settings.plane_of_deconvolved else absent | {"deconvolve"})


def missing_bytes(
    experiment: Experiment,
    layout: Layout,
    size_of: Callable[[str | None], DataSize],
    jobs: int,
) -> tuple[float, float]:
    """Return bytes of the images of the default target that do not exist yet, not compressed.

    Those that last, and of stacks that are removed again: of the jobs at once, and of two cycles,
    whose stacks remain until the quality of all channels is measured. Of every channel: the mosaic
    z-stack in 2 bytes, the deconvolved one in 4, the in-focus plane in 2, and its part of the
    registered image as Zarr and TIFF pyramids of 2.
    """
    settings = experiment.settings
    voxel_b = 0 if settings.stitched else 6 if settings.plane_of_deconvolved else 2
    lasting, stacks = 0.0, list[float]()
    for sample in experiment.samples:
        size = size_of(sample)
        for one in experiment.channels:
            of = {"sample": sample, "cycle": one.cycle, "channel": one.channel}
            if not Path(layout.plane.format(**of)).exists():
                lasting += 2 * size.mosaic_px
                stacks.append(voxel_b * size.mosaic_voxels)
        for template in (layout.image_tiff, layout.image_zarr):
            if not Path(template.format(sample=sample)).exists():
                lasting += 2 * _PYRAMID * size.mosaic_px * len(experiment.channels)
    if settings.output.keep == "stacks":
        return lasting + sum(stacks), 0.0
    of_cycle = max(len(experiment.channels_of(cycle)) for cycle in experiment.cycles)
    return lasting, sum(sorted(stacks)[-(jobs + 2 * of_cycle) :])


def _size(count: float) -> str:
    return f"{count / _GB:.1f} GB" if count >= _GB / 10 else f"{count / 1e6:.0f} MB"
