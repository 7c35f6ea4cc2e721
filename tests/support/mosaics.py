"""Mosaics of known pixels."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tilewright.io.results.mosaic import create_mosaic

VOXEL_UM = (1.5, 0.377, 0.377)
OPTICS = {"numerical_aperture": 0.75, "emission_nm": 668.0}
OPTICS |= {"immersion_refractive_index": 1.0, "sample_refractive_index": 1.44}


def write_mosaic(
    path: Path,
    stack: NDArray[Any],
    chunk_px: int = 128,
    voxel_um: tuple[float, float, float] = VOXEL_UM,
    **attributes: Any,
) -> Path:
    """Write a stack (z, y, x) and return its path."""
    how = (stack.shape, stack.dtype, chunk_px, voxel_um)
    with create_mosaic(path, *how, attributes=attributes) as writer:
        writer.write(0, 0, 0, stack)
    return path
