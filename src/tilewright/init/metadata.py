"""What a raw folder tells of pixels, optics, channels and markers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tifffile

from tilewright.init.recognise import Recognised
from tilewright.io.conventions import described_images, stitched
from tilewright.io.conventions.common import RawPlane
from tilewright.io.conventions.described import LocatedImage
from tilewright.io.inputs.codex_metadata import (
    CodexExperiment,
    emission_peaks_nm,
    parse_channel_names,
    parse_experiment,
    parse_exposure_times,
    unique_names,
)

_NUCLEAR = re.compile(r"(?i)dapi|hoechst|nuclei|nuclear|dna|draq5|sytox")


@dataclass(frozen=True)
class MarkerLine:
    """One line of the markers table."""

    cycle: int
    channel: str
    marker: str
    emission_nm: float | None = None
    exposure_ms: float | None = None


@dataclass
class Metadata:
    """What is known of an acquisition; None is "not known"."""

    markers: list[MarkerLine]
    reference_cycle: int
    reference_channel: str
    pixel_um: float | None = None
    z_step_um: float | None = None
    numerical_aperture: float | None = None
    immersion_refractive_index: float | None = None
    codex: CodexExperiment = field(default_factory=CodexExperiment)
    found: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_metadata(raw_dir: Path, recognised: Recognised) -> Metadata:
    """Read what files beside and inside the images tell."""
    channels = _channels(recognised.planes)
    located = described_images(recognised.convention, raw_dir)
    if located:
        return _of_files(located, channels)
    if recognised.convention == "stitched":
        return _of_stitched(raw_dir, channels)
    if recognised.convention == "codex":
        return _of_codex(raw_dir, channels)
    metadata = _with_markers(channels, {}, {}, {})
    metadata.pixel_um, metadata.z_step_um = _pixel_of_tiff(recognised.planes[0].path)
    if metadata.pixel_um:
        metadata.found.append(f"pixel size {metadata.pixel_um:g} µm, from the TIFFs")
    return metadata


def _channels(planes: Sequence[RawPlane]) -> list[tuple[int, str]]:
    """Return (cycle, channel) in order, numbers as numbers."""

    def rank(key: tuple[int, str]) -> tuple[int, int, str]:
        return key[0], int(key[1]) if key[1].isdigit() else 0, key[1]

    return sorted({(plane.cycle, plane.channel) for plane in planes}, key=rank)


def _with_markers(
    channels: list[tuple[int, str]],
    names: dict[tuple[int, str], str],
    emission: dict[tuple[int, str], float | None],
    exposure: dict[tuple[int, str], float | None],
) -> Metadata:
    """Return metadata with the markers table made, and a reference channel chosen."""
    unnamed = [names.get(key) or f"cycle{key[0]}_channel{key[1]}" for key in channels]
    markers = [
        MarkerLine(*key, name, emission.get(key), exposure.get(key))
        for key, name in zip(channels, unique_names(unnamed), strict=True)
    ]
    cycles = sorted({cycle for cycle, _ in channels})
    first = [channel for cycle, channel in channels if cycle == cycles[0]]
    common = [c for c in first if all((cycle, c) in channels for cycle in cycles)]
    metadata = Metadata(markers, cycles[0], (common or first)[0])
    if not common:
        metadata.warnings.append(
            "no channel is there in every cycle; registration needs one (reference_channel)"
        )
    nuclear = [c for c in common if _NUCLEAR.search(names.get((cycles[0], c), ""))]
    if nuclear:
        metadata.reference_channel = nuclear[0]
    return metadata


def _of_codex(raw_dir: Path, channels: list[tuple[int, str]]) -> Metadata:
    """Read ``experiment.json``, ``channelnames.txt`` and ``exposure_times.txt``."""
    texts = {
        kind: _find_text(raw_dir, pattern)
        for kind, pattern in (
            ("experiment", r"experiment.*\.json"),
            ("names", r"channel_?names.*\.txt"),
            ("exposures", r"exposure_?times.*\.txt"),
        )
    }
    path, text = texts["experiment"]
    codex = parse_experiment(text, str(path)) if path else CodexExperiment()
    listed = parse_channel_names(texts["names"][1]) or codex.markers
    times = parse_exposure_times(texts["exposures"][1]) or codex.exposures_ms or {}
    cycles = sorted({cycle for cycle, _ in channels})
    tokens = sorted({int(channel) for _, channel in channels})
    per_cycle = codex.channels or len(tokens)
    emission = (
        list(codex.wavelengths_nm)
        if codex.wavelengths_are_emission
        else emission_peaks_nm(codex.wavelengths_nm)
    )

    names, peaks, exposures = {}, {}, {}
    for key in channels:
        cycle, channel = cycles.index(key[0]), int(key[1]) - 1
        place = cycle * per_cycle + channel
        if place < len(listed) and channel < per_cycle:
            names[key] = listed[place]
        peaks[key] = emission[channel] if channel < len(emission) else None
        exposures[key] = times.get((cycle + 1, channel + 1))
    metadata = _with_markers(channels, names, peaks, exposures)
    metadata = replace(
        metadata,
        pixel_um=codex.pixel_um,
        z_step_um=codex.z_step_um,
        numerical_aperture=codex.numerical_aperture,
        immersion_refractive_index=codex.immersion_refractive_index,
        codex=codex,
    )
    metadata.found += [str(path) for path, _ in texts.values() if path]
    metadata.warnings += _codex_warnings(codex, len(listed), len(cycles), per_cycle, emission)
    if codex.reference_cycle in cycles:
        metadata.reference_cycle = codex.reference_cycle
    told = str(codex.reference_channel)
    if codex.reference_channel and all((cycle, told) in channels for cycle in cycles):
        metadata.reference_channel = told
    return metadata


def _codex_warnings(
    codex: CodexExperiment,
    names: int,
    cycles: int,
    per_cycle: int,
    emission: Sequence[float | None],
) -> list[str]:
    """Return where the metadata do not fit the files, or had to be read between the lines."""
    warnings = []
    if names and names != cycles * per_cycle:
        warnings.append(
            f"{names} marker names for {cycles} cycles of {per_cycle} channels; "
            "check the markers table"
        )
    if codex.cycles and codex.cycles != cycles:
        warnings.append(f"the metadata tell {codex.cycles} cycles, but there are {cycles}")
    if emission and list(emission) != list(codex.wavelengths_nm):
        warnings.append(
            "the metadata give excitation wavelengths; emission_nm in the markers table is "
            "that of the usual dyes (DAPI, AF488, Cy3, Cy5, AF750): check it"
        )
    return warnings


def _find_text(raw_dir: Path, pattern: str) -> tuple[Path | None, str]:
    """Return the first file of that name in the raw folder, its ``data/raw``, or above it.

    Above only where the folder is itself called so: else other experiments are there.
    """
    folder = raw_dir.resolve()
    places = [folder, folder / "data/raw", folder / "raw", folder / "data"]
    while folder.name.lower() in ("raw", "data"):
        folder = folder.parent
        places.append(folder)
    for place in places:
        if place.is_dir():
            for path in sorted(place.iterdir()):
                if re.fullmatch(pattern, path.name, re.IGNORECASE) and path.is_file():
                    return path, path.read_text("utf-8", errors="replace")
    return None, ""


def _of_files(located: list[LocatedImage], channels: list[tuple[int, str]]) -> Metadata:
    names: dict[tuple[int, str], str] = {}
    emission: dict[tuple[int, str], float | None] = {}
    exposure: dict[tuple[int, str], float | None] = {}
    tokens = {cycle: [c for number, c in channels if number == cycle] for cycle, _, _ in located}
    for cycle, _, image in located:
        for channel in tokens[cycle]:
            if not channel.isdigit() or int(channel) > len(image.channels):
                continue  # files of one channel each: the channel is already called by its name
            described = image.channels[int(channel) - 1]
            if described.name:
                names.setdefault((cycle, channel), described.name)
            emission.setdefault((cycle, channel), described.emission_nm)
            exposure.setdefault((cycle, channel), described.exposure_ms)
    names = {key: names.get(key, "" if key[1].isdigit() else key[1]) for key in channels}
    image = located[0].image
    metadata = replace(
        _with_markers(channels, names, emission, exposure),
        pixel_um=image.pixel_um,
        z_step_um=image.z_step_um,
        numerical_aperture=image.numerical_aperture,
        immersion_refractive_index=image.immersion_refractive_index,
    )
    metadata.found.append("sizes, positions and channel names from the files' metadata")
    files = sorted({(cycle, _told_by(Path(path))) for cycle, path, _ in located})
    if len(files) == len({cycle for cycle, _ in files}) > 1:
        metadata.found.append(
            "one file per cycle: " + ", ".join(f"{cycle} = {name}" for cycle, name in files)
        )
    return metadata


def _of_stitched(raw_dir: Path, channels: list[tuple[int, str]]) -> Metadata:
    """Read what the stitched images tell."""
    located = stitched.read_images(str(raw_dir.resolve()))
    told = {
        (cycle, str(number)): channel
        for cycle, image in located
        for number, channel in enumerate(image.channels, start=1)
    }
    metadata = replace(
        _with_markers(
            channels,
            {key: channel.name for key, channel in told.items() if channel.name},
            {key: channel.emission_nm for key, channel in told.items()},
            {key: channel.exposure_ms for key, channel in told.items()},
        ),
        pixel_um=next((image.pixel_um for _, image in located if image.pixel_um), None),
    )
    files = (f"{cycle} = {Path(image.path).name}" for cycle, image in located)
    metadata.found.append(f"stitched images, one per cycle: {', '.join(files)}")
    if metadata.pixel_um:
        metadata.found.append(f"pixel size {metadata.pixel_um:g} µm, from the files")
    metadata.warnings += stitched.lossy_sentences(located)
    return metadata


def _told_by(path: Path) -> str:
    """Return the name that tells cycles apart: of an index, that of its folder."""
    inner = path.parent.name in ("Images", "Full resolution")
    folder = path.parent.parent if inner else path.parent
    return folder.name if path.suffix in (".index", ".xml", ".ome", ".mlf") else path.name


def _pixel_of_tiff(path: str) -> tuple[float | None, float | None]:
    """Return pixel size and z-step (µm) that ImageJ or a resolution in cm tells."""
    try:
        with tifffile.TiffFile(path) as tiff:
            imagej: dict[str, Any] = tiff.imagej_metadata or {}
            tags = tiff.pages[0].tags
            numerator, denominator = tags.valueof("XResolution", (0, 1))
            centimetres = tags.valueof("ResolutionUnit", 1) == 3
    except (tifffile.TiffFileError, OSError, ValueError):
        return None, None
    unit = str(imagej.get("unit", "")).replace("\\u00B5", "µ")
    micrometres = unit in ("µm", "um", "micron", "microns")
    if not numerator or not (micrometres or centimetres):
        return None, None
    pixel_um = denominator / numerator * (1.0 if micrometres else 1e4)
    spacing = imagej.get("spacing") if micrometres else None
    # 72 or 96 dots per inch are a printer's, not a microscope's.
    return (round(pixel_um, 6), spacing) if pixel_um < 20 else (None, None)
