"""Synthetic tissue with known truth: raw tiles as a CODEX microscope writes them.

Nothing of the workflow is used to make it, so that the workflow can be measured against it.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from scipy import ndimage
from scipy.special import expit

from tilewright.phantom.camera import make_camera, make_cycle_map, make_flat, stage_positions
from tilewright.phantom.design import PhantomDesign
from tilewright.phantom.optics import SheetBlur
from tilewright.phantom.tissue import (
    MARKERS,
    Tissue,
    autofluorescence,
    make_tissue,
    smooth_noise,
    stain,
)

__all__ = ["Phantom", "PhantomDesign", "Specimen", "make_phantom"]

Image = NDArray[np.float32]


def tile_number(design: PhantomDesign, tile: int) -> int:
    """Return the number, from 1, under which the stage visited a tile.

    ``tile`` counts by (row, col); the stage goes there and back (snake by rows).

    >>> [tile_number(PhantomDesign(seed=0, rows=2, cols=3), t) for t in range(6)]
    [1, 2, 3, 6, 5, 4]
    """
    row, col = divmod(tile, design.cols)
    return row * design.cols + (design.cols - 1 - col if row % 2 else col) + 1


def tile_path(
    raw: Path, design: PhantomDesign, cycle: int, channel: int, tile: int, z: int
) -> Path:
    """Return the file of one plane; cycle and channel from 1, tile and z from 0."""
    number = tile_number(design, tile)
    return raw / f"Cyc{cycle}_reg1" / f"1_{number:05}_Z{z + 1:03}_CH{channel}.tif"


def write_tile(
    raw: Path, design: PhantomDesign, cycle: int, channel: int, tile: int, stack: NDArray[np.uint16]
) -> None:
    """Write one tile (z, y, x), a file per plane."""
    for z, plane in enumerate(stack):
        path = tile_path(raw, design, cycle, channel, tile, z)
        path.parent.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(path, plane, metadata=None, software="")


def write_metadata(raw: Path, design: PhantomDesign) -> None:
    """Write ``experiment.json``, ``channelnames.txt`` and ``exposure_times.txt``."""
    d = design
    raw.mkdir(parents=True, exist_ok=True)
    wavelengths = [round(d.optics(c + 1).wavelength_um * 1000) for c in range(d.channels)]
    experiment = {
        "name": f"phantom-{d.seed}",
        "numCycles": d.cycles,
        "numChannels": d.channels,
        "numZPlanes": d.planes,
        "regionWidth": d.cols,
        "regionHeight": d.rows,
        "tileOverlapX": d.overlap,
        "tilingMode": "snake",
        "referenceCycle": 1,
        "referenceChannel": 1,
        "objectiveType": "air",
        "aperture": d.aperture,
        "xyResolution": d.pixel_um * 1000,
        "zPitch": d.z_step_um * 1000,
        "wavelengths": wavelengths,
        "channelNames": {"channelNamesArray": [n for names in d.markers() for n in names]},
    }
    text = json.dumps(experiment, indent=2) + "\n"
    (raw / "experiment.json").write_text(text, encoding="utf-8")
    names = [name for cycle in d.markers() for name in cycle]
    (raw / "channelnames.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    lines = ["Cycle," + ",".join(f"CH{c + 1}" for c in range(d.channels))]
    for cycle in range(1, d.cycles + 1):
        times = [f"{d.exposure_ms(cycle, c + 1):g}" for c in range(d.channels)]
        lines.append(f"{cycle}," + ",".join(times))
    (raw / "exposure_times.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Specimen:
    """One stain of one section, imaged in one cycle and channel.

    Attributes
    ----------
    cycle, channel : int
        From 1.
    planes : list[Image]
        Cubic B-spline coefficients (y, x) of each plane in electrons, reference canvas.
    in_focus : Callable[[], Image]
        Returns the truth (y, x): the stain z-integrated, in focus, in electrons, reference canvas,
        nothing lost.
    """

    cycle: int
    channel: int
    planes: list[Image]
    in_focus: Callable[[], Image]


class Phantom:
    """The specimen, camera and stage of one design; planes are exposed on demand.

    Attributes
    ----------
    nominal_px, true_px : float64
        (n, 2) and (cycles, n, 2): tile positions (y, x), ordered by (row, col). True
        positions are canvas pixels of that cycle's frame.
    flats : list of float32 (y, x)
        True flat-field per channel, mean 1, dust included.
    camera : Camera
    maps : list of CycleMap
        Cycle to reference frame; the first is the identity.
    tissue : Tissue
        Section of the reference frame.
    presence : list of float32 (y, x)
        Per cycle, 1 where tissue is present and 0 where it was lost, reference frame.
    """

    #: σ in µm of what one pixel's cell spans in depth.
    THICKNESS_UM = 0.9
    #: Light of glass and medium without tissue.
    GLASS_ELECTRONS = 10.0

    def __init__(self, design: PhantomDesign) -> None:
        self.design = d = design
        self._margin = d.margin_px
        self.camera = make_camera(self._rng("camera"), d)
        self.flats = [make_flat(self._rng("flat", c), d) for c in range(d.channels)]
        stages = [stage_positions(self._rng("stage", cycle), d) for cycle in range(d.cycles)]
        self.nominal_px = stages[0][0]
        self.true_px = np.stack([true for _, true in stages]) + self._margin
        self.maps = [make_cycle_map(self._rng("map", c), d, c) for c in range(d.cycles)]
        self.tissue = self._section()
        self.presence = [self._presence(cycle) for cycle in range(d.cycles)]

    def _rng(self, *key: str | int) -> np.random.Generator:
        """Return a generator of its own per purpose: threads and order change nothing."""
        return np.random.default_rng(self._seed(*key))

    def _seed(self, *key: str | int) -> list[int]:
        words = [int.from_bytes(k.encode()[:8], "little") if isinstance(k, str) else k for k in key]
        return [self.design.seed, *words]

    def _section(self) -> Tissue:
        d = self.design
        half_um = (d.planes - 1) * d.z_step_um / 2
        empty = []
        if d.empty_tile:
            # The margin around it is empty too: whichever way the stage and the cycle went.
            y0, x0 = (int(v + self._margin) - self._margin for v in self.nominal_px[-1])
            empty.append((y0, x0, *d.canvas))
        return make_tissue(
            self._rng("tissue"),
            d.canvas,
            d.pixel_um,
            tissue_share=d.tissue_share,
            relief_um=0.45 * half_um,
            scatter_um=min(1.5, 0.3 * half_um),
            empty=empty,
        )

    def _presence(self, cycle: int) -> Image:
        d = self.design
        if cycle == 0 or d.lost_share == 0:
            return np.ones(d.canvas, np.float32)
        field = smooth_noise(self._rng("lost", cycle), d.canvas, 0.035 * max(d.canvas))
        field += 0.1 * smooth_noise(self._rng("tear", cycle), d.canvas, 5.0)
        limit = np.quantile(field[::8, ::8], 1 - d.lost_share)
        return np.asarray(expit((limit - field) * 12), np.float32)

    def specimens(self) -> Iterator[Specimen]:
        """Yield each specimen; only one is in memory at a time."""
        for channel in range(1, self.design.channels + 1):
            blur = SheetBlur(self.design.canvas, self.design.planes, self.design.optics(channel))
            for cycle in range(1, self.design.cycles + 1):
                yield self._specimen(blur, cycle, channel)

    def _specimen(self, blur: SheetBlur, cycle: int, channel: int) -> Specimen:
        d = self.design
        # Nuclei are the same in all cycles.
        rng = self._rng("stain", 1 if channel == 1 else cycle, channel)
        stained = np.zeros(d.canvas, np.float32)
        if d.blank_cycle != cycle or channel == 1:
            index = (cycle - 1) * (d.channels - 1) + channel - 2
            marker = None if channel == 1 else MARKERS[index % len(MARKERS)]
            level = d.peak_electrons * (1.0 if marker is None else rng.uniform(0.35, 1.0))
            stained += stain(rng, self.tissue, marker) * np.float32(level)
            stained += self._debris(rng)
        light = stained
        if d.autofluorescence:
            level = d.autofluorescence * d.peak_electrons * d.exposure_ms(cycle, channel) / 200
            own = autofluorescence(self._rng("own", channel), self.tissue)
            light = stained + own * np.float32(level)
        # Lost before it is imaged: a hole cut into the image would have sharp edges of haze.
        where = (self.tissue.depth_um, self.THICKNESS_UM)
        planes = blur.stack(light * self.presence[cycle - 1], *where)
        return Specimen(cycle, channel, planes, partial(blur.projection, stained, *where))

    def _debris(self, rng: np.random.Generator) -> Image:
        """Return a few specks of dye so bright that the camera saturates."""
        d = self.design
        spots = np.zeros(d.canvas, np.float32)
        places = np.argwhere(self.tissue.mask[::8, ::8] > 0.9) * 8
        full_well = 65535 / d.gain_counts
        for y, x in places[rng.integers(0, len(places), d.saturated_spots)]:
            spots[y, x] = full_well * rng.uniform(60, 200)
        return np.asarray(ndimage.gaussian_filter(spots, 2.0), np.float32)

    def light(self, specimen: Specimen, tile: int) -> Image:
        """Return the noise-free electrons (z, y, x) of one tile."""
        d, cycle = self.design, specimen.cycle
        y, x = (np.arange(d.tile_px) + p for p in self.true_px[cycle - 1, tile])
        at = np.stack(self.maps[cycle - 1].to_reference(y[:, None], x[None, :]))
        low = np.maximum(np.floor(at.min((1, 2))).astype(int) - 4, 0)
        high = np.ceil(at.max((1, 2))).astype(int) + 5
        crop = (slice(low[0], high[0]), slice(low[1], high[1]))
        at = (at - low[:, None, None]).astype(np.float32)
        stack = np.empty((d.planes, d.tile_px, d.tile_px), np.float32)
        for plane, coefficients in zip(stack, specimen.planes, strict=True):
            ndimage.map_coordinates(coefficients[crop], at, plane, order=3, prefilter=False)
        return np.asarray(
            (np.maximum(stack, 0) + self.GLASS_ELECTRONS) * self.flats[specimen.channel - 1],
            np.float32,
        )

    def expose(self, specimen: Specimen, tile: int) -> NDArray[np.uint16]:
        """Return the counts (z, y, x) that the camera reads for one tile."""
        noise = np.random.Philox(self._seed("noise", specimen.cycle, specimen.channel, tile))
        return self.camera.expose(noise, self.light(specimen, tile))


def make_phantom(output_dir: Path, **design: Any) -> None:
    """Write raw tiles to ``output_dir/raw``; files of the same names are replaced.

    ``design`` are fields of :class:`PhantomDesign`; ``seed`` is required.
    """
    phantom = Phantom(PhantomDesign(**design))
    d = phantom.design
    raw = output_dir / "raw"
    write_metadata(raw, d)

    def write(specimen: Specimen, tile: int) -> None:
        stack = phantom.expose(specimen, tile)
        write_tile(raw, d, specimen.cycle, specimen.channel, tile, stack)

    with ThreadPoolExecutor(2) as pool:
        for specimen in phantom.specimens():
            # list(): an error in a thread is raised here, not lost.
            list(pool.map(partial(write, specimen), range(d.rows * d.cols)))
