"""What ``tilewright init`` does: a raw folder in, a configuration for it out."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.runtime.files import write_whole
from tilewright.init.metadata import Metadata, read_metadata
from tilewright.init.recognise import Recognised, recognise
from tilewright.init.tile_layout import TileLayout, find_layout
from tilewright.init.write import config_text, markers_text, samples_text
from tilewright.io.conventions.common import RawPlane, clean_token
from tilewright.io.inputs.raw_headers import read_headers

#: Why files are left out, where a convention leaves out some that are like the others.
_LEFT_OUT = {
    "fiji": "the TileConfiguration does not list them; add them there, or move that file away to "
    "have the layout found from the pixels",
    "macsima": "of several exposures of a filter the longest is read",
    "ndtiff": "of a pyramid only the full resolution is raw data",
    "imagexpress": "projections and thumbnails are no raw data",
    "cv8000": "MeasurementData.mlf does not list them as planes",
}


class InitError(ValueError):
    """The configuration cannot be written; the message says why and what to do."""


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
    """

    config: Path
    samples: Path
    markers: Path
    convention: str
    found: tuple[str, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]

    def summary(self) -> str:
        """Return all of it as text for a terminal."""
        lines = [f"naming convention: {self.convention}", *self.found]
        lines += [f"warning: {warning}" for warning in self.warnings]
        lines += [f"wrote {path}" for path in (self.config, self.samples, self.markers)]
        if self.unknown:
            lines.append("fill in:")
            lines += [f"  {key}" for key in self.unknown]
        lines.append(f"then: snakemake registration qc --configfile {self.config}")
        lines.append(f"results: {self.config.parent / 'results'}, report.html there")
        return "\n".join(lines)


def create_experiment(
    raw_dir: str | os.PathLike[str], output_dir: str | os.PathLike[str], *, force: bool = False
) -> InitResult:
    """Write ``config.yaml``, ``samples.tsv`` and ``markers.csv`` for a raw folder.

    Nothing is asked. What the folder does not tell becomes ``null`` with a comment.

    Parameters
    ----------
    raw_dir : path
        Folder of the raw tiles.
    output_dir : path
        Where the files go; made if need be.
    force : bool
        Overwrite what is there.

    Raises
    ------
    InitError
        One of the files is there already and ``force`` is not given.
    RawDataError
        The folder follows no known convention, or its metadata are broken.
    """
    raw, output = Path(raw_dir), Path(output_dir).resolve()
    paths = [output / name for name in ("config.yaml", "samples.tsv", "markers.csv")]
    present = [str(path) for path in paths if path.exists()]
    if present and not force:
        raise InitError(
            f"{', '.join(present)} exist already; give --force to overwrite, or another --output"
        )
    recognised = recognise(raw)
    raw = recognised.folder
    metadata = read_metadata(raw, recognised)
    regions = sorted({plane.region for plane in recognised.planes}, key=lambda r: (len(r), r))
    layouts = [_layout(recognised, metadata, region) for region in regions]
    planes = _depth(recognised.planes)
    config, samples, markers = paths
    files = (samples, markers, output / "results")
    warnings = _warnings(recognised, metadata, layouts)
    text = config_text(raw.resolve(), files, recognised, layouts, metadata, planes, warnings)
    write_whole(config, text.text)
    write_whole(samples, samples_text(_samples(raw.resolve(), regions), layouts))
    write_whole(markers, markers_text(metadata.markers))
    found = tuple(_found(recognised, metadata, layouts, planes))
    told = (recognised.convention, found, tuple(text.unknown), tuple(warnings))
    return InitResult(config, samples, markers, *told)


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
    return max(1, read_headers({path: 1}, {}, 1)[path].pages)


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
        f"{len(recognised.planes)} files or planes: {len(cycles)} cycles, "
        f"{len(channels)} channels, {planes} z-planes, {len(layouts)} "
        f"region{'s' if len(layouts) > 1 else ''}"
    ]
    if recognised.options.pattern:
        lines.append(f"file pattern {recognised.options.pattern}")
    return lines + metadata.found + [line for layout in layouts for line in layout.found]


def _warnings(recognised: Recognised, metadata: Metadata, layouts: list[TileLayout]) -> list[str]:
    warnings = metadata.warnings + [line for layout in layouts for line in layout.warnings]
    left_over = recognised.left_over
    if left_over:
        names = ", ".join(Path(path).name for path in left_over[:5])
        more = " ..." if len(left_over) > 5 else ""
        why = _LEFT_OUT.get(
            recognised.convention,
            "they are of another kind, or their names do not follow the others'",
        )
        files = f"{len(left_over)} file{'s are' if len(left_over) > 1 else ' is'}"
        warnings.append(f"{files} left out: {names}{more}; {why}")
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
