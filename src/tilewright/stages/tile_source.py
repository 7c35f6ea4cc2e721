"""Interface of raw tiles to the stages, whatever their file format."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class TileSource(Protocol):
    """Raw tiles of one cycle and one channel.

    Attributes
    ----------
    name : ndarray of str, shape (n,)
        Name of each tile in the tiles table.
    row, col : ndarray of int64, shape (n,)
        Rows and columns of the nominal positions.
    nominal_px : ndarray of float64, shape (n, 2)
        Stage position (y, x) of each tile's first pixel.
    shape : tuple of int
        (z, y, x) of every tile.
    dtype : numpy.dtype
        Raw pixel type.
    """

    @property
    def name(self) -> NDArray[np.str_]: ...  # noqa: D102
    @property
    def row(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def col(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def nominal_px(self) -> NDArray[np.float64]: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, int, int]: ...  # noqa: D102
    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102

    def read(self, tile: int, z: int) -> NDArray[Any]:
        """Return one plane (y, x) of one tile in raw counts."""
