"""What the viewer shows of a sample: channels with colour and contrast, and places to look at."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tilewright.config.layout import Layout
from tilewright.io.results.ome_zarr import Image, open_image
from tilewright.io.results.reading import checked_rows, read_json, reading
from tilewright.io.results.transform import read_transform
from tilewright.kernels.register.warp import Transform
from tilewright.report.figures import COLOURS, composite_channels, display_range, scaled
from tilewright.report.metric_table import METRICS, Verdict
from tilewright.report.verdict import RANK, REGISTERED, Found, places_of

#: Channels that are visible at the start.
SHOWN = 4
#: Places listed, and of them of each number that warns or fails; of one that passes it is the
#: worst of a cycle.
_LISTED, _PLACES = 40, 5
#: What is to be seen at a place where this number is worst, and the number there.
_TITLES = {
    "poor_blocks": "nuclei that do not match",
    "local_error_px": "largest registration error, {}",
    "ncc": "weakest match of nuclei, NCC {}",
    "missing_area": "missing tissue",
    "overlap_shift_px": "tiles displaced by {}",
    "unlike_overlaps": "tiles that show different places",
    "doubtful_tiles": "tile of doubtful position",
    "seam": "strongest step at a tile border, {} times chance",
    "lost_tissue": "tissue that this cycle has lost",
    "dark_rings": "darkest ring around a bright object, which lacks {} of its background",
}
_WHITE, _MAGENTA, _GREEN = "#ffffff", "#ff00ff", "#00ff00"
_MORE_COLOURS = ((0, 220, 230), (255, 140, 0), (170, 120, 255), (180, 230, 60))


#: Cycle, stage, channel and metric.
_Key = tuple[int, str, str, str]


class ViewError(ValueError):
    """The results cannot be shown; the message names what is missing and the fix."""


@dataclass(frozen=True)
class Channel:
    """A channel of the image, as shown at the start.

    Attributes
    ----------
    name : str
        The marker.
    colour : str
        ``#rrggbb``.
    low, high : float
        Counts that are shown black and in full colour.
    top : float
        Largest count that contrast can be set to.
    verdict, reasons : str
        Of ``trusted_markers.csv``; empty without it.
    """

    name: str
    cycle: int
    colour: str
    low: float
    high: float
    top: float
    visible: bool
    verdict: str
    reasons: str


@dataclass(frozen=True)
class ViewPlace:
    """A place in the image worth a look.

    Attributes
    ----------
    title : str
        What is to be seen, with cycle, marker and number.
    verdict : str
        Of the number that is worst here.
    y_px, x_px : float
        In the final image.
    colours : mapping of int to str
        The channels that show it, by their number from 0, with their colours.
    """

    title: str
    verdict: str
    y_px: float
    x_px: float
    colours: Mapping[int, str]


@dataclass(frozen=True)
class Scene:
    """All that the page shows of a sample.

    Attributes
    ----------
    zarr_format : int
        2 (OME-NGFF 0.4) or 3 (0.5).
    shape_px : tuple of int
        (y, x) of the image.
    pixel_um : tuple of float
        (y, x) of a pixel.
    channels : list of Channel
        In the order of the image.
    places : list of ViewPlace
        The worst first.
    judged : bool
        Whether quality checks have looked at the sample.
    """

    sample: str
    zarr_format: int
    shape_px: tuple[int, int]
    pixel_um: tuple[float, float]
    channels: list[Channel]
    places: list[ViewPlace]
    judged: bool


class _Row(NamedTuple):
    """A channel in the tables of a run; ``token`` is empty where no quality check looked."""

    name: str
    cycle: int
    token: str
    verdict: str
    reasons: str


def image_of(results: Path, sample: str) -> Path:
    """Return where the registered OME-Zarr of a sample lies."""
    return results / Layout(".").image_zarr.format(sample=sample)


def find_samples(results: Path) -> list[str]:
    """Return the samples of a results folder that have a registered OME-Zarr.

    Raises
    ------
    ViewError
        There is none, or the image leads out of the folder.
    """
    if not results.is_dir():
        raise ViewError(f"{results} is no folder; give the results folder of a run")
    folders = sorted(path.name for path in results.iterdir() if path.is_dir())
    samples = [name for name in folders if image_of(results, name).is_dir()]
    for name in samples:
        inside = image_of(results, name).resolve()
        if not inside.is_relative_to(results.resolve()):
            raise ViewError(
                f"{image_of(results, name)} leads out of the results folder, to {inside}; "
                "give the results folder that it lies in"
            )
    if samples:
        return samples
    tiffs = [results / Layout(".").image_tiff.format(sample=name) for name in folders]
    if found := [tiff for tiff in tiffs if tiff.is_file()]:
        raise ViewError(
            f"{found[0]} is there, but not the OME-Zarr that the viewer reads; run "
            "`snakemake registration` again, or open the TIFF in QuPath"
        )
    raise ViewError(f"{results} holds no registered image; run `snakemake registration` first")


def build_scene(results: Path, sample: str) -> Scene:
    """Return what is shown of a sample.

    The smallest level of each channel is read, one at a time, for its contrast: 1st to 99.7th
    percentile, as in the report. Visible are the first channel, which is taken as the nuclear
    stain, and the three markers that stand out most, without failed ones and without the first
    channel of the other cycles.

    Parameters
    ----------
    results : Path
        Results folder of a run.

    Raises
    ------
    ViewError
        The image or its table cannot be read.
    """
    try:
        image = open_image(image_of(results, sample))
        rows = _rows(results, sample, image.channel_names)
        verdicts, found = _quality(results, sample)
        channels = _channels(image, rows)
        shape = (int(image.levels[0].shape[1]), int(image.levels[0].shape[2]))
        places = list(_places(results, sample, verdicts, found, rows, shape))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ViewError(f"{sample} cannot be shown: {error}") from error
    zarr_format = int(image.levels[0].metadata.zarr_format)
    return Scene(sample, zarr_format, shape, image.pixel_um, channels, places, bool(verdicts))


def _table(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _rows(results: Path, sample: str, names: Sequence[str]) -> list[_Row]:
    """Return a row for each channel: as judged, else as the image's own table has it."""
    layout = Layout(".")
    table = results / layout.trusted_markers
    with reading(table, "table of channels"):
        judged = [
            _Row(row["marker"], int(row["cycle"]), row["channel"], row["verdict"], row["reasons"])
            for row in _table(table)
            if row["sample"] == sample and row["marker"] in names  # some are left out of the image
        ]
    if [row.name for row in judged] == list(names):
        return judged
    table = results / layout.image_markers.format(sample=sample)
    with reading(table, "table of channels"):
        rows = [_Row(r["marker_name"], int(r["cycle_number"]), "", "", "") for r in _table(table)]
    if [row.name for row in rows] != list(names):
        raise ViewError(
            f"{table} does not list the image's channels; run `snakemake registration` again"
        )
    return rows


