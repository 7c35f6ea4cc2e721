"""Raw tiles of the stages, whatever their file format, and their planes read ahead of the work."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.camera import CameraDefects, away_from_saturation, saturated_share
from tilewright.kernels.padding import blank_padding

#: Every fourth row is in the histograms: 8 ms of CPU time for a tile of 2048 px, 32 of all rows.
_HISTOGRAM_STEP = 4
#: Pixels, whether one is saturated, and histograms.
_Read = tuple[NDArray[Any], bool, NDArray[np.int64]]


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


class TilePlanes:
    """Decoded tiles of the present planes, read ahead by a pool."""

    def __init__(
        self,
        tiles: TileSource,
        pool: ThreadPoolExecutor,
        saturation_counts: float,
        defects: CameraDefects | None,
    ) -> None:
        self._tiles = tiles
        self._defects = defects
        self._pool = pool
        self._threshold = saturation_counts
        self._reads: dict[tuple[int, int], Future[_Read]] = {}
        self.any_saturated = False
        # Of all pixels, and of those away from saturation.
        self._histograms = np.zeros((tiles.shape[0], 2, np.iinfo(tiles.dtype).max + 1), np.int64)

    def load(self, z: int, members: Iterable[int]) -> None:
        """Start reading tiles that are not in memory yet."""
        for k in members:
            if (z, k) not in self._reads:
                self._reads[z, k] = self._pool.submit(self._read, k, z)

    @property
    def saturated_shares(self) -> list[float]:
        """The share of bright pixels that are saturated, of each plane."""
        return [
            round(saturated_share(every, away, self._threshold), 6)
            for every, away in self._histograms
        ]

    def _read(self, tile: int, z: int) -> _Read:
        pixels = blank_padding(self._tiles.read(tile, z))
        if self._defects is not None:
            pixels = self._defects.repair(pixels)
        saturated = bool((pixels >= self._threshold).any())
        sample = np.nan_to_num(pixels[::_HISTOGRAM_STEP]).astype(self._tiles.dtype, copy=False)
        parts = [sample.ravel()]
        if saturated:  # else both histograms are the same
            parts.append(away_from_saturation(sample, self._threshold, _HISTOGRAM_STEP))
        histograms = [np.bincount(one, minlength=self._histograms.shape[-1]) for one in parts]
        return pixels, saturated, np.stack(histograms)

    def get(self, z: int, members: list[int]) -> list[NDArray[Any]]:
        """Return tiles that :meth:`load` started to read, waiting for them."""
        return [self._reads[z, k].result()[0] for k in members]

    def keep(self, tiles: set[tuple[int, int]]) -> None:
        """Forget all tiles but these; their saturated pixels are counted once."""
        for z, k in set(self._reads) - tiles:
            _, saturated, histograms = self._reads.pop((z, k)).result()
            self.any_saturated |= saturated
            self._histograms[z] += histograms
