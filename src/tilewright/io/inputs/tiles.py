"""The raw tiles of one cycle and channel, read plane by plane."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats import containers
from tilewright.io.formats.common import RAW_DIR_FILE, raw_file_errors
from tilewright.io.inputs.plane_table import Manifest, PlaneRow, read_manifest
from tilewright.io.results.result_file import result_file_errors
from tilewright.kernels.tile_positions.tile_order import grid_places

#: Planes of a tile, and tiles, that one with zeros up to a side is compared with.
_COMPARED = 4


class RawPage(NamedTuple):
    """A plane in a file, and the size of the file when the workflow started."""

    path: Path
    page: int
    size_bytes: int


@dataclass(frozen=True)
class Tiles:
    """Raw tiles of one cycle and channel, ordered by position; safe to read in threads.

    Attributes
    ----------
    name : str (n,)
        Name of each tile in the tiles table.
    sample : str (n,)
        Sample of each tile; "" where only one is open.
    row, col : int64 (n,)
        Rows and columns of nominal positions, see
        :func:`~tilewright.kernels.tile_positions.tile_order.grid_places`.
    nominal_px : float64 (n, 2)
        Stage position (y, x) of each tile's first pixel.
    shape : tuple[int, int, int]
        (z, y, x) of every tile.
    dtype : np.dtype[Any]
        Type of the counts, uint8 or uint16.
    pages : list[list[RawPage]]
        By tile and z.
    counts_per_unit : float | None
        Where the files hold float32: what a value of 1 is in counts.
    """

    name: NDArray[np.str_]
    sample: NDArray[np.str_]
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    nominal_px: NDArray[np.float64]
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    pages: list[list[RawPage]]
    counts_per_unit: float | None = None

    def path(self, tile: int, z: int) -> Path:
        """Return the file of one plane."""
        return self.pages[tile][z].path

    def read(self, tile: int, z: int) -> NDArray[Any]:
        """Return one plane (y, x) of one tile in raw counts.

        Raises
        ------
        RawDataError
            The file has changed since the workflow started, or is damaged: its data cannot be
            decoded, or are truncated.
        """
        path, page, _ = self.pages[tile][z]
        plane = self._raw(tile, z)
        truncated = truncated_fraction(plane)
        if truncated and not self._others_padded(tile, z):
            raise RawDataError(
                f"{path}, page {page}, is truncated: {100 * truncated:.0f} % of it, up to one "
                "side, are zeros, and no other plane is so; copy the file again"
            )
        return plane

    def _others_padded(self, tile: int, z: int) -> bool:
        """Whether most of other planes have padding too: those of the tile, or of other tiles.

        A transfer that breaks off leaves zeros in one plane; software that shifts a tile does so
        in all its planes, or in most tiles.
        """
        depth, count = self.shape[0], len(self.pages)
        stack = [(tile, (z + k) % depth) for k in range(1, min(depth, 1 + _COMPARED))]
        neighbours = [((tile + k) % count, z) for k in range(1, min(count, 1 + _COMPARED))]
        return any(
            2 * sum(truncated_fraction(self._raw(*at)) > 0 for at in part) > len(part)
            for part in (stack, neighbours)
        )

    def _raw(self, tile: int, z: int) -> NDArray[Any]:
        """Return one plane as the file has it."""
        path, page, size_bytes = self.pages[tile][z]
        with raw_file_errors(f"{path}, page {page},"):
            now_bytes = path.stat().st_size
            plane = read_plane(path, page) if now_bytes == size_bytes else None
        if plane is None:
            raise RawDataError(
                f"{path} has {now_bytes} bytes, but had {size_bytes} when the workflow started; "
                "copy it again and start the workflow again"
            )
        if self.counts_per_unit is not None:
            plane = self._counts(plane, f"{path}, page {page}")
        if plane.shape != self.shape[1:] or plane.dtype != self.dtype:
            raise RawDataError(
                f"{path}, page {page}, is {plane.shape} {plane.dtype}, but was "
                f"{self.shape[1:]} {self.dtype} when the workflow started; start it again"
            )
        return np.asarray(plane)

    def _counts(self, plane: NDArray[Any], name: str) -> NDArray[np.uint16]:
        """Return a float plane in counts, rounded, from 0 to 65,535."""
        counts = np.rint(plane * np.float32(self.counts_per_unit))
        if not np.isfinite(counts).all():
            raise RawDataError(f"{name}, holds NaN or infinity; replace them by counts")
        return np.clip(counts, 0, np.iinfo(np.uint16).max).astype(np.uint16)


def read_plane(path: str | Path, page: int) -> NDArray[Any]:
    """Return a page of a TIFF, or a plane of another format's file, in raw counts."""
    if containers.is_container(path):
        return containers.read_page(path, page)
    # Threads belong to the caller: tifffile's own would multiply with them.
    plane: NDArray[Any] = tifffile.imread(path, key=page, maxworkers=1)
    return plane


