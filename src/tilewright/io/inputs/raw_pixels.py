"""Checks of raw pixels before any work starts, on a few planes.

One good plane of a channel is enough; more tiles are read only of a channel without signal.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.inputs.plane_table import Manifest
from tilewright.io.inputs.stitched_plane import PlaneWindows, windows_of
from tilewright.io.inputs.tiles import Tiles, tiles_of
from tilewright.kernels.backend import cells
from tilewright.kernels.padding import fill_padding

#: Share of clipped pixels from which a plane counts as saturated.
_SATURATED = 0.5
#: Least correlation of neighbours in tissue (see :func:`structure`; camera noise gives -0.03 to
#: 0, tissue 0.3 to 0.8), but not less than 2.5 standard errors of chance.
_STRUCTURE, _CHANCE = 0.03, 2.5
_BIN = 4


def pixel_problems(
    tables: Mapping[int, Manifest],
    channels: Mapping[int, Sequence[str]],
    raw_dir: str,
    *,
    reference_channels: Mapping[int, str],
    stitched: bool,
    offset_counts: float | None = None,
    saturation_counts: float | None = None,
) -> list[str]:
    """Return one sentence for every channel whose pixels cannot be used.

    A channel is refused where all its tiles are constant or saturated, the reference channel
    also where none has structure (registration needs it); both where the configured camera offset
    or saturation contradicts the counts.

    Parameters
    ----------
    tables : mapping of int to Manifest
        By cycle.
    channels : mapping of int to sequence of str
        Channels to check, by cycle.
    raw_dir : path
        Folder below which the tables' paths lie.
    reference_channels : mapping of int to str
        By cycle.
    stitched : bool
        Whether the planes are stitched images, which are checked in windows.
    offset_counts, saturation_counts : float, optional
        As configured; None where they are estimated.
    """
    problems = []
    for cycle, table in sorted(tables.items()):
        for channel in channels[cycle]:
            image = tiles_of(table, channel, raw_dir)
            if image is None:
                continue
            tiles = windows_of(image) if stitched else image
            reference = channel == reference_channels[cycle]
            try:
                problem = _channel_problem(tiles, reference, offset_counts, saturation_counts)
            except RawDataError as error:
                problems.append(str(error))
                continue
            if problem:
                role = " (the reference channel)" * reference
                if reference and (others := sorted({*channels} - {cycle})):
                    problem += f", or leave the cycle out: cycles: {others} in config.yaml"
                problems.append(f"cycle {cycle}, channel {channel}{role}: {problem}")
    return problems


def _channel_problem(
    tiles: Tiles, reference: bool, offset_counts: float | None, saturation_counts: float | None
) -> str:
    """Return what is wrong with one channel, "" if nothing is."""
    blanks: list[tuple[str, str, Path]] = []
    for tile, z in _places(tiles):
        plane = tiles.read(tile, z)
        path = tiles.path(tile, z)
        median = float(np.median(plane))
        if offset_counts is not None and offset_counts > 1.1 * median + 2:
            return (
                f"camera.offset_counts is {offset_counts:g}, but half the pixels of {path} are at "
                f"{median:g} or below; correct it, or set it to auto"
            )
        if saturation_counts is not None and saturation_counts <= median:
            return (
                f"camera.saturation_counts is {saturation_counts:g}, but half the pixels of {path} "
                f"are at {median:g} or above; correct it, or set it to auto"
            )
        blank = _blank(plane, reference)
        if not blank:
            return ""
        blanks.append((*blank, path))
    why = "; registration has no tissue to align" if reference else ""
    fix = "mark another 'reference' in" if reference else "take it out of"
    kinds = " or ".join(sorted({kind for kind, _, _ in blanks}))
    _, detail, path = blanks[0]
    part = "part of it" if isinstance(tiles, PlaneWindows) else "tile"
    example = f"for example {path} ({detail})"
    what = f"every {part} is {kinds}, {example}{why}"
    return f"{what}; copy the files again, or {fix} the markers table"


def _places(tiles: Tiles) -> Iterator[tuple[int, int]]:
    """Yield (tile, z): all tiles in a quarter of the stack, spread over the grid; then others.

    The check of stage positions decodes the middle planes.
    """
    count, planes = len(tiles.row), tiles.shape[0]
    # Steps of the golden section spread over the grid from the start.
    order = sorted(range(count), key=lambda tile: (tile * 0.6180339887 + 0.5) % 1.0)
    for z in dict.fromkeys((planes // 4, planes // 2, 3 * planes // 4)):
        yield from ((tile, z) for tile in order)


def _blank(plane: NDArray[Any], reference: bool) -> tuple[str, str] | None:
    """Return why a plane has no signal, in a word and in numbers; None if it has."""
    low, high = int(plane.min()), int(plane.max())
    if low == high:
        return "constant", f"{low} everywhere"
    clipped = np.count_nonzero(plane == high) / plane.size
    if high > 1 and clipped > _SATURATED:
        return "saturated", f"{100 * clipped:.0f} % of its pixels are at {high}"
    if reference and not has_structure(plane):
        return "noise without structure", f"median {np.median(plane):g}"
    return None


def has_structure(plane: NDArray[Any]) -> bool:
    """Return whether a plane (y, x) shows more than noise and uneven light."""
    return bool(structure(fill_padding(plane)) >= max(_STRUCTURE, _CHANCE * _BIN / plane.size**0.5))


def structure(plane: NDArray[Any]) -> float:
    """Return the correlation of neighbours of a plane (y, x), the lesser of the two axes'.

    Of means over 4 x 4 px, less the mean over 9 x 9 of those: blank glass under uneven light,
    shot noise, hot pixels and stripes of a camera give about 0.
    """
    from scipy.ndimage import uniform_filter

    if min(plane.shape) < 8 * _BIN:
        return 1.0  # too small to tell
    means = cells(plane, _BIN).astype(np.float32).mean(axis=(1, 3))
    # A hot pixel or a speck of dust is no structure.
    means = np.minimum(means, np.percentile(means, 99.5))
    flat = means - uniform_filter(means, 9, mode="nearest")
    flat -= flat.mean()
    power = float((flat**2).mean())
    if power == 0:
        return 0.0
    down, right = (flat[1:] * flat[:-1]).mean(), (flat[:, 1:] * flat[:, :-1]).mean()
    return min(float(down), float(right)) / power
