"""The stage of the in-focus plane on wavy stacks."""

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tests.support.wavy_stack import PEDESTAL, wavy
from tilewright.io.results.mosaic import Mosaic, create_mosaic, open_mosaic
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.stages.edf.methods import Method
from tilewright.stages.edf.plane import edf_plane

CPU = cpu_backend(workers=2)
OPTICS = {"numerical_aperture": 0.75, "emission_nm": 668.0}
OPTICS |= {"immersion_refractive_index": 1.0, "sample_refractive_index": 1.44}
VOXEL_UM = (1.5, 0.377, 0.377)
DECONVOLVED = {"iterations": 25, "pedestal_counts": 0}


def store(path: Path, stack: NDArray[Any], chunk_px: int, attributes: Any = None) -> Path:
    planes, height, width = stack.shape
    with create_mosaic(
        path, (planes, height, width), stack.dtype, chunk_px, VOXEL_UM, "test",
        attributes=attributes or {"pedestal_counts": PEDESTAL},
    ) as writer:  # fmt: skip
        for z, y, x in np.ndindex(planes, -(-height // chunk_px), -(-width // chunk_px)):
            at = np.s_[y * chunk_px : (y + 1) * chunk_px, x * chunk_px : (x + 1) * chunk_px]
            writer.write(z, at[0].start, at[1].start, stack[z][at])
    return path


def light_of(seed: int) -> NDArray[np.float32]:
    """Something like a deconvolved stack: light over the pedestal, none of it negative."""
    stack = wavy(seed)[0].astype(np.float32) - np.float32(PEDESTAL)
    light: NDArray[np.float32] = np.maximum(stack, 0)
    return light


def method_for(source: Mosaic) -> Method:
    """Return ``sum_projection`` for a stack that was deconvolved, else ``focus_weighted``."""
    return "sum_projection" if "iterations" in source.attributes else "focus_weighted"


def run(
    tmp_path: Path, source: Path, name: str = "out", backend: Backend = CPU, **options: Any
) -> tuple[Mosaic, NDArray[np.float32]]:
    """Return the in-focus plane and the heights of a mosaic."""
    output, heights = tmp_path / f"{name}.zarr", tmp_path / f"{name}_height.tif"
    options = {"method": method_for(open_mosaic(source)), "optics": OPTICS} | options
    edf_plane(source, output, heights, backend=backend, **options)
    return open_mosaic(output), tifffile.imread(heights)


def projected(
    tmp_path: Path, stack: NDArray[Any], chunk_px: int = 96, attributes: Any = None, **options: Any
) -> tuple[Mosaic, NDArray[np.float32]]:
    """Return the in-focus plane and the heights of a stack."""
    return run(tmp_path, store(tmp_path / "in.zarr", stack, chunk_px, attributes), **options)
