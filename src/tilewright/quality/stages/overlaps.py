"""Neighbouring tiles compared where they overlap, at the positions at which they were fused."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.illumination import Illumination
from tilewright.io.results.positions import Positions
from tilewright.kernels.backend import Region
from tilewright.kernels.camera import CameraDefects
from tilewright.kernels.padding import fill, padding
from tilewright.kernels.stitch.overlap_agreement import (
    DARKEST,
    LEAST_PX,
    StripAgreement,
    compare_strips,
    matching_planes,
    texture,
)
from tilewright.quality.results import QcContext, QcResult
from tilewright.quality.sampling import CPU
from tilewright.stages.tile_planes import camera_defects
from tilewright.stages.tile_source import TileSource

#: Texture stands out of the noise from here on: an overlap can say whether both tiles agree.
_TEXTURED = 0.5
_TEXTURE_SHARE = 0.1
#: Shares of the expected correlation: two tiles show different places below, the same above.
_UNLIKE, _ALIKE = 0.4, 0.6
#: Share of an overlap that may be padding of either tile: filled in, it agrees without a shift.
_MOST_PADDING = 0.25
#: Overlaps below which their median is no magnification.
_LEAST_OVERLAPS = 4
#: Cells in an overlap below which their median is no brightness.
_LEAST_CELLS = 4
#: Share of the channel's bright cells from which a cell has light enough for a ratio.
_CELL_LIGHT = 0.2
#: A tile of less than this share of its neighbours' light has none: shutter, lamp.
_NO_LIGHT = 2 * DARKEST
#: Share of the expected correlation that all overlaps of stacks of one height exceed: 0.98 in 48,
#: while two planes apart it is 0.95 and less.
_SAME_HEIGHT = 0.95
_WHOLE = (slice(None), slice(None))
Key = str


@dataclass(frozen=True)
class Overlap:
    """One overlap of two tiles, compared in one plane.

    ``textured`` says whether there is structure enough to tell.
    """

    first: Key
    second: Key
    agreement: StripAgreement
    textured: bool = True
    corner_px: float = 0.0
    """Displacement at a tile's corner by a magnification that explains how far both are off."""

    @property
    def alike(self) -> bool:
        """Whether both tiles clearly show the same."""
        return self.textured and self.agreement.ncc >= _ALIKE * self.agreement.expected

    @property
    def unlike(self) -> bool:
        """Whether both tiles clearly show something else."""
        return self.textured and self.agreement.ncc < _UNLIKE * self.agreement.expected

    def __str__(self) -> str:
        """Name both tiles."""
        return f"between {tile_name(self.first)} and {tile_name(self.second)}"


def tile_name(key: Key) -> str:
    """Return the name of a tile in messages."""
    return f"tile {key}"


@dataclass(frozen=True)
class RawAgreement:
    """Agreement of the raw tiles of one channel in one plane."""

    overlaps: list[Overlap]
    """Of neighbouring tiles."""
    defects: CameraDefects | None
    """Of the camera; None where there are too few tiles to tell."""
    tile_px: int
    """Pixels of a tile."""

    @property
    def defect_share(self) -> float:
        """The share of the camera's pixels that are defective."""
        return len(self.defects or ()) / self.tile_px

    @property
    def dark_tiles(self) -> set[Key]:
        """The tiles without light where their neighbours have some."""
        brightness = tile_brightness(bright_cells(self.overlaps))
        return {key for key, value in brightness.items() if value < np.log(_NO_LIGHT)}


def compare_tiles(
    tiles: TileSource,
    positions: Positions,
    illumination: Illumination,
    plane: int,
) -> RawAgreement:
    """Compare the raw tiles of a channel with their neighbours; memory holds a row's overlaps.

    They are corrected and placed as they were fused. ``plane`` counts from 0.
    """
    corners = positions.places()
    order = {key: k for k, key in enumerate(tiles.name.tolist())}
    beside: dict[Key, list[Key]] = defaultdict(list)
    for first, second, _ in positions.neighbours((tiles.shape[1], tiles.shape[2])):
        beside[first].append(second)
        beside[second].append(first)
    with ThreadPoolExecutor(CPU.workers) as pool:
        defects = camera_defects(tiles, pool)
    fused = _FusedTiles(tiles, order, corners, defects, illumination)
    strips: dict[tuple[Key, Key], NDArray[np.float32]] = {}
    overlaps: list[Overlap] = []
    for key in order:
        if key not in corners:
            continue
        light = fused.light(key, plane)
        shape = (light.shape[0], light.shape[1])
        for other in beside[key]:
            if (other, key) in strips:
                both = strips.pop((other, key)), light[_shared(key, other, corners, shape)]
                overlap = _compare((other, key), corners, shape, both)
                overlaps += [fused.at_one_height(overlap)] if overlap is not None else []
            elif other in order:
                strips[key, other] = light[_shared(key, other, corners, shape)].copy()
    return RawAgreement(with_texture(overlaps), defects, tiles.shape[1] * tiles.shape[2])


