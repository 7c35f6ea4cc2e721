"""Headers of the raw files of a sample, and whether they are complete."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tilewright.errors import BrokenTiffError, RawDataError
from tilewright.io.formats import containers
from tilewright.io.tiff.headers import (
    PIXEL_TYPES,
    SCALED_TYPE,
    PageHeader,
    RawHeader,
    headers_of,
    pixel_problem,
)
from tilewright.io.tiff.metadata import DAMAGE_ERRORS

#: Compressions of TIFF that lose counts.
_JPEG = (6, 7, 33007, 34892)
_LOSSY = "pixels are compressed as JPEG, which has lost weak signal; export without"
_COARSE = "pixels have 8 bits: weak markers have few steps of grey, bright ones clip"
#: File systems of clusters have a high latency, but answer in parallel.
_WORKERS = 16


def read_headers(
    pages_needed: Mapping[str, int], earlier: Mapping[str, RawHeader] | None = None
) -> dict[str, RawHeader]:
    """Return the header of every file, opening only those that changed.

    Each file must have at least the pages needed of it; headers read ``earlier`` are valid while
    size and time of change are the same.
    """
    paths = list(pages_needed)
    # A future per file would cost more than the stat it makes.
    chunks = [paths[start : start + 256] for start in range(0, len(paths), 256)]

    def check(chunk: Iterable[str]) -> list[RawHeader]:
        return [_check(path, pages_needed[path], (earlier or {}).get(path)) for path in chunk]

    with ThreadPoolExecutor(_WORKERS) as pool:
        headers = [header for part in pool.map(check, chunks) for header in part]
    return dict(zip(paths, headers, strict=True))


def pixel_doubts(paths: Iterable[str]) -> list[str]:
    """Return what the pixels of files have lost for good: steps of grey, or weak signal by JPEG.

    Each doubt once, with the first file that it is of.
    """
    paths, files = list(paths), dict[str, str]()
    with ThreadPoolExecutor(_WORKERS) as pool:
        for path, page in zip(paths, pool.map(_first_page, paths), strict=True):
            if page is not None and page.compression in _JPEG:
                files.setdefault(_LOSSY, path)
            if page is not None and page.dtype == "uint8":
                files.setdefault(_COARSE, path)
    return [f"{Path(path).name}: {doubt}" for doubt, path in files.items()]


def _first_page(path: str) -> PageHeader | None:
    """Return the header of a TIFF's first page, None of one that the check of all files names."""
    with contextlib.suppress(BrokenTiffError, OSError):
        return None if containers.is_container(path) else next(iter(headers_of(path)), None)
    return None


def _check(path: str, pages: int, earlier: RawHeader | None) -> RawHeader:
    try:
        # A Path object per file would double the time.
        status = os.stat(path)  # noqa: PTH116
        if (
            earlier is not None
            and (earlier.size_bytes, earlier.mtime_ns) == (status.st_size, status.st_mtime_ns)
            and earlier.pages >= pages
        ):
            return earlier
        header = _read(path, status)
    except OSError as error:
        return RawHeader(0, 0, problem=f"cannot be read ({error.strerror})")
    if header.pages < pages and not header.problem:
        return header._replace(problem=f"has {header.pages} pages, but {pages} are needed")
    return header


def _read(path: str, status: os.stat_result) -> RawHeader:
    """Open a file and look at all of its pages."""
    blank = RawHeader(status.st_size, status.st_mtime_ns)
    if status.st_size == 0:
        return blank._replace(problem="is empty (0 bytes)")
    if containers.is_container(path):
        return _read_container(path, blank)
    try:
        pages = headers_of(path)
    except BrokenTiffError as error:
        return blank._replace(problem=str(error))
    first = pages[0]
    if any(page[:-1] != first[:-1] for page in pages):
        return blank._replace(problem="has pages of different shapes or pixel types")
    form = first.samples, first.photometric, first.compression
    return blank._replace(
        height_px=first.height_px,
        width_px=first.width_px,
        dtype=first.dtype,
        pages=len(pages),
        problem=pixel_problem(*form, first.dtype, (*PIXEL_TYPES, SCALED_TYPE)),
    )


def _read_container(path: str, blank: RawHeader) -> RawHeader:
    try:
        opened = containers.contents(path)
        # The only check for truncated data.
        containers.read_page(path, len(opened.places) - 1)
    except RawDataError as error:
        return blank._replace(problem=str(error).removeprefix(path).strip(" :"))
    except DAMAGE_ERRORS as error:
        return blank._replace(problem=f"cannot be read ({error})")
    container = opened.container
    return blank._replace(
        height_px=container.height_px,
        width_px=container.width_px,
        dtype=container.dtype,
        pages=len(opened.places),
        problem=pixel_problem(1, 1, 1, container.dtype, PIXEL_TYPES),
    )
