"""``tilewright init``: a raw folder in, a configuration for it out."""

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.config.consistency import check_apart
from tilewright.config.tables import TILE_COLUMNS, cycles_text
from tilewright.errors import ConfigError
from tilewright.init.metadata import Metadata, read_metadata
from tilewright.init.place_tiles import place_tiles
from tilewright.init.recognise import RawFolder, recognise, tables
from tilewright.init.samples import (
    Said,
    Sample,
    add_rows_of,
    region_samples,
    sentences,
    split_pieces,
    tile_sets,
)
from tilewright.init.tile_set import GridOptions, PlacedTiles
from tilewright.init.write import (
    SNAKEFILE,
    config_text,
    marker_gaps,
    markers_text,
    readme_text,
    rows_text,
    samples_text,
)
from tilewright.installed import shipped
from tilewright.io.formats.common import RawPlane
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.tiff.headers import headers_of
from tilewright.runtime.files import csv_text, write_text_atomic
from tilewright.runtime.text import count, few, printable

#: Compressions that lose counts.
_JPEG = (6, 7, 33007, 34892)


@dataclass(frozen=True)
class InitResult:
    """Files that :func:`create_experiment` wrote, and what it reports."""

    config: Path
    samples: Path
    tiles: Path
    markers: Path
    """The files written."""
    convention: str
    """Value of ``acquisition.convention``."""
    findings: tuple[str, ...]
    """Properties of the data, a sentence each."""
    unknown: tuple[str, ...]
    """What is to be filled in, each with its file and line."""
    warnings: tuple[str, ...]
    """Possible problems."""

    def summary(self) -> str:
        """Return all of it as text for a terminal."""
        lines = [f"acquisition.convention: {self.convention}", *self.findings]
        lines += [f"warning: {warning}" for warning in self.warnings]
        folder = self.config.parent
        lines.append(f"wrote {folder}: config.yaml, its tables, README.md, Snakefile, profiles")
        if self.unknown:
            lines.append("fill in:")
            lines += [f"  {key}" for key in self.unknown]
        lines.append(f"then: cd {shlex.quote(str(folder))} && snakemake registration qc")
        lines.append(f"results: {folder / 'results'}, report.html there")
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
        Write the configuration, its tables and ``README.md`` anew; those that were there are kept
        beside them, with ``~`` behind their names.
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
    if present and not force:
        raise ConfigError(
            f"{', '.join(map(str, present))} exist already; give --add to add what is new in the "
            "raw folder, --force to write them anew (the old ones become NAME~), or another "
            "--output"
        )
    for folder in (raw.resolve(), output):
        if re.search("[\ud800-\udfff]", str(folder)):
            raise ConfigError(f"the name {printable(folder)} is not UTF-8; rename it")
    recognised = recognise(raw, pattern)
    check_apart(output / "results", recognised.folder)
    result, texts = _experiment(recognised, output, grid or GridOptions())
    for path in present:
        path.replace(path.with_name(f"{path.name}~"))
    for path, text in texts.items():
        write_text_atomic(path, text)
    return result


