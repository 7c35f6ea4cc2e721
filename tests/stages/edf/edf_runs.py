"""The stage of the in-focus plane on wavy stacks."""

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tests.support.mosaics import OPTICS, write_mosaic
from tests.support.wavy_stack import PEDESTAL, wavy
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.stages.edf import Method
from tilewright.stages.edf.plane import edf_plane

CPU = cpu_backend(workers=2)
DECONVOLVED = {"iterations": 25, "pedestal_counts": 0}


def store(path: Path, stack: NDArray[Any], chunk_px: int, attributes: Any = None) -> Path:
    return write_mosaic(path, stack, chunk_px, **(attributes or {"pedestal_counts": PEDESTAL}))


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
