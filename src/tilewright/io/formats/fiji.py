"""Fiji's ``TileConfiguration.txt``, which lists the positions of tiles."""

import re
from pathlib import Path

from tilewright.errors import RawDataError
from tilewright.io.formats.common import (
    RawPlane,
    ScanOptions,
    cycle_folders,
    inside,
    list_folder,
)
from tilewright.io.formats.tile_files import split_pages
from tilewright.io.numbers import finite
from tilewright.io.text_file import read_text
from tilewright.runtime.text import printable

#: The nominal positions; ``.registered.txt`` holds Fiji's own solution.
FILE_NAME = "TileConfiguration.txt"
_MOST_MB = 50
_NUMBER = r"\s*([-+0-9.eE]+)\s*"
_LINE = re.compile(rf"^([^;]+);([^;]*);\s*\({_NUMBER},{_NUMBER}(?:,{_NUMBER})?\)\s*$")
_CHANNEL = re.compile(r"(?i)^C(\d{1,4})-|[_-]CH0*(\d{1,4})(?=[_.-])")


def parse_tile_configuration(text: str, source: str = FILE_NAME) -> list[tuple[str, float, float]]:
    r"""Return (file name, y_px, x_px) of every tile, in the order of the lines.

    Raises
    ------
    RawDataError
        A line cannot be read, or names a series of a multi-series file.

    Examples
    --------
    >>> parse_tile_configuration("dim = 2\na.tif; ; (10.0, 20.5)\n")
    [('a.tif', 20.5, 10.0)]
    """
    tiles = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#") or re.match(r"(dim|multiseries)\s*=", line):
            continue
        match, line = _LINE.match(line), printable(line, 80)
        if match is None:
            raise RawDataError(
                f"{source}, line {number}: {line!r} is not 'file; ; (x, y)'; correct the line"
            )
        if match[2].strip():
            raise RawDataError(
                f"{source}, line {number}: {line!r} places a series of a file; "
                "use acquisition.convention 'ome_tiff' for multi-series files"
            )
        y_px, x_px = finite(match[4]), finite(match[3])
        if y_px is None or x_px is None:
            raise RawDataError(
                f"{source}, line {number}: {line!r} gives no position; correct the line"
            )
        tiles.append((match[1].strip(), y_px, x_px))
    return tiles


def find_configurations(raw_dir: str) -> list[tuple[int, str]]:
    """Return (cycle, folder) of every TileConfiguration.txt, cycle 1 where no folder names one."""
    return [
        (1 if cycle is None else cycle, folder)
        for cycle, folder in cycle_folders(raw_dir)
        if (Path(folder) / FILE_NAME).is_file()
    ]


def scan(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes of the tiles in ``TileConfiguration.txt``.

    The file is in ``raw_dir`` or in its folders named by a cycle (``cycle2``).
    ``C2-name.tif`` next to the listed ``C1-name.tif``, or ``_CH2`` next to ``_CH1``, is
    another channel of the same tile. The pages of a file are its z-planes, those of an
    ImageJ hyperstack its channels and z-planes.
    """
    planes = []
    for cycle, folder in find_configurations(raw_dir):
        source = Path(folder) / FILE_NAME
        tiles = parse_tile_configuration(read_text(source, _MOST_MB), str(source))
        if not tiles:
            raise RawDataError(f"{source} lists no tile; write 'file; ; (x, y)' for each")
        places: dict[str, tuple[int, float, float]] = {}
        for name, y_px, x_px in tiles:
            rest = _split_channel(name)[1]
            # where each channel has a line, its tile has one number all the same
            number = places[rest][0] if rest in places else len(places) + 1
            places[rest] = number, y_px, x_px
        names = {name for name, _, _ in tiles}
        for name in sorted(names.union(list_folder(folder)[1])):
            channel, rest = _split_channel(name)
            if rest in places:
                tile, y_px, x_px = places[rest]
                path = str(inside(folder, name, source))
                planes.append(
                    RawPlane(cycle, channel, None, path, tile=tile, y=y_px, x=x_px, unit="px")
                )
    return split_pages(planes)


def _split_channel(name: str) -> tuple[str, str]:
    """Return the channel and the name without it.

    >>> _split_channel("C3-Brain01.tif"), _split_channel("t1_CH2.tif"), _split_channel("a.tif")
    (('3', 'C-Brain01.tif'), ('2', 't1_CH.tif'), ('1', 'a.tif'))
    """
    match = _CHANNEL.search(name)
    if match is None:
        return "1", name
    group = 1 if match[1] else 2
    return match[group], name[: match.start(group)] + name[match.end(group) :]
