"""One channel of a stitched image as the plane that registration and assembly read.

Memory holds the pieces that the file decodes at once, not the plane. A pixel of 0 is a
gap, as outside the tiles of a mosaic. The output is uint16 and has z = 1; its attributes are
``pedestal_counts`` 0, ``method`` "stitched", ``unseen_px``, ``saturation_counts``,
``saturated_px``, ``saturated_share`` (of bright pixels) and ``equal_neighbours`` (the share of
neighbours of exactly the same counts, median of the chunks with light; None without any).
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.inputs.stitched_plane import OpenPlane, opened
from tilewright.io.inputs.tiles import Tiles
from tilewright.io.results.mosaic import create_mosaic
from tilewright.io.results.zarr_store import OmeZarrVersion, StoreWriter
from tilewright.kernels.camera import Top, detect_saturation, equal_neighbours, saturated_share
from tilewright.stages import CHUNK_PX
from tilewright.stages.tile_windows import regions, spans


def stitched_plane(
    image: Tiles,
    output: str | Path,
    *,
    voxel_um: tuple[float, float, float],
    chunk_px: int = CHUNK_PX,
    saturation_counts: float | None = None,
    ome_zarr_version: OmeZarrVersion = "0.4",
) -> None:
    """Store a plane as the in-focus plane of its cycle and channel, its counts as they are.

    Parameters without a line here are keys of the configuration, see
    :mod:`tilewright.config.settings`; None is ``auto``.

    Parameters
    ----------
    image : Tiles
        The one tile of a stitched image, uint8 or uint16.
    output : Path
        Folder of the mosaic; appears when it is whole.
    voxel_um : tuple of float
        (z, y, x) size of a voxel in µm.
    chunk_px : int
        Side of the mosaic's chunks.

    Raises
    ------
    RawDataError
        The file has changed since the workflow started, or is damaged.
    """
    with (
        opened(image) as source,
        create_mosaic(
            output,
            image.shape,
            np.uint16,
            chunk_px,
            voxel_um,
            ome_zarr_version=ome_zarr_version,
        ) as writer,
    ):
        histogram, equal = _copy(source, writer, image.shape[1:], chunk_px)
        ceiling = saturation_counts or _ceiling(histogram, image.dtype)
        writer.attributes |= _attributes(histogram, equal, ceiling)


def _attributes(histogram: NDArray[np.int64], equal: list[float], ceiling: float) -> dict[str, Any]:
    below = np.where(np.arange(len(histogram)) < ceiling, histogram, 0)
    return {
        "pedestal_counts": 0,
        "method": "stitched",
        "unseen_px": int(histogram[0]),
        "saturation_counts": ceiling,
        "saturated_px": int(histogram[int(np.ceil(ceiling)) :].sum()),
        "saturated_share": round(saturated_share(histogram, below, ceiling), 6),
        "equal_neighbours": round(float(np.median(equal)), 4) if equal else None,
    }


def _copy(
    source: OpenPlane, writer: StoreWriter, shape: tuple[int, int], chunk_px: int
) -> tuple[NDArray[np.int64], list[float]]:
    """Copy a plane; return its histogram, and of each chunk the share of equal neighbours."""
    histogram = np.zeros(2**16, np.int64)
    equal: list[float] = []
    # No piece of the file is decoded twice where pieces and chunks divide each other.
    sides = [chunk_px * -(-piece // chunk_px) for piece in source.piece_px]
    rows, columns = (spans(n, side) for n, side in zip(shape, sides, strict=True))
    blocks = [(y, x) for y in rows for x in columns]
    for y, x in tqdm(blocks, desc="stitched", unit="block", mininterval=5):
        pixels = source.read(y, x)
        for part in regions((pixels.shape[0], pixels.shape[1]), chunk_px):
            chunk = pixels[part]
            corner = y.start + part[0].start, x.start + part[1].start
            writer.write(0, *corner, chunk.astype(np.uint16))
            histogram += np.bincount(chunk.ravel(), minlength=len(histogram))
            if chunk.any():
                equal.append(equal_neighbours(chunk, 1))
    return histogram, equal


def _ceiling(histogram: NDArray[np.int64], dtype: np.dtype[Any]) -> float:
    """Return the counts at which a plane saturates."""
    counts = np.flatnonzero(histogram)
    tops = [Top(float(counts[-1]), int(histogram[counts[-1]]), 0)]
    if len(counts) > 1:
        tops = [tops[0]._replace(below=int(histogram[counts[-2]]))]
    limit = detect_saturation(tops)
    return float(np.iinfo(dtype).max) if limit is None else limit
