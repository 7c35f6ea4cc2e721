"""Manifests: every raw plane of a sample, checked and listed before the DAG.

One table per cycle. A table is rewritten only when its content changes, so its time of
change tells Snakemake whether raw data changed; and it is its own cache: files whose
size and time of change are as in it are not opened again.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilewright.errors import RawDataError, ResultFileError
from tilewright.io.formats import scan, stitched
from tilewright.io.formats.common import RAW_DIR_FILE, RawPlane, ScanOptions, select_region
from tilewright.io.inputs.placed_planes import PlacedPlanes, TileRows, place_planes
from tilewright.io.inputs.plane_table import Manifest, PlaneRow, read_manifest
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.results.result_file import write_result
from tilewright.io.tiff.headers import SCALED_TYPE, RawHeader
from tilewright.kernels.tile_positions.tile_order import grid_places

#: Next to the manifests: the digest of the tables whose pixels were last checked.
_PIXELS_DIGEST = "looked_at.txt"
_REMEDY = (
    "\nCopy such files again from the microscope, correct the config or tables where named, or "
    "take the cycle or channel out of the markers table."
)
#: Problems listed in full; the rest are counted.
_LISTED = 10


def build_manifest(
    raw_dir: str | os.PathLike[str],
    acquisition: Mapping[str, Any],
    channels: Mapping[int, Sequence[str]],
    places: Mapping[int, TileRows],
    manifests: Mapping[int, Path],
    *,
    check_pixels: Callable[[Mapping[int, Manifest]], list[str]] | None = None,
    cache_key: str = "",
) -> None:
    """Find and check the raw data of one sample and write its tables.

    Parameters
    ----------
    raw_dir : path
        Folder of the raw data.
    acquisition : mapping
        The section of the configuration: ``convention`` and the fields of
        :class:`~tilewright.io.formats.common.ScanOptions`; other keys are ignored.
    channels : mapping of int to sequence of str
        Channels of every cycle as the markers table lists them; files of others are ignored.
    places : mapping of int to TileRows
        The rows of every cycle in the tiles table.
    manifests : mapping of int to Path
        The table to write for each cycle; its folder is made if need be.
    check_pixels : callable, optional
        Called with every cycle's table; returns what is wrong with the pixels. It is not called
        again for the same tables and the same ``cache_key``.
    cache_key : str
        All that ``check_pixels`` depends on besides the tables.

    Raises
    ------
    RawDataError
        With all that is missing, duplicate, truncated or unlike the rest; else with all that
        ``check_pixels`` found.
    """
    tables = _checked_tables(raw_dir, acquisition, channels, places, manifests)
    texts = {cycle: table.text() for cycle, table in tables.items()}
    sibling = next(iter(manifests.values())).with_name
    digest = sha256("\n".join([cache_key, *texts.values()]).encode()).hexdigest()
    checked = not check_pixels or _holds(sibling(_PIXELS_DIGEST), digest)
    if check_pixels and not checked and (problems := check_pixels(tables)):
        raise RawDataError(_message(raw_dir, problems, remedy=""))
    for cycle, text in texts.items():
        _write_if_changed(manifests[cycle], text)
    # Not in the tables: the place of the raw data changes no result.
    _write_if_changed(sibling(RAW_DIR_FILE), f"{Path(raw_dir).resolve()}\n")
    if check_pixels:
        _write_if_changed(sibling(_PIXELS_DIGEST), digest)


def _checked_tables(
    raw_dir: str | os.PathLike[str],
    acquisition: Mapping[str, Any],
    channels: Mapping[int, Sequence[str]],
    places: Mapping[int, TileRows],
    manifests: Mapping[int, Path],
) -> dict[int, Manifest]:
    """Return the table of each cycle; RawDataError with all that is wrong."""
    folder, convention = str(Path(raw_dir).resolve()), acquisition["convention"]
    planes = [
        plane
        for plane in planes_of(raw_dir, acquisition, channels)
        if plane.channel in channels.get(plane.cycle, ())
    ]
    if not planes:
        raise RawDataError(
            f"{raw_dir} holds no file of the markers table's cycles and channels by the "
            f"convention {convention!r}; correct acquisition.convention, acquisition.pattern, "
            "raw_dir or the markers table"
        )
    if convention == "stitched":
        headers = {plane.path: stitched.read_image(plane.path).header for plane in planes}
    else:
        left_out = {(cycle, tile) for cycle, rows in places.items() for tile in rows.left_out()}
        planes = [plane for plane in planes if (plane.cycle, plane.tile_name) not in left_out]
        headers = read_headers(_pages_needed(planes), _read_known(manifests.values(), folder))
    planes, page_problems = _expand_pages(planes, headers)
    scale = acquisition.get("counts_per_unit")
    problems = _unlike_files(headers, scale, alike=convention != "stitched") + page_problems
    by_cycle: dict[int, list[RawPlane]] = {cycle: [] for cycle in sorted(channels)}
    for plane in planes:
        by_cycle[plane.cycle].append(plane)
    tables = {}
    for cycle, of_cycle in by_cycle.items():
        rows = places.get(cycle, TileRows(())).places
        placed = place_planes(of_cycle, cycle, rows, channels[cycle])
        problems += placed.problems
        if not problems:
            tables[cycle] = _table(placed, headers, channels[cycle], folder, scale)
    if problems:
        raise RawDataError(_message(raw_dir, problems))
    return tables


def planes_of(
    raw_dir: str | os.PathLike[str], acquisition: Mapping[str, Any], cycles: Iterable[int] | None
) -> list[RawPlane]:
    """Return the planes of a sample in some cycles, None in all, by its section ``acquisition``.

    Raises
    ------
    RawDataError
        They cannot be found, or are of another region.
    """
    wanted = None if cycles is None else tuple(cycles)
    options = replace(scan_options(acquisition), cycles=wanted)
    planes = scan(acquisition["convention"], raw_dir, options)
    return select_region(planes, options.region, raw_dir)


def scan_options(acquisition: Mapping[str, Any]) -> ScanOptions:
    """Return how files are named, from the section ``acquisition``."""
    names = (field.name for field in fields(ScanOptions))
    return ScanOptions(**{name: acquisition[name] for name in names if name in acquisition})


def _pages_needed(planes: Sequence[RawPlane]) -> dict[str, int]:
    needed: dict[str, int] = {}
    for plane in planes:
        needed[plane.path] = max(needed.get(plane.path, 1), (plane.page or 0) + 1)
    return needed


def _read_known(tables: Iterable[Path], folder: str) -> dict[str, RawHeader]:
    """Return the headers in earlier tables; none of a table that cannot be read."""
    rows = list[PlaneRow]()
    for table in tables:
        # Of a truncated or edited table the files are opened again.
        with contextlib.suppress(FileNotFoundError, ResultFileError):
            rows += read_manifest(table).rows
    return {
        f"{folder}/{row.path}": RawHeader(
            *(row.size_bytes, row.mtime_ns, row.height_px, row.width_px),
            *(row.dtype.partition("*")[0], row.pages),
        )
        for row in rows
    }


def _expand_pages(
    planes: list[RawPlane], headers: Mapping[str, RawHeader]
) -> tuple[list[RawPlane], list[str]]:
    """Turn the pages of files without a z in their name into z-planes."""
    expanded: list[RawPlane] = []
    problems = []
    deepest = max((header.pages for header in headers.values()), default=1)
    for plane in planes:
        pages = headers[plane.path].pages
        if plane.page is not None:
            expanded.append(plane)
        elif plane.z is None:
            # A file that cannot be read is reported as such, and not again as missing planes.
            expanded += [plane._replace(z=page, page=page) for page in range(pages or deepest)]
        else:
            expanded.append(plane._replace(page=0))
            if pages > 1:
                problems.append(f"{plane.path} has {pages} pages, but its name says one z-plane")
    return expanded, problems


def _unlike_files(
    headers: Mapping[str, RawHeader], scale: float | None, *, alike: bool
) -> list[str]:
    """Return what is wrong with files, and which differ from most in size or type if ``alike``."""
    problems = [f"{path} {header.problem}" for path, header in headers.items() if header.problem]
    kinds = Counter(
        (header.height_px, header.width_px, header.dtype)
        for header in headers.values()
        if not header.problem
    )
    if not kinds:
        return problems
    # The smaller one of a tie, so that the message is the same every time.
    (height, width, dtype), _ = min(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    if dtype == SCALED_TYPE and scale is None:
        problems.append(
            f"the pixels are of type {SCALED_TYPE}, which does not say how many counts they are; "
            "set acquisition.counts_per_unit, or save the camera's counts as uint16"
        )
    for path, header in headers.items():
        if alike and not header.problem and header[2:5] != (height, width, dtype):
            problems.append(
                f"{path} is {header.height_px} x {header.width_px} {header.dtype}, "
                f"where most are {height} x {width} {dtype}"
            )
    return problems


def _message(raw_dir: str | os.PathLike[str], problems: list[str], remedy: str = _REMEDY) -> str:
    lines = "".join(f"\n  - {problem}" for problem in problems[:_LISTED])
    more = len(problems) - _LISTED
    return (
        f"{len(problems)} problem{'s' if len(problems) > 1 else ''} with the raw data in "
        f"{raw_dir}:{lines}" + (f"\n  ... and {more} more" if more > 0 else "") + remedy
    )


def _table(
    placed: PlacedPlanes,
    headers: Mapping[str, RawHeader],
    channels: Sequence[str],
    folder: str,
    scale: float | None,
) -> Manifest:
    """Return the table of one cycle; ``scale`` is counts of a unit of float pixels."""
    rows: list[PlaneRow] = []
    rank = {channel: index for index, channel in enumerate(channels)}
    y0 = min(place.y_px for _, place in placed.planes)
    x0 = min(place.x_px for _, place in placed.planes)
    for plane, place in placed.planes:
        header = headers[plane.path]
        dtype = f"{SCALED_TYPE}*{scale:g}" if header.dtype == SCALED_TYPE else header.dtype
        rows.append(
            PlaneRow(
                channel=plane.channel,
                tile=place.tile,
                z=plane.z or 0,
                path=plane.path[len(folder) + 1 :],
                page=plane.page or 0,
                y_px=round(place.y_px - y0, 4),
                x_px=round(place.x_px - x0, 4),
                height_px=header.height_px,
                width_px=header.width_px,
                dtype=dtype,
                size_bytes=header.size_bytes,
                mtime_ns=header.mtime_ns,
                pages=header.pages,
            )
        )
    corners = {row.tile: (row.y_px, row.x_px) for row in rows}
    places = grid_places(list(corners.values()), (rows[0].height_px, rows[0].width_px))
    order = {tile: (*place, tile) for tile, place in zip(corners, places, strict=True)}
    rows.sort(key=lambda row: (rank[row.channel], order[row.tile], row.z))
    return Manifest(rows, placed.excluded)


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _write_if_changed(path: Path, text: str) -> None:
    """Write atomically; an equal file is left as it is."""
    if not _holds(path, text):
        write_result(path, text)
