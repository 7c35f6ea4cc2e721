"""The planes of one cycle and region by tile, and a small image of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats.common import RawPlane, raw_file_errors
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.inputs.tiles import read_plane
from tilewright.io.tiff.headers import RawHeader
from tilewright.stages.tile_positions.stage_check import reduce_tile


@dataclass(frozen=True)
class TileSet:
    """The planes of one cycle and region, by tile."""

    planes: dict[str, list[RawPlane]]
    """By the tile's name, in the order of acquisition."""
    channel: str
    """The one with the most structure, usually nuclei."""
    shape_px: tuple[int, int]
    """(y, x) of a tile; 0 where no file can be read."""

    @cached_property
    def names(self) -> list[str]:
        """Names of the tiles."""
        return list(self.planes)

    @property
    def first(self) -> list[RawPlane]:
        """A plane of each tile."""
        return [planes[0] for planes in self.planes.values()]

    @cached_property
    def images(self) -> NDArray[np.float32] | str:
        """The middle plane (n, y, x) of each tile, reduced; why not, if one cannot be read."""
        try:
            return np.stack([self._image(planes) for planes in self.planes.values()])
        except RawDataError as error:
            return str(error)

    def _image(self, planes: list[RawPlane]) -> NDArray[np.float32]:
        stack = [plane for plane in planes if plane.channel == self.channel] or planes
        middle = sorted(stack, key=lambda plane: plane.z or 0)[len(stack) // 2]
        header = _header(middle)
        with raw_file_errors(middle.path):
            if header.problem:
                raise ValueError(f"it {header.problem}")
            page = header.pages // 2 if middle.page is None else middle.page
            image = read_plane(middle.path, page)
            if image.shape != self.shape_px:
                raise ValueError(f"{image.shape} px, where others have {self.shape_px}")
            return reduce_tile(image)

    def forget(self) -> None:
        """Drop the images: those of many cycles would fill the memory."""
        self.__dict__.pop("images", None)

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
    headers = map(_header, (of_tile[0] for of_tile in by_tile.values()))
    shapes = ((h.height_px, h.width_px) for h in headers if not h.problem)
    return TileSet(by_tile, channel, next(shapes, (0, 0)))


def _header(plane: RawPlane) -> RawHeader:
    return read_headers({plane.path: 1})[plane.path]
