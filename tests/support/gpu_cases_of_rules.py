"""The kernels beside the heavy ones: what each rule runs on a device before and after them.

Most wait for the host between small steps, so that their bound says little; they are here because
each must give on both devices the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

from tests.support.gpu_cases import PEDESTAL, Case, tissue, wiener_of
from tilewright.kernels.backend import Backend
from tilewright.kernels.edf.channel_model import object_power
from tilewright.kernels.edf.focus import sum_projection
from tilewright.kernels.edf.wiener_plane import remove_grain
from tilewright.kernels.illumination.binning import bin_tile, enlarge
from tilewright.kernels.illumination.overlap_cells import measure_cells, overlapping_pairs
from tilewright.kernels.noise import photon_transfer
from tilewright.kernels.register.alignment import bandpass_sqrt, coarse_alignment, grey_levels
from tilewright.kernels.register.background import subtract
from tilewright.kernels.register.block_shifts import (
    hann,
    overlapping_blocks,
    refine_shifts,
    search_shifts,
)
from tilewright.kernels.register.warp import Transform, warp
from tilewright.kernels.stitch.blending import fuse, make_correction, tile_span
from tilewright.kernels.tile_positions.displacements import (
    choose_sigma,
    flatten,
    measure_overlaps,
)
from tilewright.kernels.tile_positions.overlap_strips import plan_strips
from tilewright.kernels.tile_positions.stage_map import displaced_tiles, fit_stage_map
from tilewright.kernels.tile_positions.tile_layout import rank_grids

#: Tiles in rows and columns that overlap by a fifth.
ROWS, COLUMNS, TILE_PX, STEP_PX = 3, 4, 192, 154


def cases_of_rules(backend: Backend, px: int, planes: int) -> Iterator[Case]:
    """Yield the kernels by rule, in the order of the workflow, with their data on the backend."""
    counts, grid = tissue(px, planes), _Grid.made()
    yield from _illumination(backend, counts, grid)
    yield from _tile_positions(backend, grid)
    yield _fused(backend, grid)
    yield from _surveys(backend, counts)
    yield from _finishes(backend, counts)
    yield from _registration(backend, counts[planes // 2])


def _case(
    name: str, run: Callable[[], Any], data: Any, *, part: float = 1.0, tolerance: float = 1e-3
) -> Case:
    """Return a case whose result is ``part`` of the size of its data (float32)."""
    return Case(name, run, 4.0 * np.prod(data.shape) * (1.0 + part), tolerance=tolerance)


@dataclass(frozen=True)
class _Grid:
    """Tiles (n, y, x) of one specimen, and where their first pixels lie (n, 2)."""

    tiles: Any
    position_px: Any

    @classmethod
    def made(cls) -> _Grid:
        rng = np.random.default_rng(4)
        size = [STEP_PX * (n - 1) + TILE_PX for n in (ROWS, COLUMNS)]
        light = ndimage.gaussian_filter(rng.standard_normal(size), 1.5)
        light = PEDESTAL + 300 * np.clip(light / light.std() + 1, 0, None)
        where = np.stack([v.ravel() for v in np.mgrid[:ROWS, :COLUMNS]], axis=1) * STEP_PX
        tiles = np.stack([light[y : y + TILE_PX, x : x + TILE_PX] for y, x in where])
        return cls(rng.poisson(tiles).astype(np.float32), where.astype(np.float64))

    def strips(self) -> tuple[list[Any], list[Any], list[Any]]:
        plans = plan_strips(self.position_px, (TILE_PX, TILE_PX), 8.0)
        firsts, seconds = ([
            np.stack([self.tiles[t, y : y + plan.shape[0], x : x + plan.shape[1]]
                      for t in plan.pairs[:, side]])
            for plan in plans for y, x in [(plan.origin_a, plan.origin_b)[side]]
        ] for side in (0, 1))  # fmt: skip
        return plans, firsts, seconds


def _illumination(backend: Backend, counts: Any, grid: _Grid) -> Iterator[Case]:
    raw = backend.asarray(counts[0].astype(np.uint16), dtype=None)
    yield _case("bin a tile", lambda: bin_tile(backend, raw, 8)[0], raw)
    field = backend.asarray(counts[0, ::8, ::8])
    yield _case(
        "enlarge a flat-field", lambda: enlarge(backend, field, counts.shape[1:], 8), field, part=64
    )
    tiles, shape = backend.asarray(grid.tiles), (TILE_PX, TILE_PX)
    pairs = overlapping_pairs(grid.position_px, shape, 8.0)
    yield _case("cells in overlaps", lambda: measure_cells(
        backend, tiles, tiles < 60000, grid.position_px, pairs, shape_px=shape, factor=1, cell=8,
    ).second, tiles, part=0.0)  # fmt: skip


def _tile_positions(backend: Backend, grid: _Grid) -> Iterator[Case]:
    plans, firsts, seconds = grid.strips()
    one = firsts[0]

    def cleaned() -> Any:
        strips = one.copy()
        flatten(backend, strips)
        return strips

    yield _case("flatten strips", cleaned, one)
    yield _case(
        "width of the filter",
        lambda: np.array([choose_sigma(backend, plans, firsts, seconds)]), one,
    )  # fmt: skip
    yield _case(
        "displacements of overlaps",
        lambda: measure_overlaps(backend, plans, firsts, seconds, 1.5).displacement_px, grid.tiles,
    )  # fmt: skip
    tiles = backend.asarray(grid.tiles)
    numbers = np.arange(ROWS * COLUMNS)
    yield _case("rank grids", lambda: np.array(
        [grid.votes for grid in rank_grids(backend, tiles, [(ROWS, COLUMNS)], numbers)]
    ), tiles)  # fmt: skip
    mirrored = grid.position_px * [1.0, -1.0]
    yield _case("map of the stage", lambda: _matrix(backend, tiles, mirrored), tiles)


def _matrix(backend: Backend, tiles: Any, nominal_px: Any) -> Any:
    found = fit_stage_map(backend, tiles, nominal_px)
    if found is None:
        return np.zeros((2, 2))
    off = displaced_tiles(backend, tiles, nominal_px, found)
    return np.concatenate([found.matrix, *(px[None] for px in off.values())])


def _fused(backend: Backend, grid: _Grid) -> Case:
    tiles = [tile.astype(np.uint16) for tile in grid.tiles[:2]]
    spans = [(tile_span(0.0, TILE_PX), tile_span(x + 0.3, TILE_PX)) for x in (0, STEP_PX)]
    dark = np.full((TILE_PX, TILE_PX), PEDESTAL, np.float32)
    correction = make_correction(backend, np.ones_like(dark), dark, PEDESTAL)
    shape = (TILE_PX, spans[1][1].stop)
    return _case("fuse 2 tiles", lambda: fuse(
        backend, tiles, spans, correction, (0, 0), shape, feather_px=20.0,
    )[0], grid.tiles[:2])  # fmt: skip


def _surveys(backend: Backend, counts: Any) -> Iterator[Case]:
    stack, plane_mask = backend.asarray(counts), np.ones(len(counts), bool)
    channel, estimate = wiener_of(counts, backend)
    measure = estimate.focus

    def gain() -> Any:
        model = photon_transfer(backend, counts[0], PEDESTAL)
        return np.array([model.gain, model.variance(100.0)])

    yield _case("photon transfer", gain, counts[0])
    yield _case("power of the light", lambda: object_power(
        backend, [counts], channel.profiles, plane_mask
    ), stack)  # fmt: skip
    yield _case("focus of a window", lambda: measure.measure(counts).energy, stack)
    kernel = np.outer(np.hanning(9), np.hanning(9))[1:-1, 1:-1]
    yield _case("mean blurred by the PSF", lambda: sum_projection(
        measure, stack, kernel
    ).image, stack)  # fmt: skip


def _finishes(backend: Backend, counts: Any) -> Iterator[Case]:
    found = wiener_of(counts, backend)[1].project(counts)
    yield _case(
        "remove grain", lambda: remove_grain(backend, found.image, found.variance), found.image
    )


def _registration(backend: Backend, plane: Any) -> Iterator[Case]:
    levels, image = grey_levels(plane), backend.asarray(plane)
    seen = bandpass_sqrt(backend, image, levels)
    yield _case("band-pass", lambda: bandpass_sqrt(backend, image, levels), image)
    turned = backend.asarray(np.roll(backend.to_numpy(seen), (3, -5), (0, 1)))

    def coarse() -> Any:
        angles = np.array([-0.5, 0.0, 0.5])
        found = coarse_alignment(backend, seen, turned, angles, 20.0)
        return np.array([found.angle_deg, *found.shift_px, found.score, found.chance])

    yield _case("coarse alignment", coarse, image)
    side = image.shape[0] // 32 * 32
    first, second = (overlapping_blocks(backend, v[:side, :side], 32) for v in (seen, turned))
    window = hann(backend, 64)
    yield _case("shifts of blocks", lambda: search_shifts(
        backend, first * window, second * window, (12, 12)
    ).shift_px, image)  # fmt: skip
    yield _case("shifts of blocks refined", lambda: refine_shifts(
        backend, first, first * np.float32(0.9), backend.xp.ones(first.shape, np.float32)
    ).score, image)  # fmt: skip
    region = (slice(0, plane.shape[0]), slice(0, plane.shape[1]))
    yield _case("warp to counts", lambda: warp(
        backend, plane, (0, 0), plane.shape, Transform.identity(), region
    ), image)  # fmt: skip
    yield _case("subtract background", lambda: subtract(backend, image, image, 0.7321), image)
