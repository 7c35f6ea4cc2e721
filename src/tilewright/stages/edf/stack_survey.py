"""Survey of a whole mosaic stack, from a fixed sample of it, before it is processed.

Damaged planes, the camera's noise, and whether the tissue's focus lies in the stack. The sample
is the same on every device: the middles of chunks spread evenly over the mosaic.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from tqdm import tqdm

from tilewright.errors import ProcessingError
from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import Backend
from tilewright.kernels.edf.plane_order import PlanePairs, add_pairs, compare_planes
from tilewright.kernels.edf.planes import DamagedPlane, damaged_planes, sample_planes
from tilewright.kernels.noise import NoiseModel, photon_transfer
from tilewright.stages.tile_windows import Window, regions, with_halo

#: At most so many chunks are sampled, spread evenly, and of each its middle of this side.
_SAMPLES, _SAMPLE_PX = 32, 512
#: Of these, so many are transformed to compare planes: 0.3 CPU-s each for 17 planes.
_COMPARED = 8
#: A patch of this size at exactly the pedestal in every plane is a gap: camera noise does not do
#: that.
_GAP_PX = 5


@dataclass(frozen=True)
class StackSurvey:
    """Damaged planes, noise and focus of a stack."""

    damaged: list[DamagedPlane]
    """Damaged planes, and why."""
    plane_mask: NDArray[np.bool_]
    """bool (z,): planes to use."""
    noise: NoiseModel
    """Of the usable planes."""
    focus_ends: tuple[float, float]
    """Share of what is in focus anywhere that is sharpest in the first and in the last plane."""

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
    ceiling = ceiling_of(mosaic)
    cells = sample_cells(mosaic)
    samples = [
        sample_planes(backend, mosaic.read(slice(None), cell.y, cell.x), ceiling)
        for cell in tqdm(cells, desc="planes", unit="chunk", mininterval=5)
    ]
    damaged = damaged_planes(samples, pedestal)
    before = usable_planes(mosaic, damaged)
    noise = measure_noise(backend, mosaic, before, pedestal)
    pairs = _compare(backend, mosaic, cells, noise, pedestal)
    if pairs is not None:
        damaged = damaged_planes(samples, pedestal, pairs)
    plane_mask = usable_planes(mosaic, damaged)
    if not plane_mask.any():
        raise ProcessingError(f"no plane of {mosaic.path} is usable: {damaged[0].reason}")
    if not np.array_equal(plane_mask, before):
        noise = measure_noise(backend, mosaic, plane_mask, pedestal)
    return StackSurvey(damaged, plane_mask, noise, pairs.ends if pairs is not None else (0.0, 0.0))


def ceiling_of(mosaic: Mosaic) -> float:
    """Return from which counts on a pixel of a stitched mosaic may be saturated."""
    integer = np.issubdtype(mosaic.dtype, np.integer)
    largest = float(np.iinfo(mosaic.dtype).max) if integer else np.inf
    saturated = mosaic.attributes.get("saturated_from_counts")
    return largest if saturated is None else min(float(saturated), largest)


def usable_planes(mosaic: Mosaic, damaged: list[DamagedPlane]) -> NDArray[np.bool_]:
    """Return the mask (z,) of a mosaic's planes that are not damaged."""
    plane_mask = np.ones(mosaic.shape[0], bool)
    plane_mask[[plane.z for plane in damaged]] = False
    return plane_mask


def _compare(
    backend: Backend, mosaic: Mosaic, cells: list[Window], noise: NoiseModel, pedestal: float
) -> PlanePairs | None:
    if mosaic.shape[0] < 3:
        return None
    bar = tqdm(_spread(cells, _COMPARED), desc="order of planes", unit="chunk", mininterval=5)
    stacks = (mosaic.read(slice(None), cell.y, cell.x) for cell in bar)
    return add_pairs([compare_planes(backend, stack, noise, pedestal) for stack in stacks])


def measure_noise(
    backend: Backend, mosaic: Mosaic, plane_mask: NDArray[np.bool_], pedestal: float
) -> NoiseModel:
    """Return the noise of a mosaic by photon transfer on one usable plane of each sample."""
    good = np.flatnonzero(plane_mask)
    if not good.size:
        return NoiseModel(0.0, 0.0)
    planes = [
        mosaic.read(int(good[i % good.size]), cell.y, cell.x)
        for i, cell in enumerate(sample_cells(mosaic))
    ]
    width = min(plane.shape[1] for plane in planes)
    return photon_transfer(backend, np.concatenate([p[:, :width] for p in planes]), pedestal)


def sample_cells(mosaic: Mosaic) -> list[Window]:
    """Return the middles of chunks, spread evenly over the mosaic; the same for every device."""
    windows = _spread(chunk_windows(mosaic, 0), _SAMPLES)
    return [replace(cell, y=_middle(cell.y), x=_middle(cell.x)) for cell in windows]


def _spread(cells: list[Window], most: int) -> list[Window]:
    count = min(len(cells), most)
    return [cells[i * len(cells) // count] for i in range(count)]


def _middle(span: slice) -> slice:
    size = span.stop - span.start
    start = span.start + max(size - _SAMPLE_PX, 0) // 2
    return slice(start, start + min(size, _SAMPLE_PX))


def chunk_windows(mosaic: Mosaic, halo_px: int) -> list[Window]:
    """Return the mosaic's chunks row by row, each with a halo cut at the mosaic's borders."""
    shape = mosaic.shape[1:]
    return [with_halo(region, halo_px, shape) for region in regions(shape, mosaic.chunk_px)]


def plane_variance(plane: NDArray[Any], pedestal: float) -> float:
    """Return the variance of a plane (y, x) of counts, after a square root.

    The root keeps bright dust from outweighing tissue.
    """
    light = np.sqrt(np.maximum(plane - np.float32(pedestal), 0))
    return round(float(light.var(dtype=np.float64)), 6)


def gap_mask(counts: Iterable[NDArray[Any]], pedestal: float) -> NDArray[np.bool_]:
    """Return the gaps of planes (y, x), which were not imaged; none if zero light is 0 counts."""
    planes = iter(counts)
    first = next(planes)
    if pedestal == 0:
        dark = not first.any() and not any(plane.any() for plane in planes)
        return np.full(first.shape, dark, np.bool_)
    flat: NDArray[np.bool_] = first == np.float32(pedestal)
    # Without a gap noise leaves no equal pixel after a few planes: 3 ms of 20 x 1400 x 1400, not
    # 49.
    for plane in planes:
        if not flat.any():
            return flat
        flat &= plane == np.float32(pedestal)
    # Grey filters of bytes: with gaps 23 ms, with ndimage's binary ones 54.
    core = ndimage.minimum_filter(flat.view(np.uint8), _GAP_PX, mode="constant", cval=1)
    gaps = ndimage.maximum_filter(core, _GAP_PX, mode="constant", cval=0)
    return np.asarray(gaps).view(np.bool_)