def truncated_fraction(plane: NDArray[Any]) -> float:
    """Return the share of a plane (y, x) that a broken transfer may have set to zero, 0 if none.

    These are whole rows or columns of zeros from one side on, at least a thirty-second of the
    plane, where fewer than 1 % of the other pixels are 0. Images whose background is 0
    (subtracted, masked) have zeros elsewhere too and are complete.

    >>> truncated_fraction(np.array([[7, 9], [8, 7], [0, 0], [0, 0]]))
    0.5
    >>> truncated_fraction(np.array([[7, 0], [8, 7], [0, 0], [0, 0]]))
    0.0
    """
    if plane[0].any() and plane[-1].any() and plane[:, 0].any() and plane[:, -1].any():
        return 0.0
    for lines in (plane, plane.T):
        nonzero: NDArray[np.bool_] = np.asarray(lines.any(axis=1))
        count = len(nonzero) - int(nonzero.sum())
        one_edge = np.count_nonzero(nonzero[1:] != nonzero[:-1]) == 1
        zeros = np.count_nonzero(lines[nonzero] == 0)
        if one_edge and count >= len(nonzero) / 32 and zeros < 0.01 * lines[nonzero].size:
            return count / len(nonzero)
    return 0.0


def open_tiles(manifest: str | Path, channel: str) -> Tiles:
    """Return the tiles of a channel, by its token in the markers table, that a manifest lists.

    The manifest is one of :func:`tilewright.io.inputs.manifest.build_manifest`.

    Raises
    ------
    RawDataError
        The manifest has no such channel.
    """
    folder_file = Path(manifest).with_name(RAW_DIR_FILE)
    with result_file_errors(folder_file, "name of a folder"):
        raw_dir = folder_file.read_text("utf-8").rstrip("\n")
    tiles = tiles_of(read_manifest(manifest), channel, raw_dir)
    if tiles is None:
        raise RawDataError(f"{manifest} has no channel {channel!r}; correct the markers table")
    return tiles


def open_scan(manifests: Mapping[str, str | Path], channel: str) -> Tiles:
    """Return the tiles of ``channel`` of several samples that one camera took, as islands.

    Their planes are the first ones that all have. ``manifests`` are those of :func:`open_tiles` by
    sample.

    Raises
    ------
    RawDataError
        A manifest has no such channel, or tiles differ in size or pixel type.
    """
    every = [open_tiles(manifest, channel) for manifest in manifests.values()]
    first = every[0]
    alike = {(one.shape[1:], one.dtype, one.counts_per_unit) for one in every}
    if len(alike) > 1:
        sizes = ", ".join(sorted(f"{y} x {x} px of {kind}" for (y, x), kind, _ in alike))
        raise RawDataError(
            f"the samples of one scan have tiles of {sizes}, which share no flat-field; give them "
            "different names in a column 'scan' of the samples table"
        )
    # no overlap of two samples: two tiles lie between them
    rows = np.cumsum([0, *(int(np.ptp(one.row)) + 3 for one in every[:-1])])
    tile_px = first.shape[1]
    heights = [float(np.ptp(one.nominal_px[:, 0])) + 3 * tile_px for one in every[:-1]]
    places = zip(every, rows, np.cumsum([0.0, *heights]), strict=True)
    moved = [(one, row - one.row.min(), y - one.nominal_px[:, 0].min()) for one, row, y in places]
    return replace(
        first,
        name=np.concatenate([one.name for one in every]),
        sample=np.repeat(list(manifests), [len(one.name) for one in every]),
        row=np.concatenate([one.row + row for one, row, _ in moved]),
        col=np.concatenate([one.col for one in every]),
        nominal_px=np.concatenate([np.add(one.nominal_px, (y, 0.0)) for one, _, y in moved]),
        shape=(min(one.shape[0] for one in every), *first.shape[1:]),
        pages=[pages for one in every for pages in one.pages],
    )


def tiles_of(manifest: Manifest, channel: str, raw_dir: str) -> Tiles | None:
    """Return the tiles of ``channel`` in a manifest, None where it has none."""
    tiles: dict[str, list[PlaneRow]] = {}
    for row in manifest.rows:
        if row.channel == channel:
            tiles.setdefault(row.tile, []).append(row)
    if not tiles:
        return None
    stacks = list(tiles.values())
    nominal = [(stack[0].y_px, stack[0].x_px) for stack in stacks]
    folder, shape = Path(raw_dir), manifest.tile_px
    kind, _, scale = stacks[0][0].dtype.partition("*")
    rows, columns = np.array(grid_places(nominal, shape), np.int64).T
    return Tiles(
        name=np.array(list(tiles)),
        sample=np.full(len(tiles), ""),
        row=rows,
        col=columns,
        nominal_px=np.array(nominal),
        shape=(len(stacks[0]), *shape),
        dtype=np.dtype(np.uint16 if scale else kind),
        counts_per_unit=float(scale) if scale else None,
        pages=[
            [RawPage(folder / row.path, row.page, row.size_bytes) for row in stack]
            for stack in stacks
        ],
    )
