"""The tiles of one cycle and channel, each plane decoded once for all that calibration measures."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.inputs.raw_pixels import has_structure
from tilewright.io.results.zarr_store import stack_on_disk
from tilewright.kernels.backend import Region
from tilewright.kernels.camera import (
    SAMPLE_PLANES,
    SAMPLE_TILES,
    CameraDefects,
    Top,
    equal_neighbours,
    find_defects,
    top_of,
)
from tilewright.kernels.padding import fill, padding
from tilewright.kernels.tile_positions.overlap_strips import (
    StripPlan,
    Strips,
    flatten,
    remove_lines,
)
from tilewright.stages.illumination.binned_tiles import BinnedTiles
from tilewright.stages.tile_planes import TileSource

#: Strips of more bytes lie on the disk: 60 tiles of 1440 x 1920 px have 240 MB of them, a
#: slide of 50,000 px squared 5 GB.
_IN_MEMORY_B = 256 << 20
#: Planes of all tiles that show a flat-field: of more than 200 tiles fewer of each are read.
_MOST_PLANES = 1000


#: Strips, the number of one of them, and the window of the tile that it shows.
_Cut = tuple[Strips, int, Region]


@dataclass(frozen=True)
class ChannelReading:
    """What calibration keeps of the tiles of one channel.

    Attributes
    ----------
    firsts, seconds : list[Strips]
        Strips of tiles a and of tiles b, (m, y, x) for each plan: means over planes, defects
        repaired, divided by a flat-field of their own.
    binned : BinnedTiles
        All tiles, reduced.
    defects : CameraDefects | None
        Of the camera; None where there are too few tiles to tell.
    bare : bool (n,)
        Tiles that show no structure in their middle plane.
    """

    firsts: list[Strips]
    seconds: list[Strips]
    binned: BinnedTiles
    defects: CameraDefects | None
    bare: NDArray[np.bool_]


class _TileReading(NamedTuple):
    """What one tile tells besides its strips and binned pixels; ``planes`` show defects, by z."""

    tops: list[Top]
    equal_neighbours: list[float]
    bare: bool
    planes: dict[int, NDArray[Any]]


def read_channel(
    tiles: TileSource,
    plans: Sequence[StripPlan],
    *,
    workers: int = 1,
    planes: int,
    saturation_counts: float | None = None,
    places_tiles: bool = True,
    scratch: Path | None = None,
) -> ChannelReading:
    """Read every tile of a channel once, in so many threads.

    Parameters
    ----------
    plans : sequence of StripPlan
        Which strips of the tiles are stored.
    planes : int
        How many evenly spaced z-planes are read.
    saturation_counts : float, optional
        None is the value at which the histogram piles up, or else the largest of the pixel type.
    places_tiles : bool
        Whether positions are measured on this channel. If not, of more than 200 tiles fewer planes
        are read.
    scratch : Path, optional
        Folder for more than 256 MB of strips; without one memory holds all.
    """
    count = len(tiles.row)
    most = planes if places_tiles else min(planes, max(1, _MOST_PLANES // count))
    z_read = _spread(range(tiles.shape[0]), most)
    allocate = _allocator(plans, scratch)
    firsts, seconds = ([allocate((len(p.pairs), *p.shape)) for p in plans] for _ in range(2))
    samples = _sample(count, z_read)
    binned = BinnedTiles.empty(tiles, z_read)
    read = partial(_read_tile, tiles, z_read, binned, _cuts(plans, firsts, seconds), samples)
    with ThreadPoolExecutor(workers) as pool:
        results = pool.map(read, range(count))
        found = list(tqdm(results, "calibrate: tiles", count, mininterval=5))
    rounds = [[found[t].planes[z[k]] for t, z in samples.items()] for k in range(len(samples[0]))]
    defects = find_defects(rounds)
    _remove_camera(plans, firsts, seconds, defects, tiles.shape[1:])
    tops = [top for one in found for top in one.tops]
    equal = [share for one in found for share in one.equal_neighbours]
    binned = binned.measured(saturation_counts, tops, equal)
    return ChannelReading(firsts, seconds, binned, defects, np.array([one.bare for one in found]))


def _remove_camera(
    plans: Sequence[StripPlan],
    firsts: Sequence[Strips],
    seconds: Sequence[Strips],
    defects: CameraDefects | None,
    shape_px: tuple[int, int],
) -> None:
    """Repair defects in all strips, and take their flat-field and the camera's lines off."""
    for plan, *both in zip(plans, firsts, seconds, strict=True):
        for strips, window in zip(both, plan.windows, strict=True):
            if defects is not None:
                repair = defects.within(shape_px, window).repair
                for i in range(len(plan.pairs)):
                    strips[i] = repair(strips[i])
            flatten(strips)
            remove_lines(strips)


