"""The in-focus plane estimated directly from a stitched stack, window by window.

The filters of a channel come from a few sample windows. A first pass writes the unclipped plane
and its noise to stores beside the output; then haze, which is known only of the whole mosaic, and
grain are taken out part by part. Memory grows with a window's stack and the threads, not with the
mosaic, but for one pixel of 8 × 8. All windows have one size and start at multiples of 8 px of
the mosaic, which is continued by its mirror image: the tiling does not show.
"""

from __future__ import annotations

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
from tilewright.kernels.backend import Backend, cells
from tilewright.kernels.device_memory import Smallest, shrinking
from tilewright.kernels.edf.specks import Cleaned
from tilewright.kernels.edf.wiener_filters import window_len
from tilewright.kernels.edf.wiener_finish import (
    FINISH_HALO_PX,
    FLOOR_PX,
    coarser,
    fill,
    finish,
    floor_of,
    trust_in,
)
from tilewright.kernels.edf.wiener_plane import HALO_PX, POOL_PX, FocusMaps, WienerPlane
from tilewright.stages.edf.stack_survey import ceiling_of
from tilewright.stages.edf.wiener_plan import WienerPlan, look_clean
from tilewright.stages.tile_planes import abandoning_pool
from tilewright.stages.tile_windows import Region, regions, spans, with_halo

#: The height map keeps every eighth pixel of the mosaic in y and x.
HEIGHT_STEP_PX = 8
#: On a GPU one thread reads while the other computes.
GPU_THREADS = 2
#: Largest side of a tile: 1.4 times its pixels are computed, 2 times with 512 px.
_TILE_PX = 1024
#: No tile is made smaller: with its halo it is computed on 5 times its pixels.
_LEAST_TILE_PX = 128
_SCRATCH_CHUNK_PX = 256
_SMALLEST = Smallest("edf_plane", "all planes of its smallest tile with halo")
_FREE: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
_T = TypeVar("_T")


class Streamed(NamedTuple):
    """Heights in planes, pixels by sharpest plane (last: undecided), pixels clipped low, high.

    ``record`` is what the output says besides.
    """

    heights: NDArray[np.float32]
    usage: NDArray[np.int64]
    clipped: NDArray[np.int64]
    record: Mapping[str, Any] = MappingProxyType({})


def stream_wiener(
    backend: Backend, mosaic: Mosaic, plan: WienerPlan, writer: StoreWriter, folder: Path
) -> Streamed:
    """Estimate and write the plane of a mosaic.

    Parameters
    ----------
    backend : Backend
        Its ``workers`` threads take windows.
    mosaic : Mosaic
        Raw counts.
    plan : WienerPlan
        Made of it.
    writer : StoreWriter
        uint16, (1, y, x).
    folder : Path
        Where temporary stores may be: 4.5 bytes per pixel of a plane before compression.

    Raises
    ------
    DeviceMemoryError
        The device's memory does not hold the smallest tile.
    """
    shape = mosaic.shape[1:]

    def work(tile_px: int) -> Streamed:
        run = _Run(backend, mosaic, plan, folder, tile_px)
        streamed, coarse = run.estimate()
        floor = backend.to_numpy(floor_of(backend, coarse))
        run.finish(floor, writer, streamed.clipped)
        haze_counts = plan.haze_share * float(floor.mean(dtype=np.float64))
        return streamed._replace(record={**streamed.record, "haze_counts": round(haze_counts, 2)})

    def smaller(tile_px: int) -> int | None:
        halved = tile_px
        while halved // 2 >= _LEAST_TILE_PX:
            halved //= 2
            if _sides(shape, halved) != _sides(shape, tile_px):
                return halved
        return None

    return shrinking(backend, work, _TILE_PX, smaller, _SMALLEST)


