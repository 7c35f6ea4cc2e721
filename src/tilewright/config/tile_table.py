"""The tiles table: where each tile of each cycle lies, and whether it is used."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from tilewright.config.tables import read_rows, refuse_duplicates, table_rows
from tilewright.io.inputs.tile_planes import TilePlace
from tilewright.io.numbers import finite

COLUMNS = ("sample", "cycle", "tile", "y", "x", "unit", "source", "file", "use")
#: Units of positions, also as spreadsheet programs and other software write them.
_UNITS = {"um": "um", "µm": "um", "μm": "um", "px": "px", "pixel": "px"}
#: A stage of 1 m in nm.
_FARTHEST = 1e9
_USE = {"": True, "1": True, "true": True, "0": False, "false": False}

#: Rows by sample and cycle.
Places = dict[tuple[str, int], list[TilePlace]]


def read_tiles(path: Path, samples: Iterable[str], pixel_um: float) -> Places:
    r"""Return the tiles of every sample and cycle in a tiles table, in pixels.

    ``samples`` are the names in the samples table.

    Raises
    ------
    ConfigError
        The table is missing, or one of its rows is wrong; the message names the row.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "tiles.csv")
    >>> _ = path.write_text("sample,cycle,tile,y,x,unit\na,1,1,0,0,um\na,1,2,0,70,um\n")
    >>> [(place.tile, place.x_px) for place in read_tiles(path, ["a"], 0.5)["a", 1]]
    [('1', 0.0), ('2', 140.0)]
    """
    known = set(samples)

    def read(row: Mapping[str, str]) -> tuple[str, int, TilePlace]:
        sample, cycle, tile = row["sample"], row["cycle"], row["tile"]
        if sample not in known:
            raise ValueError(f"sample '{sample}' is not in the samples table")
        if not (cycle.isascii() and cycle.isdigit() and len(cycle) < 7):
            raise ValueError(f"cycle '{cycle}' is not a number")
        if not 0 < len(tile) <= 50:
            raise ValueError("the tile has no name, or one of over 50 characters")
        unit = _UNITS.get(row["unit"].lower())
        if unit is None:
            raise ValueError(f"unit is '{row['unit']}'; write um or px")
        use = _USE.get(row.get("use", "").lower())
        if use is None:
            raise ValueError(f"use is '{row['use']}'; write 1, or 0 to leave the tile out")
        at = [_coordinate(row, axis) / (pixel_um if unit == "um" else 1) for axis in "yx"]
        return sample, int(cycle), TilePlace(tile, at[0], at[1], row.get("file", ""), use)

    rows = table_rows(path, "tiles", ",", COLUMNS, 6, may_be_empty=True)
    refuse_duplicates(path, rows, "sample", "cycle", "tile")
    places: Places = {}
    for (line, _), (sample, cycle, place) in zip(rows, read_rows(path, rows, read), strict=True):
        placed = place._replace(row=f"{path}, row {line}")
        places.setdefault((sample, cycle), []).append(placed)
    return places


def _coordinate(row: Mapping[str, str], axis: str) -> float:
    """Return a coordinate, NaN where it is to be filled in."""
    value = finite(row[axis])
    if (value is None and row[axis]) or abs(value or 0.0) > _FARTHEST:
        raise ValueError(f"{axis} is '{row[axis]}', which is no position; write a decimal point")
    return math.nan if value is None else value