def _experiment(
    recognised: RawFolder, output: Path, options: GridOptions
) -> tuple[InitResult, dict[Path, str]]:
    """Return what is found of a raw folder, and the text of every file of an experiment."""
    metadata = read_metadata(recognised)
    planes = _depth(recognised.planes)
    stitched = recognised.convention == "stitched"
    said, samples = Said(), region_samples(recognised.folder, _regions(recognised))
    if not stitched:
        said, samples = _placed(recognised, metadata, samples, options)
    warnings = metadata.warnings + said.warnings + [*_warnings(recognised)]
    names = {"samples": "samples.tsv", "tiles": "tiles.csv", "markers": "markers.csv"}
    if stitched:
        del names["tiles"]
    # Relative, so that the folder may be moved.
    files = {**names, "results": "results"}
    text, unknown = config_text(recognised.folder, files, recognised, metadata, planes, warnings)
    unknown += marker_gaps(metadata, planes)
    rows = [row for sample in samples for row in sample.rows]
    unknown += tile_gaps(said, rows, samples)
    findings = [*_findings(recognised, metadata, planes), *said.findings]
    title = ", ".join(sample.name for sample in samples)
    below = [(one.name, _relative(one.raw_dir, output), one.region) for one in samples]
    keys = shipped("config") / "README.md"
    texts = {
        output / "config.yaml": text,
        output / "samples.tsv": samples_text(below),
        output / "markers.csv": markers_text(metadata.markers),
        output / "README.md": readme_text(
            title, recognised.folder, keys, findings, warnings, unknown
        ),
    }
    if not stitched:
        texts[output / "tiles.csv"] = csv_text(TILE_COLUMNS, rows)
    others = {Path("Snakefile"): SNAKEFILE}
    for name in ("default/config.yaml", "slurm/config.yaml"):
        others[Path("profiles", name)] = (shipped("profiles") / name).read_text("utf-8")
    texts |= {output / path: text for path, text in others.items() if not (output / path).exists()}
    paths = [output / name for name in ("config.yaml", "samples.tsv", "tiles.csv", "markers.csv")]
    config, samples_tsv, tiles, markers = paths
    notes = tuple(findings), tuple(unknown), tuple(warnings)
    made = InitResult(config, samples_tsv, tiles, markers, recognised.convention, *notes)
    return made, texts


def _placed(
    recognised: RawFolder, metadata: Metadata, samples: Sequence[Sample], options: GridOptions
) -> tuple[Said, list[Sample]]:
    """Return what is found of the tiles, and the samples with their rows."""
    groups = tile_sets(recognised.planes, metadata.markers, metadata.reference_cycle)
    placed = place_tiles(groups, options, metadata.codex, metadata.pixel_um, {})
    result: list[Sample] = []
    pieces_said = []
    for sample in samples:
        of_region = of(placed, sample.region)
        known = split_pieces(sample.name, of_region, metadata.reference_cycle)
        pieces = [Sample(name, sample.raw_dir, sample.region) for name in known] or [sample]
        add_rows_of(pieces, of_region, options, known)
        result += pieces
        if known:
            pieces_said.append(
                f"{sample.name}: its tiles are {len(pieces)} pieces far apart in every cycle, "
                f"written as samples {', '.join(known)}; for one image give them one name in the "
                "tables of samples and tiles"
            )
    said = sentences(placed)
    said.warnings += pieces_said
    return said, result


def of(placed: Mapping[tuple[str, int], PlacedTiles], region: str | None) -> dict[int, PlacedTiles]:
    """Return the tiles of a region by cycle; None is the only region."""
    return {cycle: one for (name, cycle), one in placed.items() if region in (None, name)}


def tile_gaps(
    said: Said, rows: Sequence[Mapping[str, Any]], samples: Sequence[Sample], first_row: int = 2
) -> list[str]:
    """Return what to fill in of the tiles table, with its rows."""
    unknown = []
    for region, cycles, sentence in said.unknown:
        names = {one.name for one in samples if one.region in (None, region)}
        numbers = [
            n for n, row in enumerate(rows, first_row)
            if row["sample"] in names and row["cycle"] in cycles
        ]  # fmt: skip
        if numbers:
            where = f"{rows_text(numbers)} ({cycles_text(sorted(cycles))})"
            unknown.append(f"tiles.csv, {where}: {sentence}")
    return unknown


def _relative(folder: Path, output: Path) -> Path:
    """Return a folder from another; as it is where they share none that could be moved."""
    apart = os.path.commonpath([folder, output]) == "/"
    return folder if apart else Path(os.path.relpath(folder, output))


def _depth(planes: list[RawPlane]) -> int:
    """Return the number of z-planes; without a z in names, the pages of the deepest first file."""
    deepest = max((plane.z for plane in planes if plane.z is not None), default=None)
    if deepest is not None:
        return deepest + 1
    first = {(plane.cycle, plane.channel): plane.path for plane in reversed(planes)}
    headers = read_headers(dict.fromkeys(first.values(), 1)).values()
    return max(1, *(header.pages for header in headers))


def _regions(recognised: RawFolder) -> set[str]:
    return {plane.region for plane in recognised.planes}


