"""Codecs for stacks that are written once, read two or three times and removed.

``python -m benchmarks.compression MOSAIC.zarr …`` reads mosaics that tilewright wrote (target
``stitching``) and prints for each codec the size over the raw pixels, CPU seconds per GB to write
and to read, and what a stack costs that is written once and read twice over a file system of
200 MB/s, in seconds per GB: CPU time and transfer. A deconvolved stack (float32) is also
taken as uint16 with the smallest scale that holds its brightest voxel, and the error of that is
compared with the noise of its darkest tenth.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import Blosc
from numpy.typing import NDArray

from tilewright.io.results.mosaic import open_mosaic

#: Bytes per second of a shared file system, as a job sees it.
DISK = 200e6
#: How often a stitched stack is read: the in-focus plane, and quality.
READS = 2
_SHUFFLES = {"none": Blosc.NOSHUFFLE, "byte": Blosc.SHUFFLE, "bit": Blosc.BITSHUFFLE}
CODECS = [
    (name, level, shuffle)
    for name, level in (("lz4", 1), ("lz4", 5), ("zstd", 1), ("zstd", 3))
    for shuffle in _SHUFFLES
]


def chunks_of(path: Path, most: int = 200) -> tuple[list[NDArray[Any]], int]:
    """Return up to ``most`` chunks of a mosaic, spread evenly, and the side of a chunk."""
    mosaic = open_mosaic(path)
    side = mosaic.chunk_px
    places = [
        (z, y, x)
        for z in range(mosaic.shape[0])
        for y in range(0, mosaic.shape[1], side)
        for x in range(0, mosaic.shape[2], side)
    ]
    picked = places[:: max(1, len(places) // most)]
    return [
        np.ascontiguousarray(mosaic.read(z, slice(y, y + side), slice(x, x + side)))
        for z, y, x in picked
    ], side


def measure(chunks: list[NDArray[Any]]) -> None:
    """Print a line for each codec, the cheapest marked."""
    raw_b = sum(chunk.nbytes for chunk in chunks)
    rows = []
    for name, level, shuffle in CODECS:
        codec = Blosc(cname=name, clevel=level, shuffle=_SHUFFLES[shuffle])
        began = time.process_time()
        packed = [codec.encode(chunk) for chunk in chunks]
        written = time.process_time()
        for part in packed:
            codec.decode(part)
        read_s, write_s = time.process_time() - written, written - began
        share = sum(map(len, packed)) / raw_b
        per_gb = 1e9 / raw_b
        cost_s = per_gb * (write_s + READS * read_s) + (1 + READS) * share * 1e9 / DISK
        rows.append((cost_s, name, level, shuffle, share, write_s * per_gb, read_s * per_gb))
    least = min(row[0] for row in rows)
    print(f"{'codec':6}{'level':>6}{'shuffle':>9}{'size':>7}{'write s/GB':>12}{'read s/GB':>11}"
          f"{'cost s/GB':>11}")  # fmt: skip
    for cost_s, name, level, shuffle, share, write_s, read_s in rows:
        print(f"{name:6}{level:6}{shuffle:>9}{share:7.3f}{write_s:12.2f}{read_s:11.2f}"
              f"{cost_s:11.2f}{' <' if cost_s == least else ''}")  # fmt: skip


def as_uint16(chunks: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the chunks in 16 bits, and print what that costs."""
    brightest = max(float(chunk.max()) for chunk in chunks)
    scale = brightest / 65535
    means = np.array([chunk.mean() for chunk in chunks])
    dark = [chunks[k] for k in np.argsort(means)[: max(1, len(chunks) // 10)]]
    fine = np.concatenate([(c[:, 1:] - c[:, :-1]).ravel() for c in dark]) / np.sqrt(2)
    noise = 1.4826 * float(np.median(np.abs(fine - np.median(fine))))
    error = scale / np.sqrt(12)
    share = f"{error / noise:.2g} of it" if noise > 0 else "there is none"
    print(f"as uint16: {scale:.3g} counts a step, error {error:.3g} counts rms; noise of the "
          f"darkest tenth {noise:.3g} counts: {share}")  # fmt: skip
    return [np.rint(chunk / scale).astype(np.uint16) for chunk in chunks]


def main() -> None:
    """Measure each mosaic."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mosaics", nargs="+", type=Path)
    for path in parser.parse_args().mosaics:
        chunks, side = chunks_of(path)
        print(f"\n{path}: {len(chunks)} chunks of {side} px, {chunks[0].dtype}")
        measure(chunks)
        if chunks[0].dtype.kind == "f":
            measure(as_uint16(chunks))


if __name__ == "__main__":
    main()
