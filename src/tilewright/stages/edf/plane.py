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

The output is uint16 without pedestal and has z = 1; its attributes are ``pedestal_counts`` 0,
``clipped_low``, ``clipped_high`` (pixels), ``method``, ``scale``, ``plane_usage`` (share of the
decided pixels where a plane has the greatest focus energy), ``undecided_fraction``,
``excluded_planes`` (a list of ``z`` and ``reason``), for ``focus_weighted`` and
``multiplane_wiener`` the camera noise, ``noise_gain`` and ``read_noise_counts``, and for
``multiplane_wiener`` the ``haze_share`` of the plane's background that was subtracted, its mean in
counts (``haze_counts``), ``resolution_px`` (None: fewer than four planes), the pixels more than
three standard deviations below zero (``below_noise``) and the share of the plane that
``focus_weighted`` replaces (``fallback_fraction``). The height map is a float32 TIFF, in µm above
plane 0, of every eighth pixel (the soft argmax of the focus energy; mid-stack where nothing is in
focus).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tifffile
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.errors import ProcessingError
from tilewright.io.results.mosaic import Mosaic, create_mosaic, open_mosaic
from tilewright.io.results.zarr_store import OmeZarrVersion, StoreWriter
from tilewright.kernels.backend import Backend
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
from tilewright.runtime.files import atomic_path, scratch_folder
from tilewright.stages.deconvolve.mosaic_psf import mosaic_psf, wide_profiles
from tilewright.stages.edf.multiplane_wiener import (
    GPU_THREADS,
    HEIGHT_STEP_PX,
    Streamed,
    stream_wiener,
)
from tilewright.stages.edf.stack_survey import (
    chunk_windows,
    measure_noise,
    sample_cells,
    survey_stack,
)
from tilewright.stages.edf.wiener_plan import WienerPlan, plan_wiener, wiener_psf_size
from tilewright.stages.tile_planes import cancelling_thread_pool
from tilewright.stages.tile_windows import Window, halves, with_halo, within

_OOM_HINT = OomHint("edf_plane", "all planes of its smallest part of a chunk")
_SAMPLES = OomHint("edf_plane", "the middle of a chunk, from which damaged planes are detected")
Method = Literal["multiplane_wiener", "sum_projection", "focus_weighted"]


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
    method : {"multiplane_wiener", "sum_projection", "focus_weighted"}
        ``sum_projection`` needs a source that was deconvolved (its attributes have ``iterations``).
        ``multiplane_wiener`` needs the stitched source; where one plane of several is usable it is
        ``focus_weighted``, which is that plane.

    Raises
    ------
    ProcessingError, RawDataError
        The method is not possible with this source, no plane is usable, or the optics or the PSF
        file that the method needs are unusable.
    DeviceMemoryError
        The GPU's memory does not hold the smallest part of a chunk.
    """
    mosaic = open_mosaic(source)
    job = plan_projection(replace(backend, workers=1), mosaic, method, optics, psf_file)
    with (
        atomic_path(Path(height_output)) as height_partial,
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
        heights = _project(backend, mosaic, job, writer, Path(output))
        tifffile.imwrite(height_partial, heights, metadata=None, software=False)


def _project(
    backend: Backend, mosaic: Mosaic, job: ProjectionPlan, writer: StoreWriter, output: Path
) -> NDArray[np.float32]:
    """Write the plane and its attributes; return the heights, µm."""
    if job.wiener is None:
        streamed = _stream(backend, replace(backend, workers=1), mosaic, job, writer)
    else:
        with scratch_folder(output) as folder:
            streamed = stream_wiener(backend, mosaic, job.wiener, writer, folder)
    heights, usage, clipped, record = streamed
    decided = max(int(usage[:-1].sum()), 1)
    writer.attributes.update(
        pedestal_counts=0,
        clipped_low=int(clipped[0]),
        clipped_high=int(clipped[1]),
        plane_usage=[round(float(n) / decided, 6) for n in usage[:-1]],
        undecided_fraction=round(float(usage[-1]) / max(int(usage.sum()), 1), 6),
        **job.record,
        **record,
    )
    return heights * np.float32(mosaic.voxel_um[0])


class _Stack(NamedTuple):
    """A chunk or a part of one, and the pixels read for it."""

    cell: Window
    pixels: NDArray[Any]


class _Projected(NamedTuple):
    """A part's pixels, sampled heights, pixels by winning plane, and pixels clipped."""

    cell: Window
    pixels: NDArray[np.uint16]
    heights: NDArray[np.float32]
    votes: NDArray[np.int64]
    clipped: NDArray[np.int64]


