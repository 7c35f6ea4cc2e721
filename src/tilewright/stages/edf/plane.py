"""Extended depth of field: from a mosaic z-stack to one in-focus plane and a height map.

A first pass over the middles of a fixed sample of chunks decides what holds for the whole mosaic
(damaged planes, camera noise), so that every chunk is projected alike and both devices look at
the same pixels; the second projects chunk by chunk with a halo. Memory grows with a chunk's stack
and the threads, not with the mosaic.

``sum_projection`` is the sum over z blurred with the in-focus PSF and multiplied with the share of
the PSF's light in its central plane: the counts of a raw plane with everything in focus.
``focus_weighted`` mixes raw planes with weights that sum to 1. ``multiplane_wiener`` estimates the
same as ``sum_projection`` from the raw stack, with filters over all planes
(:mod:`tilewright.kernels.edf.wiener_plane`). None scales with the image, so the counts of all
cycles and samples compare.

The output is uint16 without pedestal and has z = 1; its attributes are those of ``docs/edf.md``.
The height map is a float32 TIFF, in µm above plane 0, of every eighth pixel (the soft argmax of the
focus energy; mid-stack where nothing is in focus).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tifffile
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.errors import ProcessingError
from tilewright.io.results.mosaic import Mosaic, create_mosaic, open_mosaic
from tilewright.io.results.result_file import result_path
from tilewright.io.results.zarr_store import OmeZarrVersion, StoreWriter
from tilewright.kernels.backend import Backend, cancelling_thread_pool
from tilewright.kernels.deconvolve.blur import crop_psf
from tilewright.kernels.device_memory import OomHint, map_with_oom_split, track_device_memory
from tilewright.kernels.edf.focus import (
    HALO_PX,
    Projection,
    focus_energy,
    focus_weighted,
    sum_projection,
)
from tilewright.kernels.noise import NoiseModel
from tilewright.runtime.files import scratch_folder
from tilewright.stages.deconvolve.mosaic_psf import mosaic_psf, wide_profiles
from tilewright.stages.edf.methods import METHODS, Method
from tilewright.stages.edf.multiplane_wiener import (
    GPU_THREADS,
    HEIGHT_STEP_PX,
    PlaneSummary,
    stream_wiener,
)
from tilewright.stages.edf.stack_survey import (
    StackSurvey,
    chunk_windows,
    measure_noise,
    sample_cells,
    survey_stack,
)
from tilewright.stages.edf.wiener_plan import WienerPlan, plan_wiener, wiener_psf_size
from tilewright.stages.tile_windows import Window, halves, with_halo, within

_OOM_HINT = OomHint("edf_plane", "all planes of its smallest part of a chunk")
_SAMPLES = OomHint("edf_plane", "the middle of a chunk, from which damaged planes are detected")


@track_device_memory(_SAMPLES)
def edf_plane(
    source: str | Path,
    output: str | Path,
    height_output: str | Path,
    *,
    backend: Backend,
    method: Method,
    optics: Mapping[str, float | None] | None = None,
    psf_file: str | Path | None = None,
    ome_zarr_version: OmeZarrVersion = "0.4",
) -> None:
    """Project a mosaic z-stack to one in-focus plane.

    Methods and attributes of the output are those of the module. A stack of one plane passes
    through. The PSF is that of the deconvolution, see ``stages.deconvolve.mosaic_psf``; only
    ``sum_projection`` and ``multiplane_wiener`` read it.

    Parameters
    ----------
    source : Path
        Mosaic z-stack: stitched (raw counts over ``pedestal_counts``) or deconvolved.
    output : Path
        Folder of the mosaic; appears when it is whole.
    height_output : Path
        Height map (TIFF).
    backend : Backend
        Where to compute; its ``workers`` threads project chunks.
    method : Method
        It must take the source (:data:`.methods.METHODS`), whose attributes have ``iterations``
        where it was deconvolved. ``multiplane_wiener`` is ``focus_weighted`` where one plane of
        several is usable, which is that plane.

    Raises
    ------
    ProcessingError, RawDataError
        The method is not possible with this source, no plane is usable, or the optics or the PSF
        file that the method needs are unusable.
    DeviceMemoryError
        The GPU's memory does not hold the smallest part of a chunk.
    """
    mosaic = open_mosaic(source)
    plan = plan_projection(replace(backend, workers=1), mosaic, method, optics, psf_file)
    with (
        result_path(Path(height_output)) as height_partial,
        create_mosaic(
            output,
            (1, *mosaic.shape[1:]),
            np.uint16,
            mosaic.chunk_px,
            mosaic.voxel_um,
            Path(output).stem,
            ome_zarr_version=ome_zarr_version,
        ) as writer,
    ):
        heights = _project(backend, mosaic, plan, writer, Path(output))
        tifffile.imwrite(height_partial, heights, metadata=None, software=False)


def _project(
    backend: Backend,
    mosaic: Mosaic,
    plan: ProjectionPlan | WienerPlan,
    writer: StoreWriter,
    output: Path,
) -> NDArray[np.float32]:
    """Write the plane and its attributes; return the heights, µm."""
    if isinstance(plan, WienerPlan):
        with scratch_folder(output) as folder:
            summary = stream_wiener(backend, mosaic, plan, writer, folder)
    else:
        summary = _stream(backend, mosaic, plan, writer)
    heights, usage, clipped, record = summary
    decided = max(int(usage[:-1].sum()), 1)
    writer.attributes.update(
        pedestal_counts=0,
        clipped_low=int(clipped[0]),
        clipped_high=int(clipped[1]),
        plane_usage=[round(float(n) / decided, 6) for n in usage[:-1]],
        undecided_fraction=round(float(usage[-1]) / max(int(usage.sum()), 1), 6),
        **plan.record,
        **record,
    )
    return heights * np.float32(mosaic.voxel_um[0])


class _Stack(NamedTuple):
    """A chunk or a part of one, and the pixels read for it."""

    cell: Window
    pixels: NDArray[Any]


class _PartPlane(NamedTuple):
    """A part's pixels, sampled heights, pixels by sharpest plane, and pixels clipped."""

    cell: Window
    pixels: NDArray[np.uint16]
    heights: NDArray[np.float32]
    usage: NDArray[np.int64]
    clipped: NDArray[np.int64]


