"""Chunks of a mosaic, fused from the tiles that touch them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tilewright.io.mosaic import MosaicWriter
from tilewright.kernels.backend import Backend
from tilewright.kernels.blending import Correction, Interpolation, Span, fuse
from tilewright.kernels.device_memory import Smallest, in_parts
from tilewright.stages.tile_planes import TilePlanes
from tilewright.stages.tile_windows import Region, halves

SMALLEST = Smallest("stitch", "the flat-field, the dark-field and the smallest part of a chunk")


@dataclass(frozen=True)
class StitchPlan:
    """Where each tile lies, and how chunks are fused."""

    spans: list[tuple[Span, Span]]
    shape: tuple[int, int]
    chunk_px: int
    correction: Correction
    feather_px: float
    interpolation: Interpolation

    def touching(self, y: tuple[int, int], x: tuple[int, int]) -> list[int]:
        """Return the tiles that share pixels with the region [y0, y1) x [x0, x1)."""
        return [
            k
            for k, (ys, xs) in enumerate(self.spans)
            if ys.start < y[1] and y[0] < ys.stop and xs.start < x[1] and x[0] < xs.stop
        ]

    def ranges(self, axis: int) -> list[tuple[int, int]]:
        """Return the chunks along an axis as (start, stop)."""
        size, side = self.shape[axis], self.chunk_px
        return [(start, min(start + side, size)) for start in range(0, size, side)]


def fuse_chunk(
    backend: Backend,
    plan: StitchPlan,
    planes: TilePlanes,
    mosaic: MosaicWriter,
    z: int,
    y: tuple[int, int],
    x: tuple[int, int],
) -> tuple[int, int]:
    """Fuse and write one chunk; return its pixels clipped low and high."""
    members = plan.touching(y, x)
    if not members:
        return 0, 0
    tiles, spans = planes.get(z, members), [plan.spans[k] for k in members]

    def fuse_part(part: Region) -> tuple[Region, NDArray[Any], int, int]:
        rows, columns = part
        pixels, low, high = fuse(
            backend,
            tiles,
            spans,
            plan.correction,
            (rows.start, columns.start),
            (rows.stop - rows.start, columns.stop - columns.start),
            feather_px=plan.feather_px,
            interpolation=plan.interpolation,
        )
        return part, backend.to_numpy(pixels), low, high

    parts = in_parts(backend, fuse_part, (slice(*y), slice(*x)), halves, SMALLEST)
    for (rows, columns), pixels, _, _ in parts:
        mosaic.write(z, rows, columns, pixels)
    return sum(low for _, _, low, _ in parts), sum(high for *_, high in parts)
