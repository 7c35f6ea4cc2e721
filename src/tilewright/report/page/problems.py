"""Problems of a run, worst first: one for each reason and sample, with what it looks like."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.ome_zarr import open_image
from tilewright.quality.evaluate import QcRecord
from tilewright.quality.figures import CROP_PX, display_range, overlay, thumbnail, window
from tilewright.quality.results import (
    RANK,
    REGISTERED,
    ImageLocation,
    LocatedIssue,
    QcResult,
    Verdict,
    located_issues,
)
from tilewright.quality.sampling import textured_blocks
from tilewright.report.pictures import Picture, embed, scaled

#: Stages whose numbers are not of tissue.
_NO_CROP = ("illumination",)


@dataclass(frozen=True)
class Pixels:
    """Where the pixels of a sample are.

    Attributes
    ----------
    planes : Mapping[tuple[int, str], Path]
        (cycle, channel) → in-focus plane, in the frame of the cycle's mosaic.
    image : Path | None
        The final image.
    rows : Sequence[tuple[int, str]]
        Cycle and channel of each channel of the final image.
    reference : int
        Reference cycle.
    nuclear : Mapping[int, str]
        The nuclear channel of each cycle.
    """

    planes: Mapping[tuple[int, str], Path]
    image: Path | None
    rows: Sequence[tuple[int, str]]
    reference: int
    nuclear: Mapping[int, str]


@dataclass(frozen=True)
class Crop:
    """A picture of a problem at one image pixel a pixel, and what it shows."""

    picture: Picture
    caption: str


@dataclass(frozen=True)
class Problem:
    """All items of one sample with one reason, the worst first.

    ``crop`` is ``None`` where a picture of tissue would say nothing.
    """

    sample: str
    reason: str
    items: list[QcResult] = field(repr=False)
    crop: Crop | None = field(repr=False)

    @property
    def verdict(self) -> Verdict:
        """That of the worst item."""
        return self.items[0].verdict

    @property
    def anchor(self) -> str:
        """The id of its place on the page."""
        return anchor("problem", self.sample, self.reason, self.items[0].stage)

    @property
    def names(self) -> dict[int, list[str]]:
        """The markers that its items name, by cycle; none where they are of whole cycles."""
        names: dict[int, list[str]] = {}
        for item in sorted(self.items, key=lambda i: (i.cycle, i.channel)):
            own = names.setdefault(item.cycle, [])
            if item.name and item.name not in own:
                own.append(item.name)
        return names


def anchor(*parts: Any) -> str:
    """Return an id that parts of the page link to."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(str(p) for p in parts).lower())


def problems(records: Sequence[QcRecord], pixels: Pixels) -> list[Problem]:
    """Return the problems of one sample: failed before doubtful, many items before few."""
    groups: dict[str, list[QcResult]] = {}
    for item in itertools.chain.from_iterable(record.items for record in records):
        if item.verdict != "pass":
            groups.setdefault(item.reason, []).append(item)
    issues = [issue for r in records for issue in located_issues(r.cycle, r.stage, r.numbers)]
    listed = []
    for reason, items in groups.items():
        items.sort(key=lambda i: (-RANK[i.verdict], -_excess(i), i.cycle, i.channel, i.metric))
        listed.append(Problem(items[0].sample, reason, items, _crop(items, issues, pixels)))
    listed.sort(key=lambda p: (-RANK[p.verdict], p.reason == "unknown", -len(p.items), p.reason))
    return listed


def _excess(item: QcResult) -> float:
    """Return how far a number lies beyond its limit, comparable among metrics."""
    limit = item.fail if item.verdict == "fail" else item.warn
    if item.value is None or limit is None:
        return 0.0
    beyond = item.value - limit if item.direction == "above" else limit - item.value
    return round(beyond / max(abs(limit), 1e-9), 6)


def _crop(items: Sequence[QcResult], issues: Sequence[LocatedIssue], pixels: Pixels) -> Crop | None:
    """Return the crop of the worst location of the items, or a typical one of the worst item."""
    for item in items:
        locations = [
            issue.location
            for issue in issues
            if (issue.cycle, issue.stage, issue.location.metric)
            == (item.cycle, item.stage, item.metric)
            and issue.channel in ("", item.channel)
        ]
        sign = -1 if item.direction == "above" else 1
        locations.sort(key=lambda location: sign * (location.value or 0.0))
        crop = _crop_at(item, locations[0], pixels) if locations else None
        if crop is not None:
            return crop
    typical = [item for item in items if item.stage not in _NO_CROP]
    return _crop_at(typical[0], None, pixels) if typical else None


def _crop_at(item: QcResult, location: ImageLocation | None, pixels: Pixels) -> Crop | None:
    """Return the crop of an item around a location, or where its channel has most texture."""
    channel = item.channel or pixels.nuclear[item.cycle]
    where = f"cycle {item.cycle}, {item.marker or f'channel {channel}'}"
    if item.stage in REGISTERED and location is not None and pixels.image is not None:
        return _registered(item, location, pixels, where)
    path = pixels.planes.get((item.cycle, channel))
    if path is None or not path.exists():
        return None
    plane = open_mosaic(path)
    if location is None:
        small, factor = thumbnail(plane, 0)
        y, x = textured_blocks(small, factor, plane.shape[1:], CROP_PX, 1)[0]
        centre = (y + CROP_PX / 2, x + CROP_PX / 2)
    else:
        centre = (location.y_px, location.x_px)
    region = window(plane.shape[1:], centre)
    light = scaled(plane.read(0, *region))
    note = "in-focus plane" if location else "in-focus plane, where it has most texture"
    return Crop(embed(light), f"{where}, {note}{_size(region, plane.voxel_um[2])}")


def _registered(item: QcResult, location: ImageLocation, pixels: Pixels, where: str) -> Crop | None:
    """Return a crop of the final image; for the registration, nuclei on those of the reference."""
    image = open_image(Path(str(pixels.image)))
    region = window(image.levels[0].shape[1:], (location.y_px, location.x_px))
    size = _size(region, image.pixel_um[1])
    rows = list(pixels.rows)
    row = (item.cycle, item.channel or pixels.nuclear[item.cycle])
    if row not in rows:
        return None
    light = np.asarray(image.levels[0][(rows.index(row), *region)])
    fixed_row = (pixels.reference, pixels.nuclear[pixels.reference])
    if item.stage == "register" and fixed_row in rows:
        fixed = np.asarray(image.levels[0][(rows.index(fixed_row), *region)])
        both = overlay(fixed, light, (display_range(fixed), display_range(light)))
        return Crop(
            embed(both),
            f"nuclei of cycle {item.cycle} (green) on the reference (magenta), white where they "
            f"agree{size}",
        )
    return Crop(embed(scaled(light)), f"{where}, final image{size}")


def _size(region: tuple[slice, slice], pixel_um: float) -> str:
    rows, columns = region
    width = (columns.stop - columns.start) * pixel_um
    centre = f"y {(rows.start + rows.stop) // 2}, x {(columns.start + columns.stop) // 2}"
    return f"; {width:.0f} µm wide around {centre} px"
