"""Recognises the format of a raw folder, or says why its files are not read."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tilewright.errors import RawDataError
from tilewright.init.file_names import Names, read_names
from tilewright.io.formats import codex, containers, scan
from tilewright.io.formats.common import (
    RawPlane,
    ScanOptions,
    cycle_folders,
    list_folder,
    walk_images,
)
from tilewright.io.formats.cv8000 import find_measurements
from tilewright.io.formats.fiji import find_configurations
from tilewright.io.formats.macsima import parse_name
from tilewright.io.formats.ndtiff import find_datasets
from tilewright.io.formats.ome_tiff import COMPANION
from tilewright.io.formats.phenix import find_indices
from tilewright.io.formats.stitched import OTHER_SUFFIXES, is_stitched
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.inputs.raw_pixels import declared_channels
from tilewright.io.tiff.metadata import of_tiff
from tilewright.runtime.text import count, few


@dataclass(frozen=True)
class RawFolder:
    """A raw folder: its format, planes, other images, the folder that holds them, names' fields."""

    convention: str
    options: ScanOptions
    planes: list[RawPlane]
    other_images: list[str]
    folder: Path
    seen: tuple[str, ...] = ()


def recognise(raw_dir: Path, pattern: str | None = None) -> RawFolder:
    """Return the format of ``raw_dir`` and its planes; with a ``pattern``, of files named so.

    Raises
    ------
    RawDataError
        The format is unknown; the message lists known formats and what the folder holds.
    """
    if not raw_dir.is_dir():
        raise RawDataError(f"{raw_dir} is not a folder; name the folder of the raw tiles")
    folder = _below(str(raw_dir.resolve()))
    images = list(walk_images(folder))
    certain = "pattern" if pattern is not None else _certain_format(folder, images)
    if not certain and (what := _unsupported_format(Path(folder), images)):
        raise RawDataError(f"{raw_dir}: {what}")
    names = names_of([os.path.relpath(path, folder) for path in images])
    given = [(certain, ScanOptions(pattern=pattern))] if certain else None
    for convention, options in given or _candidates(folder, images, names):
        if planes := scan(convention, folder, options):
            if not certain and convention != "stitched":
                _refuse_stitched(planes)
            others = _other_images(folder, images, planes)
            seen = names.seen if options.pattern == names.pattern else ()
            return RawFolder(convention, options, planes, others, Path(folder), seen)
    if pattern is not None:
        raise RawDataError(f"{raw_dir} holds no file of the pattern {pattern!r}; correct it")
    examples = [os.path.relpath(path, folder) for path in images[:: max(1, len(images) // 5)][:5]]
    present = sorted(path.name for path in raw_dir.iterdir())[:5]
    content = (
        f"its {len(images)} TIFFs are named like {', '.join(examples)}"
        if images
        else f"it holds no such image, only {', '.join(present)}"
        if present
        else "it is empty"
    )
    if names.question:
        content += f". Their {names.question}"
    raise RawDataError(
        f"{raw_dir}: unknown format. Looked for: {tables()['looked_for']}. But {content}. "
        "If it holds several experiments, name the folder of one. Else name its folders cycle1, "
        "cycle2 and so on, or say how files are named, such as --pattern "
        "'Img-R{cycle}-{tile}-C{channel}.tif'"
    )


def _other_images(folder: str, images: list[str], planes: list[RawPlane]) -> list[str]:
    """Return the images of any known format that are not among the planes."""
    used = {plane.path for plane in planes}
    foreign_suffixes = tables()["suffixes"]
    known = {*containers.SUFFIXES, *OTHER_SUFFIXES, *foreign_suffixes} - {".png", ".jpg"}
    others = [str(path) for path in _walk(Path(folder), 3) if path.suffix.lower() in known]
    return [path for path in dict.fromkeys([*images, *others]) if path not in used]


def _certain_format(folder: str, images: list[str]) -> str | None:
    """Return the format where an index, a container or names identify it."""
    inside = [name for name in list_folder(folder)[0] if codex.find_root(f"{folder}/{name}")]
    if inside and not codex.find_root(folder):
        raise RawDataError(
            f"{folder} holds {count(len(inside), 'CODEX experiment')} ({few(inside, 5)}); name one "
            "of them, and add the others to samples.tsv, a line each"
        )
    if any(parse_name(path) for path in images):
        return "macsima"
    finders = {"ndtiff": find_datasets, "phenix": find_indices, "cv8000": find_measurements}
    if indexed := next((name for name, find in finders.items() if find(folder)), None):
        return indexed
    for _, place in cycle_folders(folder):
        if list_folder(place, COMPANION)[1]:
            return "ome_tiff"
        names = list_folder(place, containers.SUFFIXES)[1]
        suffixes = sorted({Path(name).suffix.lower() for name in names})
        if len(suffixes) > 1:
            raise RawDataError(
                f"{place} holds {' and '.join(suffixes)} files; name a folder of one format"
            )
        if suffixes:
            return suffixes[0].lstrip(".")
        if list_folder(place, OTHER_SUFFIXES)[1] and is_stitched(folder):
            return "stitched"
    return None


def _below(folder: str) -> str:
    """Return the folder itself, or its ``raw`` where only that holds images (MCMICRO's root)."""
    folders, images = list_folder(folder)
    if not images and "raw" in folders and list_folder(f"{folder}/raw")[1]:
        return f"{folder}/raw"
    return folder


def _refuse_stitched(planes: list[RawPlane]) -> None:
    """Refuse stitched images of different sizes, and pages that are channels, not z-planes."""
    first = {plane.cycle: plane for plane in reversed(planes)}
    tiles = {(plane.cycle, *plane[5:]) for plane in planes}
    headers = read_headers({plane.path: 1 for plane in first.values()})
    sizes = {(h.height_px, h.width_px) for h in headers.values() if not h.problem}
    if len(tiles) == len(first) > 1 and len(sizes) > 1:
        raise RawDataError(
            f"{Path(planes[0].path).parent} holds one image for each of {len(first)} cycles, of "
            "different sizes: they are stitched already; save the channels of each cycle in one "
            "file (convention stitched), or name the folder of the raw tiles"
        )
    plane = planes[0]
    if plane.page is None and plane.z is None and headers[first[plane.cycle].path].pages > 1:
        channels = declared_channels(first[plane.cycle].path)
        if channels > 1:
            raise RawDataError(
                f"{first[plane.cycle].path}: its pages are {channels} channels, but it holds no "
                "positions of tiles; save one file per channel with "
                "the tile's number in its name, or OME-TIFF with PositionX and PositionY"
            )


def _candidates(folder: str, images: list[str], names: Names) -> list[tuple[str, ScanOptions]]:
    """Return the possible formats, the most specific ones first."""
    if not images:
        return []
    candidates = [("fiji", ScanOptions())] if find_configurations(folder) else []
    candidates.append(("codex", ScanOptions()))
    if is_stitched(folder):
        return [*candidates, ("stitched", ScanOptions())]
    if any(re.search(r"(?i)_s\d+(_w\d+)?[0-9A-F-]*\.tiff?$", path) for path in images):
        candidates.append(("imagexpress", ScanOptions()))
    if _is_ome_tile(images[0]):
        candidates.append(("ome_tiff", ScanOptions()))
    if names.pattern is not None:
        candidates.append(("pattern", ScanOptions(pattern=names.pattern)))
    return candidates


def _is_ome_tile(path: str) -> bool:
    """Return whether the OME-XML of a file is needed to read it: positions or channels."""
    xml = of_tiff(path, lambda tiff: tiff.ome_metadata, None) or ""
    return "PositionX" in xml or bool(re.search(r'SizeC="([2-9]|\d\d)', xml))


def names_of(paths: Sequence[str]) -> Names:
    """Return what the names of images say; those that look unlike all others are left out.

    >>> names_of(["C3-Brain01.tif", "C3-Brain02.tif", "overview.tif"]).pattern
    'C3-Brain{tile}.tif'
    """
    hints = tables()["hints"]
    names = read_names(paths, hints)
    forms = Counter(map(_form, paths))
    alike = [path for path in paths if forms[_form(path)] > 1]
    if names.pattern or len(alike) in (0, len(paths)):
        return names
    parts = {path.count("_") for path in alike}
    if any(path.count("_") in parts - {0} for path in paths if forms[_form(path)] == 1):
        return names  # some that look like the others would be left out
    return read_names(alike, hints)


def _form(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _unsupported_format(folder: Path, images: Sequence[str]) -> str | None:
    """Return which known format is not supported and what to do; None if it is unknown."""
    inside = [path.relative_to(folder).as_posix() for path in _walk(folder, 3)]
    paths = [*inside, *(Path(path).relative_to(folder.resolve()).as_posix() for path in images)]
    known = tables()
    for form in known["folders"]:
        example = next((path for path in paths if re.search(form["path"], path)), None)
        if example:
            return f"it is {form['what']} (see {example}), which is not read; {form['fix']}"
    if images:
        return None
    for path in inside:
        suffix = Path(path).suffix.lower()
        if suffix in known["suffixes"]:
            return (
                f"it holds {suffix} files of {known['suffixes'][suffix]} (such as {path}), which "
                "are not read; export the single tiles, unstitched, as TIFF or OME-TIFF with "
                "positions"
            )
    return None


@cache
def tables() -> dict[str, Any]:
    """Return the content of ``tables.yaml`` in this folder."""
    text = Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def _walk(folder: Path, depth: int) -> list[Path]:
    """Return files and folders at most ``depth`` levels below, without hidden ones."""
    paths = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        paths.append(path)
        if depth > 1 and path.is_dir() and path.suffix != ".zarr":
            paths += _walk(path, depth - 1)
    return paths
