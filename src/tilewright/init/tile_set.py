"""The tiles of one cycle and region: their planes, a small image of each, and their grid."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.init.notes import Notes
from tilewright.io.formats.common import RawPlane, raw_file_errors
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.inputs.tiles import read_plane
from tilewright.io.tiff.headers import RawHeader
from tilewright.kernels.tile_positions.tile_layout import GridVotes
from tilewright.stages.tile_positions.stage_check import reduce_tile, reduction

#: Positions (n, 2) of tiles in px, NaN where unknown.
Places = NDArray[np.float64]


@dataclass(frozen=True)
class TileSet:
    """The planes of one cycle and region, by tile.

    Attributes
    ----------
    planes : dict[str, list[RawPlane]]
        By the tile's name, in the order of acquisition.
    channel : str
        The one with the most structure, usually nuclei.
    shape_px : tuple[int, int]
        (y, x) of a tile; 0 where no file can be read.
    """

    planes: dict[str, list[RawPlane]]
    channel: str
    shape_px: tuple[int, int]

    @cached_property
    def names(self) -> list[str]:
        """Names of the tiles."""
        return list(self.planes)

    @property
    def first(self) -> list[RawPlane]:
        """A plane of each tile."""
        return [planes[0] for planes in self.planes.values()]

    @cached_property
    def images(self) -> NDArray[np.float32] | None:
        """The middle plane (n, y, x) of each tile, reduced; None if one cannot be read.

        The check of all files before a run names it.
        """
        with suppress(RawDataError):
            return np.stack([self._image(planes) for planes in self.planes.values()])
        return None

    def _image(self, planes: list[RawPlane]) -> NDArray[np.float32]:
        stack = [plane for plane in planes if plane.channel == self.channel] or planes
        middle = sorted(stack, key=lambda plane: plane.z or 0)[len(stack) // 2]
        header = _header(middle)
        if header.problem or (header.height_px, header.width_px) != self.shape_px:
            raise RawDataError(f"{middle.path} {header.problem or 'is of another size'}")
        page = header.pages // 2 if middle.page is None else middle.page
        with raw_file_errors(middle.path):
            return reduce_tile(read_plane(middle.path, page))

    def forget(self) -> None:
        """Drop the images: those of many cycles would fill the memory."""
        self.__dict__.pop("images", None)


@dataclass(frozen=True)
class GridOptions:
    """What the command line or metadata say of the grid; None is unknown."""

    rows: int | None = None
    cols: int | None = None
    layout: str | None = None
    overlap: float | None = None

    def otherwise(self, codex: Any, width_px: int) -> GridOptions:
        """Return what is given here, and what ``experiment.json`` gives where nothing is.

        An overlap from 1 on is in pixels.
        """
        overlap = codex.overlap or 0.0
        share = overlap / max(width_px, 1) if overlap >= 1 else overlap
        known = codex.rows, codex.cols, codex.layout, share if 0.01 <= share <= 0.9 else None
        given = zip(astuple(self), known, strict=True)
        return GridOptions(*(other if own is None else own for own, other in given))


@dataclass
class PlacedTiles:
    """The tiles of one region and cycle, and where they lie.

    Attributes
    ----------
    source : str
        As in the tiles table: ``stage``, ``grid`` or ``pixels``.
    guessed : bool
        Whether the distance of tiles is a guess, until it is measured.
    yx_um : Places | None
        The same positions as the files give them, whatever the size of a pixel; None if moved.
    order : GridVotes | None
        Of numbered tiles, where overlaps show it.
    repeated : set[str]
        Tiles of which an earlier one is at the same position.
    """

    tiles: TileSet
    yx_px: Places
    source: str
    guessed: bool = False
    yx_um: Places | None = None
    order: GridVotes | None = None
    repeated: set[str] = field(default_factory=set)
    notes: Notes = field(default_factory=Notes)

    def move(self, yx_px: Places, source: str) -> None:
        """Place the tiles elsewhere."""
        self.yx_px, self.yx_um, self.source = yx_px, None, source

    def ask(self, question: str) -> None:
        """Ask for the positions of all tiles."""
        self.notes.unknown.append(f"y and x: {question}")
        self.move(np.full_like(self.yx_px, np.nan), self.source)

    @property
    def known(self) -> bool:
        """Whether all tiles have a position."""
        return not np.isnan(self.yx_px).any()

    @property
    def factor(self) -> int:
        """By how much images are reduced."""
        return reduction(self.tiles.shape_px[1])


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