def _sides(shape: tuple[int, ...], tile_px: int) -> tuple[int, int]:
    """Return the sides of equal tiles of at most ``tile_px``, multiples of 8."""
    y, x = (FLOOR_PX * -(-n // (FLOOR_PX * -(-n // tile_px))) for n in shape)
    return y, x


class _Found(NamedTuple):
    """A tile on the host: its plane, what is pooled 4 × 4, and means of 8 × 8 px."""

    image: NDArray[np.float32]
    coarse: NDArray[np.float32]
    variance: NDArray[np.float32]
    winner: NDArray[np.int32]
    height: NDArray[np.float32]
    deep: NDArray[np.float32]
    fallback_fraction: NDArray[np.float32]


class _Tile(NamedTuple):
    """What the first pass keeps of a tile in memory.

    ``told``: pixels far below 0, and pixels that ``focus_weighted`` replaces.
    """

    region: Region
    heights: NDArray[np.float32]
    votes: NDArray[np.int64]
    below: int
    told: NDArray[np.float64]
    coarse: NDArray[np.float32]
    seen: NDArray[np.bool_]


class _Run:
    """Two passes over the tiles of a mosaic, grown to multiples of 8 px."""

    def __init__(
        self, backend: Backend, mosaic: Mosaic, plan: WienerPlan, folder: Path, tile_px: int
    ) -> None:
        self.backend, self.inner = backend, replace(backend, workers=1)
        self.mosaic, self.plan, self.tile_px = mosaic, plan, tile_px
        self.paths = {name: folder / f"{name}.zarr" for name in ("plane", "variance", "seen")}
        self.shape = mosaic.shape[1:]
        y, x = (-(-n // FLOOR_PX) * FLOOR_PX for n in self.shape)
        self.whole = (y, x)
        self.ceiling = ceiling_of(mosaic)

    @contextlib.contextmanager
    def _stores(self) -> Iterator[dict[str, StoreWriter]]:
        """Give stores of the plane, its variance, and where it was seen."""
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
                        fill=fill,
                    )
                )
                for name, step, dtype, fill in (
                    ("plane", 1, np.float32, 0),
                    ("variance", POOL_PX, np.float32, 0),
                    ("seen", 1, np.uint8, 1),
                )
            }

    def _each(self, work: Callable[[Region], _T], parts: list[Region], name: str) -> Iterator[_T]:
        """Do work on parts in the threads there are; results come in order."""
        with abandoning_pool(self.backend, GPU_THREADS) as pool:
            done = pool.map(work, parts)
            yield from tqdm(done, desc=name, total=len(parts), unit="tile", mininterval=5)

    def estimate(self) -> tuple[Streamed, NDArray[np.float32]]:
        """Write the unclipped plane; return what is known of it, and its means of 8 × 8 px."""
        sides = _sides(self.shape, self.tile_px)
        window = window_len(sides[0] + 2 * HALO_PX), window_len(sides[1] + 2 * HALO_PX)
        known = self.plan.channel, self.plan.noise, self.plan.pedestal_counts
        wiener_plane = WienerPlane(FocusMaps(self.inner, *known, window), self.plan.filters)
        rows, columns = (spans(n, side) for n, side in zip(self.whole, sides, strict=True))
        tiles = [(y, x) for y in rows for x in columns]
        small = [n // FLOOR_PX for n in self.whole]
        coarse, seen = np.zeros(small, np.float32), np.zeros(small, np.bool_)
        heights = np.zeros([-(-n // HEIGHT_STEP_PX) for n in self.shape], np.float32)
        usage = np.zeros(self.mosaic.shape[0] + 1, np.int64)
        clipped = np.zeros(2, np.int64)
        told = np.zeros(2)
        with self._stores() as stores:

            def one(tile: Region) -> _Tile:
                return self._project(wiener_plane, stores, tile)

            for tile in self._each(one, tiles, "edf"):
                at = _every(tile.region, FLOOR_PX)
                coarse[at], seen[at], heights[at] = tile.coarse, tile.seen, tile.heights
                usage += tile.votes
                clipped[0] += tile.below
                told += tile.told
        # As if what was not seen were like what was: the floor shall not fall towards gaps.
        area = float(np.prod(self.shape))
        record = {
            "below_noise": round(told[0]),
            "fallback_fraction": round(float(told[1]) / area, 6),
        }
        return Streamed(heights, usage, clipped, record), fill(coarse[None], seen)[0]

    def _project(
        self, wiener_plane: WienerPlane, stores: dict[str, StoreWriter], tile: Region
    ) -> _Tile:
        """Estimate a tile and write what is large."""
        start = tuple(part.start - HALO_PX for part in tile)
        y, x = (slice(HALO_PX, HALO_PX + part.stop - part.start) for part in tile)
        clean, seen = look_clean(self.mosaic, self.plan.specks, start, wiener_plane.window)
        there = seen[y, x]
        if not there.all():
            _write(stores["seen"], tile, 1, there.astype(np.uint8))
        if not seen.any():
            return self._kept(tile, there, self._nothing(there.shape))
        trust = self._trust(clean.stack, seen, start)
        # As in `in_parts`: what fits does not depend on what another thread holds.
        on_device = self.backend.use.turn if self.backend.device == "gpu" else _FREE
        with on_device:
            found = self._found(wiener_plane, clean, trust, (y, x))
        _write(stores["plane"], tile, 1, found.image)
        _write(stores["variance"], tile, POOL_PX, found.variance)
        return self._kept(tile, there, found)

    def _trust(
        self, stack: NDArray[Any], seen: NDArray[np.bool_], start: tuple[int, ...]
    ) -> NDArray[np.float32]:
        saturated = np.zeros(seen.shape, np.bool_)
        for z in np.flatnonzero(self.plan.channel.kept):
            saturated |= stack[z] >= self.ceiling
        y, x = (
            np.minimum(i := np.arange(at, at + n), size - 1 - i)
            for at, n, size in zip(start, seen.shape, self.shape, strict=True)
        )
        return trust_in(np.minimum.outer(y, x).astype(np.float32), seen, saturated)

    def _found(
        self, wiener_plane: WienerPlane, clean: Cleaned, trust: NDArray[np.float32], own: Region
    ) -> _Found:
        found = wiener_plane.project(clean.stack, trust)
        image = found.image
        near, image = _every(own, POOL_PX), image[own]
        maps = (found.variance, found.winner, found.height, found.deep, found.fallback_fraction)
        pooled = [self.backend.to_numpy(values[near]) for values in maps]
        # The floor is that of what is there without specks.
        coarse = self.backend.to_numpy(coarser(image))
        if clean.light is not None:
            image = image + self.backend.asarray(clean.light[own])
        return _Found(self.backend.to_numpy(image), coarse, *pooled)

    def _nothing(self, shape: tuple[int, ...]) -> _Found:
        pooled, coarse = ([n // step for n in shape] for step in (POOL_PX, FLOOR_PX))
        dark = np.zeros(pooled, np.float32)
        empty = np.zeros(coarse, np.float32)
        winner = dark.astype(np.int32)
        return _Found(np.zeros(shape, np.float32), empty, dark, winner, dark, dark, dark)

    def _kept(self, tile: Region, there: NDArray[np.bool_], found: _Found) -> _Tile:
        """Return what is kept of a tile; pixels that were not seen are undecided, mid-stack."""
        rows, columns = (min(p.stop, n) - p.start for p, n in zip(tile, self.shape, strict=True))
        inside = there[:rows, :columns]
        pooled = inside[::POOL_PX, ::POOL_PX]
        kinds = self.mosaic.shape[0] + 1
        winner = np.where(pooled, found.winner[: pooled.shape[0], : pooled.shape[1]], -1)
        votes = np.bincount(winner.ravel() % kinds, minlength=kinds)
        step = HEIGHT_STEP_PX // POOL_PX
        sampled = inside[::HEIGHT_STEP_PX, ::HEIGHT_STEP_PX]
        heights = found.height[::step, ::step][: sampled.shape[0], : sampled.shape[1]]
        middle = np.float32(np.flatnonzero(self.plan.channel.kept).mean())
        image = found.image[:rows, :columns]
        below = int(np.count_nonzero(inside & (np.rint(image) < 0)))
        told = np.stack([found.deep, found.fallback_fraction])[
            :, : pooled.shape[0], : pooled.shape[1]
        ]
        told = (told * pooled).sum(axis=(1, 2), dtype=np.float64) * POOL_PX**2
        seen = np.asarray(cells(there, FLOOR_PX).all(axis=(1, 3)))
        heights = np.where(sampled, heights, middle)
        return _Tile(tile, heights, votes, below, told, found.coarse, seen)

    def finish(
        self, floor: NDArray[np.float32], writer: StoreWriter, clipped: NDArray[np.int64]
    ) -> None:
        """Write the plane without haze and grain, and count what is clipped high."""
        chunk_px = self.mosaic.chunk_px
        side = max(self.tile_px // chunk_px, 1) * chunk_px
        if side % FLOOR_PX or side > self.tile_px:
            side = self.tile_px
        stores = {name: open_mosaic(path) for name, path in self.paths.items()}

        def one(part: Region) -> int:
            return self._finish_part(stores, floor, writer, part)

        for above in self._each(one, regions(self.whole, side), "haze and grain"):
            clipped[1] += above

    def _finish_part(
        self,
        stores: dict[str, Mosaic],
        floor: NDArray[np.float32],
        writer: StoreWriter,
        part: Region,
    ) -> int:
        window = with_halo(part, FINISH_HALO_PX, self.whole)
        near = (window.window_y, window.window_x)
        image = stores["plane"].read(0, *near)
        variance = stores["variance"].read(0, *_every(near, POOL_PX))
        clear = finish(
            self.inner, image, variance, floor[_every(near, FLOOR_PX)], self.plan.haze_share
        )
        counts = np.rint(self.backend.to_numpy(clear[window.inner]))
        y, x = (slice(p.start, min(p.stop, n)) for p, n in zip(part, self.shape, strict=True))
        counts = counts[: y.stop - y.start, : x.stop - x.start] * stores["seen"].read(0, y, x)
        writer.write(0, y.start, x.start, np.clip(counts, 0, 65535).astype(np.uint16))
        return int(np.count_nonzero(counts > 65535))


def _every(region: Region, step: int) -> Region:
    """Return a region of whole steps on a grid that has one pixel of each."""
    y, x = (slice(part.start // step, part.stop // step) for part in region)
    return y, x


def _write(store: StoreWriter, tile: Region, step: int, pixels: NDArray[Any]) -> None:
    store.write(0, tile[0].start // step, tile[1].start // step, pixels)
