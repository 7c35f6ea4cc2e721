"""The planes of one cycle and region by tile, and a small image of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilewright.io.formats.common import RawPlane, raw_file_errors
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.inputs.tiles import read_plane
from tilewright.stages.tile_positions.stage_check import reduce_tile

#: Files that are tried until one shows the size of a tile.
_MOST_FILES = 10


@dataclass(frozen=True)
class TileSet:
    """The planes of one cycle and region, by tile."""

    planes: dict[str, list[RawPlane]]
    """By the tile's name, in the order of acquisition."""
    channel: str
    """The one with the most structure, usually nuclei."""
    shape_px: tuple[int, int]
    """(y, x) of a tile; 0 where no file can be read."""
    _images: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def first(self) -> list[RawPlane]:
        """A plane of each tile."""
        return [planes[0] for planes in self.planes.values()]

    def image(self, tile: str) -> NDArray[np.float32]:
        """Return the middle plane of a tile, reduced.

        Raises
        ------
        RawDataError
            It cannot be read, or is of another size.
        """
        if tile in self._images:
            return self._images[tile]
        stack = [plane for plane in self.planes[tile] if plane.channel == self.channel]
        middle = sorted(stack or self.planes[tile], key=lambda plane: plane.z or 0)[len(stack) // 2]
        with raw_file_errors(middle.path):
            header = read_headers({middle.path: 1})[middle.path]
            if header.problem:
                raise ValueError(f"it {header.problem}")
            page = header.pages // 2 if middle.page is None else middle.page
            image = read_plane(middle.path, page)
            if image.shape != self.shape_px:
                raise ValueError(f"{image.shape} px, where others have {self.shape_px}")
        self._images[tile] = reduce_tile(image)
        return self._images[tile]

    def incomplete(self) -> list[str]:
        """Return the tiles that lack planes of the fullest one, in any channel."""
        planes = {
            name: {(plane.channel, plane.z) for plane in of_tile}
            for name, of_tile in self.planes.items()
        }
        every = set().union(*planes.values())
        return [name for name, of_tile in planes.items() if of_tile != every]


def tile_set(planes: Sequence[RawPlane], channel: str) -> TileSet:
    """Return the planes of one cycle and region by tile."""
    by_tile: dict[str, list[RawPlane]] = {}

    def order(plane: RawPlane) -> tuple[int, int, int]:
        return plane.tile or 0, plane.row or 0, plane.col or 0

    for plane in sorted(planes, key=order):
        by_tile.setdefault(plane.tile_name, []).append(plane)
    paths = list(dict.fromkeys(plane.path for plane in planes))[:_MOST_FILES]
    headers = read_headers(dict.fromkeys(paths, 1)).values()
    shapes = [(h.height_px, h.width_px) for h in headers if not h.problem]
    return TileSet(by_tile, channel, shapes[0] if shapes else (0, 0))
