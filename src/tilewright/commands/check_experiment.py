"""What doctor looks at in a configuration: keys, tables, raw files, and room for the results."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from tilewright.commands.checks import Check, count, ok, problem, said_by, warning
from tilewright.config.checks import (
    check_files,
    check_raw,
    check_results,
    check_thresholds,
    data_size,
)
from tilewright.config.experiment import ConfigError, Experiment
from tilewright.config.layout import Layout

#: Blosc and deflate leave about three quarters of 16-bit counts; less of empty ground.
_COMPRESSED = 0.7
_PYRAMID = 4 / 3
_GB = 1e9


def check_config(experiment: Experiment, layout: Layout) -> Iterable[Check]:
    """Check what the Snakefile checks, one line each, and disk space where all is well."""
    well = True
    looks: dict[str, Callable[[], None]] = {
        "limits": lambda: check_thresholds(experiment),
        "results": lambda: check_results(experiment),
        "raw files": lambda: check_raw(experiment, layout),
        "files": lambda: check_files(experiment, layout),
    }
    for about, look in looks.items():
        try:
            look()
        except ConfigError as error:
            well = False
            yield said_by(about, error, "fix the configuration or the files")
            if about == "raw files":
                break  # files are compared with the manifests
    if well:
        samples = count(len(experiment.samples), "sample")
        channels = count(len(experiment.channels), "channel")
        yield ok("config", f"{samples}, {channels}; every raw file is there")
        yield check_space(missing_bytes(experiment, layout), Path(experiment.settings.results))


def check_space(needed: float, results: Path) -> Check:
    """Check that outputs of so many bytes before compression find room on the disk."""
    folder = results.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = (
        f"results to come: about {_size(needed)}, compressed "
        f"{_size(_COMPRESSED * needed)}; {_size(free)} are free (a quota is not seen)"
    )
    fix = f"free space, or put the results elsewhere: results: in the config is {results}"
    if free < _COMPRESSED * needed:
        return problem("disk", text, fix)
    return warning("disk", text, fix) if free < needed else ok("disk", text)


def missing_bytes(experiment: Experiment, layout: Layout) -> float:
    """Return the size of the images that are not there yet, before compression.

    Of every channel: the mosaic z-stack in the raw type, the deconvolved one in 4 bytes, the
    in-focus plane in 2, and its part of the registered image as Zarr and TIFF pyramids of 2
    bytes. Mosaics are taken as tiles side by side less their overlap; everything else is small.
    """
    size_of = data_size(experiment, layout)
    deconvolved = experiment.settings.plane_of_deconvolved
    total = 0.0
    for sample in experiment.samples:
        size = size_of(sample)
        stack, plane = size.mosaic_px * size.planes, size.mosaic_px
        images = [
            (layout.stitch, stack * _raw_bytes(experiment, layout, sample)),
            (layout.deconvolve, 4 * stack * deconvolved),
            (layout.deconvolve_focus, 12 * plane * deconvolved),
            (layout.edf, 2 * plane),
        ]
        for channel in experiment.channels:
            for template, needed in images:
                path = template.format(sample=sample, cycle=channel.cycle, channel=channel.channel)
                total += 0 if Path(path).exists() else needed
        for template in (layout.image_tiff, layout.image_zarr):
            if not Path(template.format(sample=sample)).exists():
                total += 2 * _PYRAMID * plane * len(experiment.channels)
    return total


def _raw_bytes(experiment: Experiment, layout: Layout, sample: str) -> int:
    """Return the bytes of a raw pixel, which a mosaic's has too."""
    path = layout.manifest.format(sample=sample, cycle=experiment.reference_cycle)
    with Path(path).open(newline="", encoding="utf-8") as stream:
        return 1 if next(csv.DictReader(stream))["dtype"] == "uint8" else 2


def _size(count: float) -> str:
    return f"{count / _GB:.1f} GB" if count >= _GB / 10 else f"{count / 1e6:.0f} MB"
