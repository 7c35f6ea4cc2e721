"""Synthetic tissue with known truth: raw tiles as a CODEX microscope writes them.

Nothing of the workflow is used to make it, so that the workflow can be measured against it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.phantom.camera import make_camera, make_cycle_map, make_flat, stage_positions
from tilewright.phantom.design import PhantomDesign
from tilewright.phantom.exact import settled, sigmoid
from tilewright.phantom.files import write_metadata, write_tile
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


@dataclass(frozen=True)
class Specimen:
    """One stain of one section, imaged."""

    name: str
    """Marker, without a cycle for the nuclear stain."""
    channels: list[tuple[int, int]]
    """(cycle, channel) from 1 that image it."""
    planes: list[Image]
    """Cubic B-spline coefficients (y, x) of each plane in electrons, reference canvas."""
    projection: Image
    """Truth (y, x): the stain z-integrated, in focus, in electrons, reference canvas, nothing lost.
    """


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
        self.tissue = self._section("tissue")
        self.presence = [self._presence(cycle) for cycle in range(d.cycles)]

    def _rng(self, *key: str | int) -> np.random.Generator:
        """Return a generator of its own per purpose: threads and order change nothing."""
        return np.random.default_rng(self._seed(*key))

    def _seed(self, *key: str | int) -> list[int]:
        words = [int.from_bytes(k.encode()[:8], "little") if isinstance(k, str) else k for k in key]
        return [self.design.seed, *words]

    def _section(self, purpose: str) -> Tissue:
        d = self.design
        half_um = (d.planes - 1) * d.z_step_um / 2
        empty = []
        if d.empty_tile:
            # The margin around it is empty too: whichever way the stage and the cycle went.
            y0, x0 = (int(v + self._margin) - self._margin for v in self.nominal_px[-1])
            empty.append((y0, x0, *d.canvas))
        return make_tissue(
            self._rng(purpose),
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
        return sigmoid(np.asarray((limit - field) * 12, np.float32))

    def specimens(self) -> Iterator[Specimen]:
        """Yield each specimen; only one is in memory at a time."""
        d = self.design
        # These cycles do not share the nuclear stain of the others.
        separate = {d.another_tissue_cycle, d.blurred_cycle} - {None}
        names = d.markers()
        for channel in range(1, d.channels + 1):
            blur = SheetBlur(d.canvas, d.planes, d.optics(channel))
            shared = [c for c in range(1, d.cycles + 1) if channel == 1 and c not in separate]
            if shared:
                yield from self._specimens(blur, "DAPI", [(c, 1) for c in shared])
            for cycle in range(1, d.cycles + 1):
                if cycle not in shared:
                    name = names[cycle - 1][channel - 1]
                    yield from self._specimens(blur, name, [(cycle, channel)])

    def _specimens(
        self, blur: SheetBlur, name: str, channels: list[tuple[int, int]]
    ) -> Iterator[Specimen]:
        """Yield one stain, once for the cycles without loss and once for each other cycle."""
        d = self.design
        cycle, channel = channels[0]
        rng = self._rng("stain", cycle, channel)
        tissue = self._section("another") if cycle == d.another_tissue_cycle else self.tissue
        image = np.zeros(d.canvas, np.float32)
        blank = d.blank_cycle == cycle and channel > 1
        if d.empty_channel != (cycle, channel) and not blank:
            index = (cycle - 1) * (d.channels - 1) + channel - 2
            marker = None if channel == 1 else MARKERS[index % len(MARKERS)]
            level = d.peak_electrons * (1.0 if marker is None else rng.uniform(0.35, 1.0))
            image += stain(rng, tissue, marker) * np.float32(level)
            image += self._debris(rng, tissue)
        defocus_um = 12.0 if cycle == d.blurred_cycle else 0.0
        where = (tissue.depth_um, self.THICKNESS_UM)
        projection = blur.projection(image, *where)
        if d.autofluorescence:
            level = d.autofluorescence * d.peak_electrons * d.exposure_ms(cycle, channel) / 200
            image += autofluorescence(self._rng("own", channel), tissue) * np.float32(level)
        complete = [key for key in channels if key[0] == 1 or d.lost_share == 0]
        for keys in filter(None, [complete, *([key] for key in channels if key not in complete)]):
            # Lost before it is imaged: a hole cut into the image would have sharp edges of haze.
            planes = blur.stack(image * self.presence[keys[0][0] - 1], *where, defocus_um)
            yield Specimen(name, keys, planes, projection)

    def _debris(self, rng: np.random.Generator, tissue: Tissue) -> Image:
        """Return a few specks of dye so bright that the camera saturates."""
        d = self.design
        spots = np.zeros(d.canvas, np.float32)
        places = np.argwhere(tissue.mask[::8, ::8] > 0.9) * 8
        full_well = 65535 / d.gain_counts
        for y, x in places[rng.integers(0, len(places), d.saturated_spots)]:
            spots[y, x] = full_well * rng.uniform(60, 200)
        return settled(ndimage.gaussian_filter(spots, 2.0), 0).astype(np.float32)

    def light(self, specimen: Specimen, cycle: int, channel: int, tile: int) -> Image:
        """Return the noise-free electrons (z, y, x) of one tile; cycle and channel from 1."""
        d = self.design
        y, x = (np.arange(d.tile_px) + p for p in self.true_px[cycle - 1, tile])
        at = np.stack(self.maps[cycle - 1].to_reference(y[:, None], x[None, :]))
        low = np.maximum(np.floor(at.min((1, 2))).astype(int) - 4, 0)
        high = np.ceil(at.max((1, 2))).astype(int) + 5
        crop = (slice(low[0], high[0]), slice(low[1], high[1]))
        at = (at - low[:, None, None]).astype(np.float32)
        bright = np.float32(40.0 if d.saturated_channel == (cycle, channel) else 1.0)
        stack = np.empty((d.planes, d.tile_px, d.tile_px), np.float32)
        for plane, coefficients in zip(stack, specimen.planes, strict=True):
            ndimage.map_coordinates(coefficients[crop], at, plane, order=3, prefilter=False)
        return np.asarray(
            (np.maximum(stack, 0) * bright + self.GLASS_ELECTRONS) * self.flats[channel - 1],
            np.float32,
        )

    def expose(self, specimen: Specimen, cycle: int, channel: int, tile: int) -> NDArray[np.uint16]:
        """Return the counts (z, y, x) that the camera reads for one tile."""
        noise = np.random.Philox(self._seed("noise", cycle, channel, tile))
        return self.camera.expose(noise, self.light(specimen, cycle, channel, tile))


def make_phantom(output_dir: Path, **design: Any) -> None:
    """Write raw tiles to ``output_dir/raw``; files of the same names are replaced.

    ``design`` are fields of :class:`PhantomDesign`; ``seed`` is required.
    """
    phantom = Phantom(PhantomDesign(**design))
    d = phantom.design
    raw = output_dir / "raw"
    write_metadata(raw, d)

    def write(specimen: Specimen, cycle: int, channel: int, tile: int) -> None:
        stack = phantom.expose(specimen, cycle, channel, tile)
        write_tile(raw, d, cycle, channel, tile, stack)

    with ThreadPoolExecutor(d.workers) as pool:
        for specimen in phantom.specimens():
            for cycle, channel in specimen.channels:
                # list(): an error in a thread is raised here, not lost.
                list(pool.map(partial(write, specimen, cycle, channel), range(d.rows * d.cols)))
