"""Manifests: every raw plane of a sample, checked and listed before the DAG.

One table per cycle. A table is rewritten only when its content changes, so its time of
change tells Snakemake whether raw data changed; and it is its own cache: files whose
size and time of change are as in it are not opened again.
"""

import contextlib
import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilewright.errors import RawDataError
from tilewright.io.formats import scan, stitched
from tilewright.io.formats.common import RAW_DIR_FILE, RawPlane, ScanOptions, select_region
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.inputs.tile_planes import PlacedPlanes, TileRows, place_planes
from tilewright.io.results.result_file import compare_checksum, write_result
from tilewright.io.tiff.headers import SCALED_TYPE, RawHeader
from tilewright.kernels.tile_positions.tile_order import grid_places

COLUMNS = (
    *("channel", "tile", "z", "path", "page", "y_px", "x_px"),
    *("height_px", "width_px", "dtype", "size_bytes", "mtime_ns", "pages"),
)
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
    check_pixels: Callable[[Mapping[int, str]], list[str]] | None = None,
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
        Called with the text of every cycle's table; returns what is wrong with the pixels. It is
        not called again for the same tables and the same ``cache_key``.
    cache_key : str
        All that ``check_pixels`` depends on besides the tables.

    Raises
    ------
    RawDataError
        With all that is missing, duplicate, truncated or unlike the rest; else with all that
        ``check_pixels`` found.
    """
    folder = str(Path(raw_dir).resolve())
    tables = _checked_tables(raw_dir, acquisition, channels, places, manifests)
    sibling = next(iter(manifests.values())).with_name
    digest = sha256("\n".join([cache_key, *tables.values()]).encode()).hexdigest()
    if check_pixels and not _holds(sibling(_PIXELS_DIGEST), digest):
        problems = check_pixels(tables)
        if problems:
            raise RawDataError(_message(raw_dir, problems, remedy=""))
    for cycle, table in tables.items():
        _write_if_changed(manifests[cycle], table)
    # Not in the tables: the place of the raw data changes no result.
    _write_if_changed(sibling(RAW_DIR_FILE), f"{folder}\n")
    if check_pixels:
        _write_if_changed(sibling(_PIXELS_DIGEST), digest)


def _checked_tables(
    raw_dir: str | os.PathLike[str],
    acquisition: Mapping[str, Any],
    channels: Mapping[int, Sequence[str]],
    places: Mapping[int, TileRows],
    manifests: Mapping[int, Path],
) -> dict[int, str]:
    """Return the table of each cycle as text; RawDataError with all that is wrong."""
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
    known: dict[str, RawHeader] = {}
    for table in tables:
        # Of a truncated or edited table the files are opened again.
        with contextlib.suppress(FileNotFoundError, ValueError, csv.Error):
            compare_checksum(table)
            known.update(_parse_known(table.read_text("utf-8"), folder))
    return known


def _parse_known(text: str, folder: str) -> dict[str, RawHeader]:
    known: dict[str, RawHeader] = {}
    lines = csv.reader(io.StringIO(text))
    if tuple(next(lines, ())) != COLUMNS:
        return known
    for channel, _, _, below, _, _, _, height, width, dtype, *counts in lines:
        if channel:
            size, mtime, pages = map(int, counts)  # all pages of the file, used or not
            kind = dtype.partition("*")[0]
            header = RawHeader(size, mtime, int(height), int(width), kind, pages)
            known[f"{folder}/{below}"] = header
    return known


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
) -> str:
    """Return the table of one cycle as text, ordered by channel, place and z."""
    # ``scale``: counts of a unit of float pixels, given behind their type. Positions are relative
    # to the first tile of the cycle. Tiles that are not used are lines without a channel.
    lines: list[tuple[Any, ...]] = []
    rank = {channel: index for index, channel in enumerate(channels)}
    y0 = min(place.y_px for _, place in placed.planes)
    x0 = min(place.x_px for _, place in placed.planes)
    for plane, place in placed.planes:
        header = headers[plane.path]
        where = (plane.channel, place.tile, plane.z, plane.path[len(folder) + 1 :], plane.page)
        dtype = f"{SCALED_TYPE}*{scale:g}" if header.dtype == SCALED_TYPE else header.dtype
        corner = round(place.y_px - y0, 4), round(place.x_px - x0, 4)
        lines.append((*where, *corner, *header[2:4], dtype, *header[:2], header.pages))
    corners = list({line[1]: line[5:7] for line in lines}.items())
    shape = lines[0][7], lines[0][8]
    places = grid_places([corner for _, corner in corners], shape)
    order = {tile: (*place, tile) for (tile, _), place in zip(corners, places, strict=True)}
    lines.sort(key=lambda line: (rank[line[0]], order[line[1]], line[2]))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(lines)
    writer.writerows([("", tile, *[""] * (len(COLUMNS) - 2)) for tile in placed.excluded])
    return stream.getvalue()


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _write_if_changed(path: Path, text: str) -> None:
    """Write atomically; an equal file is left as it is."""
    if not _holds(path, text):
        write_result(path, text)
