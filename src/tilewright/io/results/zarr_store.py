"""What all OME-Zarr images share: metadata, chunked levels, atomic writing.

Metadata follow OME-NGFF 0.4 (Zarr v2, read by today's viewers) or 0.5 (Zarr v3).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import zarr
import zarr.codecs
from numpy.typing import NDArray
from zarr.core.sync import sync

from tilewright.io.results.checksum_store import ChecksumStore
from tilewright.io.results.result_file import result_file_errors
from tilewright.runtime.files import atomic_path

OmeZarrVersion = Literal["0.4", "0.5"]
#: Key of the group's attributes that holds tilewright's own numbers.
ATTRIBUTES_KEY = "tilewright"


def _end_writes() -> None:
    """Wait for pending writes: Zarr does not cancel them after the error of one."""

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)

    sync(end())


def multiscales(
    axes: str,
    scales: Sequence[Sequence[float]],
    name: str,
    version: OmeZarrVersion,
    omero: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the OME-NGFF attributes of an image.

    ``axes`` are letters of ``c``, ``z``, ``y``, ``x`` in that order, ``scales`` the pixel size of
    each level along them in µm, 1 for ``c``; ``omero`` has channel names and display windows.
    """
    axis_items = [
        {"name": axis, "type": "channel"}
        if axis == "c"
        else {"name": axis, "type": "space", "unit": "micrometer"}
        for axis in axes
    ]
    datasets = []
    for level, scale in enumerate(scales):
        transforms: list[dict[str, Any]] = [{"type": "scale", "scale": [float(s) for s in scale]}]
        if level:
            # The mean of 2x2 pixels lies between them: half a new pixel less half an old one.
            shift = [(s - s0) / 2 for s, s0 in zip(scale, scales[0], strict=True)]
            transforms.append({"type": "translation", "translation": shift})
        datasets.append({"path": str(level), "coordinateTransformations": transforms})
    image = {"name": name, "axes": axis_items, "datasets": datasets}
    ome: dict[str, Any] = {"multiscales": [image]}
    if omero is not None:
        ome["omero"] = omero
    if version == "0.5":
        return {"ome": {"version": "0.5", **ome}}
    image["version"] = "0.4"
    return ome


class OmeZarrImage(NamedTuple):
    """OME-NGFF's attributes, levels, pixel size along the axes, and tilewright's attributes."""

    ome: dict[str, Any]
    levels: tuple[Any, ...]
    scale_um: Sequence[float]
    attributes: dict[str, Any]


def open_store(path: Path, axes: str) -> OmeZarrImage:
    """Open an existing OME-Zarr image for reading.

    Raises
    ------
    ResultFileError
        There is no Zarr group at ``path``, or it is not an image with these axes.
    """
    with result_file_errors(path, "OME-Zarr image"):
        try:
            group = zarr.open_group(ChecksumStore(path, read_only=True), mode="r")
        except (FileNotFoundError, zarr.errors.GroupNotFoundError):
            raise ValueError("no Zarr group is there") from None
        attributes: dict[str, Any] = dict(group.attrs)
        ome = attributes.get("ome", attributes)
        image = ome["multiscales"][0]
        stored_axes = "".join(axis["name"] for axis in image["axes"])
        if stored_axes != axes:
            raise ValueError(f"its axes are {stored_axes}, not {axes}")
        levels = tuple(group[dataset["path"]] for dataset in image["datasets"])
        scale_um = image["datasets"][0]["coordinateTransformations"][0]["scale"]
    return OmeZarrImage(ome, levels, scale_um, attributes.get(ATTRIBUTES_KEY, {}))


@contextlib.contextmanager
def create_store(path: Path, version: OmeZarrVersion) -> Iterator[zarr.Group]:
    """Yield an empty Zarr group of the format of ``version`` of OME-NGFF.

    It has a temporary name until the block succeeds, as with ``atomic_path``.
    """
    with atomic_path(path) as partial:
        try:
            store = ChecksumStore(partial, crc32={})
            yield zarr.create_group(store, zarr_format=2 if version == "0.4" else 3)
            store.write_list()
        except BaseException:
            _end_writes()
            raise