def _quality(results: Path, sample: str) -> tuple[dict[_Key, Verdict], list[Found]]:
    """Return the verdicts of a sample, and the places that its stages listed."""
    path = results / Layout(".").qc_json
    if not path.is_file():
        return {}, []
    with reading(path, "summary of quality"):
        content = read_json(path)
        keys = ("cycle", "stage", "channel", "metric")
        items = checked_rows(content["items"], "items", ("sample", *keys, "verdict"))
        verdicts = {
            (i["cycle"], i["stage"], i["channel"], i["metric"]): i["verdict"]
            for i in items
            if i["sample"] == sample
        }
        numbers = checked_rows(content["numbers"], "numbers", ("sample", *keys[:2]))
        own = [n for n in numbers if n["sample"] == sample]
        return verdicts, [place for n in own for place in places_of(n["cycle"], n["stage"], n)]


def _nuclei(rows: Sequence[_Row]) -> dict[int, int]:
    """Return the first channel of each cycle: as a rule the nuclear stain."""
    first: dict[int, int] = {}
    for k, row in enumerate(rows):
        first.setdefault(row.cycle, k)
    return first


def _channels(image: Image, rows: Sequence[_Row]) -> list[Channel]:
    """Return the channels with contrast and colour; the report's picture has the same."""
    smallest = image.levels[-1]
    ranges, spreads = [], []
    for k in range(len(rows)):
        plane = np.asarray(smallest[k])
        ranges.append(display_range(plane))
        spreads.append(float(scaled(plane).std()))
    nuclei = set(_nuclei(rows).values())
    left_out = {k for k, row in enumerate(rows) if k in nuclei or row.verdict == "fail"}
    chosen = composite_channels(spreads, 0, left_out)
    first = sorted(chosen[1:], key=lambda k: (-round(spreads[k], 3), k))[: SHOWN - 1]
    kinds = image.levels[0].dtype
    top = float(np.iinfo(kinds).max) if kinds.kind in "ui" else float("inf")
    palette = [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in (*COLOURS, *_MORE_COLOURS)]
    colours = {k: palette[i] for i, k in enumerate(chosen)} | dict.fromkeys(nuclei, palette[0])
    others = [k for k in range(len(rows)) if k not in colours]
    spare = palette[len(chosen) :] or palette[1:]
    colours |= {k: spare[i % len(spare)] for i, k in enumerate(others)}
    return [
        Channel(
            row.name,
            row.cycle,
            colours[k],
            ranges[k][0],
            ranges[k][1],
            # Single cells may be several times brighter than nearly all of the section.
            min(4 * ranges[k][1], top),
            k == 0 or k in first,
            row.verdict,
            row.reasons,
        )
        for k, row in enumerate(rows)
    ]


