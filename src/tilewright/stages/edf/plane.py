"""Extended depth of field: from a mosaic z-stack to one in-focus plane and a height map.

A plan, made once of a fixed sample of the mosaic, holds for all of it (damaged planes, camera
noise, filters), so that every tile is projected alike and both devices look at the same pixels.
Then tile by tile a window is read, projected by the method's kernel, and written. All windows have
one size and start at multiples of 8 px of the mosaic, which is continued by its mirror image: the
tiling does not show. Memory grows with a window's stack and the threads, not with the mosaic.

``sum_projection`` is the sum over z blurred with the in-focus PSF and multiplied with the share of
the PSF's light in its central plane: the counts of a raw plane with everything in focus.
``focus_weighted`` mixes raw planes with weights that sum to 1. ``multiplane_wiener`` estimates the
same as ``sum_projection`` from the raw stack, with filters over all planes
(:mod:`tilewright.kernels.edf.wiener_plane`). None scales with the image and none subtracts a
background, so the counts of all channels, cycles and samples compare.

The output is uint16 without pedestal and has z = 1; its attributes are those of ``docs/edf.md``.
The height map is a float32 TIFF, in µm above plane 0, of every eighth pixel (the soft argmax of the
focus energy; mid-stack where nothing is in focus).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tifffile
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.results.mosaic import Mosaic, create_mosaic, open_mosaic
from tilewright.io.results.result_file import result_path
from tilewright.io.results.zarr_store import OmeZarrVersion, StoreWriter
from tilewright.kernels.backend import Backend, Region, cancelling_thread_pool, cells, fast_len
from tilewright.kernels.device_memory import OomHint, retry_smaller_on_oom, track_device_memory
from tilewright.kernels.edf.focus import POOL_PX, FocusMeasure
from tilewright.stages import TILE_PX
from tilewright.stages.edf import Method
from tilewright.stages.edf.projections import ProjectionPlan, Projector, Window, plan_projection
from tilewright.stages.tile_windows import LEAST_PX, read_window, spans

#: The height map keeps every eighth pixel of the mosaic in y and x.
HEIGHT_STEP_PX = 8
#: On a GPU one thread reads while the other computes; each holds a window there.
GPU_THREADS = 2
#: The background is the darkest tenth of what squares of this side hold, in means of 8 px.
_BACKGROUND_PX, _BACKGROUND_PERCENTILE = 64, 10.0
_OOM_HINT = OomHint("edf_plane", "all planes of its smallest tile with halo")
_SAMPLES = OomHint("edf_plane", "the windows from which its filters are made")
_FREE: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


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
        Where to compute; its ``workers`` threads project tiles.
    method : Method
        It must take the source (:data:`tilewright.stages.edf.METHODS`), whose attributes have
        ``iterations`` where it was deconvolved. ``multiplane_wiener`` is ``focus_weighted`` where
        one plane of several is usable, which is that plane.

    Raises
    ------
    ProcessingError, RawDataError
        The method is not possible with this source, no plane is usable, or the optics or the PSF
        file that the method needs are unusable.
    DeviceMemoryError
        The GPU's memory does not hold the smallest tile.
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
            ome_zarr_version=ome_zarr_version,
        ) as writer,
    ):
        heights = retry_smaller_on_oom(
            backend,
            lambda tile_px: _project(backend, mosaic, plan, writer, tile_px),
            TILE_PX,
            lambda tile_px: tile_px // 2 if tile_px > LEAST_PX else None,
            _OOM_HINT,
        )
        tifffile.imwrite(height_partial, heights, metadata=None, software=False)


def _sides(shape: tuple[int, ...], tile_px: int) -> tuple[int, int]:
    """Return the sides of equal tiles of at most ``tile_px``, multiples of 8."""
    step = HEIGHT_STEP_PX
    y, x = (step * -(-n // (step * -(-n // tile_px))) for n in shape)
    return y, x


class _TileSummary(NamedTuple):
    """What is known of a tile when its pixels are written.

    ``heights`` in planes; ``usage``, pixels of the 4 × 4 grid by sharpest plane (last: undecided);
    ``counts``: pixels clipped low and high, and far below noise; light of the background, and all
    light.
    """

    tile: Region
    heights: NDArray[np.float32]
    usage: NDArray[np.int64]
    counts: NDArray[np.float64]


def _project(
    backend: Backend, mosaic: Mosaic, plan: ProjectionPlan, writer: StoreWriter, tile_px: int
) -> NDArray[np.float32]:
    """Project and write all tiles, and the attributes of the plane; return the heights, µm."""
    shape = mosaic.shape[1:]
    sides = _sides(shape, tile_px)
    rows, columns = (spans(n, side) for n, side in zip(shape, sides, strict=True))
    tiles = [(y, x) for y in rows for x in columns]
    y, x = (HEIGHT_STEP_PX * fast_len(-(-(n + 2 * plan.halo_px) // 8)) for n in sides)
    one_thread = replace(backend, workers=1)
    measure = FocusMeasure(one_thread, plan.plane_mask, plan.noise, plan.pedestal, (y, x))
    projector = plan.projector(measure)
    heights = np.zeros([-(-n // HEIGHT_STEP_PX) for n in shape], np.float32)
    usage = np.zeros(mosaic.shape[0] + 1, np.int64)
    counts = np.zeros(5)

    def one(tile: Region) -> _TileSummary:
        return _project_tile(backend, mosaic, plan, projector, writer, tile, (y, x))

    with cancelling_thread_pool(backend, GPU_THREADS) as pool:
        bar = tqdm(pool.map(one, tiles), desc="edf", total=len(tiles), unit="tile", mininterval=5)
        for summary in bar:
            heights[_every(summary.tile, HEIGHT_STEP_PX)] = summary.heights
            usage += summary.usage
            counts += summary.counts
    decided = max(int(usage[:-1].sum()), 1)
    clipped_low, clipped_high, below_noise, background, light = counts.tolist()
    writer.attributes.update(
        pedestal_counts=0,
        clipped_low=int(clipped_low),
        clipped_high=int(clipped_high),
        plane_usage=[round(float(n) / decided, 6) for n in usage[:-1]],
        undecided_fraction=round(float(usage[-1]) / max(int(usage.sum()), 1), 6),
        background_share=round(background / light, 3) if light > 0 else 0.0,
        **plan.record,
    )
    if plan.record["method"] == "multiplane_wiener":
        writer.attributes["below_noise"] = round(below_noise)
    return heights * np.float32(mosaic.voxel_um[0])


def _project_tile(
    backend: Backend,
    mosaic: Mosaic,
    plan: ProjectionPlan,
    projector: Projector,
    writer: StoreWriter,
    tile: Region,
    size: tuple[int, int],
) -> _TileSummary:
    """Read the window of a tile, project it, and write the tile."""
    start = [part.start - plan.halo_px for part in tile]
    planes = np.flatnonzero(plan.plane_mask).tolist()
    stack, coverage = read_window(mosaic, planes, plan.pedestal, start, size, 2 * plan.halo_px)
    y, x = (
        np.minimum(i := np.arange(at, at + n), length - 1 - i)
        for at, n, length in zip(start, size, mosaic.shape[1:], strict=True)
    )
    window = Window(stack, coverage, np.minimum.outer(y, x).astype(np.float32))
    # As in `map_with_oom_split`: what fits does not depend on what another thread holds.
    with backend.use.turn if backend.device == "gpu" else _FREE:
        plane = projector(window)
        own = tuple(slice(plan.halo_px, plan.halo_px + p.stop - p.start) for p in tile)
        near = tuple(slice(p.start // POOL_PX, -(-p.stop // POOL_PX)) for p in own)
        image = backend.to_numpy(plane.image[own])
        height, sharpest = (backend.to_numpy(v[near]) for v in (plane.height, plane.sharpest))
        below = backend.to_numpy(plane.below_noise[near]) if plane.below_noise is not None else 0.0
    coverage = coverage[own]
    counts = np.rint(image) * coverage
    pixels = np.clip(counts, 0, 65535).astype(np.uint16)
    writer.write(0, tile[0].start, tile[1].start, pixels)
    # Of gaps nothing is decided, and they lie mid-stack.
    kinds = mosaic.shape[0] + 1
    pooled = coverage[::POOL_PX, ::POOL_PX]
    usage = np.bincount(np.where(pooled, sharpest, -1).ravel() % kinds, minlength=kinds)
    step = HEIGHT_STEP_PX // POOL_PX
    middle = np.float32(np.flatnonzero(plan.plane_mask).mean())
    heights = np.where(pooled[::step, ::step], height[::step, ::step], middle)
    below_px = float(np.sum(below * pooled, dtype=np.float64)) * POOL_PX**2
    clipped = [np.count_nonzero(counts < 0), np.count_nonzero(counts > 65535)]
    light = _background(pixels, coverage)
    return _TileSummary(tile, heights, usage, np.array([*clipped, below_px, *light]))


def _background(pixels: NDArray[np.uint16], coverage: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the light of the background of a tile (y, x), and all its light, in whole squares."""
    whole = cells(coverage, _BACKGROUND_PX).all(axis=(1, 3)).ravel()
    means = cells(pixels, HEIGHT_STEP_PX).mean(axis=(1, 3), dtype=np.float64)
    squares = cells(means, _BACKGROUND_PX // HEIGHT_STEP_PX).swapaxes(1, 2)
    squares = squares.reshape(len(whole), -1)[whole] if len(whole) else np.zeros((0, 1))
    dark = np.percentile(squares, _BACKGROUND_PERCENTILE, axis=1) if len(squares) else np.zeros(1)
    return float(dark.sum()), float(squares.mean(axis=1).sum())


def _every(region: Region, step: int) -> Region:
    """Return a region that starts at whole steps on a grid that has one pixel of each."""
    y, x = (slice(part.start // step, -(-part.stop // step)) for part in region)
    return y, x