def _findings(recognised: RawFolder, metadata: Metadata, planes: int) -> list[str]:
    """Return what the raw folder holds."""
    cycles = sorted({marker.cycle for marker in metadata.markers})
    channels = {marker.channel for marker in metadata.markers}
    lines = [
        f"{len(recognised.planes)} files or planes: {count(len(cycles), 'cycle')}, "
        f"{count(len(channels), 'channel')}, {count(planes, 'z-plane')}, "
        f"{count(len(_regions(recognised)), 'region')}"
    ]
    if recognised.options.pattern:
        lines.append(f"file pattern {recognised.options.pattern}")
    if recognised.seen:
        lines.append(f"by the names: {', '.join(recognised.seen)}")
    named = (p for p in recognised.planes if f"/timepoint_{p.cycle}/" in p.path.lower())
    times = {plane.cycle for plane in named}
    if len(times) > 1:
        lines.append(
            f"cycles are the time points, from TimePoint_{min(times)} to TimePoint_{max(times)}; "
            f"if they repeat one cycle, choose one: cycles: [{min(times)}] in config.yaml"
        )
    return lines + metadata.findings


def _warnings(recognised: RawFolder) -> Iterator[str]:
    """Yield what may be wrong with the files, before any is processed."""
    planes, others = recognised.planes, recognised.other_images
    if others:
        reasons = tables()["ignored"]
        why = reasons.get(recognised.convention, reasons["other"])
        names = few((os.path.relpath(path, recognised.folder) for path in others), 5)
        yield f"{count(len(others), 'file')} ignored: {names}; {why}"
    paths = sorted({plane.path for plane in planes})
    # Path.exists raises for names that are too long.
    missing = [path for path in paths if not os.path.exists(path)]  # noqa: PTH110
    if missing:
        files, names = count(len(missing), "file"), few((Path(path).name for path in missing), 3)
        yield f"{files} in the metadata are missing: {names}; copy them too"
    if recognised.convention == "stitched":
        return
    yield from _doubts(planes)
    tiles = {(plane.region, plane.cycle): set[str]() for plane in planes}
    for plane in planes:
        tiles[plane.region, plane.cycle].add(plane.tile_name)
    if all(len(names) == 1 for names in tiles.values()):
        yield (
            "each cycle is a single tile; if they are stitched images, save all channels of a "
            "cycle in one file and use the convention stitched"
        )


def _doubts(planes: Sequence[RawPlane]) -> Iterator[str]:
    """Yield what the first file of each channel shows: depth, compression, pixels of 8 bits."""
    first: dict[tuple[int, str], RawPlane] = {}
    depth: dict[tuple[int, str], set[int]] = defaultdict(set)
    for plane in planes:
        first.setdefault((plane.cycle, plane.channel), plane)
        depth[plane.cycle, plane.channel].add(plane.z or 0)
    headers = read_headers(dict.fromkeys((plane.path for plane in first.values()), 1))
    said = set[str]()
    for (cycle, channel), plane in first.items():
        header = headers[plane.path]
        if plane.page is None and plane.z is None:
            depth[cycle, channel] = {*range(header.pages)}
        if header.problem:
            said.add(f"{plane.path} {header.problem}")
            continue
        if header.dtype == "uint8":
            said.add("pixels have 8 bits: weak markers have few steps of grey, bright ones clip")
        if plane.path.lower().endswith((".tif", ".tiff")) and any(
            page.compression in _JPEG for page in headers_of(plane.path)
        ):
            said.add("pixels are compressed as JPEG, which has lost weak signal; export without")
    yield from sorted(said)
    sizes = {(h.height_px, h.width_px): path for path, h in headers.items() if not h.problem}
    if len(sizes) > 1:
        told = ", ".join(f"{path} has {y} x {x} px" for (y, x), path in sorted(sizes.items()))
        yield f"files differ in size, so no run starts: {told}; move thumbnails away"
    for cycle in sorted({cycle for cycle, _ in depth}):
        of_cycle = {channel: len(z) for (c, channel), z in depth.items() if c == cycle}
        if len(set(of_cycle.values())) > 1:
            told = ", ".join(f"{channel} has {n}" for channel, n in sorted(of_cycle.items()))
            yield f"channels of cycle {cycle} differ in z-planes: {told}"