def _halves(part: _Stack, halo_px: int, shape: tuple[int, int]) -> list[_Stack]:
    """Return the halves of a part, each with the whole halo: their pixels stay the same."""
    parts = []
    for half in halves((part.cell.y, part.cell.x)):
        cell = with_halo(half, halo_px, shape)
        near = within((cell.window_y, cell.window_x), (part.cell.window_y, part.cell.window_x))
        parts.append(_Stack(cell, part.pixels[:, *near]))
    return parts


def _project_part(backend: Backend, job: ProjectionPlan, part: _Stack) -> _Projected:
    cell, stack = part
    plane = job.project(backend, stack)
    inside = cell.inner
    counts = np.rint(backend.to_numpy(plane.image[inside]))
    pixels = np.clip(counts, 0, 65535).astype(np.uint16)
    # The last entry counts pixels where no plane stands out.
    kinds = len(stack) + 1
    votes = np.bincount(backend.to_numpy(plane.winner[inside]).ravel() % kinds, minlength=kinds)
    # The grid of heights starts at pixel 0 of the mosaic, not of the chunk.
    step = HEIGHT_STEP_PX
    first = [-span.start % step for span in (cell.y, cell.x)]
    sampled = backend.to_numpy(plane.height[inside])[first[0] :: step, first[1] :: step]
    clipped = np.array([(counts < 0).sum(), (counts > 65535).sum()])
    return _Projected(cell, pixels, sampled, votes, clipped)


