"""Texts of the files that ``tilewright init`` writes."""

import math
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import yaml

from tilewright.config.tables import Channel, cycles_text
from tilewright.init.metadata import Metadata
from tilewright.init.notes import Notes, rows_text
from tilewright.init.recognise import RawFolder
from tilewright.runtime.files import csv_text
from tilewright.runtime.text import few, printable

#: Templates of an experiment: its README and its Snakefile, which holds the workflow of the
#: installed tilewright as a module: rules that come below may read its files.
FILES = Path(__file__).with_name("files")

_MARKER_COLUMNS = ("cycle", "channel", "marker", "reference", "emission_nm", "exposure_ms")
#: Value and meaning of keys; None is to be filled in.
_Keys = dict[str, tuple[object, str]]


def _yaml(value: object) -> str:
    """Return a value as YAML on one line; only plain words without quotes."""
    quoted = isinstance(value, str) and not re.fullmatch(r"[a-z]+(_[a-z]+)*", value)
    dumped = yaml.safe_dump(
        [value],
        default_style='"' if quoted else None,
        default_flow_style=True,
        allow_unicode=str(value).isprintable(),
        width=math.inf,
    )
    return str(dumped).strip()[1:-1]


def config_text(
    raw_dir: Path,
    files: Mapping[str, str | Path],
    recognised: RawFolder,
    metadata: Metadata,
    planes: int,
) -> tuple[str, list[str]]:
    """Return the text of ``config.yaml`` and the lines to fill in.

    ``files`` are the tables and the folder of results, by key; ``planes`` the z-planes of a tile.
    """
    lines = [
        f"# Written by `tilewright init {printable(raw_dir)}`.",
        "# Every key, and the options of each stage (all have defaults): see the end of README.md.",
        *(f"{key}: {_yaml(str(path))}" for key, path in files.items()),
    ]
    unknown: list[str] = []
    for section, keys in _sections(recognised, metadata, planes).items():
        lines += ["", f"{section}:"]
        for key, (value, meaning) in keys.items():
            if value is None:
                where = f"config.yaml, line {len(lines) + 1}"
                unknown.append(f"{where}: {section}.{key}: {meaning}")
                meaning = f"fill in: {meaning}"
            note = f"  # {printable(meaning)}" if meaning else ""
            lines.append(f"  {key}: {_yaml(value)}{note}")
    return "\n".join([*lines, ""]), unknown


def marker_gaps(metadata: Metadata, planes: int, first_row: int = 2) -> list[str]:
    """Return what to fill in of the markers table; its first row is row 2 of the file."""
    unknown = []
    rows = list(enumerate(metadata.markers, first_row))
    for column in ["marker", *["emission_nm"] * (planes > 1)]:
        empty = [(n, m) for n, m in rows if getattr(m, column) in (None, "")]
        names = [m.marker or f"cycle {m.cycle} channel {m.channel}" for _, m in empty]
        if names:
            where = rows_text([n for n, _ in empty])
            unknown.append(f"markers.csv, {where}: {column} of {few(names)}")
    known = {marker.cycle for marker in metadata.markers if marker.reference}
    if open_rows := [n for n, marker in rows if marker.cycle not in known]:
        cycles = cycles_text(sorted({marker.cycle for marker in metadata.markers} - known))
        unknown.append(
            f"markers.csv, {rows_text(open_rows)}: reference: TRUE for the channel of nuclei of "
            f"{cycles}"
        )
    return unknown


def _sections(recognised: RawFolder, metadata: Metadata, planes: int) -> dict[str, _Keys]:
    """Return the keys of each section."""
    acquisition: _Keys = {"convention": (recognised.convention, "")}
    if recognised.options.pattern:
        acquisition["pattern"] = recognised.options.pattern, ""
    acquisition["pixel_um"] = metadata.pixel_um, "size of a pixel in the specimen, µm"
    if planes > 1:
        acquisition["z_step_um"] = metadata.z_step_um, "distance of z-planes, µm"
    acquisition["reference_cycle"] = metadata.reference_cycle, ""
    if recognised.convention == "stitched":
        return {"acquisition": acquisition}
    optics: _Keys = {
        "numerical_aperture": (
            metadata.numerical_aperture,
            "of the objective; deconvolve.method: none needs no optics",
        ),
        "immersion_refractive_index": (
            metadata.immersion_refractive_index,
            "1.0 air, 1.33 water, 1.515 oil",
        ),
    }
    if planes > 1:
        return {"acquisition": acquisition, "optics": optics}
    known = {key: item for key, item in optics.items() if item[0] is not None}
    sections = {"acquisition": acquisition, "optics": known}
    sections["deconvolve"] = {"method": ("none", "one z-plane: nothing to deconvolve")}
    return {name: keys for name, keys in sections.items() if keys}


def samples_text(samples: Sequence[tuple[str, Path, str | None]]) -> str:
    """Return the samples table; (name, raw folder, region) of each.

    Examples
    --------
    >>> samples = [("a", Path("/raw"), "1"), ("b", Path("/raw"), "2")]
    >>> print(samples_text(samples).expandtabs(8))
    sample  raw_dir region
    a       /raw    1
    b       /raw    2
    <BLANKLINE>
    """
    columns = ["sample", "raw_dir"] + ["region"] * any(region for *_, region in samples)
    rows = [dict(zip(columns, sample, strict=False)) for sample in samples]
    return csv_text(columns, rows, "\t")


def markers_text(markers: Sequence[Channel]) -> str:
    """Return the markers table.

    >>> print(markers_text([Channel(1, "1", "DAPI", True, 461.0)]))
    cycle,channel,marker,reference,emission_nm,exposure_ms
    1,1,DAPI,TRUE,461,
    <BLANKLINE>
    """
    return csv_text(_MARKER_COLUMNS, map(marker_row, markers))


def marker_row(marker: Channel) -> dict[str, object]:
    """Return a row of the markers table."""
    row = {column: getattr(marker, column) for column in _MARKER_COLUMNS}
    optics = ((column, row[column]) for column in ("emission_nm", "exposure_ms"))
    numbers = {column: f"{number:g}" for column, number in optics if number is not None}
    return {**row, "reference": "TRUE" * marker.reference, **numbers}


def readme_text(title: str, raw_dir: Path, keys: Path, notes: Notes) -> str:
    """Return the text of ``README.md``: the raw data, what to fill in, the commands.

    Sentences are those of the summary for the terminal; every key is described in the file
    ``keys``.
    """
    warnings = (f"**warning**: {_markdown(text)}" for text in notes.warnings)
    gaps = notes.unknown or ["nothing; look at the names in `markers.csv`"]
    return (
        (FILES / "README.md")
        .read_text("utf-8")
        .format(
            title=title,
            raw_dir=printable(raw_dir).replace("`", "'"),
            version=version("tilewright"),
            findings="\n".join(
                f"- {line}" for line in [*map(_markdown, notes.findings), *warnings]
            ),
            unknown="\n".join(f"- {_markdown(line)}" for line in gaps),
            keys=keys,
        )
    )


def _markdown(text: str) -> str:
    """Return a text as one line of Markdown without tags and links."""
    return printable(text).replace("<", "\\<").replace("](", "]\\(")
