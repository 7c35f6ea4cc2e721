"""Metadata of a raw folder: pixels, optics, channels and markers."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.config.tables import Channel, cycles_text, is_formula
from tilewright.init.recognise import RawFolder
from tilewright.io.formats import describe, imagexpress, read_images
from tilewright.io.formats.common import RawPlane, raw_file_errors
from tilewright.io.formats.located_images import LocatedImage
from tilewright.io.formats.stitched import lossy_warnings
from tilewright.io.formats.tile_files import channel_of
from tilewright.io.inputs.codex_metadata import (
    CodexExperiment,
    emission_peaks_nm,
    parse_channel_names,
    parse_experiment,
    parse_exposure_times,
    unique_names,
)
from tilewright.io.text_file import read_text
from tilewright.io.tiff.ome_xml import OmeChannel
from tilewright.runtime.text import printable

_EXCITATION = (
    "the metadata give excitation wavelengths; emission_nm in the markers table is "
    "that of the usual dyes (DAPI, AF488, Cy3, Cy5, AF750): check it"
)
#: Names, times and the description of a CODEX experiment are a few kB.
_MOST_MB = 1
_TEXTS = {
    "experiment": r"experiment.*\.json",
    "names": r"channel_?names.*\.txt",
    "times": r"exposure_?times.*\.txt",
}
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


def read_metadata(recognised: RawFolder) -> Metadata:
    """Read the metadata in and next to the images."""
    channels = _channels(recognised.planes)
    located = read_images(recognised.convention, recognised.folder)
    if located:
        metadata = _of_files(located, channels)
        if recognised.convention == "stitched":
            metadata.warnings += lossy_warnings(located)
        return metadata
    metadata = _of_names(recognised, channels)
    texts = _find_texts(recognised.folder) if all(c.isdigit() for _, c in channels) else {}
    return _with_codex(metadata, texts, channels) if texts else metadata


def _of_names(recognised: RawFolder, channels: list[tuple[int, str]]) -> Metadata:
    """Return what the first file of each channel says, of planes that are known by their names."""
    known: dict[tuple[int, str], OmeChannel] = {}
    images = []
    warnings = []
    for plane in sorted(recognised.planes, key=lambda plane: plane.path):
        key = plane.cycle, plane.channel
        if key in known:
            continue
        image = describe(recognised.convention, plane.path)
        images.append(image)
        found = channel_of(plane, image.channels)
        # A word in the names is the channel's name.
        known[key] = found if plane.channel.isdigit() else found._replace(name=plane.channel)
        if plane.page is None and len(image.channels) > 1:
            warnings.append(
                f"the pages of {plane.path} are {len(image.channels)} channels by its metadata; "
                "they are read as z-planes, as its name says the channel"
            )
    metadata = _with_markers(channels, known)
    metadata.pixel_um = next((image.pixel_um for image in images if image.pixel_um), None)
    metadata.z_step_um = next((image.z_step_um for image in images if image.z_step_um), None)
    if recognised.convention == "imagexpress":
        metadata.z_step_um = imagexpress.z_step_um(recognised.planes)
    metadata.numerical_aperture = images[0].numerical_aperture
    metadata.immersion_refractive_index = images[0].immersion_refractive_index
    metadata.warnings += warnings[:1]
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
    named = [
        printable((channel.name or "").strip(), _NAME_LENGTH) or f"cycle{cycle}_channel{token}"
        for (cycle, token), channel in zip(channels, of, strict=True)
    ]
    names = unique_names(named, [cycle for cycle, _ in channels])
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


def _with_codex(
    metadata: Metadata, texts: Mapping[str, tuple[Path, str]], channels: list[tuple[int, str]]
) -> Metadata:
    """Add ``experiment.json``, ``channelnames.txt`` and ``exposure_times.txt``."""
    path, text = texts.get("experiment", (None, ""))
    codex = parse_experiment(text, str(path)) if path else CodexExperiment()
    names = parse_channel_names(texts.get("names", (None, ""))[1]) or codex.markers
    per_cycle = codex.channels or max(int(channel) for _, channel in channels)
    times_path, times_text = texts.get("times", (None, ""))
    with raw_file_errors(str(times_path)):
        times = parse_exposure_times(times_text, per_cycle) or codex.exposures_ms or {}
    known, warnings = _by_number(codex, names, times, channels)
    added = replace(
        _with_markers(channels, known),
        pixel_um=codex.pixel_um or metadata.pixel_um,
        z_step_um=codex.z_step_um or metadata.z_step_um,
        numerical_aperture=codex.numerical_aperture,
        immersion_refractive_index=codex.immersion_refractive_index,
        codex=codex,
    )
    if names:
        added.markers = [
            marker if known[marker.cycle, marker.channel].name else replace(marker, marker="")
            for marker in added.markers
        ]
    columns = {
        "marker": names,
        "emission_nm": codex.wavelengths_nm,
        "exposure_ms": times or times_path,
    }
    added.columns = [column for column, values in columns.items() if values]
    added.findings += [str(path) for path, _ in texts.values()]
    added.warnings += [*metadata.warnings, *warnings]
    cycles = {cycle for cycle, _ in channels}
    if codex.reference_cycle in cycles:
        added.reference_cycle = codex.reference_cycle
    if codex.reference_channel and not names:
        stated = str(codex.reference_channel)
        added.markers = [replace(m, reference=m.channel == stated) for m in added.markers]
    return added


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


def _find_texts(folder: Path) -> dict[str, tuple[Path, str]]:
    """Return CODEX's texts: of the raw folder, its ``data/raw``, or above it.

    Parents only of folders called ``raw`` or ``data``: others hold other experiments.
    """
    places = [folder, folder / "data/raw", folder / "raw", folder / "data"]
    while folder.name.lower() in ("raw", "data"):
        folder = folder.parent
        places.append(folder)
    files = [path for at in places if at.is_dir() for path in sorted(at.iterdir())]
    found: dict[str, tuple[Path, str]] = {}
    for what, form in _TEXTS.items():
        path = next((path for path in files if re.fullmatch(form, path.name, re.I)), None)
        if path:
            found[what] = path, read_text(path, _MOST_MB)
    return found


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
