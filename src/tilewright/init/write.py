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
from tilewright.installed import shipped
from tilewright.runtime.files import csv_text
from tilewright.runtime.text import few, printable

#: Templates of an experiment: its configuration, its README and its Snakefile, which holds the
#: workflow of the installed tilewright as a module: rules that come below may read its files.
FILES = Path(__file__).with_name("files")

_MARKER_COLUMNS = ("cycle", "channel", "marker", "reference", "emission_nm", "exposure_ms")
#: Keys without which no PSF can be computed.
_OF_PSF = ("z_step_um", "numerical_aperture", "immersion_refractive_index")


def _yaml(value: object) -> str:
    """Return a value as YAML on one line; texts in quotes."""
    style, printed = '"' if isinstance(value, str) else None, str(value).isprintable()
    text = yaml.safe_dump(value, default_style=style, allow_unicode=printed, width=math.inf)
    return str(text).removesuffix("...\n").strip()


def unknown_keys(metadata: Metadata, planes: int) -> list[str]:
    """Return the keys that the metadata leave open, of tiles of so many z-planes."""
    keys = ("pixel_um", *(_OF_PSF if planes > 1 else ()))
    return [key for key in keys if getattr(metadata, key) is None]


def config_text(
    recognised: RawFolder, metadata: Metadata, unknown: Sequence[str], planes: int
) -> str:
    """Return the text of ``config.yaml``, in which the ``unknown`` keys are to be filled in.

    ``planes`` are the z-planes of a tile. Tables and results are named relative to the
    configuration, so that the folder may be moved.
    """
    values = {
        "tiles": None if recognised.convention == "stitched" else "tiles.csv",
        "convention": recognised.convention,
        "pattern": recognised.options.pattern,
        "reference_cycle": metadata.reference_cycle,
        "method": "accelerated" if planes > 1 else "none",
        **{key: getattr(metadata, key) for key in ("pixel_um", *_OF_PSF)},
    }
    template = (FILES / "config.yaml").read_text("utf-8")
    for key, value in values.items():
        if key in unknown:
            template = template.replace(f"{{{key}}}  # ", f"{{{key}}}  # fill in: ")
        elif value is None:
            template = re.sub(rf"(?m)^ *{key}: .*\n", "", template)
    template = re.sub(r"\n\w+:\n(?=\n)", "", template)  # sections without keys
    texts = {key: _yaml(value) for key, value in values.items()}
    return template.format(raw_dir=printable(recognised.folder), **texts)


def questions(
    config: str,
    keys: Sequence[str],
    markers: Sequence[Channel],
    *,
    psf: bool,
    first_row: int = 2,
) -> list[str]:
    """Return what to fill in of the configuration and of the markers table.

    Parameters
    ----------
    config : str
        Text of the configuration.
    keys : sequence of str
        Of the configuration.
    markers : sequence of Channel
        Rows of the table.
    psf : bool
        Whether a PSF is computed. What only that needs is one question, as stacks can do without.
    first_row : int
        Of the table, where ``markers`` begin.
    """
    names = [line.strip().partition(":")[0] for line in config.splitlines()]
    lines = {key: f"config.yaml, line {names.index(key) + 1}: {key}" for key in keys}
    asked = [line for key, line in lines.items() if key not in _OF_PSF]
    of_psf = [line for key, line in lines.items() if key in _OF_PSF]
    of_psf += _empty_cells(markers, "emission_nm", first_row) if psf else []
    if of_psf:
        asked.append(f"{'; '.join(of_psf)}; or set deconvolve.method: none, which needs no PSF")
    asked += _empty_cells(markers, "marker", first_row)
    known = {marker.cycle for marker in markers if marker.reference}
    if unknown := sorted({marker.cycle for marker in markers} - known):
        rows = [n for n, marker in enumerate(markers, first_row) if marker.cycle in unknown]
        what = f"TRUE for the channel of nuclei of {cycles_text(unknown)}"
        asked.append(f"markers.csv, {rows_text(rows)}: reference: {what}")
    return asked


def _empty_cells(markers: Sequence[Channel], column: str, first_row: int) -> list[str]:
    """Return which markers lack a value; nothing where all have one."""
    empty = {
        n: marker.marker or f"cycle {marker.cycle} channel {marker.channel}"
        for n, marker in enumerate(markers, first_row)
        if getattr(marker, column) in (None, "")
    }
    if not empty:
        return []
    return [f"markers.csv, {rows_text([*empty])}: {column} of {few(empty.values())}"]


def samples_text(samples: Mapping[str, str | None], raw_dir: Path) -> str:
    """Return the samples table of one raw folder; the region of each sample by its name.

    Examples
    --------
    >>> print(samples_text({"a": "1", "b": "2"}, Path("/raw")).expandtabs(8))
    sample  raw_dir region
    a       /raw    1
    b       /raw    2
    <BLANKLINE>
    """
    columns = ["sample", "raw_dir"] + ["region"] * any(samples.values())
    rows = (zip(columns, (name, raw_dir, of), strict=False) for name, of in samples.items())
    return csv_text(columns, map(dict, rows), "\t")


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


def readme_text(title: str, raw_dir: Path, notes: Notes) -> str:
    """Return the text of ``README.md``: the raw data, what to fill in, the commands.

    Sentences are those of the summary for the terminal.
    """
    unknown = notes.unknown or ["nothing; look at the names in `markers.csv`"]
    return (
        (FILES / "README.md")
        .read_text("utf-8")
        .format(
            title=title,
            raw_dir=printable(raw_dir).replace("`", "'"),
            version=version("tilewright"),
            findings=_bullets(notes.seen()),
            unknown=_bullets(unknown),
            keys=shipped("config") / "README.md",
        )
    )


def _bullets(texts: Sequence[str]) -> str:
    """Return texts as a list in Markdown, each on one line without tags and links."""
    lines = (printable(text).replace("<", "\\<").replace("](", "]\\(") for text in texts)
    return "\n".join(f"- {line}" for line in lines)