def _stream(
    backend: Backend, inner: Backend, mosaic: Mosaic, job: ProjectionPlan, writer: StoreWriter
) -> Streamed:
    """Project and write all chunks."""
    step = HEIGHT_STEP_PX
    heights = np.zeros([-(-n // step) for n in mosaic.shape[1:]], np.float32)
    usage = np.zeros(mosaic.shape[0] + 1, np.int64)
    clipped = np.zeros(2, np.int64)

    def one(cell: Window) -> list[_Projected]:
        parts = map_with_oom_split(
            inner,
            lambda part: _project_part(inner, job, part),
            _Stack(cell, mosaic.read(slice(None), cell.window_y, cell.window_x)),
            lambda part: _halves(part, job.halo_px, mosaic.shape[1:]),
            _OOM_HINT,
        )
        for part in parts:
            writer.write(0, part.cell.y.start, part.cell.x.start, part.pixels)
        # What waits to be gathered holds no pixels.
        return [part._replace(pixels=part.pixels[:0, :0].copy()) for part in parts]

    cells = chunk_windows(mosaic, job.halo_px)
    with cancelling_thread_pool(backend, GPU_THREADS) as pool:
        results = pool.map(one, cells)
        for parts in tqdm(results, desc="edf", total=len(cells), unit="chunk", mininterval=5):
            for part in parts:
                top, left = -(-part.cell.y.start // step), -(-part.cell.x.start // step)
                rows, columns = part.heights.shape
                heights[top : top + rows, left : left + columns] = part.heights
                usage += part.votes
                clipped += part.clipped
    return Streamed(heights, usage, clipped)


@dataclass(frozen=True)
class ProjectionPlan:
    """How the stacks of all chunks are projected, and what the output records of it.

    With a ``wiener`` plan, :func:`stream_wiener` projects the mosaic instead.
    """

    project: Callable[[Backend, NDArray[Any]], Projection]
    halo_px: int
    record: dict[str, Any]
    wiener: WienerPlan | None = None


def plan_projection(
    backend: Backend,
    mosaic: Mosaic,
    method: Method,
    optics: Mapping[str, float | None] | None,
    psf_file: str | Path | None,
) -> ProjectionPlan:
    """Decide once per mosaic how every chunk is projected; parameters as ``edf.edf_plane``.

    Raises
    ------
    ProcessingError
        See ``edf.edf_plane``.
    """
    deconvolved = "iterations" in mosaic.attributes
    survey_record = {
        key: mosaic.attributes.get(key, []) for key in ("excluded_planes", "focus_ends")
    }
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    job = ProjectionPlan(_single(pedestal), 0, {"method": "none", "scale": 1.0, **survey_record})
    if mosaic.shape[0] == 1:
        return job
    if method == "sum_projection" and not deconvolved:
        raise ProcessingError(
            f"edf: method sum_projection needs a deconvolved stack, but {mosaic.path} has not been "
            "deconvolved; give multiplane_wiener or focus_weighted"
        )
    if method == "multiplane_wiener" and deconvolved:
        raise ProcessingError(
            f"edf: method multiplane_wiener needs the stitched stack, but {mosaic.path} has been "
            "deconvolved; give the stitched one, or sum_projection"
        )
    plane_mask = np.ones(mosaic.shape[0], bool)
    survey = None if deconvolved else survey_stack(backend, mosaic)
    if survey is not None:
        survey_record, plane_mask = survey.record, survey.plane_mask
    if method == "multiplane_wiener" and survey is not None and plane_mask.sum() > 1:
        size = wiener_psf_size(mosaic)
        psf = mosaic_psf(mosaic, optics or {}, psf_file, **size)
        wide = None if psf_file is not None else wide_profiles(mosaic, optics or {}, **size)
        plan = plan_wiener(backend, mosaic, plane_mask, survey.noise, psf, wide)
        job = replace(job, record=plan.record, wiener=plan)
    elif method == "focus_weighted" or survey is not None:
        noise = survey.noise if survey else measure_noise(backend, mosaic, plane_mask, pedestal)
        job = _focus_weighted_job(job, noise, plane_mask, pedestal)
    else:
        job = _sum_projection_job(job, backend, mosaic, pedestal, optics, psf_file)
    return replace(job, record={**job.record, **survey_record})


def _single(pedestal: float) -> Callable[[Backend, NDArray[Any]], Projection]:
    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        xp = backend.xp
        image = backend.asarray(stack[0]) - pedestal
        zero = xp.zeros(image.shape, xp.float32)
        return Projection(image, zero, xp.zeros(image.shape, xp.int32))

    return run


def _sum_projection_job(
    job: ProjectionPlan,
    backend: Backend,
    mosaic: Mosaic,
    pedestal: float,
    optics: Mapping[str, float | None] | None,
    psf_file: str | Path | None,
) -> ProjectionPlan:
    psf = mosaic_psf(mosaic, optics or {}, psf_file)
    # As the deconvolution crops it: the central plane's share depends on the planes counted.
    psf = crop_psf(psf, mosaic.shape)
    kernel = psf[psf.shape[0] // 2]
    scale = float(kernel.sum(dtype=np.float64))
    floor = _floor_energy(backend, mosaic)

    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        return sum_projection(backend, stack - np.float32(pedestal), kernel, scale, floor)

    return replace(
        job,
        project=run,
        halo_px=max(HALO_PX, max(kernel.shape) // 2),
        record={"method": "sum_projection", "scale": scale},
    )


def _focus_weighted_job(
    job: ProjectionPlan, noise: NoiseModel, plane_mask: NDArray[np.bool_], pedestal: float
) -> ProjectionPlan:
    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        return focus_weighted(backend, stack, noise, pedestal, plane_mask)

    record = {
        "method": "focus_weighted",
        "scale": 1.0,
        "noise_gain": noise.gain,
        "read_noise_counts": noise.read_noise_counts,
    }
    return replace(job, project=run, halo_px=HALO_PX, record=record)


def _floor_energy(backend: Backend, mosaic: Mosaic) -> float:
    """Return 1 % of the energy of the best-focused percent: less is not worth a vote."""
    energies = []
    for i, cell in enumerate(sample_cells(mosaic)):
        plane = mosaic.read(i % mosaic.shape[0], cell.y, cell.x)
        energies.append(backend.to_numpy(focus_energy(backend, plane)[0][::4, ::4]).ravel())
    return max(0.01 * float(np.percentile(np.concatenate(energies), 99)), 1e-6)