def _read_tile(
    tiles: TileSource,
    z_read: Sequence[int],
    binned: BinnedTiles,
    cuts: Mapping[int, list[_Cut]],
    samples: Mapping[int, Sequence[int]],
    tile: int,
) -> _TileReading:
    """Read the planes of a tile; put their mean into its strips, and binned into ``binned``."""
    total = np.zeros(tiles.shape[1:], np.float32)
    peak, holes = np.zeros(tiles.shape[1:], tiles.dtype), np.zeros(tiles.shape[1:], np.bool_)
    tops, equal, planes = [], [], {}
    for z in z_read:
        raw = tiles.read(tile, z)
        hole = padding(raw)
        raw = fill(raw, hole)
        if hole is not None:
            holes |= hole
        total += raw
        np.maximum(peak, raw, out=peak)
        tops.append(top_of(raw))
        equal.append(equal_neighbours(raw))
        if z in samples.get(tile, ()):
            planes[z] = raw
        if z == z_read[len(z_read) // 2]:
            bare = not has_structure(raw)
    total /= np.float32(len(z_read))
    binned.put(tile, total, peak, holes)
    for strips, i, window in cuts.get(tile, ()):
        strips[i] = total[window]
    return _TileReading(tops, equal, bare, planes)


def _spread(values: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most so many of the values, evenly spaced.

    >>> _spread(range(20), 5), _spread((2, 6, 10), 5)
    ((2, 6, 10, 14, 18), (2, 6, 10))
    """
    count = min(most, len(values))
    return tuple(values[(2 * k + 1) * len(values) // (2 * count)] for k in range(count))


def _sample(tiles: int, z_planes: Sequence[int]) -> dict[int, list[int]]:
    """Return the tiles, and planes of each, that show the camera's defective pixels.

    >>> _sample(2, (0, 4, 8))
    {0: [0, 4, 8], 1: [4, 8, 0]}
    """
    count, depth = min(tiles, SAMPLE_TILES), len(z_planes)
    number = min(SAMPLE_PLANES, depth)
    spread = np.linspace(0, tiles - 1, count).round().astype(int).tolist()
    return {
        tile: [z_planes[(k + r * (depth // number)) % depth] for r in range(number)]
        for k, tile in enumerate(spread)
    }


def _allocator(
    plans: Sequence[StripPlan], scratch: Path | None
) -> Callable[[tuple[int, ...]], Strips]:
    """Return what allocates strips: in memory if all fit there, or on the disk."""
    all_b = sum(2 * 4 * len(plan.pairs) * math.prod(plan.shape) for plan in plans)
    if scratch is None or all_b <= _IN_MEMORY_B:
        return partial(np.empty, dtype=np.float32)
    return partial(stack_on_disk, scratch)


def _cuts(
    plans: Sequence[StripPlan], firsts: Sequence[Strips], seconds: Sequence[Strips]
) -> dict[int, list[_Cut]]:
    """Return which strips each tile fills."""
    cuts = defaultdict[int, list[_Cut]](list)
    for plan, first, second in zip(plans, firsts, seconds, strict=True):
        for i, (a, b) in enumerate(plan.pairs.tolist()):
            for tile, strips, window in zip((a, b), (first, second), plan.windows, strict=True):
                cuts[tile].append((strips, i, window))
    return cuts
