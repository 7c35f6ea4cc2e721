"""What a raw folder tells of pixels, optics, channels and markers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.config.tables import Channel
from tilewright.init.recognise import Recognised
from tilewright.io.conventions import described_images
from tilewright.io.conventions.common import RawPlane
from tilewright.io.conventions.described import LocatedImage
from tilewright.io.conventions.ome_xml import OmeChannel
from tilewright.io.conventions.stitched import lossy_sentences
from tilewright.io.inputs.codex_metadata import (
    CodexExperiment,
    emission_peaks_nm,
    parse_channel_names,
    parse_experiment,
    parse_exposure_times,
    unique_names,
)
from tilewright.io.tiff.metadata import MICROMETRES, imagej_unit, of_tiff, pixel_um

_NUCLEAR = re.compile(r"(?i)dapi|hoechst|nuclei|nuclear|dna|draq5|sytox")


@dataclass
class Metadata:
    """What is known of an acquisition; None is "not known"."""

    markers: list[Channel]
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
        metadata = _of_files(located, channels)
        if recognised.convention == "stitched":
            metadata.warnings += lossy_sentences(located)
        return metadata
    if recognised.convention == "codex":
        return _of_codex(raw_dir, channels)
    metadata = _with_markers(channels, {})
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
    channels: list[tuple[int, str]], told: Mapping[tuple[int, str], OmeChannel]
) -> Metadata:
    """Return metadata with the markers table made, and a reference channel chosen."""
    of = [told.get(key, OmeChannel()) for key in channels]
    names = unique_names(
        channel.name or f"cycle{cycle}_channel{token}"
        for (cycle, token), channel in zip(channels, of, strict=True)
    )
    markers = [
        Channel(*key, name, channel.emission_nm, channel.exposure_ms)
        for key, name, channel in zip(channels, names, of, strict=True)
    ]
    cycles = sorted({cycle for cycle, _ in channels})
    first = [channel for cycle, channel in channels if cycle == cycles[0]]
    common = [c for c in first if all((cycle, c) in channels for cycle in cycles)]
    metadata = Metadata(markers, cycles[0], (common or first)[0])
    if not common:
        metadata.warnings.append(
            "no channel is there in every cycle; registration needs one (reference_channel)"
        )
    firsts = dict(zip(channels, of, strict=True))
    nuclear = [c for c in common if _NUCLEAR.search(firsts[cycles[0], c].name or "")]
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
    told = {}
    for key in channels:
        cycle, channel = cycles.index(key[0]), int(key[1]) - 1
        place = cycle * per_cycle + channel
        told[key] = OmeChannel(
            listed[place] if place < len(listed) and channel < per_cycle else None,
            emission[channel] if channel < len(emission) else None,
            times.get((cycle + 1, channel + 1)),
        )
    metadata = replace(
        _with_markers(channels, told),
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
    reference = str(codex.reference_channel)
    if codex.reference_channel and all((cycle, reference) in channels for cycle in cycles):
        metadata.reference_channel = reference
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
    # Files of one channel each: the channel is already called by its name.
    told = {key: OmeChannel(key[1]) for key in channels if not key[1].isdigit()}
    for cycle, _, image in located:
        for number, described in enumerate(image.channels, 1):
            known = told.setdefault((cycle, str(number)), described)
            if not known.name:
                told[cycle, str(number)] = described
    image = located[0].image
    metadata = replace(
        _with_markers(channels, told),
        pixel_um=next((told.pixel_um for *_, told in located if told.pixel_um), None),
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


def _told_by(path: Path) -> str:
    """Return the name that tells cycles apart: of an index, that of its folder."""
    inner = path.parent.name in ("Images", "Full resolution")
    folder = path.parent.parent if inner else path.parent
    return folder.name if path.suffix in (".index", ".xml", ".ome", ".mlf") else path.name


def _pixel_of_tiff(path: str) -> tuple[float | None, float | None]:
    """Return pixel size and z-step (µm) that ImageJ or the resolution tags tell."""

    def read(tiff: Any) -> tuple[float | None, float | None]:
        unit = imagej_unit(tiff.imagej_metadata)
        _, x_um = pixel_um(tiff.pages[0], unit)
        told = x_um is not None and unit in MICROMETRES
        return x_um, tiff.imagej_metadata.get("spacing") if told else None

    return of_tiff(path, read, (None, None))
