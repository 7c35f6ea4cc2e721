"""Stitching: from raw tiles and their positions to a mosaic z-stack on disk.

Works through rows of chunks, plane by plane. Each raw tile is decoded once per plane and
forgotten after the last row of chunks that it touches, so memory grows with one row of
tiles and not with the mosaic.

Counts keep their scale: the mosaic has the raw dtype, ``(raw - dark) / flat`` plus the
illumination's pedestal, rounded; the pedestal alone outside the tiles. Its attributes are
``pedestal_counts``, ``clipped_low`` and ``clipped_high`` (pixels), ``feather_px``,
``shift_px`` (where it is corrected), ``saturated_share`` (of the bright raw pixels, per plane),
``saturated_from_counts`` (the least that saturated raw pixels become; null where there are none)
and ``repaired_camera_px`` (null where too few tiles tell).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.errors import ProcessingError
from tilewright.io.results.mosaic import create_mosaic
from tilewright.io.results.zarr_store import OmeZarrVersion, StoreWriter
from tilewright.kernels.backend import Backend, Region, cancelling_thread_pool
from tilewright.kernels.camera import CameraDefects
from tilewright.kernels.device_memory import OomHint, map_with_oom_split, track_device_memory
from tilewright.kernels.stitch.blending import Correction, Span, fuse, make_correction, tile_span
from tilewright.kernels.tile_positions.overlap_strips import neighbours
from tilewright.stages import CHUNK_PX
from tilewright.stages.tile_planes import TilePlanes, TileSource
from tilewright.stages.tile_windows import halves, spans

if TYPE_CHECKING:
    from tilewright.io.results.illumination import Illumination
    from tilewright.io.results.positions import Positions

OOM_HINT = OomHint("stitch", "the flat-field, the dark-field and the smallest part of a chunk")


@track_device_memory(OOM_HINT)
def stitch(
    tiles: TileSource,
    positions: Positions,
    illumination: Illumination,
    output: str | Path,
    *,
    backend: Backend,
    voxel_um: tuple[float, float, float],
    chunk_px: int = CHUNK_PX,
    saturation_counts: float | None = None,
    defects: Sequence[int] | None = None,
    shift_px: tuple[float, float] = (0.0, 0.0),
    ome_zarr_version: OmeZarrVersion = "0.4",
) -> None:
    """Fuse the tiles of one cycle and channel into a mosaic.

    Counts and attributes of the mosaic: see the module. Parameters without a line here are keys of
    the configuration, see :mod:`tilewright.config.settings`; None is ``auto``.

    Parameters
    ----------
    tiles : TileSource
        Raw tiles of uint8 or uint16.
    positions : Positions
        (y, x) of each tile's first pixel in the mosaic, matched to the tiles by name.
    illumination : Illumination
        Flat-field, dark-field and pedestal.
    output : Path
        Folder of the mosaic; appears when it is whole.
    backend : Backend
        Where to compute; its ``workers`` threads fuse chunks.
    voxel_um : tuple of float
        (z, y, x) size of a voxel in µm.
    chunk_px : int
        Side of the mosaic's chunks, which are fused one by one.
    saturation_counts : float, optional
        As the illumination has it; None is the largest of the pixel type.
    defects : sequence of int, optional
        Flat indices of the camera's defective pixels, which are repaired.
    shift_px : tuple of float
        (y, x) by which the optics displace this channel against the one that placed the tiles.
        They are read that much further on, by the one interpolation that places them.

    Raises
    ------
    ProcessingError
        A tile has no position, or the illumination does not fit the tiles.
    DeviceMemoryError
        The GPU's memory does not hold the smallest part of a chunk.
    """
    plan = _plan(backend, tiles, positions, illumination, chunk_px, shift_px)
    ceiling = np.iinfo(tiles.dtype).max if saturation_counts is None else saturation_counts
    with create_mosaic(
        output,
        (tiles.shape[0], *plan.shape),
        tiles.dtype,
        chunk_px,
        voxel_um,
        ome_zarr_version=ome_zarr_version,
        fill=int(illumination.pedestal + 0.5),
    ) as mosaic:
        size = tiles.shape[1], tiles.shape[2]
        found = None if defects is None else CameraDefects.of(defects, size)
        low, high, planes = _stream(backend, tiles, plan, mosaic, ceiling, found)
        mosaic.attributes |= {
            "pedestal_counts": int(illumination.pedestal + 0.5),
            "clipped_low": low,
            "clipped_high": high,
            "feather_px": plan.feather_px,
            "saturated_share": planes.saturated_shares,
            "saturated_from_counts": (
                _least_saturated(illumination, ceiling) if planes.any_saturated else None
            ),
            "repaired_camera_px": None if defects is None else len(defects),
        }
        if any(shift_px):
            mosaic.attributes["shift_px"] = list(shift_px)


def _plan(
    backend: Backend,
    tiles: TileSource,
    positions: Positions,
    illumination: Illumination,
    chunk_px: int,
    shift_px: tuple[float, float],
) -> StitchPlan:
    """Check that the inputs fit the tiles; return where each lies and how it is corrected."""
    places = _places(tiles, positions)
    _check(tiles, illumination)
    feather_px = overlap_px(places, (tiles.shape[1], tiles.shape[2]))
    height, width = tiles.shape[1:]
    frame = [(tile_span(y, height), tile_span(x, width)) for y, x in places.tolist()]
    shifted = (places - shift_px).tolist()
    tile_spans = [(tile_span(y, height), tile_span(x, width)) for y, x in shifted]
    correction = make_correction(
        backend, illumination.flat, illumination.dark, illumination.pedestal
    )
    # All channels have the frame of the one that placed the tiles.
    shape = (max(ys.stop for ys, _ in frame), max(xs.stop for _, xs in frame))
    return StitchPlan(tile_spans, shape, chunk_px, correction, feather_px)


def _least_saturated(illumination: Illumination, ceiling: float) -> int:
    """Return the least counts that raw pixels at the camera's ceiling are corrected to."""
    # Of all but one in a thousand: a flat-field from a file may have pixels of its own.
    light = (ceiling - illumination.dark) / illumination.flat
    return math.floor(float(np.percentile(light, 0.1)) + illumination.pedestal)


