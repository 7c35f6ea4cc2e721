"""``tilewright init``: a raw folder in, a configuration for it out."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.config.consistency import check_separate
from tilewright.config.tables import TILE_COLUMNS
from tilewright.errors import ConfigError
from tilewright.init.metadata import Metadata, fill_emission, read_metadata, stack_depth
from tilewright.init.notes import Notes
from tilewright.init.place_tiles import place_tiles
from tilewright.init.recognise import RawFolder, recognise, tables
from tilewright.init.samples import (
    notes_of_tiles,
    region_samples,
    split_pieces,
    tile_rows,
    tile_sets,
)
from tilewright.init.tile_set import GridOptions
from tilewright.init.write import (
    FILES,
    config_text,
    markers_text,
    questions,
    readme_text,
    samples_text,
    unknown_keys,
)
from tilewright.installed import shipped
from tilewright.runtime.files import csv_text, write_text_atomic
from tilewright.runtime.text import count, few, printable


@dataclass(frozen=True)
class InitResult:
    """Files that :func:`create_experiment` wrote, and what it reports.

    Attributes
    ----------
    config, samples, tiles, markers : Path
        The files written.
    convention : str
        Value of ``acquisition.convention``.
    notes : Notes
        What was found, what may be wrong, and what is to be filled in.
    """

    config: Path
    samples: Path
    tiles: Path
    markers: Path
    convention: str
    notes: Notes

    def summary(self) -> str:
        """Return all of it as text for a terminal."""
        folder = self.config.parent
        lines = [
            f"acquisition.convention: {self.convention}",
            *self.notes.seen(),
            f"wrote {folder}: config.yaml, its tables, README.md, Snakefile, profiles",
            *["fill in:"] * bool(self.notes.unknown),
            *(f"  {key}" for key in self.notes.unknown),
            f"check: cd {shlex.quote(str(folder))} && snakemake registration qc -n",
            "run: snakemake registration qc",
            f"results: {folder / 'results'}, report.html there",
        ]
        return "\n".join(map(printable, lines))


def create_experiment(
    raw_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    force: bool = False,
    grid: GridOptions | None = None,
    pattern: str | None = None,
) -> InitResult:
    """Write a folder in which ``snakemake`` runs for a raw folder.

    What the raw folder does not contain becomes ``null`` with a comment. An existing ``Snakefile``
    or ``profiles``, which do not depend on the data, is left unchanged.

    Parameters
    ----------
    raw_dir : path
        Folder of the raw tiles.
    output_dir : path
        Where the files go; made if need be.
    force : bool
        Write the configuration, its tables and ``README.md`` again; the old ones remain next to
        them, with ``~`` behind their names.
    grid : GridOptions, optional
        What is known of the grid of tiles.
    pattern : str, optional
        Pattern of the files, for the convention ``pattern``.

    Raises
    ------
    ConfigError
        One of the files exists and ``force`` is not given; or the raw folder and that of results
        are one in the other.
    RawDataError
        The format of the raw data is unknown, or their metadata are invalid.
    """
    raw, output = Path(raw_dir), Path(output_dir).resolve()
    names = ("config.yaml", "samples.tsv", "tiles.csv", "markers.csv", "README.md")
    present = [output / name for name in names if (output / name).exists()]
    _check_names(raw, output, [] if force else present)
    recognised = recognise(raw, pattern)
    check_separate(output / "results", recognised.folder)
    texts, notes = _texts(recognised, output, grid or GridOptions())
    for path in present:
        path.replace(path.with_name(f"{path.name}~"))
    for name, text in texts.items():
        write_text_atomic(output / name, text)
    config, samples, tiles, markers, _ = (output / name for name in names)
    return InitResult(config, samples, tiles, markers, recognised.convention, notes)


def _check_names(raw: Path, output: Path, present: Sequence[Path]) -> None:
    """Refuse to write over files, and names that no table can hold."""
    if present:
        raise ConfigError(
            f"{', '.join(map(str, present))} exist already; give --add to add what is new in the "
            "raw folder, --force to write them again (the old ones become NAME~), or another "
            "--output"
        )
    for folder in (raw.resolve(), output):
        if re.search("[\ud800-\udfff]", str(folder)):
            raise ConfigError(f"the name {printable(folder)} is not UTF-8; rename it")


def _texts(
    recognised: RawFolder, output: Path, options: GridOptions
) -> tuple[dict[str, str], Notes]:
    """Return the text of every file of an experiment by its name, and what was found."""
    metadata, planes = read_metadata(recognised), stack_depth(recognised.planes)
    if planes > 1:  # a single one is not deconvolved
        fill_emission(metadata)
    samples = region_samples(recognised.folder, {plane.region for plane in recognised.planes})
    tiles, rows = Notes(), list[dict[str, Any]]()
    if recognised.convention != "stitched":
        tiles, rows, samples = _placed(recognised, metadata, samples, options)
    keys = unknown_keys(metadata, planes)
    config = config_text(recognised, metadata, keys, planes)
    asked = questions(config, keys, metadata.markers, psf=planes > 1)
    notes = Notes(
        [*_findings(recognised, metadata, planes), *metadata.notes.findings, *tiles.findings],
        [*metadata.notes.warnings, *tiles.warnings, *_lone_tiles(recognised)],
        [*asked, *metadata.notes.unknown, *tiles.unknown],
    )
    # Of files that TileConfiguration.txt does not list some may be other channels.
    doubts = notes.unknown if recognised.convention == "fiji" else notes.warnings
    doubts += _ignored(recognised)
    texts = {
        "config.yaml": config,
        "samples.tsv": samples_text(samples, _relative(recognised.folder, output)),
        "markers.csv": markers_text(metadata.markers),
        "README.md": readme_text(", ".join(samples), recognised.folder, notes),
    }
    if rows:
        texts["tiles.csv"] = csv_text(TILE_COLUMNS, rows)
    users = {"Snakefile": FILES / "Snakefile"}
    for name in ("profiles/default/config.yaml", "profiles/slurm/config.yaml"):
        users[name] = shipped(name)
    absent = {name: path for name, path in users.items() if not (output / name).exists()}
    return texts | {name: path.read_text("utf-8") for name, path in absent.items()}, notes


def _placed(
    recognised: RawFolder,
    metadata: Metadata,
    samples: Mapping[str, str | None],
    options: GridOptions,
) -> tuple[Notes, list[dict[str, Any]], dict[str, str | None]]:
    """Return what is found of the tiles, their rows, and the samples, one for each piece."""
    groups = tile_sets(recognised.planes, metadata.markers, metadata.reference_cycle)
    placed = place_tiles(groups, options, metadata.codex, metadata.pixel_um)
    rows, named, split = list[dict[str, Any]](), dict[str, str | None](), list[str]()
    for name, region in samples.items():
        of_region = {cycle: one for (r, cycle), one in placed.items() if region in (None, r)}
        pieces = split_pieces(name, of_region, metadata.reference_cycle)
        rows += tile_rows(name, recognised.folder, of_region, pieces)
        named |= dict.fromkeys(pieces or [name], region)
        if pieces:
            split.append(
                f"{name}: its tiles are {len(pieces)} distant pieces in every cycle, written as "
                f"samples {', '.join(pieces)}; for one image give them one name in the tables of "
                "samples and tiles"
            )
    notes = notes_of_tiles(placed, rows)
    notes.warnings += split
    return notes, rows, named


def _relative(folder: Path, output: Path) -> Path:
    """Return a folder from another; as it is where they share none that could be moved."""
    unrelated = os.path.commonpath([folder, output]) == "/"
    return folder if unrelated else Path(os.path.relpath(folder, output))


def _findings(recognised: RawFolder, metadata: Metadata, planes: int) -> list[str]:
    """Return what the raw folder holds."""
    cycles = {marker.cycle for marker in metadata.markers}
    channels = {marker.channel for marker in metadata.markers}
    regions = {plane.region for plane in recognised.planes}
    lines = [
        f"{len(recognised.planes)} files or planes: {count(len(cycles), 'cycle')}, "
        f"{count(len(channels), 'channel')}, {count(planes, 'z-plane')}, "
        f"{count(len(regions), 'region')}"
    ]
    if recognised.options.pattern:
        lines.append(f"file pattern {recognised.options.pattern}")
    if recognised.fields:
        lines.append(f"by the names: {', '.join(recognised.fields)}")
    times = {p.cycle for p in recognised.planes if f"/timepoint_{p.cycle}/" in p.path.lower()}
    if len(times) > 1:
        lines.append(
            f"cycles are the time points, from TimePoint_{min(times)} to TimePoint_{max(times)}; "
            f"if they repeat one cycle, choose one: cycles: [{min(times)}] in config.yaml"
        )
    return lines


def _ignored(recognised: RawFolder) -> list[str]:
    """Return which images are not read, and why."""
    others, reasons = recognised.other_images, tables()["ignored"]
    names = few((os.path.relpath(path, recognised.folder) for path in others), 5)
    why = reasons.get(recognised.convention, reasons["other"])
    return [f"{count(len(others), 'file')} ignored: {names}; {why}"] if others else []


def _lone_tiles(recognised: RawFolder) -> list[str]:
    """Return what single tiles may be: one image that is stitched."""
    tiles = {(plane.cycle, plane.region, plane.tile_name) for plane in recognised.planes}
    several = len(tiles) > len({(cycle, region) for cycle, region, _ in tiles})
    if several or recognised.convention == "stitched":
        return []
    return [
        "each cycle is a single tile; if they are stitched images, save all channels of a cycle in "
        "one file and use the convention stitched"
    ]
