"""Survey of a whole mosaic stack, from a fixed sample of it, before it is processed.

Damaged planes, the camera's noise, and whether the tissue's focus lies in the stack. The sample
is the same on every device: the middles of chunks spread evenly over the mosaic.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.errors import ProcessingError
from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import Backend, Region
from tilewright.kernels.edf.planes import DamagedPlane, damaged_planes, focus_ends, sample_planes
from tilewright.kernels.noise import NoiseModel, photon_transfer
from tilewright.stages.tile_windows import regions

#: At most so many chunks are sampled, spread evenly, and of each its middle of this side.
_SAMPLES, _SAMPLE_PX = 32, 512


@dataclass(frozen=True)
class StackSurvey:
    """Damaged planes, noise and focus of a stack.

    Attributes
    ----------
    damaged : list[DamagedPlane]
        Damaged planes, and why.
    plane_mask : bool (z,)
        Planes to use.
    noise : NoiseModel
        Of the usable planes.
    focus_ends : tuple[float, float]
        Share of what is in focus anywhere that is sharpest in the first and in the last plane.
    """

    damaged: list[DamagedPlane]
    plane_mask: NDArray[np.bool_]
    noise: NoiseModel
    focus_ends: tuple[float, float]

    @property
    def record(self) -> dict[str, Any]:
        """The attributes ``excluded_planes`` and ``focus_ends``."""
        return {
            "excluded_planes": [plane._asdict() for plane in self.damaged],
            "focus_ends": list(self.focus_ends),
        }


def survey_stack(backend: Backend, mosaic: Mosaic) -> StackSurvey:
    """Survey a sample of a raw mosaic.

    Raises
    ------
    ProcessingError
        No plane is usable.
    """
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    samples = [
        sample_planes(mosaic.read(slice(None), *cell), pedestal)
        for cell in tqdm(sample_cells(mosaic), desc="planes", unit="chunk", mininterval=5)
    ]
    damaged = damaged_planes(samples)
    plane_mask = np.ones(mosaic.shape[0], bool)
    plane_mask[[plane.z for plane in damaged]] = False
    if not plane_mask.any():
        raise ProcessingError(f"no plane of {mosaic.path} is usable: {damaged[0].reason}")
    noise = measure_noise(backend, mosaic, plane_mask, pedestal)
    return StackSurvey(damaged, plane_mask, noise, focus_ends(samples))


def ceiling_of(mosaic: Mosaic) -> float:
    """Return from which counts on a pixel of a stitched mosaic may be saturated."""
    integer = np.issubdtype(mosaic.dtype, np.integer)
    largest = float(np.iinfo(mosaic.dtype).max) if integer else np.inf
    saturated = mosaic.attributes.get("saturated_from_counts")
    return largest if saturated is None else min(float(saturated), largest)


def measure_noise(
    backend: Backend, mosaic: Mosaic, plane_mask: NDArray[np.bool_], pedestal: float
) -> NoiseModel:
    """Return the noise of a mosaic by photon transfer on one usable plane of each sample.

    Tiles were interpolated and blended: its standard deviation is 1.6 to 1.8 times less than that
    of raw tiles (four channels of phantoms). It is the mosaic's own noise that filters and weights
    of its pixels need, not the camera's.
    """
    good = np.flatnonzero(plane_mask)
    planes = [
        mosaic.read(int(good[i % good.size]), *cell) for i, cell in enumerate(sample_cells(mosaic))
    ]
    width = min(plane.shape[1] for plane in planes)
    return photon_transfer(backend, np.concatenate([p[:, :width] for p in planes]), pedestal)


def sample_cells(mosaic: Mosaic) -> list[Region]:
    """Return the middles of chunks, spread evenly over the mosaic; the same for every device."""
    chunks = regions(mosaic.shape[1:], mosaic.chunk_px)
    count = min(len(chunks), _SAMPLES)
    evenly = [chunks[i * len(chunks) // count] for i in range(count)]
    return [(_middle(y), _middle(x)) for y, x in evenly]


def _middle(span: slice) -> slice:
    size = span.stop - span.start
    start = span.start + max(size - _SAMPLE_PX, 0) // 2
    return slice(start, start + min(size, _SAMPLE_PX))


def plane_variance(plane: NDArray[Any], pedestal: float) -> float:
    """Return the variance of a plane (y, x) of counts, after a square root.

    The root keeps bright dust from outweighing tissue.
    """
    light = np.sqrt(np.maximum(plane - np.float32(pedestal), 0))
    return round(float(light.var(dtype=np.float64)), 6)