def _halves(part: _Stack, halo_px: int, shape: tuple[int, int]) -> list[_Stack]:
    """Return the halves of a part, each with the whole halo: their pixels stay the same."""
    parts = []
    for half in halves((part.cell.y, part.cell.x)):
        cell = with_halo(half, halo_px, shape)
        near = within((cell.window_y, cell.window_x), (part.cell.window_y, part.cell.window_x))
        parts.append(_Stack(cell, part.pixels[:, *near]))
    return parts


def _project_part(backend: Backend, plan: ProjectionPlan, part: _Stack) -> _PartPlane:
    cell, stack = part
    plane = plan.project(backend, stack)
    inside = cell.inner
    counts = np.rint(backend.to_numpy(plane.image[inside]))
    pixels = np.clip(counts, 0, 65535).astype(np.uint16)
    # The last entry counts pixels where no plane stands out.
    kinds = len(stack) + 1
    usage = np.bincount(backend.to_numpy(plane.sharpest[inside]).ravel() % kinds, minlength=kinds)
    # The grid of heights starts at pixel 0 of the mosaic, not of the chunk.
    step = HEIGHT_STEP_PX
    first = [-span.start % step for span in (cell.y, cell.x)]
    sampled = backend.to_numpy(plane.height[inside])[first[0] :: step, first[1] :: step]
    clipped = np.array([(counts < 0).sum(), (counts > 65535).sum()])
    return _PartPlane(cell, pixels, sampled, usage, clipped)


