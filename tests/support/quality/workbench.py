"""A small experiment processed once; copies of it are damaged, and the touched part runs again.

Stages and quality stages are called as the rules of the workflow call them, with the options of
the same configuration, but in one process.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tifffile
import yaml
from numpy.typing import NDArray

from tests.support.mosaics import write_mosaic
from tests.support.runs import SMALL, Run, make_run
from tilewright.config.checks import check_raw
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment
from tilewright.io.inputs.tiles import open_scan, open_tiles
from tilewright.io.results.illumination import (
    Illumination,
    read_illumination,
    write_illumination,
)
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.positions import read_positions
from tilewright.kernels.backend import cpu_backend
from tilewright.phantom.design import PhantomDesign
from tilewright.phantom.make import tile_path
from tilewright.quality.evaluate import evaluate_stage, read_qc
from tilewright.quality.results import QcResult
from tilewright.runtime.files import csv_text
from tilewright.stages.calibrate.cycle import CalibrationSettings, calibrate
from tilewright.stages.deconvolve.stack import deconvolve
from tilewright.stages.edf.plane import edf_plane
from tilewright.stages.register.assemble import assemble
from tilewright.stages.register.cycle import register
from tilewright.stages.register.resample import resample
from tilewright.stages.register.subtract import Background
from tilewright.stages.stitch.fuse import stitch
from tilewright.stages.tile_positions.locate import write_located

#: 3 x 3 tiles, so that the middle one has four neighbours and both kinds of borders.
DESIGN: dict[str, Any] = {
    **{**SMALL, "seed": 5, "cycles": 2, "rows": 3, "tile_px": 200},
    **{"empty_tile": False, "tissue_share": 0.7, "lost_share": 0.0},
}
SAMPLE = "tonsil"
CHUNK_PX = 192
CYCLES, CHANNELS = (1, 2), ("1", "2")
#: Stages to the property of the layout that is their mosaic, and inputs that it names otherwise.
PROPERTIES = {
    "stitch": "mosaic", "deconvolve": "deconvolved_mosaic", "edf": "plane",
    "resample": "registered_cycle", "deconvolved": "deconvolved_mosaic",
    "numbers": "illumination_json", "moving": "plane",
}  # fmt: skip
#: Inputs of the quality stages.
INPUTS = {
    "illumination": "flat dark numbers",
    "tile_positions": "positions edges manifest numbers",
    "stitch": "mosaic flat dark numbers positions",
    "deconvolve": "mosaic deconvolved",
    "edf": "plane height mosaic",
    "register": "reference moving transform",
    "subtract": "subtraction",
}
_BACKEND = cpu_backend(workers=1)
Edit = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class Bench:
    """An experiment in a folder; every method reads and writes files as its rule does."""

    run: Run
    design: PhantomDesign

    @functools.cached_property
    def experiment(self) -> Experiment:
        """Return the validated configuration."""
        with contextlib.chdir(self.run.folder):
            return load_experiment(yaml.safe_load(self.run.config.read_text()))

    def path(self, name: str, cycle: int = 1, channel: str = "1") -> Path:
        """Return the file of a property of the layout, or the mosaic that a stage makes."""
        template = getattr(Layout(str(self.run.results)), PROPERTIES.get(name, name))
        return Path(template.format(sample=SAMPLE, cycle=cycle, channel=channel))

    # Stages

    def manifests(self, *cycles: int, pixels: bool = True) -> None:
        """Check the raw files of some cycles, or of all, and write their manifests.

        Without ``pixels`` these are not looked at, which takes a third of what most damages do.
        """
        unseen = mock.patch("tilewright.config.checks._check_pixels", return_value=[])
        with (
            contextlib.chdir(self.run.folder),
            contextlib.nullcontext() if pixels else unseen,
        ):
            chosen = self.experiment.of_cycles(cycles or self.experiment.cycles)
            check_raw(chosen, Layout("results"))

    def calibrate(self, cycle: int, flat_file: Path | None = None, **options: Any) -> None:
        """Calibrate a cycle, with one flat-field file for all its channels where one is given."""
        tokens = [channel.channel for channel in self.experiment.channels_of(cycle)]
        manifests = {SAMPLE: self.path("manifest", cycle)}
        found = calibrate(
            [open_scan(manifests, token) for token in tokens],
            0,
            [(flat_file, None)] * len(tokens),
            CalibrationSettings(
                **{
                    **self.experiment.options("tile_positions"),
                    **self.experiment.options("illumination", "method"),
                    **self.experiment.options("camera", "offset_counts", "saturation_counts"),
                    **options,
                }
            ),
            workers=2,
        )
        fields = dict(zip(tokens, found.channels, strict=True))
        write_illumination(self.path("illumination", cycle), fields)
        write_located(self.path("positions", cycle).parent, found.located)

    def fields(self, cycle: int, channel: str) -> tuple[Illumination, dict[str, Any]]:
        """Return the flat-field and dark-field of a channel, and their numbers."""
        flat, dark, numbers = (
            self.path(name, cycle) for name in ("flat", "dark", "illumination_json")
        )
        return read_illumination(flat, dark, numbers, channel)

    def stitch(self, cycle: int, channel: str, *, repair_pixels: bool = True) -> None:
        fields, numbers = self.fields(cycle, channel)
        stitch(
            open_tiles(self.path("manifest", cycle), channel),
            read_positions(self.path("positions", cycle), SAMPLE),
            fields,
            self.path("stitch", cycle, channel),
            backend=_BACKEND,
            voxel_um=self.experiment.voxel_um,
            chunk_px=CHUNK_PX,
            saturation_counts=numbers["saturation_counts"],
            defects=numbers["defects"] if repair_pixels else None,
        )

    def deconvolve(self, cycle: int, channel: str, **optics: Any) -> None:
        deconvolve(
            self.path("stitch", cycle, channel),
            self.path("deconvolve", cycle, channel),
            backend=_BACKEND,
            optics={**self.experiment.optics_of(cycle, channel), **optics},
            **self.experiment.options("deconvolve", "iterations", "psf_file"),
        )

    def edf(self, cycle: int, channel: str, **optics: Any) -> None:
        edf_plane(
            self.path("stitch", cycle, channel),
            self.path("edf", cycle, channel),
            self.path("height", cycle, channel),
            backend=_BACKEND,
            optics={**self.experiment.optics_of(cycle, channel), **optics},
            method="multiplane_wiener",
        )

    def register(self, cycle: int = 2) -> None:
        register(
            self.path("edf", 1, "1"),
            self.path("edf", cycle, "1"),
            self.path("transform", cycle),
            self.path("transform_json", cycle),
            backend=_BACKEND,
            **self.experiment.register_options(cycle),
        )

    def assemble(self) -> None:
        files = {
            c.marker: (
                self.path("edf", c.cycle, c.channel),
                None if c.cycle == 1 else self.path("transform", c.cycle),
            )
            for c in self.experiment.channels
        }
        cycles = self.experiment.image_cycles
        for cycle in cycles:
            channels = self.experiment.image_table(cycle)
            backgrounds = {
                c["marker"]: Background(b["marker"], *files[b["marker"]], b["factor"])
                for c in channels
                if (b := c.get("background"))
            }
            resample(
                cycle,
                [(c["marker"], c["channel"], files[c["marker"]][0]) for c in channels],
                None if cycle == 1 else self.path("transform", cycle),
                self.path("edf", 1, "1"),
                self.path("resample", cycle),
                (self.path("subtraction", cycle), self.path("subtraction_json", cycle)),
                backend=_BACKEND,
                chunk_px=256,
                ome_zarr_version="0.4",
                backgrounds=backgrounds,
            )
        assemble(
            [(cycle, self.path("resample", cycle)) for cycle in cycles],
            self.path("image_tiff"),
            self.path("image_zarr"),
            self.path("image_markers"),
            workers=_BACKEND.workers,
        )

    # QcRecord

    def quality(
        self, stage: str, cycle: int, channels: Iterable[str] = CHANNELS, *, drawn: bool = True
    ) -> list[QcResult]:
        """Run one quality stage on some channels of a cycle and return its items.

        The picture takes half of the time: it may be left out.
        """
        tokens = list(channels)
        out = self.run.folder / f"{stage}.json"
        markers = [self.experiment.channel(cycle, token).marker for token in tokens]
        nothing = mock.patch(f"tilewright.quality.stages.{stage}.draw")
        with contextlib.nullcontext() if drawn else nothing:
            evaluate_stage(
                stage,
                {name: self._input(name, cycle, tokens) for name in INPUTS[stage].split()},
                out,
                out.with_suffix(".png"),
                sample=SAMPLE,
                cycle=cycle,
                channels=list(zip(tokens, markers, strict=True)),
            )
        return list(read_qc(out).items)

    def _input(self, name: str, cycle: int, channels: Iterable[str]) -> Path | list[Path]:
        """Return an input of a quality stage: a file for each channel, or one of the cycle."""
        if name in ("mosaic", "deconvolved", "plane", "height"):
            return [self.path(name, cycle, channel) for channel in channels]
        return self.path("plane") if name == "reference" else self.path(name, cycle)

    # Damage

    def edit_rows(self, table: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change the rows of a table; ``change`` returns the new values of a row."""
        path = self.run.folder / table
        with path.open(newline="") as stream:
            rows = [{**row, **change(row)} for row in csv.DictReader(stream)]
        path.write_text(csv_text([*rows[0]], rows))
        self.__dict__.pop("experiment", None)

    def set_background(
        self, backgrounds: Mapping[str, str], exposures_ms: Mapping[str, float] | None = None
    ) -> None:
        """Write backgrounds, and exposure times, of some markers into the table."""
        exposures_ms = exposures_ms or {}

        def change(row: dict[str, str]) -> dict[str, str]:
            background = backgrounds.get(row["marker"], row.get("background", ""))
            exposure_ms = exposures_ms.get(row["marker"], row.get("exposure_ms", 200))
            return {"background": background, "exposure_ms": str(exposure_ms)}

        self.edit_rows("markers.csv", change)

    def raw(self, cycle: int, channel: str, tile: int) -> list[Path]:
        """Return the raw planes of a tile; tiles count by (row, col), from 0."""
        raw, planes = self.run.folder / "raw", range(self.design.planes)
        return [tile_path(raw, self.design, cycle, int(channel), tile, z) for z in planes]

    def stack(self, cycle: int, channel: str, tile: int) -> NDArray[Any]:
        return np.stack([tifffile.imread(path) for path in self.raw(cycle, channel, tile)])

    def pixels(self, template: str, cycle: int, channel: str) -> NDArray[Any]:
        """Return the pixels (z, y, x) of a mosaic."""
        return open_mosaic(self.path(template, cycle, channel)).read()

    def edit_raw(
        self,
        cycle: int,
        channel: str,
        edit: Edit,
        tiles: Iterable[int] = range(9),
        *,
        check_pixels: bool = False,
    ) -> None:
        """Change the stacks (z, y, x) of some tiles."""
        for tile in tiles:
            stack = np.clip(np.rint(edit(self.stack(cycle, channel, tile))), 0, 65535)
            for path, plane in zip(self.raw(cycle, channel, tile), stack, strict=True):
                path.unlink()  # the original is a hard link to the same file
                tifffile.imwrite(path, plane.astype(np.uint16), metadata=None)
        self.manifests(cycle, pixels=check_pixels)

    def edit_plane(self, cycle: int, channel: str, edit: Edit) -> None:
        """Change the pixels (1, y, x) of an in-focus plane."""
        old = open_mosaic(self.path("edf", cycle, channel))
        pixels = np.clip(np.rint(edit(old.read())), 0, 65535).astype(np.uint16)
        write_mosaic(old.path, pixels, old.chunk_px, old.voxel_um, **old.attributes)

    def copy(self, folder: Path) -> Bench:
        """Return a copy whose images are hard links."""
        shutil.copytree(self.run.folder, folder, copy_function=os.link)
        for path in self.run.folder.glob("*.*"):
            (folder / path.name).unlink()
            shutil.copy(path, folder)
        (folder / "samples.tsv").write_text(f"sample\traw_dir\n{SAMPLE}\t{folder / 'raw'}\n")
        return Bench(Run(folder, folder / self.run.config.name), self.design)


def process(folder: Path, **design: Any) -> Bench:
    """Make an experiment and process it to the final image."""
    bench = Bench(make_run(folder, **design), PhantomDesign(**design))
    bench.run.edit(deconvolve={"iterations": 4}, camera={"offset_counts": 100})
    bench.manifests()
    for cycle in bench.experiment.cycles:
        tokens = [channel.channel for channel in bench.experiment.channels_of(cycle)]
        bench.calibrate(cycle)
        for channel in tokens:
            bench.stitch(cycle, channel)
            bench.edf(cycle, channel)
        if cycle != 1:
            bench.register(cycle)
    bench.assemble()
    return bench


def make_bench(folder: Path) -> Bench:
    """Make the experiment of the damages, its first channel deconvolved besides."""
    bench = process(folder, **DESIGN)
    bench.deconvolve(1, "1")
    return bench
