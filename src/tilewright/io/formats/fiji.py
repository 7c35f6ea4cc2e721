"""Fiji's ``TileConfiguration.txt``, which lists the positions of tiles."""

import re
from pathlib import Path

from tilewright.errors import RawDataError
from tilewright.io.formats.common import (
    RawPlane,
    ScanOptions,
    find_files,
    inside,
    list_folder,
    number_files,
)
from tilewright.io.formats.tile_files import split_pages
from tilewright.io.numbers import finite
from tilewright.io.text_file import read_text
from tilewright.runtime.text import printable

#: The nominal positions; ``.registered.txt`` holds Fiji's own solution.
NAMES = ("/TileConfiguration.txt",)
_MOST_MB = 50
_NUMBER = r"\s*([-+0-9.eE]+)\s*"
_LINE = re.compile(rf"^([^;]+);\s*;\s*\({_NUMBER},{_NUMBER}(?:,{_NUMBER})?\)\s*$")
_CHANNEL = re.compile(r"(?i)^C(\d{1,4})-|[_-]CH0*(\d{1,4})(?=[_.-])")


def parse_tile_configuration(
    text: str, source: str = "TileConfiguration.txt"
) -> list[tuple[str, float, float]]:
    r"""Return (file name, y_px, x_px) of every tile, in the order of the lines.

    Raises
    ------
    RawDataError
        A line cannot be read, as one that names a series of a multi-series file.

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
        match = _LINE.match(line)
        y_px, x_px = (finite(match[3]), finite(match[2])) if match else (None, None)
        if match is None or y_px is None or x_px is None:
            raise RawDataError(
                f"{source}, line {number}: {printable(line, 80)!r} is not 'file; ; (x, y)'; "
                "correct the line, or use acquisition.convention 'ome_tiff' for series in one file"
            )
        tiles.append((match[1].strip(), y_px, x_px))
    return tiles


def scan(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes of the tiles in ``TileConfiguration.txt``.

    The file is in ``raw_dir`` or in its folders, each a cycle, by its name or in their order.
    ``C2-name.tif`` next to the listed ``C1-name.tif``, or ``_CH2`` next to ``_CH1``, is
    another channel of the same tile. The pages of a file are its z-planes, those of an
    ImageJ hyperstack its channels and z-planes.
    """
    planes = []
    for source, cycle in number_files(find_files(raw_dir, NAMES)).items():
        tiles = parse_tile_configuration(read_text(source, _MOST_MB), source)
        if not tiles:
            raise RawDataError(f"{source} lists no tile; write 'file; ; (x, y)' for each")
        folder = str(Path(source).parent)
        places: dict[str, tuple[int, float, float]] = {}
        for name, y_px, x_px in tiles:
            # where each channel has a line, its tile has one number all the same
            places.setdefault(_split_channel(name)[1], (len(places) + 1, y_px, x_px))
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
