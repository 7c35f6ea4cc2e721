"""Texts of the files that ``tilewright init`` writes."""

import math
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import yaml

from tilewright.config.tables import Channel, cycles_text
from tilewright.init.metadata import Metadata
from tilewright.init.recognise import RawFolder
from tilewright.runtime.files import csv_text
from tilewright.runtime.text import few, printable

_HEADER = """\
# Written by `tilewright init {raw_dir}`.
# Every key, and the options of each stage (all have defaults): see the end of README.md.
{notes}
{files}
"""

#: The workflow of the installed tilewright, as a module: rules that come below may read its files.
SNAKEFILE = """\
# The rules of the installed tilewright on config.yaml. Add your own rules below; results are in
# config["results"].
from tilewright.config.config_file import check_config_file
from tilewright.installed import snakefile

configfile: check_config_file("config.yaml")

module tilewright:
    snakefile: snakefile()
    config: config

use rule * from tilewright
"""
_README = """\
# {title}

Written by `tilewright init {raw_dir}` (tilewright {version}). Run all commands in this folder.

## Raw data

{findings}

## Fill in

{unknown}

## Commands

```sh
snakemake registration qc -n     # checks every raw file, runs nothing
snakemake registration qc        # runs; the same command resumes an interrupted run
snakemake --unlock               # first, if a run was killed
snakemake registration qc --workflow-profile profiles/slurm    # the same on a Slurm cluster
```

`profiles/` is yours: settings of your cluster are in `profiles/slurm/config.yaml`. Add your own
rules at the end of `Snakefile`.

## Results

- `results/report.html`: verdicts, pictures and numbers
- `results/trusted_markers.csv`: which markers can be trusted, and why
- `results/SAMPLE/registration/SAMPLE.ome.tif` and `.ome.zarr`: the registered image

Every key of `config.yaml`, with its default and meaning: `{keys}`
"""


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
    warnings: Sequence[str],
) -> tuple[str, list[str]]:
    """Return the text of ``config.yaml`` and the lines to fill in.

    ``files`` are the tables and the folder of results, by key; ``planes`` the z-planes of a tile;
    ``warnings`` become comments.
    """
    notes = "".join(f"# Warning: {printable(warning)}\n" for warning in warnings)
    lines = "\n".join(f"{key}: {_yaml(str(path))}" for key, path in files.items())
    text = _HEADER.format(raw_dir=printable(raw_dir), files=lines, notes=notes)
    unknown: list[str] = []
    for section, keys in _sections(recognised, metadata, planes).items():
        text += f"\n{section}:\n"
        for key, (value, meaning) in keys.items():
            if value is None:
                line = text.count("\n") + 1
                unknown.append(f"config.yaml, line {line}: {section}.{key}: {meaning}")
                meaning = f"fill in: {meaning}"
            note = f"  # {printable(meaning)}" if meaning else ""
            text += f"  {key}: {_yaml(value)}{note}\n"
    return text, unknown


def marker_gaps(metadata: Metadata, planes: int, first_row: int = 2) -> list[str]:
    """Return what to fill in of the markers table; its first row is row 2 of the file."""
    unknown = []
    rows = list(enumerate(metadata.markers, first_row))
    for column in dict.fromkeys(["marker", *metadata.columns, *["emission_nm"] * (planes > 1)]):
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


def rows_text(rows: Sequence[int]) -> str:
    """Return rows of a file in words.

    >>> rows_text([2]), rows_text([2, 3, 5])
    ('row 2', 'rows 2 to 5')
    """
    first, last = min(rows), max(rows)
    return f"row {first}" if first == last else f"rows {first} to {last}"


def _sections(recognised: RawFolder, metadata: Metadata, planes: int) -> dict[str, _Keys]:
    """Return the keys of each section."""
    acquisition: _Keys = {"convention": (recognised.convention, "")}
    if recognised.options.pattern:
        acquisition["pattern"] = recognised.options.pattern, ""
    acquisition["pixel_um"] = metadata.pixel_um, "size of a pixel in the specimen, µm"
    if planes > 1:
        acquisition["z_step_um"] = metadata.z_step_um, "distance of z-planes, µm"
    acquisition["reference_cycle"] = metadata.reference_cycle, ""
    saturation: _Keys = {"saturation_counts": ("auto", "")}
    if recognised.convention == "stitched":
        return {"acquisition": acquisition, "camera": saturation}
    camera: _Keys = {
        "offset_counts": ("auto", "counts without light"),
        **saturation,
    }
    index = metadata.immersion_refractive_index
    optics: _Keys = {
        "numerical_aperture": (metadata.numerical_aperture, "of the objective"),
        "immersion_refractive_index": (index, "1.0 air, 1.33 water, 1.515 oil"),
    }
    sections = {"acquisition": acquisition, "camera": camera, "optics": optics}
    if planes == 1:
        # A single plane needs no optics.
        sections["optics"] = {key: item for key, item in optics.items() if item[0] is not None}
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
    columns = ["cycle", "channel", "marker", "reference", "emission_nm", "exposure_ms"]
    return csv_text(columns, map(marker_row, markers))


def marker_row(marker: Channel) -> dict[str, object]:
    """Return a row of the markers table."""
    return {
        **{"cycle": marker.cycle, "channel": marker.channel, "marker": marker.marker},
        "reference": "TRUE" * marker.reference,
        "emission_nm": _plain(marker.emission_nm),
        "exposure_ms": _plain(marker.exposure_ms),
    }


def _plain(number: float | None) -> str:
    return "" if number is None else f"{number:g}"


def readme_text(
    title: str,
    raw_dir: Path,
    keys: Path,
    findings: Sequence[str],
    warnings: Sequence[str],
    unknown: Sequence[str],
) -> str:
    """Return the text of ``README.md``: the raw data, what to fill in, the commands.

    Sentences are those of the summary for the terminal; every key is described in the file
    ``keys``.
    """
    lines = [*map(_markdown, findings), *(f"**warning**: {_markdown(text)}" for text in warnings)]
    gaps = unknown or ["nothing; look at the names in `markers.csv`"]
    return _README.format(
        title=title,
        raw_dir=printable(raw_dir).replace("`", "'"),
        version=version("tilewright"),
        findings="\n".join(f"- {line}" for line in lines),
        unknown="\n".join(f"- {_markdown(line)}" for line in gaps),
        keys=keys,
    )


def _markdown(text: str) -> str:
    """Return a text as one line of Markdown without tags and links."""
    return printable(text).replace("<", "\\<").replace("](", "]\\(")
