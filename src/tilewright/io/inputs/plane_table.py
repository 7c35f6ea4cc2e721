"""The manifest of one cycle of a sample: a row for each raw plane, as text and back."""

import csv
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tilewright.io.results.result_file import result_file_errors


class PlaneRow(NamedTuple):
    """A raw plane: where it lies in the mosaic and in its file, and the header of that file.

    Attributes
    ----------
    channel, tile
        Names in the markers table and in the tiles table.
    path : str
        Below the folder of the raw data.
    page : int
        Number of the plane in its file.
    y_px, x_px : float
        Nominal position of the first pixel, relative to the first tile of the cycle.
    dtype : str
        Pixel type, behind float32 with counts of a unit: ``float32*65535``.
    size_bytes, mtime_ns, pages : int
        Size, time of change and pages of the file.
    """

    channel: str
    tile: str
    z: int
    path: str
    page: int
    y_px: float
    x_px: float
    height_px: int
    width_px: int
    dtype: str
    size_bytes: int
    mtime_ns: int
    pages: int


@dataclass(frozen=True)
class Manifest:
    """The planes of one cycle.

    Attributes
    ----------
    rows : list of PlaneRow
        Ordered by channel, place of the tile and z; every tile has all its planes.
    excluded : list of str
        Tiles that the tiles table has and does not use, where no other tile lies.
    """

    rows: list[PlaneRow]
    excluded: list[str]

    @property
    def tile_px(self) -> tuple[int, int]:
        """Size (y, x) of a tile."""
        return self.rows[0].height_px, self.rows[0].width_px

    @cached_property
    def mosaic_px(self) -> tuple[int, int]:
        """Size (y, x) of the mosaic by nominal positions."""
        height, width = self.tile_px
        bottom, right = (max(getattr(row, key) for row in self.rows) for key in ("y_px", "x_px"))
        return int(bottom) + height, int(right) + width

    @cached_property
    def tiles(self) -> int:
        """How many tiles there are."""
        return len({row.tile for row in self.rows})

    @cached_property
    def depths(self) -> dict[str, int]:
        """The number of z-planes by channel."""
        return {row.channel: 1 + row.z for row in self.rows}  # z ascends

    def text(self) -> str:
        """Return the table; excluded tiles are lines at its end, without a channel."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(PlaneRow._fields)
        writer.writerows(self.rows)
        writer.writerows(("", tile, *[""] * len(PlaneRow._fields[2:])) for tile in self.excluded)
        return stream.getvalue()


def read_manifest(path: str | Path) -> Manifest:
    """Read what :func:`tilewright.io.inputs.manifest.build_manifest` wrote.

    Raises
    ------
    ResultFileError
        It is damaged.
    """
    types = PlaneRow.__annotations__.values()
    with result_file_errors(path, "list of raw planes"):
        lines = csv.reader(io.StringIO(Path(path).read_text("utf-8")))
        if tuple(next(lines, ())) != PlaneRow._fields:
            raise ValueError("its columns are not those of such a list")
        cells = list(lines)
        rows = [
            PlaneRow(*(kind(cell) for kind, cell in zip(types, line, strict=True)))
            for line in cells
            if line[0]
        ]
        return Manifest(rows, [line[1] for line in cells if not line[0]])
