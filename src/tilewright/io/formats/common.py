"""What every raw format yields, one :class:`RawPlane` per plane, and what their readers share."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tilewright.errors import BrokenTiffError, RawDataError
from tilewright.io.tiff.metadata import DAMAGE_ERRORS as DAMAGE_ERRORS
from tilewright.runtime.text import printable

#: Next to the manifests: the folder that their paths are relative to.
RAW_DIR_FILE = "raw_dir.txt"
#: An index of a million planes.
MOST_XML_MB = 500
#: Suffixes of plain TIFFs and OME-TIFFs.
TIFF = (".tif", ".tiff")
_CYCLE = re.compile(r"(?i)(?:^|[_\-. ])(?:cyc|cycle|round)[_\- ]?0*(\d+)(?=$|[_\-. ])")


@contextmanager
def raw_file_errors(name: str) -> Iterator[None]:
    """Raise what a damaged file causes as RawDataError that names it.

    Raises
    ------
    RawDataError
        It is damaged; the message begins with ``name``.
    """
    try:
        yield
    except RawDataError:
        raise
    except BrokenTiffError as error:
        raise RawDataError(f"{name} {error}; copy it again") from error
    except DAMAGE_ERRORS as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise RawDataError(f"{name} cannot be read ({what}); copy it again") from error


class RawPlane(NamedTuple):
    """One plane of raw data.

    A tile is known by its number, or by row and col; ``y`` and ``x`` are its stage position, in
    ``unit`` (``um`` or ``px``). What a convention does not give is None. ``page`` None means
    that all pages of the file belong to the plane's tile; ``z`` None that they are its
    z-planes. The numbers of tiles, rows and columns are as in the file names (from 0
    or 1), or count the images of a cycle; z counts from 0. A NamedTuple: 65,000 of them are made
    at every start.
    """

    cycle: int
    channel: str
    z: int | None
    path: str
    page: int | None = None
    tile: int | None = None
    row: int | None = None
    col: int | None = None
    y: float | None = None
    x: float | None = None
    region: str = "1"
    unit: str = "um"

    @property
    def tile_name(self) -> str:
        """The tile's name within a cycle, as in the tiles table."""
        return f"r{self.row}c{self.col}" if self.tile is None else str(self.tile)


@dataclass(frozen=True)
class ScanOptions:
    """How raw files are named; None is read from the files.

    Attributes
    ----------
    pattern : str | None
        File pattern relative to the raw folder, for the convention ``pattern``.
    region : str | None
        Region (or well) of the raw folder to read.
    pixel_um : float | None
        Pixel size in µm; it overrules the size that files give, with a warning.
    z_step_um : float | None
        Distance of planes in µm, in the same manner.
    cycles : tuple[int, ...] | None
        Those that are read of files that describe themselves; None is all.
    """

    pattern: str | None = None
    region: str | None = None
    pixel_um: float | None = None
    z_step_um: float | None = None
    cycles: tuple[int, ...] | None = None


