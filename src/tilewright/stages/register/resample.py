"""The channels of a cycle, resampled into the frame of the reference cycle.

Backgrounds are subtracted here, where the planes of all cycles lie on each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.io.results.ome_zarr import create_image
from tilewright.io.results.registration import Subtraction, read_transform, write_subtractions
from tilewright.io.results.zarr_store import OmeZarrVersion, StoreWriter
from tilewright.kernels.backend import Backend, Region, cancelling_thread_pool
from tilewright.kernels.device_memory import OomHint, map_with_oom_split, track_device_memory
from tilewright.kernels.register.background import subtract
from tilewright.kernels.register.warp import Transform, source_region, warp
from tilewright.stages import CHUNK_PX
from tilewright.stages.register.subtract import Background, survey
from tilewright.stages.tile_windows import halves, regions, within

#: (marker, channel, in-focus plane).
PlaneOfCycle = tuple[str, str, str | Path]
_OOM_HINT = OomHint("resample", "the smallest part of a chunk")


@track_device_memory(_OOM_HINT)
def resample(
    cycle: int,
    planes: Sequence[PlaneOfCycle],
    transform: str | Path | None,
    frame: str | Path,
    output: str | Path,
    subtraction: tuple[str | Path, str | Path],
    *,
    backend: Backend,
    ome_zarr_version: OmeZarrVersion,
    backgrounds: Mapping[str, Background],
    chunk_px: int = CHUNK_PX,
) -> None:
    """Write the channels of a cycle as they lie in the final image, with their pyramid.

    A channel with a background is ``channel - factor * background``, both registered, clipped at 0.
    Regions of the size of a chunk are resampled at a time.

    Parameters
    ----------
    planes : sequence of (marker, channel, Path)
        Channels in the order of the image, and their in-focus planes.
    transform : Path or None
        From the reference frame to this cycle. None for the reference cycle, whose pixels are
        copied as they are.
    frame : Path
        An in-focus plane of the reference cycle: the image has its size.
    output : Path
        OME-Zarr image to write; it appears when it is whole.
    subtraction : (Path, Path)
        What was subtracted, as ``.npz`` and ``.json``.
    backend : Backend
        Its ``workers`` threads resample chunks and make the pyramid.
    backgrounds : mapping
        Marker to what is subtracted from it.
    chunk_px : int
        Side of the image's chunks.

    Raises
    ------
    DeviceMemoryError
        The GPU's memory does not hold the smallest part of a chunk.
    """
    sources = [_Source.open(path, transform) for *_, path in planes]
    reference = open_mosaic(frame)
    with (
        create_image(
            output,
            reference.shape[1:],
            np.uint16,
            chunk_px,
            reference.voxel_um[1:],
            [marker for marker, *_ in planes],
            name=Path(output).stem,
            ome_zarr_version=ome_zarr_version,
            workers=backend.workers,
        ) as writer,
        cancelling_thread_pool(backend) as pool,
    ):
        parts = regions(reference.shape[1:], chunk_px)
        inner = dataclasses.replace(backend, workers=1)
        subtractions = {
            c: _BackgroundSubtraction.of(
                inner, (marker, cycle, channel), sources[c], backgrounds[marker],
                reference.shape[1:], parts, pool,
            )
            for c, (marker, channel, _) in enumerate(planes)
            if marker in backgrounds
        }  # fmt: skip
        chunks = [(c, region) for c in range(len(planes)) for region in parts]
        blocks = pool.map(partial(_write_block, inner, writer, sources, subtractions), chunks)
        for _ in tqdm(blocks, "resample", len(chunks), unit="chunk", mininterval=5):
            pass
    write_subtractions([one.plan for one in subtractions.values()], *map(Path, subtraction))


@dataclass(frozen=True)
class _Source:
    """A plane of a cycle, and how it lies in the image."""

    mosaic: Mosaic
    transform: Transform

    @classmethod
    def open(cls, path: str | Path, transform: str | Path | None) -> _Source:
        from_reference = Transform.identity() if transform is None else read_transform(transform)
        return cls(open_mosaic(path), from_reference)

    def read(self, backend: Backend, region: Region) -> NDArray[np.uint16]:
        return resample_region(backend, self.mosaic, self.transform, region)


def _write_block(
    backend: Backend,
    writer: StoreWriter,
    sources: Sequence[_Source],
    subtractions: Mapping[int, _BackgroundSubtraction],
    chunk: tuple[int, Region],
) -> None:
    """Resample one region of one channel, and subtract its background."""
    channel, region = chunk
    block = sources[channel].read(backend, region)
    if channel in subtractions:
        block = subtractions[channel].subtract_from(backend, block, region)
    writer.write(channel, region[0].start, region[1].start, block)


@dataclass(frozen=True)
class _BackgroundSubtraction:
    """A background that is subtracted from a channel, block by block."""

    source: _Source
    plan: Subtraction

    @classmethod
    def of(
        cls,
        backend: Backend,
        channel: tuple[str, int, str],
        plane: _Source,
        background: Background,
        shape: tuple[int, int],
        parts: Sequence[Region],
        pool: Executor,
    ) -> _BackgroundSubtraction:
        source = _Source.open(background.plane, background.transform)
        reads = (partial(plane.read, backend), partial(source.read, backend))
        return cls(source, survey(channel, background, reads, shape, parts, pool))

    def subtract_from(
        self, backend: Backend, block: NDArray[np.uint16], region: Region
    ) -> NDArray[np.uint16]:
        light = self.source.read(backend, region)
        difference = np.empty_like(block)

        def one(part: Region) -> None:
            at = within(part, region)
            values = subtract(backend, block[at], light[at], self.plan.factor)
            difference[at] = backend.to_numpy(values)

        map_with_oom_split(backend, one, region, halves, _OOM_HINT)
        return difference


def resample_region(
    backend: Backend, mosaic: Mosaic, transform: Transform, region: Region
) -> NDArray[np.uint16]:
    """Return a region of the reference frame, (ny, nx) uint16; 0 outside the mosaic.

    Parameters
    ----------
    mosaic : Mosaic
        One uint16 plane of the moving cycle, (1, y, x).
    transform : Transform
        From the reference frame to the mosaic; under the identity pixels are copied.
    region : (slice, slice)
        Rows and columns of the reference frame.
    """
    size = (mosaic.shape[1], mosaic.shape[2])
    out = np.zeros([part.stop - part.start for part in region], np.uint16)
    if transform.is_identity:
        pixels = mosaic.read(0, *region)
        out[: pixels.shape[0], : pixels.shape[1]] = pixels
        return out
    source = source_region(transform, region, size)
    if source is None:
        return out
    pixels = mosaic.read(0, *source)

    def one(part: Region) -> None:
        near = source_region(transform, part, size)
        if near is not None:
            target = within(part, region)
            origin = (near[0].start, near[1].start)
            source_pixels = pixels[within(near, source)]
            out[target] = warp(backend, source_pixels, origin, size, transform, part)

    map_with_oom_split(backend, one, region, halves, _OOM_HINT)
    return out
