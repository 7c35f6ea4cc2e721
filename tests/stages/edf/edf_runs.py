"""The stage of the in-focus plane on wavy stacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tests.support.wavy_stack import PEDESTAL, wavy
from tilewright.io.results.mosaic import Mosaic, create_mosaic, open_mosaic
from tilewright.kernels.backend import Backend
from tilewright.stages.edf.plane import Method, edf_plane

OPTICS = {
    "numerical_aperture": 0.75,
    "emission_nm": 668.0,
    "immersion_refractive_index": 1.0,
    "sample_refractive_index": 1.44,
}


VOXEL_UM = (1.5, 0.377, 0.377)


DECONVOLVED = {"iterations": 25, "pedestal_counts": 0}


def store(
    path: Path, stack: NDArray[Any], chunk_px: int, attributes: dict[str, Any] | None = None
) -> Path:
    shape = (stack.shape[0], stack.shape[1], stack.shape[2])
    attributes = {"pedestal_counts": PEDESTAL} if attributes is None else attributes
    with create_mosaic(
        path, shape, stack.dtype, chunk_px, VOXEL_UM, "test", attributes=attributes
    ) as writer:
        for z in range(shape[0]):
            for y in range(0, shape[1], chunk_px):
                for x in range(0, shape[2], chunk_px):
                    writer.write(z, y, x, stack[z, y : y + chunk_px, x : x + chunk_px])
    return path


def light_of(seed: int) -> NDArray[np.float32]:
    """Something like a deconvolved stack: light over the pedestal, none of it negative."""
    stack = wavy(seed)[0].astype(np.float32) - np.float32(PEDESTAL)
    light: NDArray[np.float32] = np.maximum(stack, 0)
    return light


def method_for(source: Mosaic) -> Method:
    """Return ``psf_mean`` for a stack that was deconvolved, else ``soft_focus``."""
    return "psf_mean" if "iterations" in source.attributes else "soft_focus"


def run(
    backend: Backend, tmp_path: Path, source: Path, name: str = "out", **options: Any
) -> tuple[Mosaic, NDArray[np.float32]]:
    output, heights = tmp_path / f"{name}.zarr", tmp_path / f"{name}_height.tif"
    options = {"method": method_for(open_mosaic(source)), "optics": OPTICS} | options
    edf_plane(source, output, heights, backend=backend, **options)
    return open_mosaic(output), tifffile.imread(heights)
