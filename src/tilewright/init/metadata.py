"""Metadata of a raw folder: pixels, optics, channels and markers."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.config.tables import Channel, cycles_text, is_formula
from tilewright.init.notes import Notes
from tilewright.init.recognise import RawFolder, tables
from tilewright.io.formats import describe, imagexpress, read_images
from tilewright.io.formats.common import RawPlane, raw_file_errors
from tilewright.io.formats.located_images import LocatedImage
from tilewright.io.formats.tile_files import channel_of
from tilewright.io.inputs.codex_metadata import (
    CodexExperiment,
    emission_peaks_nm,
    parse_channel_names,
    parse_experiment,
    parse_exposure_times,
    unique_names,
)
from tilewright.io.inputs.raw_headers import read_headers
from tilewright.io.text_file import read_text
from tilewright.io.tiff.ome_xml import OmeChannel, OmeImage
from tilewright.runtime.text import few, printable

_EXCITATION = (
    "the metadata give excitation wavelengths; emission_nm in the markers table is "
    "that of the usual dyes (DAPI, AF488, Cy3, Cy5, AF750): check it"
)
_OPTICS = ("pixel_um", "z_step_um", "numerical_aperture", "immersion_refractive_index")
#: Names, times and the description of a CODEX experiment are a few kB.
_MOST_MB = 1
#: Those of an experiment, of its markers and exposure times.
_TEXTS = (r"experiment.*\.json", r"channel_?names.*\.txt", r"exposure_?times.*\.txt")
#: Length of a marker name; the markers table allows 100, with a number for duplicates.
_NAME_LENGTH = 90
_NUMBERED = r"[\W_]*(?:(?:cycle|cyc|round|channel|ch|c|r|stain)?[\W_]*\d+)"
#: A name of a nuclear stain. Of words that proteins have too (DNA-PK), numbers may follow alone.
_NUCLEAR = re.compile(
    r"(?i).*(?<![a-z])(?:dapi|hoechst|draq ?[57]|sytox)(?![a-z]).*"
    rf"|{_NUMBERED}?[\W_]*(?:dna|nuclei|nuclear|nucleus)(?:{_NUMBERED})*[\W_]*"
)

#: Cycle and channel, what is known of it, and the image that says so.
_Described = tuple[tuple[int, str], OmeChannel, OmeImage]


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
    notes: Notes = field(default_factory=Notes)


def read_metadata(recognised: RawFolder) -> Metadata:
    """Read the metadata in and next to the images."""
    channels, notes = _channels(recognised.planes), Notes()
    codex, texts = CodexExperiment(), list[str]()
    images, known = list[OmeImage](), dict[tuple[int, str], OmeChannel]()
    located = read_images(recognised.convention, recognised.folder)
    of_files = _of_names(recognised, notes) if located is None else _of_files(located)
    for key, channel, image in of_files:
        images.append(image)
        known[key] = channel if key not in known or not known[key].name else known[key]
    if located is None and all(channel.isdigit() for _, channel in channels):
        most = max(int(channel) for _, channel in channels)
        codex, texts = read_codex(recognised.folder, most)
    if texts:
        known, notes.findings = _by_number(codex, channels, notes), texts
    # A word in names is the channel's name.
    words = [key for key in channels if not key[1].isdigit()]
    known |= {key: known.get(key, OmeChannel())._replace(name=key[1]) for key in words}
    # The first value holds.
    optics = {
        name: next(filter(None, (getattr(one, name) for one in (codex, *images))), None)
        for name in _OPTICS
    }
    if recognised.convention == "imagexpress":
        optics["z_step_um"] = imagexpress.z_step_um(recognised.planes)
    if optics["pixel_um"]:
        notes.findings.append(f"pixel size {optics['pixel_um']:g} µm by the metadata")
    files = sorted({(cycle, path) for cycle, path, _ in located or ()})
    if len(files) == len({cycle for cycle, _ in files}) > 1:
        names = (f"{cycle} = {Path(path).relative_to(recognised.folder)}" for cycle, path in files)
        notes.findings.append(f"one file per cycle: {', '.join(names)}")
    markers, cycle = _markers(channels, known, codex), codex.reference_cycle
    cycles = {marker.cycle for marker in markers}
    reference = cycle if cycle in cycles else min(cycles)
    return Metadata(markers, reference, **optics, codex=codex, notes=notes)


def _of_files(located: Sequence[LocatedImage]) -> Iterator[_Described]:
    """Yield what files that describe themselves say of each channel."""
    for cycle, _, image in located:
        for number, channel in enumerate(image.channels, 1):
            yield (cycle, str(number)), channel, image


def _of_names(recognised: RawFolder, notes: Notes) -> Iterator[_Described]:
    """Yield what the first file of each channel says, of planes that are known by their names."""
    first, doubted = dict[tuple[int, str], RawPlane](), ""
    for plane in sorted(recognised.planes, key=lambda plane: plane.path):
        first.setdefault((plane.cycle, plane.channel), plane)
    for key, plane in first.items():
        image = describe(recognised.convention, plane.path)
        if plane.page is None and len(image.channels) > 1:
            doubted = (
                f"acquisition.pattern: the pages of {plane.path} are {len(image.channels)} "
                "channels by its metadata; they are read as z-planes, as its name says the "
                "channel: give --pattern to tilewright init, with {channel} if that is right, else "
                "without"
            )
        yield key, channel_of(plane, image.channels), image
    if doubted and recognised.fields:  # of names whose pattern is not the user's
        notes.unknown.append(doubted)


def stack_depth(planes: Sequence[RawPlane]) -> int:
    """Return the number of z-planes; without a z in names, the pages of the deepest first file."""
    deepest = max((plane.z for plane in planes if plane.z is not None), default=None)
    if deepest is not None:
        return deepest + 1
    first = {(plane.cycle, plane.channel): plane.path for plane in reversed(planes)}
    headers = read_headers(dict.fromkeys(first.values(), 1)).values()
    return max(1, *(header.pages for header in headers))


def fill_emission(metadata: Metadata) -> None:
    """Fill in the emission of channels that are named by a dye or a filter."""
    named = []
    for k, marker in enumerate(metadata.markers):
        peak_nm = emission_of_name(marker.marker)
        if marker.emission_nm is None and peak_nm:
            metadata.markers[k] = replace(marker, emission_nm=peak_nm)
            named.append(marker.marker)
    if named:
        metadata.notes.findings.append(f"emission_nm of {few(named)}: of the dyes in these names")


def emission_of_name(name: str) -> float | None:
    """Return the emission peak (nm) of the dye that a channel is named by, None of none.

    >>> emission_of_name("DAPI_1"), emission_of_name("CD3-AF647"), emission_of_name("CD3")
    (461.0, 668.0, None)
    """
    for words, line_nm in tables()["dyes"].items():
        if found := re.search(rf"(?i)(?<![a-z])(?:{words})(?![a-z\d]|\.\d)", name):
            # Beside a line that no dye emits, a number is one of excitation.
            return emission_peaks_nm([358.0, line_nm or float(found[1])])[1]
    return None


def _channels(planes: Sequence[RawPlane]) -> list[tuple[int, str]]:
    """Return (cycle, channel) in order, numbers as numbers."""
    return sorted(
        {(plane.cycle, plane.channel) for plane in planes},
        key=lambda key: (key[0], int(key[1]) if key[1].isdigit() else 0, key[1]),
    )


def _markers(
    channels: list[tuple[int, str]],
    known: Mapping[tuple[int, str], OmeChannel],
    codex: CodexExperiment,
) -> list[Channel]:
    """Return the markers, reference channels by their names or as ``experiment.json`` says."""
    of = [known.get(key, OmeChannel()) for key in channels]
    named = [
        printable((channel.name or "").strip(), _NAME_LENGTH) or f"cycle{cycle}_channel{token}"
        for (cycle, token), channel in zip(channels, of, strict=True)
    ]
    names = unique_names(named, [cycle for cycle, _ in channels])
    nuclear = [bool(_NUCLEAR.fullmatch(channel.name or "")) for channel in of]
    stained = Counter(cycle for (cycle, _), one in zip(channels, nuclear, strict=True) if one)
    only = Counter(cycle for cycle, _ in channels)
    given = None if codex.markers else codex.reference_channel
    markers = []
    for (cycle, token), name, channel, is_nuclear in zip(channels, names, of, nuclear, strict=True):
        reference = (is_nuclear and stained[cycle] == 1) or only[cycle] == 1
        if given:
            reference = token == str(given)
        if is_formula(name) or (codex.markers and not channel.name):
            name = ""
        optics = channel.emission_nm, channel.exposure_ms
        markers.append(Channel(cycle, token, name, reference, *optics))
    return markers


def _by_number(
    codex: CodexExperiment, channels: list[tuple[int, str]], notes: Notes
) -> dict[tuple[int, str], OmeChannel]:
    """Return what texts say of each channel by (cycle, channel).

    What does not fit the numbers of cycles and channels in exactly one way is ignored.
    """
    names, times, emission = codex.markers, codex.exposures_ms or {}, codex.wavelengths_nm
    numbers = [(cycle, int(channel)) for cycle, channel in channels]
    cycles, timed = {cycle for cycle, _ in numbers}, {cycle for cycle, _ in times}
    first = min(1, *cycles)
    if times and ((0 in cycles) != (0 in timed) or not (cycles <= timed or timed <= cycles)):
        expected, present = cycles_text(sorted(timed)), cycles_text(sorted(cycles))
        notes.warnings.append(
            f"exposure times are of {expected}, but the files of {present}; ignored"
        )
        times = {}
    # Numbers in the metadata take precedence over those of exposure times.
    most = max(cycle for cycle, _ in [*numbers, *(() if codex.cycles else times)]) - first + 1
    widest = max(channel for _, channel in [*numbers, *(() if codex.channels else times)])
    count, per_cycle = codex.cycles or most, codex.channels or widest
    if names and (len(names) != count * per_cycle or most > count or widest > per_cycle):
        notes.warnings.append(
            f"{len(names)} marker names for {count} cycles of {per_cycle} channels; ignored"
        )
        names = ()
    channel = max(channel for _, channel in numbers)
    stated = codex.cycles or codex.channels or names or times
    if stated and (count, per_cycle) != (len(cycles), channel):
        notes.warnings.append(
            f"{count} cycles of {per_cycle} channels in the metadata, but the files are of "
            f"{cycles_text(sorted(cycles))} and {channel} channels"
        )
    if emission and (len(emission) != per_cycle or widest > per_cycle):
        notes.warnings.append(f"{len(emission)} wavelengths for {per_cycle} channels; ignored")
        emission = ()
    peaks = list(emission) if codex.wavelengths_are_emission else emission_peaks_nm(emission)
    notes.warnings += [_EXCITATION] * (peaks != list(emission))
    return {
        key: OmeChannel(
            names[(cycle - first) * per_cycle + channel - 1] if names else None,
            peaks[channel - 1] or None if peaks else None,
            times.get((cycle, channel)),
        )
        for key, (cycle, channel) in zip(channels, numbers, strict=True)
    }


def read_codex(folder: Path, channels: int = 0) -> tuple[CodexExperiment, list[str]]:
    """Return what CODEX's texts say, and their paths: in the raw folder, ``data/raw``, or above.

    Parents only of folders called ``raw`` or ``data``: others hold other experiments. ``channels``
    of a cycle are as many where the texts do not say.
    """
    places = [folder, folder / "data/raw", folder / "raw", folder / "data"]
    while folder.name.lower() in ("raw", "data"):
        folder = folder.parent
        places.append(folder)
    files = [path for at in places if at.is_dir() for path in sorted(at.iterdir())]
    named = [[path for path in files if re.fullmatch(form, path.name, re.I)] for form in _TEXTS]
    paths = [str(of_form[0]) if of_form else "" for of_form in named]
    described, names, times = (read_text(Path(path), _MOST_MB) if path else "" for path in paths)
    codex = parse_experiment(described, paths[0]) if paths[0] else CodexExperiment()
    with raw_file_errors(paths[2]):
        exposures = parse_exposure_times(times, codex.channels or channels) or codex.exposures_ms
    codex = replace(
        codex,
        markers=parse_channel_names(names) or codex.markers,
        exposures_ms=exposures,
    )
    return codex, [*filter(None, paths)]
