"""Planes of a sample joined with the rows of the tiles table, and what does not fit."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tilewright.io.formats.common import RawPlane


class TilePlace(NamedTuple):
    """A row of the tiles table: one tile of one cycle of a sample.

    Attributes
    ----------
    y_px, x_px : float
        Position of the first pixel, from any origin that the cycle's tiles share; NaN where it is
        not filled in.
    row : str
        How messages name the row.
    """

    tile: str
    y_px: float
    x_px: float
    use: bool = True
    row: str = ""

    @property
    def known(self) -> bool:
        """Whether its position is filled in."""
        return not math.isnan(self.y_px + self.x_px)


class TileRows(NamedTuple):
    """The rows of one cycle of a sample.

    Attributes
    ----------
    other_samples : Collection[str]
        Tiles of other samples, of the same raw folder and region.
    """

    places: Sequence[TilePlace]
    other_samples: Collection[str] = ()

    def left_out(self) -> set[str]:
        """Return the tiles whose planes are not read: of other samples, or not to be used."""
        others = set(self.other_samples) - {place.tile for place in self.places}
        return others | {place.tile for place in self.places if not place.use}


class PlacedPlanes(NamedTuple):
    """Planes of one cycle, each with the place of its tile; ``problems`` are a sentence each.

    ``excluded`` are tiles that the table does not use, where no other tile lies.
    """

    planes: list[tuple[RawPlane, TilePlace]]
    excluded: list[str]
    problems: list[str]


#: Tiles that are nearer to each other are of one position; neighbours are further apart.
_SAME_PX = 12.0
#: Of a cycle: (tile, channel, z) of every plane.
_Planes = dict[tuple[str, str, int], str]


def place_planes(
    planes: Sequence[RawPlane],
    cycle: int,
    places: Sequence[TilePlace],
    channels: Sequence[str],
) -> PlacedPlanes:
    """Return the planes of the tiles that the table uses, of one cycle.

    Each must have all channels of the markers table, in all z-planes of the fullest tile of the
    channel, from one file or page each, and each tile of the files must be in the table. ``planes``
    are those of one sample and cycle, pages as planes, without what :class:`TileRows` leave out.
    """
    rows = {place.tile: place for place in places}
    used = {tile: place for tile, place in rows.items() if place.use}
    if not used:
        problem = (
            "uses none of its tiles; set use to 1, or take the cycle out of the markers table"
            if rows
            else "has no row of it; `tilewright init --add --output FOLDER` adds them, with the "
            "folder of the configuration"
        )
        return PlacedPlanes([], [], [f"cycle {cycle}: the tiles table {problem}"])
    present, problems = _present(planes, cycle)
    problems += _unplaced(planes, rows, cycle) + _unfilled(used) + _at_one_place(used)
    problems += _incomplete(present, used, channels, cycle)
    excluded = [
        place.tile
        for place in rows.values()
        if not place.use
        and all(
            max(abs(place.y_px - other.y_px), abs(place.x_px - other.x_px)) >= _SAME_PX
            for other in used.values()
        )
    ]
    of_used = [(plane, used[plane.tile_name]) for plane in planes if plane.tile_name in used]
    return PlacedPlanes(of_used, excluded, problems)


def _at_one_place(used: Mapping[str, TilePlace]) -> list[str]:
    """Return a sentence for each row at the position of another, to a pixel."""
    first: dict[tuple[int, int], TilePlace] = {}
    problems = []
    for place in used.values():
        if not place.known:
            continue
        same = first.setdefault((round(place.y_px), round(place.x_px)), place)
        if same is not place:
            problems.append(
                f"{place.row}: tile {place.tile} lies where tile {same.tile} lies ({same.row}); "
                "correct y and x, or set use to 0 in one"
            )
    return problems


def _present(planes: Sequence[RawPlane], cycle: int) -> tuple[_Planes, list[str]]:
    """Return every plane, and a sentence for each that exists twice."""
    present: _Planes = {}
    problems = list[str]()
    for plane in planes:
        key = plane.tile_name, plane.channel, plane.z or 0
        if key in present and len(problems) < 1000:
            problems.append(
                f"cycle {cycle}, channel {plane.channel}, tile {plane.tile_name}, duplicate z "
                f"{plane.z or 0}: {present[key]} and {plane.path}"
            )
        present[key] = plane.path
    return present, problems


def _unplaced(planes: Sequence[RawPlane], rows: Mapping[str, TilePlace], cycle: int) -> list[str]:
    """Return a sentence for each tile that the table lacks."""
    unknown = {plane.tile_name: plane.path for plane in planes if plane.tile_name not in rows}
    return [
        f"cycle {cycle}: tile {tile} ({path}) is not in the tiles table; add a row, with use 0 to "
        "leave it out"
        for tile, path in unknown.items()
    ]


def _unfilled(used: Mapping[str, TilePlace]) -> list[str]:
    """Return a sentence on rows without a position."""
    rows = [place.row for place in used.values() if not place.known]
    more = f" and {len(rows) - 1} more rows" * (len(rows) > 1)
    fix = "write the position of the tile's first pixel, or 0 into use"
    return [f"{rows[0]}{more}: y or x is not filled in; {fix}"] if rows else []


def _incomplete(
    present: _Planes, used: Mapping[str, TilePlace], channels: Sequence[str], cycle: int
) -> list[str]:
    """Return a sentence for each channel without files and each tile that lacks planes.

    Each channel has the depth of its own: nuclei may be taken in one plane, markers in several.
    """
    problems = []
    absent: dict[str, list[str]] = defaultdict(list)
    for channel in channels:
        of_channel = {(tile, z) for tile, name, z in present if name == channel}
        if not of_channel:
            problems.append(
                f"cycle {cycle}, channel {channel}: no files, but the markers table lists it"
            )
            continue
        depth = 1 + max((z for tile, z in of_channel if tile in used), default=0)
        for tile in used:
            missing = [z + 1 for z in range(depth) if (tile, z) not in of_channel]
            what = f"z-plane {', '.join(map(str, missing))} of {depth}"
            if missing:
                absent[tile].append(
                    f"{what if len(missing) < depth else 'all planes'} of channel {channel}"
                )
    return problems + [
        f"{used[tile].row}: cycle {cycle}, tile {tile} lacks {'; '.join(parts)}; copy them, or set "
        "use to 0 to leave the tile out"
        for tile, parts in absent.items()
    ]
