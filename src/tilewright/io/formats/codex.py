"""CODEX and Keyence: ``Cyc1_reg1/1_00001_Z001_CH1.tif``, in all their spellings."""

import re
from pathlib import Path

from tilewright.io.formats.common import RawPlane, ScanOptions, list_folder, rebase_z

_FOLDER = re.compile(r"(?i)^cyc0*(\d+)(?:_reg0*(\d+).*)?$")
_FILE = re.compile(r"(?i)^(?:(.*)_)?0*(\d+)_Z0*(\d+)_CH0*(\d+)\.tiff?$")
#: Where the cycle folders may be, relative to the raw folder.
_ROOTS = ("", "/data/raw", "/raw", "/data")


def find_root(raw_dir: str) -> str | None:
    """Return the folder that holds the cycle folders, or None."""
    for folder in (f"{raw_dir}{below}" for below in _ROOTS):
        if Path(folder).is_dir() and any(map(_FOLDER.match, list_folder(folder)[0])):
            return folder
    return None


def scan(raw_dir: str, options: ScanOptions) -> list[RawPlane]:
    """Return the planes below ``raw_dir``, or of its ``data/raw``.

    The region is the folder's; where the folder names none, the number before the
    tile's in the file name.
    """
    root = find_root(raw_dir)
    if root is None:
        return []
    planes = []
    for folder in list_folder(root)[0]:
        cycle = _FOLDER.match(folder)
        if cycle is None:
            continue
        for name in list_folder(f"{root}/{folder}")[1]:
            match = _FILE.match(name)
            if match is None:
                continue
            prefix, tile, z, channel = match.groups()
            region = cycle[2] or (str(int(prefix)) if prefix and prefix.isdigit() else "1")
            planes.append(
                RawPlane(
                    cycle=int(cycle[1]),
                    channel=channel,
                    z=int(z),
                    path=f"{root}/{folder}/{name}",
                    tile=int(tile),
                    region=region,
                )
            )
    return rebase_z(planes)
