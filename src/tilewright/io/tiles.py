"""The raw tiles of one cycle and channel, read plane by plane."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.io.conventions.common import RawDataError


class _Page(NamedTuple):
    path: Path
    page: int
    size_bytes: int


@dataclass(frozen=True)
class Tiles:
    """Raw tiles of one cycle and channel, ordered by (row, col); safe to read in threads.

    Parameters
    ----------
    row, col : ndarray of int64, shape (n,)
        Place of each tile as laid out on the stage.
    nominal_px : ndarray of float64, shape (n, 2)
        Stage position (y, x) of each tile's first pixel.
    shape : tuple of int
        (z, y, x) of every tile.
    dtype : numpy.dtype
        Raw pixel type, uint8 or uint16.
    """

    row: NDArray[np.int64]
    col: NDArray[np.int64]
    nominal_px: NDArray[np.float64]
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    _pages: list[list[_Page]]

    def read(self, tile: int, z: int) -> NDArray[Any]:
        """Return one plane (y, x) of one tile in raw counts.

        Raises
        ------
        RawDataError
            The file has changed since the workflow started, or is damaged.
        """
        path, page, size_bytes = self._pages[tile][z]
        try:
            found = path.stat().st_size
            if found != size_bytes:
                raise RawDataError(
                    f"{path} has {found} bytes, but had {size_bytes} when the workflow started; "
                    "copy it again and start the workflow again"
                )
            # Threads belong to the caller: tifffile's own would multiply with them.
            plane = tifffile.imread(path, key=page, maxworkers=1)
        except RawDataError:
            raise
        # What tifffile and its codecs raise on damaged data; codec errors are RuntimeErrors.
        except (
            tifffile.TiffFileError,
            OSError,
            ValueError,
            IndexError,
            KeyError,
            RuntimeError,
        ) as error:
            raise RawDataError(
                f"{path}, page {page}, cannot be read ({error}); copy the file again"
            ) from error
        if plane.shape != self.shape[1:] or plane.dtype != self.dtype:
            raise RawDataError(
                f"{path}, page {page}, is {plane.shape} {plane.dtype}, but was "
                f"{self.shape[1:]} {self.dtype} when the workflow started; start it again"
            )
        return np.asarray(plane)


def open_tiles(manifest: str | Path, channel: str) -> Tiles:
    """Return the tiles of ``channel`` that a manifest lists.

    Parameters
    ----------
    manifest : path
        ``cycle{cycle}.csv`` as :func:`tilewright.io.manifest.build_manifest` writes it.
    channel : str
        Channel token as in the markers table.

    Raises
    ------
    RawDataError
        The manifest has no such channel.
    """
    with Path(manifest).open(newline="", encoding="utf-8") as stream:
        lines = [line for line in csv.DictReader(stream) if line["channel"] == channel]
    if not lines:
        raise RawDataError(f"{manifest} has no channel {channel!r}; correct the markers table")
    # The manifest is ordered by (row, col, z), and every tile in it has all its planes.
    tiles: dict[tuple[int, int], list[dict[str, str]]] = {}
    for line in lines:
        tiles.setdefault((int(line["row"]), int(line["col"])), []).append(line)
    first = lines[0]
    return Tiles(
        row=np.array([row for row, _ in tiles], np.int64),
        col=np.array([col for _, col in tiles], np.int64),
        nominal_px=np.array(
            [(float(stack[0]["y_px"]), float(stack[0]["x_px"])) for stack in tiles.values()]
        ),
        shape=(
            len(next(iter(tiles.values()))),
            int(first["height_px"]),
            int(first["width_px"]),
        ),
        dtype=np.dtype(first["dtype"]),
        _pages=[
            [
                _Page(Path(line["path"]), int(line["page"]), int(line["size_bytes"]))
                for line in stack
            ]
            for stack in tiles.values()
        ],
    )
