"""Assembly of the final image: every channel of every cycle, resampled once into one frame."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.mosaic import Mosaic, open_mosaic
from tilewright.io.ome_tiff import Compression, write_ome_tiff
from tilewright.io.ome_zarr import create_image
from tilewright.io.transform import read_transform
from tilewright.io.zarr_store import OmeZarrVersion
from tilewright.kernels.backend import Backend
from tilewright.kernels.device_memory import Smallest, in_parts, memory_noted
from tilewright.kernels.warp import Transform, source_region, warp
from tilewright.runtime.files import whole_or_nothing
from tilewright.stages.tile_planes import abandoning_pool
from tilewright.stages.tile_windows import Region, halves, regions, within

#: (marker, cycle, channel, EDF mosaic, transform; None for the reference cycle).
PlaneOfImage = tuple[str, int, str, str | Path, str | Path | None]
#: Threads that read and write around a GPU.
_GPU_THREADS = 4
_SMALLEST = Smallest("assemble", "the smallest part of a chunk")


@memory_noted(_SMALLEST)
def assemble(
    planes: Sequence[PlaneOfImage],
    ome_tif: str | Path,
    ome_zarr: str | Path,
    markers_csv: str | Path,
    *,
    backend: Backend,
    chunk_px: int,
    compression: Compression,
    tile_px: int,
    ome_zarr_version: OmeZarrVersion,
) -> None:
    """Write the registered image as OME-Zarr and OME-TIFF, and the table of its channels.

    Parameters
    ----------
    planes : sequence of (marker, cycle, channel, EDF mosaic, transform)
        Channels in the order of the image. A transform of None says that the plane belongs to
        the reference cycle, whose pixels are copied as they are and whose size the image has.
    ome_tif, ome_zarr, markers_csv : Path
        What to write; each appears when it is whole.
    backend : Backend
        Its ``workers`` threads resample chunks, make the pyramid and compress.
    chunk_px : int
        Side of the chunks of the OME-Zarr and of the regions resampled at a time.
    compression, tile_px
        See :func:`tilewright.io.ome_tiff.write_ome_tiff`.
    ome_zarr_version : {"0.4", "0.5"}

    Raises
    ------
    ValueError
        No plane belongs to the reference cycle, or a mosaic is not one uint16 plane.
    DeviceMemoryError
        The GPU's memory does not hold the smallest part of a chunk.
    """
    mosaics = [_single_plane(path) for _, _, _, path, _ in planes]
    frame = next((m for m, p in zip(mosaics, planes, strict=True) if p[4] is None), None)
    if frame is None:
        raise ValueError("no plane belongs to the reference cycle; give one a transform of None")
    transforms = [Transform.identity() if p[4] is None else read_transform(p[4]) for p in planes]
    names = [marker for marker, *_ in planes]
    shape = frame.shape[1:]
    jobs = [(c, region) for c in range(len(planes)) for region in regions(shape, chunk_px)]
    inner = dataclasses.replace(backend, workers=1)
    with (
        create_image(
            ome_zarr,
            shape,
            np.uint16,
            chunk_px,
            frame.voxel_um[1:],
            names,
            name=Path(ome_zarr).name.removesuffix(".zarr").removesuffix(".ome"),
            ome_zarr_version=ome_zarr_version,
            workers=backend.workers,
        ) as writer,
        abandoning_pool(backend, _GPU_THREADS) as pool,
    ):

        def one(job: tuple[int, Region]) -> None:
            channel, region = job
            block = resample(inner, mosaics[channel], transforms[channel], region)
            writer.write(channel, region[0].start, region[1].start, block)

        done = pool.map(one, jobs)
        for _ in tqdm(done, "registration", len(jobs), unit="chunk", mininterval=5):
            pass
        backend.give_back()
    write_ome_tiff(
        ome_zarr, ome_tif, compression=compression, tile_px=tile_px, workers=backend.workers
    )
    write_markers(planes, markers_csv)


def _single_plane(path: str | Path) -> Mosaic:
    mosaic = open_mosaic(path)
    if mosaic.shape[0] != 1 or mosaic.dtype != np.uint16:
        raise ValueError(
            f"{mosaic.path} has {mosaic.shape[0]} planes of {mosaic.dtype}; the image is made "
            "of single uint16 planes, as the edf stage writes them"
        )
    return mosaic


def resample(
    backend: Backend, mosaic: Mosaic, transform: Transform, region: Region
) -> NDArray[np.uint16]:
    """Return a region of the reference frame, (ny, nx) uint16; 0 outside the mosaic.

    Parameters
    ----------
    backend : Backend
    mosaic : Mosaic
        One uint16 plane of the moving cycle, (1, y, x).
    transform : Transform
        From the reference frame to the mosaic; under the identity pixels are copied.
    region : (slice, slice)
        Rows and columns of the reference frame.
    """
    size = (mosaic.shape[1], mosaic.shape[2])
    empty = np.zeros([part.stop - part.start for part in region], np.uint16)
    if transform.is_identity:
        pixels = mosaic.read(0, *region)
        empty[: pixels.shape[0], : pixels.shape[1]] = pixels
        return empty
    source = source_region(transform, region, size)
    if source is None:
        return empty
    pixels = mosaic.read(0, *source)

    def one(part: Region) -> None:
        near = source_region(transform, part, size)
        if near is not None:
            target = within(part, region)
            found = pixels[within(near, source)]
            origin = (near[0].start, near[1].start)
            empty[target] = warp(backend, found, origin, size, transform, part)

    in_parts(backend, one, region, halves, _SMALLEST)
    return empty


def write_markers(planes: Sequence[PlaneOfImage], path: str | Path) -> None:
    """Write MCMICRO's ``markers.csv``: channel and cycle numbers from 1, and marker names.

    Cycles are numbered in the order of their own numbers.
    """
    order = {cycle: k for k, cycle in enumerate(sorted({plane[1] for plane in planes}), 1)}
    with (
        whole_or_nothing(Path(path)) as partial,
        partial.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["channel_number", "cycle_number", "marker_name"])
        for number, (marker, cycle, *_) in enumerate(planes, 1):
            writer.writerow([number, order[cycle], marker])
