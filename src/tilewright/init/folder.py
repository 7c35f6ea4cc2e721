"""What ``tilewright init`` does: a raw folder in, a configuration for it out."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.runtime.words import count, printable
from tilewright.errors import ConfigError
from tilewright.init.metadata import Metadata, read_metadata
from tilewright.init.recognise import Recognised, recognise, tables
from tilewright.init.tile_layout import TileLayout, find_layout
from tilewright.init.write import SNAKEFILE, config_text, markers_text, readme_text, samples_text
from tilewright.installed import shipped
from tilewright.io.formats.common import RawPlane, clean_token
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.runtime.files import write_text_atomic


@dataclass(frozen=True)
class InitResult:
    """What :func:`create_experiment` wrote, found and could not know.

    Parameters
    ----------
    config, samples, markers : Path
        The files written.
    convention : str
        How the raw files are named.
    found : tuple of str
        What was found, a sentence each.
    unknown : tuple of str
        Keys to fill in, each with its meaning.
    warnings : tuple of str
        What looks wrong or needs a look.
    kept : tuple of Path
        Files that may be the user's by now and were left as they are.
    """

    config: Path
    samples: Path
    markers: Path
    convention: str
    found: tuple[str, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    kept: tuple[Path, ...]

    def summary(self) -> str:
        """Return all of it as text for a terminal."""
        lines = [f"naming convention: {self.convention}", *self.found]
        lines += [f"warning: {warning}" for warning in self.warnings]
        folder = self.config.parent
        lines += [f"wrote {path}" for path in (self.config, self.samples, self.markers)]
        lines += [f"wrote {folder}: README.md, Snakefile, profiles"] if not self.kept else []
        lines += [f"kept {path} as it is" for path in self.kept]
        if self.unknown:
            lines.append("fill in:")
            lines += [f"  {key}" for key in self.unknown]
        lines.append(f"then: cd {shlex.quote(str(folder))} && snakemake registration qc")
        lines.append(f"results: {folder / 'results'}, report.html there")
        return "\n".join(map(printable, lines))


def create_experiment(
    raw_dir: str | os.PathLike[str], output_dir: str | os.PathLike[str], *, force: bool = False
) -> InitResult:
    """Write a folder in which ``snakemake`` runs for a raw folder.

    Nothing is asked. What the folder does not tell becomes ``null`` with a comment. ``Snakefile``
    and ``profiles`` say nothing of the data: where they are, they are left as they are.

    Parameters
    ----------
    raw_dir : path
        Folder of the raw tiles.
    output_dir : path
        Where the files go; made if need be.
    force : bool
        Overwrite the configuration, its tables and ``README.md``.

    Raises
    ------
    ConfigError
        One of the files is there already and ``force`` is not given.
    RawDataError
        The folder follows no known convention, or its metadata are broken.
    """
    raw, output = Path(raw_dir), Path(output_dir).resolve()
    names = ("config.yaml", "samples.tsv", "markers.csv", "README.md")
    paths = [output / name for name in names]
    present = [str(path) for path in paths if path.exists()]
    if present and not force:
        raise ConfigError(
            f"{', '.join(present)} exist already; give --force to overwrite, or another --output"
        )
    for folder in (raw.resolve(), output):
        if re.search("[\ud800-\udfff]", str(folder)):
            raise ConfigError(f"the name {printable(folder)} is not UTF-8; rename it")
    recognised = recognise(raw)
    raw = recognised.folder
    metadata = read_metadata(raw, recognised)
    regions = sorted({plane.region for plane in recognised.planes}, key=lambda r: (len(r), r))
    layouts = [_layout(recognised, metadata, region) for region in regions]
    planes = _depth(recognised.planes)
    config, samples, markers, readme = paths
    files = (samples, markers, output / "results")
    warnings = _warnings(recognised, metadata, layouts)
    text = config_text(raw.resolve(), files, recognised, layouts, metadata, planes, warnings)
    found = _found(recognised, metadata, layouts, planes)
    tissues = _samples(raw.resolve(), regions)
    keys = shipped("config") / "README.md"
    title = ", ".join(name for name, _, _ in tissues)
    write_text_atomic(config, text.text)
    write_text_atomic(samples, samples_text(tissues, layouts))
    write_text_atomic(markers, markers_text(metadata.markers))
    write_text_atomic(
        readme, readme_text(title, raw.resolve(), keys, found, warnings, text.unknown)
    )
    told = tuple(found), tuple(text.unknown), tuple(warnings), tuple(_write_workflow(output))
    return InitResult(config, samples, markers, recognised.convention, *told)


def _write_workflow(output: Path) -> list[Path]:
    """Write the Snakefile and the profiles where they are not there; return what was left."""
    texts = {Path("Snakefile"): SNAKEFILE}
    for name in ("default/config.yaml", "slurm/config.yaml", "slurm/site.yaml"):
        texts[Path("profiles", name)] = (shipped("profiles") / name).read_text("utf-8")
    kept = [output / path for path in texts if (output / path).exists()]
    for path, text in texts.items():
        if output / path not in kept:
            write_text_atomic(output / path, text)
    return kept


def _layout(recognised: Recognised, metadata: Metadata, region: str) -> TileLayout:
    if recognised.convention == "stitched":
        return TileLayout(1)
    codex = metadata.codex
    told = TileLayout(0, codex.rows, codex.cols, codex.layout, codex.overlap)
    planes = [plane for plane in recognised.planes if plane.region == region]
    cycles = {plane.cycle for plane in planes if plane.channel == metadata.reference_channel}
    # A region that was not imaged in the reference cycle still has its layout.
    cycle = metadata.reference_cycle if metadata.reference_cycle in cycles else min(cycles)
    return find_layout(planes, told, cycle, metadata.reference_channel)


def _depth(planes: list[RawPlane]) -> int:
    """Return the number of z-planes; without a z in names, the pages of the first file."""
    deepest = max((plane.z for plane in planes if plane.z is not None), default=None)
    if deepest is not None:
        return deepest + 1
    path = planes[0].path
    return max(1, read_headers({path: 1})[path].pages)


def _samples(raw_dir: Path, regions: list[str]) -> list[tuple[str, Path, str | None]]:
    """Return (name, raw folder, region) of every sample: one per region."""
    folder = raw_dir
    while folder.name.lower() in ("raw", "data") and folder.parent.name:
        folder = folder.parent
    name = clean_token(folder.name) or "sample"
    if len(regions) == 1:
        return [(name, raw_dir, None)]
    return [(f"{name}_{clean_token(region)}", raw_dir, region) for region in regions]


def _found(
    recognised: Recognised, metadata: Metadata, layouts: list[TileLayout], planes: int
) -> list[str]:
    cycles = sorted({marker.cycle for marker in metadata.markers})
    channels = {marker.channel for marker in metadata.markers}
    lines = [
        f"{len(recognised.planes)} files or planes: {count(len(cycles), 'cycle')}, "
        f"{count(len(channels), 'channel')}, {count(planes, 'z-plane')}, "
        f"{count(len(layouts), 'region')}"
    ]
    if recognised.options.pattern:
        lines.append(f"file pattern {recognised.options.pattern}")
    named = (p for p in recognised.planes if f"/timepoint_{p.cycle}/" in p.path.lower())
    times = {plane.cycle for plane in named}
    if len(times) > 1:
        lines.append(
            f"cycles are the time points, from TimePoint_{min(times)} to TimePoint_{max(times)}; "
            f"if they repeat one cycle, choose one: cycles: [{min(times)}] in config.yaml"
        )
    return lines + metadata.found + [line for layout in layouts for line in layout.found]


def _left_out(recognised: Recognised) -> list[str]:
    """Say which images are not taken: of other experiments beside this one, or of another kind."""
    within = {Path(path).parent for path in {plane.path for plane in recognised.planes}}
    above = within.union(*(folder.parents for folder in within))
    others: dict[Path, int] = Counter()
    alone = []
    for path in map(Path, recognised.left_over):
        beside = next((parent for parent in path.parents[::-1] if parent not in above), None)
        if beside is None or re.match("(?i)zstep_|downsampled_x", beside.name):
            alone.append(path.name)
        else:
            others[beside] += 1
    said = []
    if alone:
        more = " ..." if len(alone) > 5 else ""
        reasons = tables()["left_out"]
        why = reasons.get(recognised.convention, reasons["other"])
        files = f"{len(alone)} file{'s are' if len(alone) > 1 else ' is'}"
        said.append(f"{files} left out: {', '.join(alone[:5])}{more}; {why}")
    if others:
        names = [f"{f.relative_to(recognised.folder)} ({n})" for f, n in others.items()]
        more = f" and {len(names) - 3} folders more" * (len(names) > 3)
        inits = [f"tilewright init {shlex.quote(str(folder))}" for folder in others]
        said.append(
            f"the files are taken from {os.path.commonpath(within)}, and none from "
            f"{', '.join(names[:3])}{more}; for each that is an experiment of its own: "
            f"{', '.join(inits[:3])}"
        )
    first: dict[RawPlane, str] = {}
    for plane in recognised.planes:
        other = first.setdefault(plane._replace(path=""), plane.path)
        if other != plane.path:
            said.append(
                f"{other} and {plane.path} are the same tile by their names; if they are of two "
                "experiments, put each into a folder of its own, and name one of them"
            )
            break
    return said


def _warnings(recognised: Recognised, metadata: Metadata, layouts: list[TileLayout]) -> list[str]:
    warnings = metadata.warnings + [line for layout in layouts for line in layout.warnings]
    warnings += _left_out(recognised)
    missing = sorted(
        path for path in {p.path for p in recognised.planes} if not Path(path).exists()
    )
    if missing:
        names = ", ".join(Path(path).name for path in missing[:3]) + ", ..." * (len(missing) > 3)
        files = count(len(missing), "file")
        warnings.append(f"{files} that the metadata name are not there: {names}; copy them too")
    counts = Counter((p.region, p.cycle, p.channel) for p in recognised.planes)
    most = max(counts.values())
    fewer = [key for key in sorted(counts) if counts[key] < most]
    if fewer and len(layouts) == 1:
        _, cycle, channel = fewer[0]
        warnings.append(
            f"cycle {cycle}, channel {channel} has {counts[fewer[0]]} files or planes, where "
            f"others have {most}; the workflow will name what is missing"
        )
    return warnings
