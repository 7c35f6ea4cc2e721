"""Tiles in memory, and their correction in one formula."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend


@dataclass(frozen=True)
class ArrayTiles:
    """Tiles held in memory as one array (tile, z, y, x)."""

    stack: NDArray[Any]
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    nominal_px: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(z, y, x) of every tile."""
        _, z, y, x = self.stack.shape
        return z, y, x

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stack.dtype

    def read(self, tile: int, z: int) -> NDArray[Any]:
        return np.asarray(self.stack[tile, z])


def correct(backend: Backend, raw: Array, flat: Array, dark: Array, pedestal: float) -> Array:
    """Return raw counts (..., y, x) corrected for illumination, zero light kept at ``pedestal``.

    ``(raw - dark) / flat + pedestal``: noise below zero light survives (no clipping,
    hence no bias in empty areas) and stays storable in an unsigned type.
    """
    counts = backend.asarray(raw)
    gain, zero = backend.asarray(flat), backend.asarray(dark)
    if gain.shape != counts.shape[-2:] or zero.shape not in ((), counts.shape[-2:]):
        raise ValueError(
            f"flat {gain.shape} and dark {zero.shape} do not fit tiles of {counts.shape[-2:]} "
            "pixels (y, x); give fields of the tiles' own size"
        )
    corrected = counts - zero
    corrected /= gain
    corrected += float(pedestal)
    return corrected
