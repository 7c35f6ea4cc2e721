"""Where each tile lies: overlap strips in, positions with their errors out."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.results.illumination import Illumination
from tilewright.io.results.positions import Edges, Positions, write_table, write_tile_configuration
from tilewright.io.results.zarr_store import stack_on_disk
from tilewright.kernels.backend import Backend
from tilewright.kernels.camera_lines import remove_lines
from tilewright.kernels.device_memory import OomHint, track_device_memory
from tilewright.kernels.padding import fill_padding
from tilewright.kernels.tile_positions.displacements import (
    Allocate,
    Overlaps,
    Strips,
    choose_sigma,
    flatten,
    in_memory,
    measure_overlaps,
    repair_pixels,
)
from tilewright.kernels.tile_positions.overlap_strips import StripPlan, plan_strips
from tilewright.kernels.tile_positions.position_solve import (
    FALSE_MATCH_PROBABILITY,
    Solution,
    solve_positions,
)
from tilewright.stages.tile_positions.stage_check import searched_px
from tilewright.stages.tile_source import TileSource

#: Strips of more bytes lie on the disk: 60 tiles of 1440 x 1920 px have 240 MB of them, a
#: slide of 50,000 px squared 5 GB.
_IN_MEMORY_B = 256 << 20
_OOM_HINT = OomHint("tile_positions", "the strips that its filter and hot pixels come from")


@dataclass(frozen=True)
class TileLocations:
    """Positions, edges, and the filter behind them."""

    positions: Positions
    edges: Edges
    sigma_px: float
    """Width of the LoG used."""

    @property
    def yx_px(self) -> NDArray[np.float64]:
        """Positions (n, 2)."""
        return np.stack([self.positions.y_px, self.positions.x_px], axis=1)


@track_device_memory(_OOM_HINT)
def locate(
    tiles: TileSource,
    illumination: Illumination | None = None,
    *,
    backend: Backend,
    max_shift_px: float | None = None,
    sigma_px: float | None = None,
    planes: int = 5,
    false_match_probability: float = FALSE_MATCH_PROBABILITY,
    scratch: Path | None = None,
) -> TileLocations:
    """Find the positions of tiles from their overlaps.

    Each tile is read once and only its overlap strips are stored, of many tiles on the disk.
    Parameters without a line here are keys of the configuration, see
    :mod:`tilewright.config.settings`; None is ``auto``.

    Parameters
    ----------
    tiles : TileSource
        Tiles of one cycle and channel.
    illumination : Illumination, optional
        Flat-field and dark-field; where absent, strips are divided by their own smoothed mean,
        which leaves errors four times larger.
    scratch : Path, optional
        Folder for more strips than 256 MB; without one memory holds all.

    Raises
    ------
    ValueError
        There is no tile, an option is out of range, or the illumination has another shape.
    DeviceMemoryError
        The GPU's memory does not hold the strips of a pair, or those that show hot pixels.
    """
    _check(tiles, illumination)
    plans = plan_strips(tiles.nominal_px, tiles.shape[1:], max_shift_px)
    allocate = _allocator(plans, scratch)
    firsts, seconds = _read_strips(tiles, illumination, plans, planes, backend.workers, allocate)
    for strips in (*firsts, *seconds):
        if illumination is None:
            flatten(backend, strips)
        repair_pixels(backend, strips)
        remove_lines(strips)
    sigma = choose_sigma(backend, plans, firsts, seconds) if sigma_px is None else sigma_px
    total = sum(len(plan.pairs) for plan in plans)
    with tqdm(desc="tile_positions: correlate", total=total, mininterval=5) as bar:
        overlaps = measure_overlaps(backend, plans, firsts, seconds, sigma, bar.update, allocate)
    tolerance = max((plan.max_shift_px for plan in plans), default=searched_px(tiles.shape[1:]))
    solution = solve_positions(
        tiles.nominal_px, tiles.row, overlaps, tolerance, false_match_probability
    )
    return _located(tiles, overlaps, solution, sigma)


def _allocator(plans: Sequence[StripPlan], scratch: Path | None) -> Allocate:
    """Return what allocates strips: in memory if all fit there, or on the disk."""
    all_b = sum(2 * 4 * len(plan.pairs) * math.prod(plan.shape) for plan in plans)
    if scratch is None or all_b <= _IN_MEMORY_B:
        return in_memory
    return partial(stack_on_disk, scratch)


def _check(tiles: TileSource, illumination: Illumination | None) -> None:
    shape = tiles.shape[1:]
    if len(tiles.row) == 0:
        raise ValueError("there is no tile to place; check the manifest")
    if illumination is not None and illumination.flat.shape != shape:
        raise ValueError(
            f"the flat-field has shape {illumination.flat.shape} and tiles have {shape}; "
            "estimate it from these tiles"
        )


def _located(
    tiles: TileSource,
    overlaps: Overlaps,
    solution: Solution,
    sigma_px: float,
) -> TileLocations:
    y, x = solution.position_px.T
    a, b = overlaps.pairs.T
    dy, dx = overlaps.displacement_px.T
    return TileLocations(
        Positions(tiles.name, tiles.row, tiles.col, y, x, solution.sigma_px, solution.component),
        Edges(
            *(tiles.name[a], tiles.name[b], dy, dx),
            *(overlaps.score, solution.accepted, solution.residual_px),
            np.asarray(np.round(np.log10(solution.false_match_probability), 2), np.float64),
        ),
        sigma_px,
    )


def write_located(folder: Path, located: TileLocations) -> None:
    """Write ``positions.csv``, ``edges.csv`` and ``TileConfiguration.txt``.

    Each is written whole. ``folder`` is made where absent. Fiji's file names the images
    ``tile{name}.tif``.
    """
    positions = located.positions
    names = [f"tile{name}.tif" for name in positions.tile.tolist()]
    write_tile_configuration(folder / "TileConfiguration.txt", names, located.yx_px)
    write_table(folder / "edges.csv", located.edges)
    write_table(folder / "positions.csv", positions)


def _read_strips(
    tiles: TileSource,
    illumination: Illumination | None,
    plans: list[StripPlan],
    planes: int,
    workers: int,
    allocate: Allocate,
) -> tuple[list[Strips], list[Strips]]:
    """Return strips of tiles a and of tiles b, one (m, y, x) array per plan."""
    firsts, seconds = ([allocate((len(p.pairs), *p.shape)) for p in plans] for _ in range(2))
    cuts: dict[int, list[tuple[Strips, int, tuple[slice, slice]]]] = {}
    for plan, first, second in zip(plans, firsts, seconds, strict=True):
        for i, (a, b) in enumerate(plan.pairs.tolist()):
            cuts.setdefault(a, []).append((first, i, _window(plan.origin_a, plan.shape)))
            cuts.setdefault(b, []).append((second, i, _window(plan.origin_b, plan.shape)))
    depth = tiles.shape[0]
    z_planes = np.unique(np.linspace(0, depth - 1, min(planes, depth)).round().astype(np.int64))

    def cut(tile: int) -> None:
        windows = [window for _, _, window in cuts[tile]]
        parts = [np.zeros([n.stop - n.start for n in window], np.float32) for window in windows]
        for z in z_planes.tolist():
            plane = fill_padding(tiles.read(tile, z))
            for part, window in zip(parts, windows, strict=True):
                part += plane[window]
        for part, (strips, i, window) in zip(parts, cuts[tile], strict=True):
            part /= np.float32(len(z_planes))
            if illumination is not None:
                part -= illumination.dark[window]
                part /= illumination.flat[window]
            strips[i] = part

    with ThreadPoolExecutor(max(1, workers)) as pool:
        results = pool.map(cut, sorted(cuts))
        for _ in tqdm(results, "tile_positions: read", len(cuts), mininterval=5):
            pass
    return firsts, seconds


def _window(origin: tuple[int, int], shape: tuple[int, int]) -> tuple[slice, slice]:
    (y, x), (height, width) = origin, shape
    return slice(y, y + height), slice(x, x + width)