@dataclass(frozen=True)
class _FusedTiles:
    """Raw tiles of one channel as they were fused, in counts of light."""

    tiles: TileSource
    order: Mapping[Key, int]
    corners: Mapping[Key, tuple[float, float]]
    defects: CameraDefects | None
    illumination: Illumination

    def light(self, key: Key, plane: int, part: Region = _WHOLE) -> NDArray[np.float32]:
        """Return a part (y, x) of a plane of a tile, NaN in its padding."""
        raw = self.tiles.read(self.order[key], plane)
        # Camera defects are repaired from their neighbours, which must not be padding.
        hole = padding(raw)
        pixels = fill(raw, hole)
        pixels = pixels if self.defects is None else self.defects.repair(pixels)
        flat, dark = self.illumination.flat[part], self.illumination.dark[part]
        light = np.asarray((pixels[part].astype(np.float32) - dark) / flat)
        return light if hole is None else np.where(hole[part], np.float32(np.nan), light)

    def at_one_height(self, overlap: Overlap) -> Overlap:
        """Return the overlap compared in planes of the same height, where one plane disagrees.

        Stacks may start at other heights. Each plane of both tiles is read.
        """
        found = overlap.agreement
        depth, *shape = self.tiles.shape
        if depth < 2 or found.expected < _TEXTURED or found.ncc >= _SAME_HEIGHT * found.expected:
            return overlap
        pair = overlap.first, overlap.second
        parts = [
            _shared(key, other, self.corners, (shape[0], shape[1]))
            for key, other in (pair, pair[::-1])
        ]
        stacks = [
            [texture(np.nan_to_num(self.light(key, z, part)))[0] for z in range(depth)]
            for key, part in zip(pair, parts, strict=True)
        ]
        first, second = matching_planes(*stacks)
        if first == second:
            return overlap
        strips = self.light(pair[0], first, parts[0]), self.light(pair[1], second, parts[1])
        other = _compare(pair, self.corners, (shape[0], shape[1]), strips) or overlap
        return max(overlap, other, key=lambda o: o.agreement.ncc)


def with_texture(overlaps: list[Overlap]) -> list[Overlap]:
    """Return the overlaps, each with whether its structure stands out from noise and background.

    Noise that neighbouring pixels share passes for texture; so the channel's stronger overlaps say
    what texture is.
    """
    powers = [overlap.agreement.power for overlap in overlaps]
    floor = _TEXTURE_SHARE * float(np.percentile(powers, 75)) if powers else 0.0

    def textured(agreement: StripAgreement) -> bool:
        return agreement.expected >= _TEXTURED and agreement.power >= floor

    return [dataclasses.replace(o, textured=textured(o.agreement)) for o in overlaps]


def _shared(
    key: Key, other: Key, corners: Mapping[Key, tuple[float, float]], shape: tuple[int, int]
) -> tuple[slice, slice]:
    """Return the part (y, x) of a tile that another one shows too."""
    moves = np.rint(np.subtract(corners[other], corners[key])).astype(int).tolist()
    y, x = (slice(max(m, 0), max(min(n, n + m), 0)) for n, m in zip(shape, moves, strict=True))
    return y, x


