"""Neighbouring tiles compared where they overlap, at the positions at which they are fused."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.io.results.illumination import Illumination
from tilewright.kernels.backend import Floats
from tilewright.kernels.stitch.overlap_agreement import Image, StripAgreement, compare_strips
from tilewright.kernels.tile_positions.overlap_strips import MIN_OVERLAP_PX, StripPlan
from tilewright.kernels.tile_positions.strip_correlation import Shift, shared
from tilewright.stages.calibrate.channel_reading import ChannelReading
from tilewright.stages.illumination.binned_tiles import TileMeasures

#: Texture stands out of the noise from here on: an overlap can say whether both tiles agree.
_TEXTURED = 0.5
_TEXTURE_SHARE = 0.1
#: Shares of the expected correlation: two tiles show different places below, the same above.
_UNLIKE, _ALIKE = 0.4, 0.6
#: Share of an overlap that may be padding of either tile: filled in, it agrees without a shift.
_MOST_PADDING = 0.25
#: Values below which their median is none: the brightness of cells in an overlap, the magnification
#: of the overlaps of a channel.
LEAST_VALUES = 4
#: Share of the channel's bright cells from which a cell has light enough for a ratio.
_CELL_LIGHT = 0.2
#: Floor of the fainter brightness as a share of the brighter one, so that a dark tile has a finite
#: ratio, 20 at most.
DARKEST = 0.05


@dataclass(frozen=True)
class Overlap:
    """One overlap of two tiles, by their numbers.

    ``textured`` says whether there is structure enough to tell. ``corner_px`` is the displacement
    at a tile's corner by a magnification that explains how far both are off.
    """

    tiles: tuple[int, int]
    agreement: StripAgreement
    textured: bool
    corner_px: float

    @property
    def alike(self) -> bool:
        """Whether both tiles clearly show the same."""
        return self.textured and self.agreement.ncc >= _ALIKE * self.agreement.expected

    @property
    def unlike(self) -> bool:
        """Whether both tiles clearly show different places."""
        return self.textured and self.agreement.ncc < _UNLIKE * self.agreement.expected


def compare_tiles(
    reading: ChannelReading, plans: Sequence[StripPlan], place_px: Floats
) -> list[Overlap]:
    """Compare the textures of tiles where they overlap at their places.

    Noise that neighbouring pixels share passes for texture; so the channel's stronger overlaps say
    what texture is.

    Parameters
    ----------
    reading : ChannelReading
        Strips and padding of one channel.
    plans : sequence of StripPlan
        The overlaps of its strips.
    place_px : ndarray of float64, shape (n, 2)
        Position (y, x) of each tile.

    Returns
    -------
    list of Overlap
        In the order of the plans, without overlaps that are narrow or mostly padding.
    """
    found: list[tuple[tuple[int, int], StripAgreement, float]] = []
    for plan, first, second in zip(plans, reading.firsts, reading.seconds, strict=True):
        for i, (a, b) in enumerate(plan.pairs.tolist()):
            step = place_px[b] - place_px[a]
            shift = step - np.subtract(plan.origin_a, plan.origin_b)
            y, x = np.rint(shift).astype(int).tolist()
            strips = _common(reading, plan, (a, b), (first[i], second[i]), (y, x))
            if strips is None:
                continue
            agreement = compare_strips(*strips)
            # Pixel p of the first strip lies at p - (shift - (y, x)) of the second.
            error = np.asarray(agreement.shift_px) + shift - (y, x)
            # Magnified about its middle, each tile shows a place of the overlap elsewhere.
            magnification = float(error @ step / max(step @ step, 1.0))
            corner_px = magnification * math.hypot(*reading.binned.shape_px) / 2
            found.append(((a, b), agreement, corner_px))
    powers = [agreement.power for _, agreement, _ in found]
    floor = _TEXTURE_SHARE * float(np.percentile(powers, 75)) if powers else 0.0
    return [
        Overlap(pair, one, one.expected >= _TEXTURED and one.power >= floor, corner_px)
        for pair, one, corner_px in found
    ]


def _common(
    reading: ChannelReading,
    plan: StripPlan,
    pair: tuple[int, int],
    strips: tuple[Image, Image],
    shift: Shift,
) -> tuple[Image, Image] | None:
    """Return what both strips of two tiles show; None where it is narrow, or much is padding."""
    parts = shared(*strips, shift)
    if min(parts[0].shape) < MIN_OVERLAP_PX:
        return None
    padded = [~reading.binned.inside[tile] for tile in pair]
    if not (padded[0].any() or padded[1].any()):
        return parts
    masks = []
    for tile, window in zip(padded, plan.windows, strict=True):
        # Binning cuts off a rest at the far edges.
        pixels = tile.repeat(reading.binned.factor, 0).repeat(reading.binned.factor, 1)
        rest = [(0, n - m) for n, m in zip(reading.binned.shape_px, pixels.shape, strict=True)]
        masks.append(np.pad(pixels, rest, mode="edge")[window])
    holes = shared(masks[0], masks[1], shift)
    if (holes[0] | holes[1]).mean() > _MOST_PADDING:
        return None
    # Padding of one strip is filled from the other.
    return np.where(holes[0], parts[1], parts[0]), np.where(holes[1], parts[0], parts[1])


def tile_brightness(
    measures: TileMeasures, illumination: Illumination, unlike: Sequence[tuple[int, int]]
) -> dict[int, float]:
    """Return the log of each tile's brightness over its neighbours', the median of overlaps.

    Overlaps in which tiles show different places (``unlike``) do not count. A cell must have a
    fifth of the light of the channel's bright cells: on bare glass the ratio would measure the
    error of the camera offset.
    """
    excluded = {tuple(sorted(pair)) for pair in unlike}
    same = np.array([tuple(pair) not in excluded for pair in measures.pairs.tolist()], np.bool_)
    cells = measures.every_cell
    cells = cells.take(same[cells.edge])
    dark, flat = cells.sampled(illumination.dark), cells.sampled(illumination.flat)
    sides = (cells.first - dark[0]) / flat[0], (cells.second - dark[1]) / flat[1]
    dim, bright = np.sort(sides, axis=0)
    mean = (dim + bright) / 2
    clear = (bright > 0) & (mean >= _CELL_LIGHT * np.percentile(mean, 98)) if len(cells) else []
    size = np.log(bright[clear] / np.maximum(dim, DARKEST * bright)[clear])
    ratio, edge = np.where(sides[0] < sides[1], -1.0, 1.0)[clear] * size, cells.edge[clear]
    ratios: dict[int, list[float]] = {}
    for number in np.unique(edge).tolist():
        own = ratio[edge == number]
        if len(own) >= LEAST_VALUES:
            middle = float(np.median(own))
            for tile, sign in zip(measures.pairs[number].tolist(), (1, -1), strict=True):
                ratios.setdefault(tile, []).append(sign * middle)
    return {tile: round(float(np.median(values)), 5) for tile, values in ratios.items()}
