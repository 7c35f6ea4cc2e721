"""The multi-plane Wiener plane of a stitched stack, window by window.

The filters of a channel come from a few sample windows. A first pass writes the unclipped plane
and its noise to stores next to the output; then haze, which is known only of the whole mosaic, and
grain are removed part by part. Memory grows with a window's stack and the threads, not with the
mosaic, but for one pixel of 8 × 8. All windows have one size and start at multiples of 8 px of
the mosaic, which is continued by its mirror image: the tiling does not show.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.results.mosaic import Mosaic, create_mosaic, open_mosaic
from tilewright.io.results.zarr_store import StoreWriter
from tilewright.kernels.backend import Backend, Region, cancelling_thread_pool, cells
from tilewright.kernels.device_memory import OomHint, retry_smaller_on_oom
from tilewright.kernels.edf.bright_debris import DebrisSubtraction
from tilewright.kernels.edf.focus_maps import POOL_PX, FocusMaps
from tilewright.kernels.edf.wiener_filters import window_len
from tilewright.kernels.edf.wiener_finish import (
    BACKGROUND_PX,
    FINISH_HALO_PX,
    confidence_weight,
    estimate_background,
    fill,
    finish,
)
from tilewright.kernels.edf.wiener_plane import HALO_PX, WienerPlane
from tilewright.kernels.pooling import downsample_mean
from tilewright.stages.edf.stack_survey import ceiling_of
from tilewright.stages.edf.wiener_plan import WienerPlan, read_without_debris
from tilewright.stages.tile_windows import regions, spans, with_halo

#: The height map keeps every eighth pixel of the mosaic in y and x.
HEIGHT_STEP_PX = 8
#: On a GPU one thread reads while the other computes.
GPU_THREADS = 2
#: Largest side of a tile: 1.4 times its pixels are computed, 2 times with 512 px.
_TILE_PX = 1024
#: No tile is made smaller: with its halo it is computed on 5 times its pixels.
_LEAST_TILE_PX = 128
_SCRATCH_CHUNK_PX = 256
_OOM_HINT = OomHint("edf_plane", "all planes of its smallest tile with halo")
_FREE: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
_T = TypeVar("_T")


class PlaneSummary(NamedTuple):
    """Heights in planes, pixels by sharpest plane (last: undecided), pixels clipped low, high.

    ``record`` has further attributes of the output.
    """

    heights: NDArray[np.float32]
    usage: NDArray[np.int64]
    clipped: NDArray[np.int64]
    record: Mapping[str, Any] = MappingProxyType({})


def stream_wiener(
    backend: Backend, mosaic: Mosaic, plan: WienerPlan, writer: StoreWriter, folder: Path
) -> PlaneSummary:
    """Estimate and write the plane of a mosaic of raw counts, by the plan made of it.

    The ``writer`` takes uint16, (1, y, x). The backend's ``workers`` threads take windows.
    Temporary stores in ``folder`` take 4.5 bytes per pixel of a plane before compression.

    Raises
    ------
    DeviceMemoryError
        The device's memory does not hold the smallest tile.
    """
    shape = mosaic.shape[1:]

    def work(tile_px: int) -> PlaneSummary:
        run = _Run(backend, mosaic, plan, folder, tile_px)
        summary, coarse = run.estimate()
        background = backend.to_numpy(estimate_background(backend, coarse))
        run.finish(background, writer, summary.clipped)
        haze_counts = plan.haze_share * float(background.mean(dtype=np.float64))
        return summary._replace(record={**summary.record, "haze_counts": round(haze_counts, 2)})

    def smaller(tile_px: int) -> int | None:
        half = tile_px
        while half // 2 >= _LEAST_TILE_PX:
            half //= 2
            if _sides(shape, half) != _sides(shape, tile_px):
                return half
        return None

    return retry_smaller_on_oom(backend, work, _TILE_PX, smaller, _OOM_HINT)


def _sides(shape: tuple[int, ...], tile_px: int) -> tuple[int, int]:
    """Return the sides of equal tiles of at most ``tile_px``, multiples of 8."""
    y, x = (BACKGROUND_PX * -(-n // (BACKGROUND_PX * -(-n // tile_px))) for n in shape)
    return y, x


class _TilePlane(NamedTuple):
    """A tile on the host: its plane, means of 8 × 8 px, and maps of one pixel of 4 × 4."""

    image: NDArray[np.float32]
    coarse: NDArray[np.float32]
    variance: NDArray[np.float32]
    sharpest: NDArray[np.int32]
    height: NDArray[np.float32]
    deep: NDArray[np.float32]
    fallback_fraction: NDArray[np.float32]


class _TileSummary(NamedTuple):
    """Summary of a tile.

    ``below_px`` and ``deep_px`` are pixels below 0 and far below it, ``fallback_px`` is the share
    of the tile that is ``focus_weighted`` for that, in pixels.
    """

    region: Region
    heights: NDArray[np.float32]
    usage: NDArray[np.int64]
    below_px: int
    deep_px: float
    fallback_px: float
    coarse: NDArray[np.float32]
    coverage: NDArray[np.bool_]


class _Run:
    """Two passes over the tiles of a mosaic, grown to multiples of 8 px."""

    def __init__(
        self, backend: Backend, mosaic: Mosaic, plan: WienerPlan, folder: Path, tile_px: int
    ) -> None:
        self.backend, self.inner = backend, replace(backend, workers=1)
        self.mosaic, self.plan, self.tile_px = mosaic, plan, tile_px
        self.paths = {name: folder / f"{name}.zarr" for name in ("plane", "variance", "coverage")}
        self.shape = mosaic.shape[1:]
        y, x = (-(-n // BACKGROUND_PX) * BACKGROUND_PX for n in self.shape)
        self.whole = (y, x)
        self.ceiling = ceiling_of(mosaic)

    @contextlib.contextmanager
    def _stores(self) -> Iterator[dict[str, StoreWriter]]:
        """Open stores of the plane, its variance, and its coverage."""
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(
                    create_mosaic(
                        self.paths[name],
                        (1, self.whole[0] // step, self.whole[1] // step),
                        dtype,
                        _SCRATCH_CHUNK_PX // step,
                        self.mosaic.voxel_um,
                        name,
                        fill=empty,
                    )
                )
                for name, step, dtype, empty in (
                    ("plane", 1, np.float32, 0),
                    ("variance", POOL_PX, np.float32, 0),
                    ("coverage", 1, np.uint8, 1),
                )
            }

    def _each(self, work: Callable[[Region], _T], parts: list[Region], name: str) -> Iterator[_T]:
        """Do work on parts in the backend's threads; results come in order."""
        with cancelling_thread_pool(self.backend, GPU_THREADS) as pool:
            results = pool.map(work, parts)
            yield from tqdm(results, desc=name, total=len(parts), unit="tile", mininterval=5)

    def estimate(self) -> tuple[PlaneSummary, NDArray[np.float32]]:
        """Write the unclipped plane; return its summary, and its means of 8 × 8 px."""
        sides = _sides(self.shape, self.tile_px)
        window = window_len(sides[0] + 2 * HALO_PX), window_len(sides[1] + 2 * HALO_PX)
        model = self.plan.channel, self.plan.noise, self.plan.pedestal_counts
        wiener_plane = WienerPlane(FocusMaps(self.inner, *model, window), self.plan.filters)
        rows, columns = (spans(n, side) for n, side in zip(self.whole, sides, strict=True))
        tiles = [(y, x) for y in rows for x in columns]
        small = [n // BACKGROUND_PX for n in self.whole]
        coarse, coverage = np.zeros(small, np.float32), np.zeros(small, np.bool_)
        heights = np.zeros([-(-n // HEIGHT_STEP_PX) for n in self.shape], np.float32)
        usage = np.zeros(self.mosaic.shape[0] + 1, np.int64)
        clipped = np.zeros(2, np.int64)
        deep_px = fallback_px = 0.0
        with self._stores() as stores:

            def one(tile: Region) -> _TileSummary:
                return self._project(wiener_plane, stores, tile)

            for tile in self._each(one, tiles, "edf"):
                at = _every(tile.region, BACKGROUND_PX)
                coarse[at], coverage[at], heights[at] = tile.coarse, tile.coverage, tile.heights
                usage += tile.usage
                clipped[0] += tile.below_px
                deep_px += tile.deep_px
                fallback_px += tile.fallback_px
        # Gaps are filled like their surroundings, or the background would be too low next to them.
        area = float(np.prod(self.shape))
        record = {"below_noise": round(deep_px), "fallback_fraction": round(fallback_px / area, 6)}
        return PlaneSummary(heights, usage, clipped, record), fill(coarse[None], coverage)[0]

    def _project(
        self, wiener_plane: WienerPlane, stores: dict[str, StoreWriter], tile: Region
    ) -> _TileSummary:
        """Estimate a tile and write what is large."""
        start = tuple(part.start - HALO_PX for part in tile)
        y, x = (slice(HALO_PX, HALO_PX + part.stop - part.start) for part in tile)
        window, coverage = read_without_debris(
            self.mosaic, self.plan.debris, start, wiener_plane.window
        )
        own_coverage = coverage[y, x]
        if not own_coverage.all():
            _write(stores["coverage"], tile, 1, own_coverage.astype(np.uint8))
        if not coverage.any():
            return self._summary(tile, own_coverage, self._empty(own_coverage.shape))
        confidence = self._confidence(window.stack, coverage, start)
        # As in `map_with_oom_split`: what fits does not depend on what another thread holds.
        on_device = self.backend.use.turn if self.backend.device == "gpu" else _FREE
        with on_device:
            plane = self._tile_plane(wiener_plane, window, confidence, (y, x))
        _write(stores["plane"], tile, 1, plane.image)
        _write(stores["variance"], tile, POOL_PX, plane.variance)
        return self._summary(tile, own_coverage, plane)

    def _confidence(
        self, stack: NDArray[Any], coverage: NDArray[np.bool_], start: tuple[int, ...]
    ) -> NDArray[np.float32]:
        saturated = np.zeros(coverage.shape, np.bool_)
        for z in np.flatnonzero(self.plan.channel.plane_mask):
            saturated |= stack[z] >= self.ceiling
        y, x = (
            np.minimum(i := np.arange(at, at + n), size - 1 - i)
            for at, n, size in zip(start, coverage.shape, self.shape, strict=True)
        )
        return confidence_weight(np.minimum.outer(y, x).astype(np.float32), coverage, saturated)

    def _tile_plane(
        self,
        wiener_plane: WienerPlane,
        window: DebrisSubtraction,
        confidence: NDArray[np.float32],
        tile: Region,
    ) -> _TilePlane:
        plane = wiener_plane.project(window.stack, confidence)
        near, image = _every(tile, POOL_PX), plane.image[tile]
        maps = (plane.variance, plane.sharpest, plane.height, plane.deep, plane.fallback_fraction)
        pooled = [self.backend.to_numpy(values[near]) for values in maps]
        # The background is that of the plane without bright debris.
        coarse = self.backend.to_numpy(downsample_mean(image))
        if window.light is not None:
            image = image + self.backend.asarray(window.light[tile])
        return _TilePlane(self.backend.to_numpy(image), coarse, *pooled)

    def _empty(self, shape: tuple[int, ...]) -> _TilePlane:
        pooled, coarse = ([n // step for n in shape] for step in (POOL_PX, BACKGROUND_PX))
        dark = np.zeros(pooled, np.float32)
        empty = np.zeros(coarse, np.float32)
        sharpest = dark.astype(np.int32)
        return _TilePlane(np.zeros(shape, np.float32), empty, dark, sharpest, dark, dark, dark)

    def _summary(
        self, tile: Region, coverage: NDArray[np.bool_], plane: _TilePlane
    ) -> _TileSummary:
        """Return the summary of a tile; pixels of gaps are undecided, mid-stack."""
        rows, columns = (min(p.stop, n) - p.start for p, n in zip(tile, self.shape, strict=True))
        inside = coverage[:rows, :columns]
        pooled = inside[::POOL_PX, ::POOL_PX]
        kinds = self.mosaic.shape[0] + 1
        sharpest = np.where(pooled, plane.sharpest[: pooled.shape[0], : pooled.shape[1]], -1)
        usage = np.bincount(sharpest.ravel() % kinds, minlength=kinds)
        step = HEIGHT_STEP_PX // POOL_PX
        sampled = inside[::HEIGHT_STEP_PX, ::HEIGHT_STEP_PX]
        heights = plane.height[::step, ::step][: sampled.shape[0], : sampled.shape[1]]
        middle = np.float32(np.flatnonzero(self.plan.channel.plane_mask).mean())
        image = plane.image[:rows, :columns]
        below = int(np.count_nonzero(inside & (np.rint(image) < 0)))
        shares = np.stack([plane.deep, plane.fallback_fraction])
        shares = shares[:, : pooled.shape[0], : pooled.shape[1]] * pooled
        deep, fallback = (shares.sum(axis=(1, 2), dtype=np.float64) * POOL_PX**2).tolist()
        whole = np.asarray(cells(coverage, BACKGROUND_PX).all(axis=(1, 3)))
        heights = np.where(sampled, heights, middle)
        return _TileSummary(tile, heights, usage, below, deep, fallback, plane.coarse, whole)

    def finish(
        self, background: NDArray[np.float32], writer: StoreWriter, clipped: NDArray[np.int64]
    ) -> None:
        """Write the plane without haze and grain, and count what is clipped high."""
        chunk_px = self.mosaic.chunk_px
        side = max(self.tile_px // chunk_px, 1) * chunk_px
        if side % BACKGROUND_PX or side > self.tile_px:
            side = self.tile_px
        stores = {name: open_mosaic(path) for name, path in self.paths.items()}

        def one(part: Region) -> int:
            return self._finish_part(stores, background, writer, part)

        for above in self._each(one, regions(self.whole, side), "haze and grain"):
            clipped[1] += above

    def _finish_part(
        self,
        stores: dict[str, Mosaic],
        background: NDArray[np.float32],
        writer: StoreWriter,
        part: Region,
    ) -> int:
        window = with_halo(part, FINISH_HALO_PX, self.whole)
        near = (window.window_y, window.window_x)
        image = stores["plane"].read(0, *near)
        variance = stores["variance"].read(0, *_every(near, POOL_PX))
        clear = finish(
            self.inner,
            image,
            variance,
            background[_every(near, BACKGROUND_PX)],
            self.plan.haze_share,
        )
        counts = np.rint(self.backend.to_numpy(clear[window.inner]))
        y, x = (slice(p.start, min(p.stop, n)) for p, n in zip(part, self.shape, strict=True))
        counts = counts[: y.stop - y.start, : x.stop - x.start] * stores["coverage"].read(0, y, x)
        writer.write(0, y.start, x.start, np.clip(counts, 0, 65535).astype(np.uint16))
        return int(np.count_nonzero(counts > 65535))


def _every(region: Region, step: int) -> Region:
    """Return a region of whole steps on a grid that has one pixel of each."""
    y, x = (slice(part.start // step, part.stop // step) for part in region)
    return y, x


def _write(store: StoreWriter, tile: Region, step: int, pixels: NDArray[Any]) -> None:
    store.write(0, tile[0].start // step, tile[1].start // step, pixels)