def overlap_px(places: NDArray[np.float64], size: tuple[int, int]) -> float:
    """Return the median overlap of neighbours in a row or a column, in pixels; 0 if none overlap.

    ``places`` (n, 2) are the (y, x) of each tile's first pixel, ``size`` the (y, x) of a tile.
    """
    pairs, axes = neighbours(places, size, least_px=0.0)
    step = np.abs(places[pairs[:, 1]] - places[pairs[:, 0]])[np.arange(len(pairs)), axes]
    overlaps = np.asarray(size)[axes] - step
    return float(np.median(overlaps[overlaps > 0])) if (overlaps > 0).any() else 0.0


def _places(tiles: TileSource, positions: Positions) -> NDArray[np.float64]:
    """Return the (y, x) of each tile, with 0 as the smallest of each."""
    known = positions.places()
    names = tiles.name.tolist()
    for name in names:
        if name not in known or not np.isfinite(known[name]).all():
            raise ProcessingError(
                f"tile {name} has no position; make its positions again: snakemake -R calibrate"
            )
    places = np.array([known[name] for name in names])
    return np.asarray(places - places.min(axis=0))


def _check(tiles: TileSource, illumination: Illumination) -> None:
    size = tuple(tiles.shape[1:])
    for name, field in (("flat-field", illumination.flat), ("dark-field", illumination.dark)):
        if field.shape != size:
            raise ProcessingError(f"the {name} has shape {field.shape}, but the tiles have {size}")
    largest = np.iinfo(tiles.dtype).max
    if not 0 <= illumination.pedestal <= largest:
        raise ProcessingError(
            f"the dark-field's median is {illumination.pedestal:g} counts, which {tiles.dtype} "
            f"tiles cannot keep as zero light; give a dark-field of 0 to {largest} counts"
        )


def _stream(
    backend: Backend,
    tiles: TileSource,
    plan: StitchPlan,
    mosaic: StoreWriter,
    saturation_counts: float,
    defects: CameraDefects | None,
) -> tuple[int, int, TilePlanes]:
    """Fuse and write all chunks; return the pixels clipped low and high, and what was read."""
    rows, columns = (spans(size, plan.chunk_px) for size in plan.shape)
    steps = [(z, y) for z in range(tiles.shape[0]) for y in rows]
    needs = {y.start: plan.touching((y, slice(0, plan.shape[1]))) for y in rows}
    clipped = np.zeros(2, dtype=np.int64)
    with (
        cancelling_thread_pool(backend) as pool,
        tqdm(total=len(steps) * len(columns), desc="stitch", unit="chunk", mininterval=5) as bar,
    ):
        planes = TilePlanes(tiles, pool, saturation_counts, defects)
        before: list[Future[tuple[int, int]]] = []
        for i in range(len(steps) + 1):
            # A row's tiles are queued before its chunks, so no chunk waits for a queued tile.
            here, ahead = steps[i : i + 1], steps[i + 1 : i + 2]
            for z, y in here:
                planes.load(z, needs[y.start])
            running = [
                pool.submit(fuse_chunk, backend, plan, planes, mosaic, z, (y, x))
                for z, y in here
                for x in columns
            ]
            for z, y in ahead:
                planes.load(z, needs[y.start])
            for future in before:
                clipped += future.result()
                bar.update()
            planes.keep({(z, k) for z, y in [*here, *ahead] for k in needs[y.start]})
            before = running
    return int(clipped[0]), int(clipped[1]), planes


@dataclass(frozen=True)
class StitchPlan:
    """Where each tile lies, and how chunks are fused."""

    spans: list[tuple[Span, Span]]
    shape: tuple[int, int]
    chunk_px: int
    correction: Correction
    feather_px: float

    def touching(self, region: Region) -> list[int]:
        """Return the tiles that share pixels with a region of the mosaic."""
        y, x = region
        return [
            k
            for k, (ys, xs) in enumerate(self.spans)
            if ys.start < y.stop and y.start < ys.stop and xs.start < x.stop and x.start < xs.stop
        ]


def fuse_chunk(
    backend: Backend,
    plan: StitchPlan,
    planes: TilePlanes,
    mosaic: StoreWriter,
    z: int,
    region: Region,
) -> tuple[int, int]:
    """Fuse and write one chunk; return its pixels clipped low and high."""
    members = plan.touching(region)
    if not members:
        return 0, 0
    tiles, places = planes.get(z, members), [plan.spans[k] for k in members]

    def fuse_part(part: Region) -> tuple[Region, NDArray[Any], int, int]:
        rows, columns = part
        pixels, low, high = fuse(
            backend,
            tiles,
            places,
            plan.correction,
            (rows.start, columns.start),
            (rows.stop - rows.start, columns.stop - columns.start),
            feather_px=plan.feather_px,
            dtype=mosaic.dtype,
        )
        return part, backend.to_numpy(pixels), low, high

    parts = map_with_oom_split(backend, fuse_part, region, halves, OOM_HINT)
    for (rows, columns), pixels, _, _ in parts:
        mosaic.write(z, rows.start, columns.start, pixels)
    return sum(low for _, _, low, _ in parts), sum(high for *_, high in parts)
