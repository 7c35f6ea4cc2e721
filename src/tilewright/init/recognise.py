"""Recognises the format of a raw folder, or says why its files are not read."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tilewright.errors import RawDataError
from tilewright.init.file_names import Names, read_names
from tilewright.io.formats import FILES, containers, scan
from tilewright.io.formats.common import (
    RawPlane,
    ScanOptions,
    find_files,
    list_folder,
    walk_images,
)
from tilewright.io.formats.located_images import COMPANION
from tilewright.io.formats.macsima import parse_name
from tilewright.io.formats.names import CODEX, form_of
from tilewright.io.formats.stitched import OTHER_SUFFIXES, is_stitched
from tilewright.io.tiff.metadata import of_tiff
from tilewright.runtime.text import count


@dataclass(frozen=True)
class RawFolder:
    """A raw folder: its format, planes, other images, the folder that holds them, names' fields."""

    convention: str
    options: ScanOptions
    planes: list[RawPlane]
    other_images: list[str]
    folder: Path
    fields: tuple[str, ...] = ()


def recognise(raw_dir: Path, pattern: str | None = None) -> RawFolder:
    """Return the format of ``raw_dir`` and its planes; with a ``pattern``, of files named so.

    Raises
    ------
    RawDataError
        The format is unknown, or files are alike and only some of them are read; the message says
        what the folder holds, and what to do.
    """
    if not raw_dir.is_dir():
        raise RawDataError(f"{raw_dir} is not a folder; name the folder of the raw tiles")
    folder = _below(str(raw_dir.resolve()))
    images = list(walk_images(folder))
    names = Names(pattern)
    convention = "pattern" if pattern else _by_index(folder, images)
    if not convention:
        if what := _unsupported_format(Path(folder), images):
            raise RawDataError(f"{raw_dir}: {what}")
        convention = _by_images(folder, images)
    if not convention:
        names = names_of([os.path.relpath(path, folder) for path in images])
        convention = "pattern" if names.pattern else None
    if not convention:
        raise RawDataError(_unknown_format(raw_dir, folder, images, names))
    options = ScanOptions(pattern=names.pattern)
    planes = scan(convention, folder, options)
    if not planes:
        what = f"of the pattern {pattern!r}; correct it" if pattern else f"of {convention}"
        raise RawDataError(f"{raw_dir} holds no file {what}")
    others = _other_images(folder, images, planes)
    if convention in ("pattern", "codex"):  # ImageXpress's projections are named as planes
        _refuse_alike(planes, others)
    return RawFolder(convention, options, planes, others, Path(folder), names.fields)


def _below(folder: str) -> str:
    """Return the folder itself, or its ``raw`` where only that holds images (MCMICRO's root)."""
    folders, images = list_folder(folder)
    if not images and "raw" in folders and list_folder(f"{folder}/raw")[1]:
        return f"{folder}/raw"
    return folder


def _by_index(folder: str, images: Sequence[str]) -> str | None:
    """Return the format where an index, a container or a microscope's names identify it."""
    files = {name: FILES[name] for name in ("ndtiff", "phenix", "cv8000", "fiji")}
    files |= {name: FILES[name] for name in containers.FORMATS} | {"ome_tiff": COMPANION}
    kinds = [name for name, names in files.items() if find_files(folder, names)]
    if len(kinds) > 1:
        raise RawDataError(
            f"{folder} holds files of {' and '.join(kinds)}; name a folder of one format"
        )
    if kinds:
        return kinds[0]
    if any(map(parse_name, images)):
        return "macsima"
    if any(CODEX.fullmatch(path, len(folder) + 1) for path in images):
        return "codex"
    return None


def _by_images(folder: str, images: Sequence[str]) -> str | None:
    """Return the format where the images themselves or MetaXpress's names show it."""
    if is_stitched(folder):
        return "stitched"
    if any(re.search(r"(?i)_s\d+(_w\d+)?[0-9A-F-]*\.tiff?$", path) for path in images):
        return "imagexpress"
    xml = of_tiff(images[0], lambda tiff: tiff.ome_metadata, None) if images else None
    return "ome_tiff" if "PositionX" in (xml or "") else None


def names_of(paths: Sequence[str]) -> Names:
    """Return what the names of images say.

    >>> names_of(["C3-Brain01.tif", "C3-Brain02.tif"]).pattern
    'C3-Brain{tile}.tif'
    """
    return read_names(paths, tables()["hints"])


def _other_images(folder: str, images: Sequence[str], planes: Sequence[RawPlane]) -> list[str]:
    """Return the images of any known format that are not among the planes."""
    used = {plane.path for plane in planes}
    known = {*containers.SUFFIXES, *OTHER_SUFFIXES, *tables()["suffixes"]} - {".png", ".jpg"}
    others = [str(path) for path in _content(Path(folder)) if path.suffix.lower() in known]
    return [path for path in dict.fromkeys([*images, *others]) if path not in used]


def _refuse_alike(planes: Sequence[RawPlane], others: Sequence[str]) -> None:
    """Refuse to leave files out that are named as those that are read."""
    forms = {form_of(Path(plane.path).name) for plane in planes}
    if alike := [path for path in others if form_of(Path(path).name) in forms]:
        raise RawDataError(
            f"{count(len(alike), 'file')} such as {alike[0]} would not be read, though named like "
            f"{planes[0].path}, which is; move them away, name the folder of one experiment, or "
            "say by --pattern how all are named"
        )


def _unknown_format(raw_dir: Path, folder: str, images: Sequence[str], names: Names) -> str:
    """Return what the folder holds, and what is open."""
    examples = [os.path.relpath(path, folder) for path in images[:: max(1, len(images) // 5)][:5]]
    present = sorted(path.name for path in raw_dir.iterdir())[:5]
    content = (
        f"its {count(len(images), 'TIFF')} are named like {', '.join(examples)}"
        if images
        else f"it holds no such image, only {', '.join(present) or 'nothing'}"
    )
    if names.question:
        return (
            f"{raw_dir}: {content}. If they are several experiments, name the folder of one. Their "
            f"{names.question}"
        )
    return (
        f"{raw_dir}: unknown format. Looked for: {tables()['looked_for']}. But {content}. If it "
        "holds several experiments, name the folder of one. Else name its folders cycle1, cycle2 "
        "and so on, or say how files are named, such as --pattern "
        "'Img-R{cycle}-{tile}-C{channel}.tif'"
    )


def _unsupported_format(folder: Path, images: Sequence[str]) -> str | None:
    """Return which known format is not supported and what to do; None if it is unknown."""
    inside = [path.relative_to(folder).as_posix() for path in _content(folder)]
    paths = [*inside, *(path[len(str(folder)) + 1 :] for path in images)]
    known = tables()
    forms = [(form["path"], form["what"], form["fix"]) for form in known["folders"]]
    if not images:
        forms += [
            (rf"(?i)\{suffix}$", f"a folder of {suffix} files of {what}", known["export"])
            for suffix, what in known["suffixes"].items()
        ]
    for form, what, fix in forms:
        if example := next((path for path in paths if re.search(form, path)), None):
            return f"it is {what} (see {example}), which is not read; {fix}"
    return None


@cache
def tables() -> dict[str, Any]:
    """Return the content of ``tables.yaml`` in this folder."""
    text = Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def _content(folder: Path) -> list[Path]:
    """Return files and folders at most three levels below a folder, without hidden ones."""
    levels = (sorted(folder.glob(level)) for level in ("*", "*/*", "*/*/*"))
    return [path for level in levels for path in level if "/." not in f"{path}"[len(f"{folder}") :]]
