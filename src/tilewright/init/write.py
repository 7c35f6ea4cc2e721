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


def config_text(
    recognised: RawFolder, metadata: Metadata, planes: int
) -> tuple[str, dict[str, int]]:
    """Return the text of ``config.yaml``, and the lines of keys to fill in.

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
    needed = {"pixel_um", *(_OF_PSF if planes > 1 else ())}
    template = (FILES / "config.yaml").read_text("utf-8")
    for key, value in values.items():
        if value is None and key in needed:
            template = template.replace(f"{{{key}}}  # ", f"{{{key}}}  # fill in: ")
        elif value is None:
            template = re.sub(rf"(?m)^ *{key}: .*\n", "", template)
    template = re.sub(r"\n\w+:\n(?=\n)", "", template)  # sections without keys
    texts = {key: _yaml(value) for key, value in values.items()}
    text = template.format(raw_dir=printable(recognised.folder), **texts)
    unknown, section = dict[str, int](), ""
    for number, line in enumerate(text.split("\n"), 1):
        section = line[:-1] if line.endswith(":") else section
        if found := re.match(r"  (\w+): null  # fill in: ", line):
            unknown[f"{section}.{found[1]}"] = number
    return text, unknown


def questions(
    unknown: Mapping[str, int], markers: Sequence[Channel], *, psf: bool, first_row: int = 2
) -> list[str]:
    """Return what to fill in of the configuration and of the markers table.

    Parameters
    ----------
    unknown : mapping of str to int
        Keys of the configuration with their lines.
    markers : sequence of Channel
        Rows of the table.
    psf : bool
        Whether a PSF is computed. What only that needs is one question, as stacks can do without.
    first_row : int
        Of the table, where ``markers`` begin.
    """
    lines = {key: f"config.yaml, line {line}: {key}" for key, line in unknown.items()}
    asked = [lines.pop("acquisition.pixel_um")] if "acquisition.pixel_um" in lines else []
    of_psf = [*lines.values(), *(_empty_cells(markers, "emission_nm", first_row) if psf else ())]
    if of_psf:
        asked.append(f"{'; '.join(of_psf)}; or set deconvolve.method: none, which needs no PSF")
    asked += _empty_cells(markers, "marker", first_row)
    known = {marker.cycle for marker in markers if marker.reference}
    rows = [n for n, marker in enumerate(markers, first_row) if marker.cycle not in known]
    if rows:
        cycles = cycles_text(sorted({marker.cycle for marker in markers} - known))
        asked.append(
            f"markers.csv, {rows_text(rows)}: reference: TRUE for the channel of nuclei of {cycles}"
        )
    return asked


def _empty_cells(markers: Sequence[Channel], column: str, first_row: int) -> list[str]:
    """Return which rows of the markers table lack a value; nothing where all have one."""
    empty = {
        n: marker.marker or f"cycle {marker.cycle} channel {marker.channel}"
        for n, marker in enumerate(markers, first_row)
        if getattr(marker, column) in (None, "")
    }
    if not empty:
        return []
    return [f"markers.csv, {rows_text([*empty])}: {column} of {few(empty.values())}"]


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
