"""Tiles in memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ArrayTiles:
    """Tiles held in memory as one array (tile, z, y, x)."""

    stack: NDArray[Any]
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    nominal_px: NDArray[np.float64]

    @property
    def name(self) -> NDArray[np.str_]:
        """Numbers of the tiles, from 0."""
        return np.arange(len(self.row)).astype(np.str_)

    @property
    def sample(self) -> NDArray[np.str_]:
        """One sample."""
        return np.full(len(self.row), "")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(z, y, x) of every tile."""
        _, z, y, x = self.stack.shape
        return z, y, x

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the counts."""
        return self.stack.dtype

    def read(self, tile: int, z: int) -> NDArray[Any]:
        """Return a plane (y, x) of a tile."""
        return np.asarray(self.stack[tile, z])
