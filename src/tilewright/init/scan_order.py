"""Rows and columns of numbered tiles: by the overlaps, or as they are stated."""

from collections.abc import Iterator

import numpy as np

from tilewright.init.tile_set import GridOptions, PlacedTiles, Places
from tilewright.kernels.tile_positions.tile_layout import is_sure, rank_grids
from tilewright.kernels.tile_positions.tile_order import tile_places
from tilewright.runtime.text import few

#: Grids that a question names.
_NAMED = 3


def places_of_numbers(placed: PlacedTiles, stated: GridOptions) -> Places:
    """Return (row, col) of numbered tiles, NaN where nothing shows them."""
    numbers = np.array([p.tile or 0 for p in placed.tiles.first], np.int64)
    size = (stated.rows or 0, stated.cols or 0)
    most = size[0] * size[1]
    # A scan begins with 0 or 1; a part of one with another number.
    whole = numbers[0] < len(numbers) or numbers[-1] <= most
    at = numbers - (0 if numbers[0] == 0 else 1 if whole else numbers[0])
    fits, gaps = int(at[-1]) < most, len(at) <= at[-1]
    if most and not fits:
        placed.notes.warnings.append(
            f"{stated.rows} x {stated.cols} tiles are stated, but the files number {len(numbers)}"
        )
    ranked, images = [], placed.tiles.images
    if not isinstance(images, str) and (fits or not gaps):
        sizes = dict.fromkeys([*[size] * fits, *([] if gaps else sizes_of(len(at)))])
        ranked = rank_grids(images, sizes, at)
    if ranked and is_sure(ranked):
        best = ranked[0]
        placed.notes.findings.append(f"the overlaps speak for {best} and no other order")
        if (*size, stated.layout) != best[:3]:
            placed.source = "pixels"
            if fits and (best[:2] != size or stated.layout):
                size_text = f"{size[0]} x {size[1]} {stated.layout or ''}".strip()
                placed.notes.warnings.append(
                    f"{size_text} is stated, but {best} fits the overlaps, which is written"
                )
        return best.places.astype(np.float64)
    if fits and stated.layout:
        return np.array(tile_places(stated.layout, *size), np.float64)[at]
    speak = few((grid for grid in ranked if grid.votes), _NAMED)
    why = f"overlaps speak for {speak}" if speak else "overlaps show too little"
    if gaps:
        missing = sorted({*range(int(at[-1]))} - {*at.tolist()})
        why = f"tiles {few(np.array(missing) + numbers[0] - at[0])} are missing and {why}"
    placed.notes.unknown.append(
        f"y and x: in which order {len(numbers)} tiles lie is not sure, as {why}; give --rows, "
        "--cols, --layout and --overlap to tilewright init"
    )
    return np.full((len(numbers), 2), np.nan)


def sizes_of(count: int) -> Iterator[tuple[int, int]]:
    """Yield (rows, cols) that hold so many tiles, full grids first: a scan may be stopped."""
    sizes = {(-(-count // length), length) for length in range(1, count + 1)}
    sizes |= {(cols, rows) for rows, cols in sizes}
    yield from sorted(sizes, key=lambda size: (size[0] * size[1] - count, abs(size[0] - size[1])))
