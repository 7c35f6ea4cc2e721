"""Metadata of a raw folder: pixels, optics, channels and markers."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.config.tables import Channel, cycles_text, is_formula
from tilewright.init.recognise import RawFolder
from tilewright.io.formats import read_images
from tilewright.io.formats.common import RawPlane, raw_file_errors
from tilewright.io.formats.located_images import LocatedImage
from tilewright.io.formats.stitched import lossy_warnings
from tilewright.io.inputs.codex_metadata import (
    CodexExperiment,
    emission_peaks_nm,
    parse_channel_names,
    parse_experiment,
    parse_exposure_times,
    unique_names,
)
from tilewright.io.numbers import positive
from tilewright.io.text_file import read_text
from tilewright.io.tiff.metadata import UM, imagej_unit, of_tiff, pixel_um
from tilewright.io.tiff.ome_xml import OmeChannel
from tilewright.runtime.text import printable

_EXCITATION = (
    "the metadata give excitation wavelengths; emission_nm in the markers table is "
    "that of the usual dyes (DAPI, AF488, Cy3, Cy5, AF750): check it"
)
#: Names, times and the description of a CODEX experiment are a few kB.
_MOST_MB = 1
#: Length of a marker name; the markers table allows 100, with a number for duplicates.
_NAME_LENGTH = 90
_NUMBERED = r"[\W_]*(?:(?:cycle|cyc|round|channel|ch|c|r|stain)?[\W_]*\d+)"
#: A name of a nuclear stain. Of words that proteins have too (DNA-PK), numbers may follow alone.
_NUCLEAR = re.compile(
    r"(?i).*(?<![a-z])(?:dapi|hoechst|draq ?[57]|sytox)(?![a-z]).*"
    rf"|{_NUMBERED}?[\W_]*(?:dna|nuclei|nuclear|nucleus)(?:{_NUMBERED})*[\W_]*"
)


@dataclass
class Metadata:
    """Metadata of an acquisition; None is unknown."""

    markers: list[Channel]
    reference_cycle: int
    pixel_um: float | None = None
    z_step_um: float | None = None
    numerical_aperture: float | None = None
    immersion_refractive_index: float | None = None
    codex: CodexExperiment = field(default_factory=CodexExperiment)
    #: Columns of the markers table that the metadata fill.
    columns: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_metadata(raw_dir: Path, recognised: RawFolder) -> Metadata:
    """Read the metadata in and next to the images."""
    channels = _channels(recognised.planes)
    located = read_images(recognised.convention, raw_dir)
    if located:
        metadata = _of_files(located, channels)
        if recognised.convention == "stitched":
            metadata.warnings += lossy_warnings(located)
        return metadata
    if recognised.convention == "codex":
        return _of_codex(raw_dir, channels)
    words = {key: OmeChannel(key[1]) for key in channels if not key[1].isdigit()}
    metadata = _with_markers(channels, words)
    metadata.pixel_um, metadata.z_step_um = _pixel_of_tiff(recognised.planes[0].path)
    if metadata.pixel_um:
        metadata.findings.append(f"pixel size {metadata.pixel_um:g} µm, from the TIFFs")
    return metadata


def _channels(planes: Sequence[RawPlane]) -> list[tuple[int, str]]:
    """Return (cycle, channel) in order, numbers as numbers."""

    def rank(key: tuple[int, str]) -> tuple[int, int, str]:
        return key[0], int(key[1]) if key[1].isdigit() else 0, key[1]

    return sorted({(plane.cycle, plane.channel) for plane in planes}, key=rank)


def _with_markers(
    channels: list[tuple[int, str]], known: Mapping[tuple[int, str], OmeChannel]
) -> Metadata:
    """Return metadata with a markers table, the reference channels by their names."""
    of = [known.get(key, OmeChannel()) for key in channels]
    names = unique_names(
        printable((channel.name or "").strip(), _NAME_LENGTH) or f"cycle{cycle}_channel{token}"
        for (cycle, token), channel in zip(channels, of, strict=True)
    )
    names = ["" if is_formula(name) else name for name in names]
    stained: dict[int, list[str]] = {cycle: [] for cycle, _ in channels}
    for (cycle, token), channel in zip(channels, of, strict=True):
        if _NUCLEAR.fullmatch(channel.name or ""):
            stained[cycle].append(token)
    only = Counter(cycle for cycle, _ in channels)
    markers = [
        Channel(
            cycle, token, name, stained[cycle] == [token] or only[cycle] == 1,
            channel.emission_nm, channel.exposure_ms,
        )
        for (cycle, token), name, channel in zip(channels, names, of, strict=True)
    ]  # fmt: skip
    return Metadata(markers, min(stained), warnings=_stain_warnings(stained))


def _stain_warnings(stained: Mapping[int, list[str]]) -> list[str]:
    """Return what is odd about the nuclear stains of cycles: none, several, or another channel."""
    usual = Counter(one for (one, *more) in filter(None, stained.values()) if not more)
    if not usual:
        return []
    most, warnings = usual.most_common(1)[0][0], []
    for cycle, found in stained.items():
        if found == [most]:
            continue
        where = f"channel{'s' * (len(found) > 1)} {', '.join(found)} of cycle {cycle}"
        what = f"{where} {'have' if len(found) > 1 else 'has'} the name of a nuclear stain"
        warnings.append(
            f"{what if found else f'no channel of cycle {cycle} has the name of a nuclear stain'}, "
            f"where others have channel {most}; check the names"
        )
    return warnings


def _of_codex(raw_dir: Path, channels: list[tuple[int, str]]) -> Metadata:
    """Read ``experiment.json``, ``channelnames.txt`` and ``exposure_times.txt``."""
    patterns = (r"experiment.*\.json", r"channel_?names.*\.txt", r"exposure_?times.*\.txt")
    texts = [_find_text(raw_dir, pattern) for pattern in patterns]
    (path, text), (_, names_text), (times_path, times_text) = texts
    codex = parse_experiment(text, str(path)) if path else CodexExperiment()
    names = parse_channel_names(names_text) or codex.markers
    per_cycle = codex.channels or max(int(channel) for _, channel in channels)
    with raw_file_errors(str(times_path)):
        times = parse_exposure_times(times_text, per_cycle) or codex.exposures_ms or {}
    known, warnings = _by_number(codex, names, times, channels)
    metadata = replace(
        _with_markers(channels, known),
        pixel_um=codex.pixel_um,
        z_step_um=codex.z_step_um,
        numerical_aperture=codex.numerical_aperture,
        immersion_refractive_index=codex.immersion_refractive_index,
        codex=codex,
    )
    if names:
        metadata.markers = [
            marker if known[marker.cycle, marker.channel].name else replace(marker, marker="")
            for marker in metadata.markers
        ]
    exposures = times or times_path
    columns = {"marker": names, "emission_nm": codex.wavelengths_nm, "exposure_ms": exposures}
    metadata.columns = [column for column, values in columns.items() if values]
    metadata.findings += [str(path) for path, _ in texts if path]
    metadata.warnings += warnings
    cycles = {cycle for cycle, _ in channels}
    if codex.reference_cycle in cycles:
        metadata.reference_cycle = codex.reference_cycle
    if codex.reference_channel and not names:
        stated = str(codex.reference_channel)
        metadata.markers = [replace(m, reference=m.channel == stated) for m in metadata.markers]
    return metadata


def _by_number(
    codex: CodexExperiment,
    names: Sequence[str],
    times: Mapping[tuple[int, int], float | None],
    channels: list[tuple[int, str]],
) -> tuple[dict[tuple[int, str], OmeChannel], list[str]]:
    """Return the metadata of each channel by (cycle, channel), and warnings.

    Metadata that do not fit the numbers of cycles and channels in exactly one way are ignored.
    """
    numbers = [(cycle, int(channel)) for cycle, channel in channels]
    cycles, timed = {cycle for cycle, _ in numbers}, {cycle for cycle, _ in times}
    first, warnings = min(1, *cycles), []
    if times and ((0 in cycles) != (0 in timed) or not (cycles <= timed or timed <= cycles)):
        expected, present = cycles_text(sorted(timed)), cycles_text(sorted(cycles))
        warnings.append(f"exposure times are of {expected}, but the files of {present}; ignored")
        times = {}
    # Numbers in the metadata take precedence over those of exposure times.
    most = max(cycle for cycle, _ in [*numbers, *(() if codex.cycles else times)]) - first + 1
    widest = max(channel for _, channel in [*numbers, *(() if codex.channels else times)])
    count, per_cycle = codex.cycles or most, codex.channels or widest
    if names and (len(names) != count * per_cycle or most > count or widest > per_cycle):
        warnings.append(
            f"{len(names)} marker names for {count} cycles of {per_cycle} channels; ignored"
        )
        names = ()
    for what, expected_count, present_count in (
        ("cycles", codex.cycles, len(cycles)),
        ("channels", codex.channels, max(channel for _, channel in numbers)),
    ):
        if expected_count and expected_count != present_count:
            warnings.append(
                f"{expected_count} {what} in the metadata, but {present_count} in the files"
            )
    emission: Sequence[float | None] = codex.wavelengths_nm
    if emission and (len(emission) != per_cycle or widest > per_cycle):
        warnings.append(f"{len(emission)} wavelengths for {per_cycle} channels; ignored")
        emission = ()
    elif not codex.wavelengths_are_emission:
        emission = emission_peaks_nm(codex.wavelengths_nm)
        warnings += [_EXCITATION] * (list(emission) != list(codex.wavelengths_nm))
    known = {
        key: OmeChannel(
            names[(cycle - first) * per_cycle + channel - 1] if names else None,
            emission[channel - 1] or None if emission else None,
            times.get((cycle, channel)),
        )
        for key, (cycle, channel) in zip(channels, numbers, strict=True)
    }
    return known, warnings


def _find_text(raw_dir: Path, pattern: str) -> tuple[Path | None, str]:
    """Return the first file of that name in the raw folder, its ``data/raw``, or above it.

    Parents only of folders called ``raw`` or ``data``: others hold other experiments.
    """
    folder = raw_dir.resolve()
    places = [folder, folder / "data/raw", folder / "raw", folder / "data"]
    while folder.name.lower() in ("raw", "data"):
        folder = folder.parent
        places.append(folder)
    for place in places:
        if place.is_dir():
            for path in sorted(place.iterdir()):
                if re.fullmatch(pattern, path.name, re.IGNORECASE):
                    return path, read_text(path, _MOST_MB)
    return None, ""


def _of_files(located: list[LocatedImage], channels: list[tuple[int, str]]) -> Metadata:
    # Files of one channel each: the token of the channel is its name.
    by_channel = {key: OmeChannel(key[1]) for key in channels if not key[1].isdigit()}
    for cycle, _, image in located:
        for number, channel in enumerate(image.channels, 1):
            known = by_channel.setdefault((cycle, str(number)), channel)
            if not known.name:
                by_channel[cycle, str(number)] = channel
    image = located[0].image
    metadata = replace(
        _with_markers(channels, by_channel),
        pixel_um=next((tile.pixel_um for *_, tile in located if tile.pixel_um), None),
        z_step_um=image.z_step_um,
        numerical_aperture=image.numerical_aperture,
        immersion_refractive_index=image.immersion_refractive_index,
    )
    metadata.findings.append("sizes, positions and channel names from the files' metadata")
    files = sorted({(cycle, _name_of_cycle(Path(path))) for cycle, path, _ in located})
    if len(files) == len({cycle for cycle, _ in files}) > 1:
        metadata.findings.append(
            "one file per cycle: " + ", ".join(f"{cycle} = {name}" for cycle, name in files)
        )
    return metadata


def _name_of_cycle(path: Path) -> str:
    """Return the name of a cycle's file or, where that is an index, of its folder."""
    inner = path.parent.name in ("Images", "Full resolution")
    folder = path.parent.parent if inner else path.parent
    return folder.name if path.suffix in (".index", ".xml", ".ome", ".mlf") else path.name


def _pixel_of_tiff(path: str) -> tuple[float | None, float | None]:
    """Return pixel size and z-step (µm) of ImageJ's metadata or the resolution tags."""

    def read(tiff: Any) -> tuple[float | None, float | None]:
        unit = imagej_unit(tiff.imagej_metadata)
        _, x_um = pixel_um(tiff.pages[0], unit)
        step = positive(str(tiff.imagej_metadata.get("spacing"))) if x_um and unit else None
        return x_um, round(step * UM[unit], 6) if step else None

    return of_tiff(path, read, (None, None))