def _compare(
    pair: tuple[Key, Key],
    corners: Mapping[Key, tuple[float, float]],
    shape: tuple[int, int],
    strips: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> Overlap | None:
    step = np.subtract(corners[pair[1]], corners[pair[0]])
    whole = np.rint(step)
    padded = np.isnan(strips[0] + strips[1]).mean()
    if min(strips[0].shape) < LEAST_PX or padded > _MOST_PADDING:
        return None
    # Pixel p of the first strip lies at p - apart of the second.
    apart = step - whole
    # Padding of one strip is filled from the other.
    first, second = (np.where(np.isnan(a), b, a) for a, b in (strips, strips[::-1]))
    result = compare_strips(
        np.nan_to_num(first), np.nan_to_num(second), (float(apart[0]), float(apart[1]))
    )
    error = np.asarray(result.shift_px) + apart
    # Magnified about its middle, each tile shows a place of the overlap elsewhere.
    magnification = float(error @ step / max(step @ step, 1.0))
    corner_px = magnification * math.hypot(*shape) / 2
    return Overlap(*pair, result, corner_px=corner_px)


def bright_cells(overlaps: list[Overlap]) -> list[tuple[Overlap, NDArray[np.float64]]]:
    """Return the log-ratios of cells with light, of overlaps that do not show different places.

    A cell must have a fifth of the light of the channel's bright cells: on glass, a small error of
    the camera's offset would do for a ratio.
    """
    known = [overlap for overlap in overlaps if not overlap.unlike]
    light = [overlap.agreement.light for overlap in known if overlap.agreement.light.size]
    floor = _CELL_LIGHT * float(np.percentile(np.concatenate(light), 98)) if light else 0.0
    return [(o, o.agreement.log_ratio[o.agreement.light >= floor]) for o in known]


def tile_brightness(cells: list[tuple[Overlap, NDArray[np.float64]]]) -> dict[Key, float]:
    """Return the log of each tile's brightness over its neighbours', the median of overlaps."""
    ratios: dict[Key, list[float]] = {}
    for overlap, values in cells:
        if len(values) >= _LEAST_CELLS:
            ratio = float(np.median(values))
            ratios.setdefault(overlap.first, []).append(ratio)
            ratios.setdefault(overlap.second, []).append(-ratio)
    return {key: float(np.median(values)) for key, values in ratios.items()}


def evaluate_overlaps(context: QcContext, raw: RawAgreement, *, repaired: bool) -> list[QcResult]:
    """Evaluate the tiles of one channel; ``repaired`` says whether defective pixels were."""
    textured = [o for o in raw.overlaps if o.textured]
    unlike = [o for o in textured if o.unlike]
    share = len(unlike) / len(textured) if textured else None
    names = ", ".join(str(o) for o in unlike[:3]) + (" and more" if len(unlike) > 3 else "")
    no_texture = "no overlap has structure that stands out from the noise"
    return [
        context.evaluate("unlike_overlaps", share, names if textured else no_texture),
        *_evaluate_magnification(context, [o for o in textured if o.alike]),
        _evaluate_brightness(context, raw),
        _evaluate_defects(context, raw, repaired=repaired),
    ]


def _evaluate_defects(context: QcContext, raw: RawAgreement, *, repaired: bool) -> QcResult:
    """Evaluate the share of the camera's pixels that are defective and were not repaired."""
    if raw.defects is None:
        return context.evaluate("hot_pixels", None, "too few tiles to tell, and none is repaired")
    many = f"{len(raw.defects)} pixels{', all repaired' if repaired else ''}"
    return context.evaluate("hot_pixels", 0.0 if repaired else raw.defect_share, many)


def _evaluate_magnification(context: QcContext, alike: list[Overlap]) -> list[QcResult]:
    """Evaluate the magnification of the channel against the one that placed the tiles.

    Nothing of fewer than four overlaps. Two standard errors of the median are taken off.
    """
    if len(alike) < _LEAST_OVERLAPS:
        return []
    corner_px = np.array([overlap.corner_px for overlap in alike])
    middle = float(np.median(corner_px))
    error_px = 1.25 * 1.4826 * float(np.median(np.abs(corner_px - middle))) / len(alike) ** 0.5
    return [context.evaluate("channel_shift_px", max(abs(middle) - 2 * error_px, 0.0))]


def _evaluate_brightness(context: QcContext, raw: RawAgreement) -> QcResult:
    """Evaluate the brightness of each tile."""
    dark, brightness = raw.dark_tiles, tile_brightness(bright_cells(raw.overlaps))
    worst = max(brightness, key=lambda k: (round(abs(brightness[k]), 4), k), default=None)
    factor, bright = None, "no overlap has light in both tiles"
    if worst:
        factor = float(np.expm1(abs(brightness[worst])))
        times = f"{np.exp(brightness[worst]):.2f} times as bright as its neighbours"
        bright = f"{tile_name(worst)} is {times}"
    if dark:
        names = ", ".join(tile_name(key) for key in sorted(dark)[:6]) + ", ..." * (len(dark) > 6)
        bright = f"no light in {names} where the neighbours have some"
    return context.evaluate("tile_brightness", factor, bright)