def _stream(
    backend: Backend, mosaic: Mosaic, plan: ProjectionPlan, writer: StoreWriter
) -> PlaneSummary:
    """Project and write all chunks."""
    inner = replace(backend, workers=1)
    step = HEIGHT_STEP_PX
    heights = np.zeros([-(-n // step) for n in mosaic.shape[1:]], np.float32)
    usage = np.zeros(mosaic.shape[0] + 1, np.int64)
    clipped = np.zeros(2, np.int64)

    def one(cell: Window) -> list[_PartPlane]:
        parts = map_with_oom_split(
            inner,
            lambda part: _project_part(inner, plan, part),
            _Stack(cell, mosaic.read(slice(None), cell.window_y, cell.window_x)),
            lambda part: _halves(part, plan.halo_px, mosaic.shape[1:]),
            _OOM_HINT,
        )
        for part in parts:
            writer.write(0, part.cell.y.start, part.cell.x.start, part.pixels)
        # What waits to be gathered holds no pixels.
        return [part._replace(pixels=part.pixels[:0, :0].copy()) for part in parts]

    cells = chunk_windows(mosaic, plan.halo_px)
    with cancelling_thread_pool(backend, GPU_THREADS) as pool:
        results = pool.map(one, cells)
        for parts in tqdm(results, desc="edf", total=len(cells), unit="chunk", mininterval=5):
            for part in parts:
                top, left = -(-part.cell.y.start // step), -(-part.cell.x.start // step)
                rows, columns = part.heights.shape
                heights[top : top + rows, left : left + columns] = part.heights
                usage += part.usage
                clipped += part.clipped
    return PlaneSummary(heights, usage, clipped)


@dataclass(frozen=True)
class ProjectionPlan:
    """How the stacks of all chunks are projected, and what the output records of it.

    ``record`` has attributes of the output.
    """

    record: dict[str, Any]
    project: Callable[[Backend, NDArray[Any]], Projection]
    halo_px: int = 0


class _Source(NamedTuple):
    """A stack of several planes and its optics; the ``survey`` of one that was not deconvolved."""

    backend: Backend
    mosaic: Mosaic
    survey: StackSurvey | None
    optics: Mapping[str, float | None]
    psf_file: str | Path | None

    @property
    def pedestal(self) -> float:
        return float(self.mosaic.attributes.get("pedestal_counts", 0))

    @property
    def plane_mask(self) -> NDArray[np.bool_]:
        return self.survey.plane_mask if self.survey else np.ones(self.mosaic.shape[0], bool)

    @property
    def noise(self) -> NoiseModel:
        if self.survey:
            return self.survey.noise
        return measure_noise(self.backend, self.mosaic, self.plane_mask, self.pedestal)


def plan_projection(
    backend: Backend,
    mosaic: Mosaic,
    method: Method,
    optics: Mapping[str, float | None] | None,
    psf_file: str | Path | None,
) -> ProjectionPlan | WienerPlan:
    """Decide once per mosaic how every chunk is projected; parameters as ``edf.edf_plane``.

    Raises
    ------
    ProcessingError
        See ``edf.edf_plane``.
    """
    deconvolved = "iterations" in mosaic.attributes
    record = {key: mosaic.attributes.get(key, []) for key in ("excluded_planes", "focus_ends")}
    if mosaic.shape[0] == 1:
        pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
        return ProjectionPlan({"method": "none", "scale": 1.0, **record}, _single(pedestal))
    if not METHODS[method].takes(deconvolved=deconvolved):
        others = [name for name, needs in METHODS.items() if needs.takes(deconvolved=deconvolved)]
        needed, state = ("stitched", "has") if deconvolved else ("deconvolved", "has not")
        raise ProcessingError(
            f"edf: method {method} needs the {needed} stack, but {mosaic.path} {state} been "
            f"deconvolved; give the {needed} one, or {' or '.join(others)}"
        )
    survey = None if deconvolved else survey_stack(backend, mosaic)
    plan = _PLANNERS[method](_Source(backend, mosaic, survey, optics or {}, psf_file))
    return replace(plan, record=plan.record | (survey.record if survey else record))


def _single(pedestal: float) -> Callable[[Backend, NDArray[Any]], Projection]:
    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        xp = backend.xp
        image = backend.asarray(stack[0]) - pedestal
        zero = xp.zeros(image.shape, xp.float32)
        return Projection(image, zero, xp.zeros(image.shape, xp.int32))

    return run


def _plan_multiplane_wiener(source: _Source) -> ProjectionPlan | WienerPlan:
    if source.plane_mask.sum() == 1:
        return _plan_focus_weighted(source)
    mosaic, optics, psf_file = source.mosaic, source.optics, source.psf_file
    size = wiener_psf_size(mosaic)
    psf = mosaic_psf(mosaic, optics, psf_file, **size)
    wide = None if psf_file is not None else wide_profiles(mosaic, optics, **size)
    return plan_wiener(source.backend, mosaic, source.plane_mask, source.noise, psf, wide)


def _plan_sum_projection(source: _Source) -> ProjectionPlan:
    psf = mosaic_psf(source.mosaic, source.optics, source.psf_file)
    # As the deconvolution crops it: the central plane's share depends on the planes counted.
    psf = crop_psf(psf, source.mosaic.shape)
    kernel = psf[psf.shape[0] // 2]
    scale = float(kernel.sum(dtype=np.float64))
    floor, pedestal = _floor_energy(source.backend, source.mosaic), source.pedestal

    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        return sum_projection(backend, stack - np.float32(pedestal), kernel, scale, floor)

    halo_px = max(HALO_PX, max(kernel.shape) // 2)
    return ProjectionPlan({"method": "sum_projection", "scale": scale}, run, halo_px)


def _plan_focus_weighted(source: _Source) -> ProjectionPlan:
    noise, plane_mask, pedestal = source.noise, source.plane_mask, source.pedestal

    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        return focus_weighted(backend, stack, noise, pedestal, plane_mask)

    record = {
        "method": "focus_weighted",
        "scale": 1.0,
        "noise_gain": noise.gain,
        "read_noise_counts": noise.read_noise_counts,
    }
    return ProjectionPlan(record, run, HALO_PX)


_PLANNERS: dict[Method, Callable[[_Source], ProjectionPlan | WienerPlan]] = {
    "multiplane_wiener": _plan_multiplane_wiener,
    "sum_projection": _plan_sum_projection,
    "focus_weighted": _plan_focus_weighted,
}


def _floor_energy(backend: Backend, mosaic: Mosaic) -> float:
    """Return the least energy of a sharpest plane: 1 % of that of the best-focused percent."""
    energies = []
    for i, cell in enumerate(sample_cells(mosaic)):
        plane = mosaic.read(i % mosaic.shape[0], cell.y, cell.x)
        energies.append(backend.to_numpy(focus_energy(backend, plane)[0][::4, ::4]).ravel())
    return max(0.01 * float(np.percentile(np.concatenate(energies), 99)), 1e-6)
