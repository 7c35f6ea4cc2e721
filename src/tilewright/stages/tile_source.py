"""Interface of raw tiles to the stages, whatever their file format."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class TileSource(Protocol):
    """Raw tiles of one cycle and one channel, of one sample or of those that a scan holds."""

    @property
    def name(self) -> NDArray[np.str_]:
        """Name of each tile in the tiles table, str (n,)."""

    @property
    def sample(self) -> NDArray[np.str_]:
        """Str (n,): sample of each tile; those of one sample follow each other."""

    @property
    def row(self) -> NDArray[np.int64]:
        """int64 (n,): row of each nominal position."""

    @property
    def col(self) -> NDArray[np.int64]:
        """int64 (n,): column of each nominal position."""

    @property
    def nominal_px(self) -> NDArray[np.float64]:
        """float64 (n, 2): stage position (y, x) of each tile's first pixel."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(z, y, x) of every tile."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Raw pixel type."""

    def read(self, tile: int, z: int) -> NDArray[Any]:
        """Return one plane (y, x) of one tile in raw counts."""
