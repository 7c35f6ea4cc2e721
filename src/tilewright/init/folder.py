"""``tilewright init``: a raw folder in, a configuration for it out."""

import os
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tilewright.config.consistency import check_apart
from tilewright.config.tables import TILE_COLUMNS
from tilewright.errors import ConfigError
from tilewright.init.kept import Kept, read_kept
from tilewright.init.metadata import Metadata, read_metadata
from tilewright.init.place_samples import PlacedSample, place_samples
from tilewright.init.recognise import RawFolder, recognise, tables
from tilewright.init.tile_order import GridOptions
from tilewright.init.write import SNAKEFILE, config_text, markers_text, readme_text, samples_text
from tilewright.installed import shipped
from tilewright.io.formats.common import RawPlane, clean_token
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.runtime.files import csv_text, write_text_atomic
from tilewright.runtime.text import count, few, printable


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
    """Keys to fill in, each with its meaning."""
    warnings: tuple[str, ...]
    """Possible problems."""
    unchanged: tuple[Path, ...]
    """Files that existed and may have been edited."""

    def summary(self) -> str:
        """Return all of it as text for a terminal."""
        lines = [f"acquisition.convention: {self.convention}", *self.findings]
        lines += [f"warning: {warning}" for warning in self.warnings]
        folder = self.config.parent
        lines += [f"wrote {path}" for path in (self.config, self.samples, self.tiles, self.markers)]
        lines += [f"wrote {folder}: README.md, Snakefile, profiles"] if not self.unchanged else []
        lines += [f"unchanged: {path}" for path in self.unchanged]
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
        Write the configuration, its tables and ``README.md`` anew. What their user filled in is
        kept; positions of tiles are not.
    grid : GridOptions, optional
        What is known of the grid of tiles.
    pattern : str, optional
        Pattern of the files, for the convention ``pattern``.

    Raises
    ------
    ConfigError
        One of the files exists and ``force`` is not given, or cannot be read; or the raw folder
        and that of results are one in the other.
    RawDataError
        The format of the raw data is unknown, or their metadata are invalid.
    """
    raw, output = Path(raw_dir), Path(output_dir).resolve()
    names = ("config.yaml", "samples.tsv", "tiles.csv", "markers.csv", "README.md")
    paths = [output / name for name in names]
    present = [str(path) for path in paths if path.exists()]
    if present and not force:
        raise ConfigError(
            f"{', '.join(present)} exist already; give --force to write them anew (what you "
            "filled in is kept), or another --output"
        )
    for folder in (raw.resolve(), output):
        if re.search("[\ud800-\udfff]", str(folder)):
            raise ConfigError(f"the name {printable(folder)} is not UTF-8; rename it")
    kept = read_kept(*paths[:4]) if present else Kept()
    recognised = recognise(raw, pattern or kept.pattern)
    check_apart(output / "results", recognised.folder)
    return _write(recognised, output, paths, kept, grid or GridOptions())


def _write(
    recognised: RawFolder, output: Path, paths: list[Path], kept: Kept, grid: GridOptions
) -> InitResult:
    """Write the files of an experiment; ``paths`` are those of the configuration."""
    raw = recognised.folder
    metadata = kept.metadata(read_metadata(raw, recognised))
    planes = _depth(recognised.planes)
    config, samples, tiles, markers, readme = paths
    stitched = recognised.convention == "stitched"
    tissues = kept.named(_samples(raw.resolve(), recognised), recognised.planes)
    placed = []
    if not stitched:
        placed = place_samples(
            recognised,
            metadata,
            tissues,
            grid,
            kept.known_tiles(metadata.pixel_um),
            split=not kept.sample_rows,
        )
    warnings = _warnings(recognised, metadata, placed)
    # Relative, so that the folder may be moved.
    names = {"samples": samples, "tiles": tiles, "markers": markers, "results": output / "results"}
    files = {key: path.name for key, path in names.items()}
    if stitched:
        del files["tiles"]
    text, unknown = config_text(
        raw.resolve(), files, recognised, metadata, planes, warnings, kept.config
    )
    rows = kept.tiles([row for one in placed for row in one.rows], [one.name for one in placed])
    unknown += dict.fromkeys(gap for one in placed for gap in one.unknown)
    findings = _findings(recognised, metadata, placed, planes)
    keys = shipped("config") / "README.md"
    named = [(one.name, one.raw_dir, one.region) for one in placed] or tissues
    title = ", ".join(name for name, _, _ in named)
    write_text_atomic(config, text)
    below = [(name, _relative(folder, output), region) for name, folder, region in named]
    write_text_atomic(samples, kept.samples or samples_text(below))
    if not stitched:
        write_text_atomic(tiles, csv_text(TILE_COLUMNS, rows))
    write_text_atomic(markers, kept.markers_of(metadata) or markers_text(metadata.markers))
    write_text_atomic(readme, readme_text(title, raw.resolve(), keys, findings, warnings, unknown))
    notes = tuple(findings), tuple(unknown), tuple(warnings), tuple(_write_workflow(output))
    return InitResult(config, samples, tiles, markers, recognised.convention, *notes)


def _relative(folder: Path, output: Path) -> Path:
    """Return a folder from another; as it is where they share none that could be moved."""
    apart = os.path.commonpath([folder, output]) == "/"
    return folder if apart else Path(os.path.relpath(folder, output))


def _write_workflow(output: Path) -> list[Path]:
    """Write the Snakefile and the profiles unless they exist; return those that do."""
    texts = {Path("Snakefile"): SNAKEFILE}
    for name in ("default/config.yaml", "slurm/config.yaml"):
        texts[Path("profiles", name)] = (shipped("profiles") / name).read_text("utf-8")
    unchanged = [output / path for path in texts if (output / path).exists()]
    for path, text in texts.items():
        if output / path not in unchanged:
            write_text_atomic(output / path, text)
    return unchanged


def _depth(planes: list[RawPlane]) -> int:
    """Return the number of z-planes; without a z in names, the pages of the first file."""
    deepest = max((plane.z for plane in planes if plane.z is not None), default=None)
    if deepest is not None:
        return deepest + 1
    path = planes[0].path
    return max(1, read_headers({path: 1})[path].pages)


def _samples(raw_dir: Path, recognised: RawFolder) -> list[tuple[str, Path, str | None]]:
    """Return (name, raw folder, region) of every sample: one per region."""
    regions = sorted({plane.region for plane in recognised.planes}, key=lambda r: (len(r), r))
    folder = raw_dir
    while folder.name.lower() in ("raw", "data") and folder.parent.name:
        folder = folder.parent
    name = clean_token(folder.name) or "sample"
    if len(regions) == 1:
        return [(name, raw_dir, None)]
    return [(f"{name}_{clean_token(region)}", raw_dir, region) for region in regions]


def _findings(
    recognised: RawFolder, metadata: Metadata, placed: list[PlacedSample], planes: int
) -> list[str]:
    cycles = sorted({marker.cycle for marker in metadata.markers})
    channels = {marker.channel for marker in metadata.markers}
    regions = {plane.region for plane in recognised.planes}
    lines = [
        f"{len(recognised.planes)} files or planes: {count(len(cycles), 'cycle')}, "
        f"{count(len(channels), 'channel')}, {count(planes, 'z-plane')}, "
        f"{count(len(regions), 'region')}"
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
    return lines + metadata.findings + [line for one in placed for line in one.findings]


def _other_images(recognised: RawFolder) -> list[str]:
    """Return warnings of images that are not read: of other experiments, or of another format."""
    within = {Path(path).parent for path in {plane.path for plane in recognised.planes}}
    above = within.union(*(folder.parents for folder in within))
    others: dict[Path, int] = Counter()
    names = []
    for path in map(Path, recognised.other_images):
        folder = next((parent for parent in path.parents[::-1] if parent not in above), None)
        if folder is None or re.match("(?i)zstep_|downsampled_x", folder.name):
            names.append(path.name)
        else:
            others[folder] += 1
    warnings = []
    if names:
        reasons = tables()["ignored"]
        why = reasons.get(recognised.convention, reasons["other"])
        files = f"{len(names)} file{'s are' if len(names) > 1 else ' is'}"
        warnings.append(f"{files} ignored: {few(names, 5)}; {why}")
    if others:
        folders = [f"{f.relative_to(recognised.folder)} ({n})" for f, n in others.items()]
        inits = [f"tilewright init {shlex.quote(str(folder))}" for folder in others]
        warnings.append(
            f"the files are read from {os.path.commonpath(within)}, and none from "
            f"{few(folders, 3)}; for each that is an experiment of its own: "
            f"{', '.join(inits[:3])}"
        )
    first: dict[RawPlane, str] = {}
    for plane in recognised.planes:
        other = first.setdefault(plane._replace(path=""), plane.path)
        if other != plane.path:
            warnings.append(
                f"{other} and {plane.path} are the same tile of one cycle by their names and "
                "places; put the files of each cycle into a folder of its own (cycle1, cycle2 …), "
                "and of two experiments name one folder"
            )
            break
    return warnings


def _warnings(recognised: RawFolder, metadata: Metadata, placed: list[PlacedSample]) -> list[str]:
    warnings = metadata.warnings + [line for one in placed for line in one.warnings]
    warnings += _other_images(recognised)
    paths = sorted({plane.path for plane in recognised.planes})
    # Path.exists raises for names that are too long.
    missing = [path for path in paths if not os.path.exists(path)]  # noqa: PTH110
    if missing:
        files, names = count(len(missing), "file"), few((Path(path).name for path in missing), 3)
        warnings.append(f"{files} in the metadata are missing: {names}; copy them too")
    return warnings