def list_folder(folder: str, names: tuple[str, ...] = TIFF) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders in ``folder``, and of the files of some ``names``.

    These are what ``/name`` ends with: ``.tif``, in capitals too, or ``/Index.xml`` for a file that
    is called so.

    Raises
    ------
    RawDataError
        The folder cannot be read, or holds a folder or pipe of such a name.
    """
    folders, images = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                # macOS leaves a hidden file next to each.
                if entry.name.startswith("."):
                    continue
                name = f"/{entry.name}"
                if name.endswith(names) or name.lower().endswith(names):
                    # a link to nothing is a missing file
                    if not entry.is_file() and Path(entry.path).exists():
                        raise RawDataError(
                            f"{printable(entry.path)} has the name of an image, and is a folder, "
                            "pipe or device; move it away"
                        )
                    images.append(entry.name)
                elif entry.is_dir():
                    folders.append(entry.name)
    except OSError as error:
        raise RawDataError(
            f"{folder}: the raw folder cannot be read ({error.strerror}); "
            "check raw_dir in the samples table"
        ) from error
    return sorted(folders), sorted(images)


def file_identity(path: str | Path) -> tuple[str, int, int]:
    """Return the path of a file with its size and time of change in ns, as a key of its content."""
    status = Path(path).stat()
    return str(path), status.st_size, status.st_mtime_ns


def inside(folder: str | Path, name: str, source: str | Path) -> Path:
    """Return the path of a file that a ``source`` names, which must be in a folder or below it.

    Raises
    ------
    RawDataError
        It is elsewhere; the message names the source.
    """
    parts = name.replace("\\", "/").split("/")
    if parts[0][1:] == ":" or not parts[0] or ".." in parts or "\0" in name:
        raise RawDataError(
            f"{source} names the file {printable(name, 80)!r}; it must be in {folder} or below it: "
            "copy it there and correct the name"
        )
    return Path(folder, name)


def cycle_number(name: str) -> int | None:
    """Return the cycle in a file or folder name.

    >>> cycle_number("cycle02"), cycle_number("s1_Cyc3_a.tif"), cycle_number("recycled")
    (2, 3, None)
    """
    match = _CYCLE.search(name)
    return int(match[1]) if match else None


def folder_cycle(raw_dir: str, path: str) -> int | None:
    """Return the cycle that a folder below ``raw_dir`` names, the outermost that does."""
    folders = path[len(raw_dir) + 1 :].split("/")[:-1]
    return next((cycle for cycle in map(cycle_number, folders) if cycle is not None), None)


def find_files(raw_dir: str, names: tuple[str, ...]) -> list[tuple[int | None, str]]:
    """Return (cycle, path) of the files of a format, by ``names`` as in :func:`list_folder`.

    An index (``/name``) is in ``raw_dir`` or at most two folders below it, images (``.suffix``)
    are in ``raw_dir`` or in a folder named by a cycle. The cycle is that of the folder, else that
    of the file name.
    """
    is_index = names[0].startswith("/")
    files = []
    for path in walk_images(raw_dir, 2 if is_index else 1, names):
        cycle = folder_cycle(raw_dir, path)
        folder, name = path.rsplit("/", 1)
        if is_index or cycle is not None or folder == raw_dir:
            files.append((cycle_number(name) if cycle is None else cycle, path))
    return files


def number_files(files: Sequence[tuple[int | None, str]]) -> dict[str, int]:
    """Return the cycle of each file that holds a whole one: that in its name, else by the order.

    Raises
    ------
    RawDataError
        Some have a cycle in their name, and others do not.
    """
    unnumbered = sorted((path for cycle, path in files if cycle is None), key=natural_key)
    if 0 < len(unnumbered) < len(files):
        raise RawDataError(
            f"{unnumbered[0]} has no cycle in its name, but other files do; rename it (cycle3) or "
            "move it away"
        )
    numbers = {path: number for number, path in enumerate(unnumbered, 1)}
    return {path: numbers[path] if cycle is None else cycle for cycle, path in files}


def natural_key(path: str) -> list[tuple[int, str]]:
    """Return the key of natural sort order: ``R2`` before ``R10``.

    >>> sorted(["R10.czi", "R2.czi"], key=natural_key)
    ['R2.czi', 'R10.czi']
    """
    parts = re.split(r"(\d+)", path)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def clean_token(text: str) -> str:
    """Return ``text`` with everything but letters, digits and ``-`` made a ``-``.

    >>> clean_token(" Alexa Fluor_488 ")
    'Alexa-Fluor-488'
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def select_region(
    planes: list[RawPlane], region: str | None, raw_dir: str | os.PathLike[str]
) -> list[RawPlane]:
    """Return the planes of one region; None selects the only one.

    Raises
    ------
    RawDataError
        Several regions and none selected, or the selected one is absent.
    """
    regions = sorted({plane.region for plane in planes})
    if region is None and len(regions) <= 1:
        return planes
    if region not in regions:
        absent = f"no region {region!r}, only" if region else "the regions"
        raise RawDataError(
            f"{raw_dir} holds {absent} {', '.join(regions) or 'none'}; give each sample its region "
            "in the column 'region' of the samples table"
        )
    return [plane for plane in planes if plane.region == region]


def walk_images(folder: str, depth: int = 5, names: tuple[str, ...] = TIFF) -> Iterator[str]:
    """Yield the paths of all images at most ``depth`` folders below ``folder``, or other files.

    Deepest lie MetaXpress's, below cycle, date, number, time point and z-step.
    """
    folders, images = list_folder(folder, names)
    for name in images:
        yield f"{folder}/{name}"
    if depth:
        for name in folders:
            yield from walk_images(f"{folder}/{name}", depth - 1, names)
