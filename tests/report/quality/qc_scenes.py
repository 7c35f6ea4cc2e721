"""Small mosaics of phantom tissue, and ways to break them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.io.inputs.manifest import build_manifest
from tilewright.io.results.mosaic import create_mosaic
from tilewright.phantom.files import write_tile
from tilewright.phantom.make import Phantom, PhantomDesign

PEDESTAL = 100.0
GAIN = 8.0
VOXEL_UM = (1.5, 0.377, 0.377)
Stack = NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """Nuclei and a marker of one section: light in electrons, no noise.

    Attributes
    ----------
    nuclei, marker : (z, y, x)
        As the microscope sees them.
    truth : (y, x)
        Nuclei in focus, z-integrated.
    """

    nuclei: Stack
    marker: Stack
    truth: NDArray[np.float64]


@functools.cache
def make_scene(seed: int = 5) -> Scene:
    design = PhantomDesign(
        seed=seed, cycles=1, channels=2, rows=2, cols=2, planes=5, tile_px=288, empty_tile=False,
        saturated_spots=0, tissue_share=0.97,
    )  # fmt: skip
    phantom = Phantom(design)
    at = np.indices(design.canvas, dtype=np.float32)
    stacks = []
    truths = []
    for specimen in phantom.specimens():
        planes = [ndimage.map_coordinates(p, at, order=3, prefilter=False) for p in specimen.planes]
        stacks.append(np.maximum(np.stack(planes), 0).astype(np.float64) + 10)
        truths.append(specimen.projection.astype(np.float64))
    return Scene(stacks[0], stacks[1], truths[0])


def expose(light: Stack, seed: int = 0) -> NDArray[np.uint16]:
    """Return counts with Poisson and read noise over the pedestal."""
    rng = np.random.default_rng(seed)
    electrons = rng.poisson(np.maximum(light, 0)) + rng.normal(0, 2.5, light.shape)
    return np.clip(np.rint(electrons * GAIN + PEDESTAL), 0, 65535).astype(np.uint16)


def write_mosaic(path: Path, stack: NDArray[Any], **attributes: Any) -> Path:
    """Write a stack (z, y, x) in chunks of 128 px."""
    with create_mosaic(path, stack.shape, stack.dtype, 128, VOXEL_UM, path.stem) as writer:
        for z in range(stack.shape[0]):
            for y in range(0, stack.shape[1], 128):
                for x in range(0, stack.shape[2], 128):
                    writer.write(z, y, x, stack[z, y : y + 128, x : x + 128])
        writer.attributes.update(attributes)
    return path


def write_raw(
    folder: Path, counts: NDArray[np.uint16], grid: tuple[int, int], step_px: int, tile_px: int
) -> Path:
    """Cut a stack (z, y, x) into raw tiles of channel 1, cycle 1; return their manifest."""
    rows, cols = grid
    planes = counts.shape[0]
    design = PhantomDesign(
        seed=0, cycles=1, channels=1, rows=rows, cols=cols, planes=planes, tile_px=tile_px,
        overlap=1 - step_px / tile_px,
    )  # fmt: skip
    for k, (row, col) in enumerate(np.ndindex(grid)):
        y, x = row * step_px, col * step_px
        write_tile(folder / "raw", design, 1, 1, k, counts[:, y : y + tile_px, x : x + tile_px])
    acquisition = {
        "convention": "codex", "rows": rows, "cols": cols, "layout": "snake_right_down",
        "overlap": design.overlap,
    }  # fmt: skip
    build_manifest(folder / "raw", acquisition, {1: ["1"]}, {1: folder / "cycle1.csv"})
    return folder / "cycle1.csv"