def create_level(
    group: zarr.Group,
    level: int,
    axes: str,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    chunk_px: int,
    fill: float = 0,
) -> StoreWriter:
    """Create one level: planes cut into ``chunk_px`` squares, blosc-lz4.

    Of 12 codecs it cost least in CPU time and transfer; bytes are shuffled except floats, which
    hold many zeros and take 5 to 24 % less without.
    """
    v2 = group.metadata.zarr_format == 2
    shuffled = dtype.kind in "ui"
    codec: Any = (
        {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": int(shuffled), "blocksize": 0}
        if v2
        else zarr.codecs.BloscCodec(
            cname="lz4", clevel=5, shuffle="shuffle" if shuffled else "noshuffle"
        )
    )
    array = group.create_array(
        str(level),
        shape=tuple(int(n) for n in shape),
        chunks=(*(1,) * (len(shape) - 2), chunk_px, chunk_px),
        dtype=dtype,
        compressors=codec,
        filters=None,
        fill_value=dtype.type(fill).item(),
        chunk_key_encoding={"name": "v2" if v2 else "default", "separator": "/"},
        dimension_names=None if v2 else list(axes),
        # Comparing each chunk with the fill costs four times its compression.
        config={"write_empty_chunks": True},
    )
    return StoreWriter(array)


class StoreWriter:
    """One array of planes that many threads may write at once.

    Blocks that cover whole chunks are written in parallel. Blocks that share a chunk take a
    lock: such a chunk is read, changed and written back. ``attributes`` are numbers, strings and
    lists of them, stored with the full resolution when it is closed.
    """

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[Any] = array.dtype
        self.chunk_px: int = array.chunks[-1]
        self.attributes: dict[str, Any] = {}
        self._partial = threading.Lock()

    def write(self, plane: int, y0: int, x0: int, block: NDArray[Any]) -> None:
        """Write a block (y, x) of a plane, or (n, y, x) from that one on, first pixel (y0, x0)."""
        for z, pixels in enumerate(block if block.ndim == 3 else block[None], plane):
            starts, ends = (y0, x0), (y0 + pixels.shape[0], x0 + pixels.shape[1])
            aligned = all(
                start % self.chunk_px == 0 and (end % self.chunk_px == 0 or end == n)
                for start, end, n in zip(starts, ends, self.shape[1:], strict=True)
            )
            with contextlib.nullcontext() if aligned else self._partial:
                self.array[z, y0 : ends[0], x0 : ends[1]] = pixels


def stack_on_disk(folder: Path, shape: tuple[int, ...]) -> Any:
    """Return a stack (n, y, x) of float32 that is read and written like an array.

    Each plane is a file of its own below ``folder``, so that many threads may write planes.
    """
    return zarr.create_array(
        Path(tempfile.mkdtemp(dir=folder)),
        shape=shape,
        chunks=(1, *shape[1:]),
        dtype=np.float32,
        compressors=None,
        filters=None,
        fill_value=0,
        config={"write_empty_chunks": True},
    )


def describe(group: zarr.Group, ome: dict[str, Any], attributes: dict[str, Any]) -> None:
    """Store OME-NGFF attributes and tilewright's own, NumPy's numbers as Python's."""
    text = json.dumps(attributes, allow_nan=False, default=lambda value: value.tolist())
    group.update_attributes({**ome, ATTRIBUTES_KEY: json.loads(text)})


def link_chunks(source: tuple[Any, int], target: tuple[Any, int]) -> None:
    """Link the chunks of a plane of an array into a plane of another of the same shape.

    They are hard links, which take no space; copies where the file system has none.
    """
    (from_store, from_folder), (store, folder) = _folder(*source), _folder(*target)
    shutil.copytree(from_store.root / from_folder, store.root / folder, copy_function=_link_or_copy)
    # A damaged chunk is damaged in both: it is named where it can be made again.
    for key, crc in from_store.crc32_below(from_folder).items():
        store.crc32[folder + key.removeprefix(from_folder)] = crc


def _folder(array: Any, plane: int) -> tuple[ChecksumStore, str]:
    """Return the store of an array (plane, y, x), and the folder of a plane's chunks in it."""
    key = array.metadata.encode_chunk_key((plane, 0, 0))
    return array.store, str(Path(array.path, key).parent.parent)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