def _places(
    results: Path,
    sample: str,
    verdicts: Mapping[_Key, Verdict],
    listed: Sequence[Found],
    rows: Sequence[_Row],
    shape: tuple[int, int],
) -> Iterator[ViewPlace]:
    """Yield what to look at: failed before doubtful before good, the worst of each kind first."""
    kinds: dict[tuple[Any, ...], list[Found]] = {}
    for found in listed:
        if found.place.metric not in _TITLES:
            continue  # of another version
        verdict = verdicts.get((*found[:3], found.place.metric), "pass")
        token = found.channel if verdict != "pass" else ""
        kinds.setdefault((verdict, found.cycle, found.place.metric, token), []).append(found)
    order = []
    for (verdict, cycle, metric, _), alike in kinds.items():
        sign = -1 if METRICS[metric].threshold.direction == "above" else 1
        alike.sort(key=lambda found: sign * (found.place.value or 0.0))
        kept = alike[: 1 if verdict == "pass" else _PLACES]
        kind = list(_TITLES).index(metric)
        order += [((-RANK[verdict], k, kind, cycle), verdict, at) for k, at in enumerate(kept)]
    transforms: dict[int, Transform | None] = {}
    nuclei = _nuclei(rows)
    for _, verdict, found in sorted(order, key=lambda entry: entry[0])[:_LISTED]:
        if found.cycle not in transforms:
            path = results / Layout(".").transform.format(sample=sample, cycle=found.cycle)
            # The reference cycle has none.
            transforms[found.cycle] = read_transform(path) if path.is_file() else None
        transform = transforms[found.cycle]
        y, x = found.place.y_px, found.place.x_px
        if transform is not None and found.stage not in REGISTERED:
            y, x = in_reference(transform, y, x)
        y, x = (float(np.clip(v, 0, n - 1)) for v, n in zip((y, x), shape, strict=True))
        yield ViewPlace(_title(found, rows), verdict, y, x, _shows(found, rows, nuclei))


def _title(found: Found, rows: Sequence[_Row]) -> str:
    names = [row.name for row in rows if (row.cycle, row.token) == (found.cycle, found.channel)]
    where = ", ".join([f"Cycle {found.cycle}", *names])
    place = found.place
    number = "" if place.value is None else METRICS[place.metric].format(place.value)
    return f"{where}: {_TITLES[place.metric].format(number)}"


def _shows(found: Found, rows: Sequence[_Row], nuclei: Mapping[int, int]) -> dict[int, str]:
    """Return the channels in which the place is seen best."""
    at = (found.cycle, found.channel)
    own = [k for k, row in enumerate(rows) if (row.cycle, row.token) == at]
    if found.channel and own:
        return {own[0]: _WHITE}
    if found.stage == "register" and found.cycle in nuclei:
        # As in the report: magenta and green make white where they agree.
        return {0: _MAGENTA, nuclei[found.cycle]: _GREEN}
    return {nuclei.get(found.cycle, 0): _WHITE}


def in_reference(transform: Transform, y_px: float, x_px: float) -> tuple[float, float]:
    """Return the place of the reference that a place of the moving cycle shows.

    Fixed-point iteration: the elastic part changes slowly, so that six steps leave less than
    0.01 px.
    """
    wanted = np.array([[y_px, x_px]])
    inverse = np.linalg.inv(transform.affine[:, :2]).T
    at = np.zeros_like(wanted)
    for _ in range(6):
        at = np.asarray(at + (wanted - transform.points(at)) @ inverse, np.float64)
    return float(at[0, 0]), float(at[0, 1])
