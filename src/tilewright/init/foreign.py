"""Folders that hold no raw tiles, or tiles in a form that is not read: what they are, and a way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_TILE_CONFIGURATION = (
    "write a TileConfiguration.txt with each tile's position in px beside the files (convention "
    "fiji)"
)


class _FolderForm(NamedTuple):
    """A form of folder: what a file name or path in it looks like, what it is, what to do."""

    name: str
    what: str
    fix: str


#: Looked for in this order, in the paths of files and folders down to three levels.
_FORMS = (
    _FolderForm(
        r"(^|/)NDTiff\.index$",
        "an NDTiff data set (Micro-Manager 2, Pycro-Manager), whose index alone tells tiles, "
        "channels and planes",
        "save it as OME-TIFF with positions (Micro-Manager: 'Image stack file')",
    ),
    _FolderForm(
        r"(^|/)Index(\.idx)?\.xml$|(^|/)r\d\d?c\d\d?f\d+p\d+-ch\d+.*\.tiff$",
        "an Opera Phenix or Operetta export (Harmony), whose positions are in Index.idx.xml",
        f"{_TILE_CONFIGURATION}, or use the pattern "
        "r01c01f{tile}p{z}-ch{channel}sk1fk1fl1.tiff if fields run in rows",
    ),
    _FolderForm(
        r"(^|/)reg\d+_X\d+_Y\d+_t\d+_z\d+_c\d+\.tiff?$",
        "output of the CODEX Processor (tiles that it deconvolved and registered)",
        "name the folder of the raw tiles, which holds Cyc*_reg*",
    ),
    _FolderForm(
        r"(^|/)(CYC-?\d+_.*|C-\d+_S-\d+_.*)(ROI|_A-|_F-).*\.tiff?$",
        "a MACSima export",
        "use the convention pattern where the names hold a tile or field number, or "
        f"{_TILE_CONFIGURATION}",
    ),
    _FolderForm(
        r"(?i)(^|/)S\d+_(mono|[^/]*_mono)_|_\d+\.\d+\.\d+_R\d{3}_|_R\d{3}_[^/]*_F(INAL)?[^/]*\.tiff?$",
        "a Cell DIVE export (images that it has stitched and registered)",
        "start from its raw fields, or go on with the images as they are",
    ),
)
#: Files of microscopes that are no TIFF.
_SUFFIXES = {
    ".qptiff": "PhenoImager or PhenoCycler-Fusion (stitched and unmixed whole slides)",
    ".czi": "ZEISS ZEN",
    ".lif": "Leica LAS X",
    ".xlif": "Leica LAS X",
    ".nd2": "Nikon NIS-Elements",
    ".oir": "Olympus FluoView",
    ".vsi": "Olympus or Evident VS",
    ".ims": "Imaris",
    ".lsm": "ZEISS LSM",
    ".svs": "Aperio",
    ".ndpi": "Hamamatsu NanoZoomer",
    ".scn": "Leica SCN",
    ".mrxs": "3DHISTECH",
    ".stk": "MetaMorph",
    ".rcpnl": "RareCyte",
    ".zarr": "OME-Zarr",
    ".bcf": "Keyence",
    ".png": "PNG, which keeps no metadata",
    ".jpg": "JPEG, which has lost the counts",
}


def foreign(folder: Path, images: Sequence[str]) -> str | None:
    """Return what a folder is that cannot be read, with what to do; None if it is not known.

    Parameters
    ----------
    folder : Path
        The raw folder.
    images : sequence of str
        Paths of the TIFFs in it.
    """
    inside = [path.relative_to(folder).as_posix() for path in _walk(folder, 3)]
    paths = [*inside, *(Path(path).relative_to(folder.resolve()).as_posix() for path in images)]
    for form in _FORMS:
        example = next((path for path in paths if re.search(form.name, path)), None)
        if example:
            return f"it is {form.what} (see {example}), which is not read; {form.fix}"
    if images:
        return None
    for path in inside:
        suffix = Path(path).suffix.lower()
        if suffix in _SUFFIXES:
            return (
                f"it holds {suffix} files of {_SUFFIXES[suffix]} (such as {path}), which are not "
                "read; export the single tiles, unstitched, as TIFF or OME-TIFF with positions"
            )
    return None


def _walk(folder: Path, depth: int) -> list[Path]:
    """Return files and folders at most ``depth`` levels below, hidden ones left out."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        found.append(path)
        if depth > 1 and path.is_dir() and path.suffix != ".zarr":
            found += _walk(path, depth - 1)
    return found
