"""The linear map from stage to image, by a few dozen overlaps of a cycle's tiles."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tilewright.kernels.backend import Bools, Floats, Ints
from tilewright.kernels.noise import mad_sigma
from tilewright.kernels.tile_positions.displacements import SIGMAS_PX
from tilewright.kernels.tile_positions.overlap_strips import (
    NEAREST,
    SEARCHED,
    neighbours_along,
    plan_strips,
)
from tilewright.kernels.tile_positions.strip_correlation import Image, correlate_strips

#: Part of a side over which a displacement is searched about each expected one: a camera turned by
#: 5 degrees moves a neighbour by 0.09.
_REACH = 0.1
#: Overlaps that are tried where the nominal one does not match; with the search they cover all from
#: 0 to 0.55.
OVERLAPS = (0.05, 0.15, 0.3, 0.45)
#: Decimal logarithm of the probability of a false match, with its sign turned, that leaves no
#: doubt: the one overlap with tissue of 38 x 192 px has 1.7, what a blank tile matches up to 0.6.
_BEYOND_DOUBT = 2.0
#: NCC above that of the best rival peak, times certainty, from which a match counts.
CLEAR = 0.05
#: Pairs of neighbours compared along each stage axis: the most textured ones decide.
PAIRS = 16
#: Part of a side by which neighbours may lie across, where they are found nowhere else: rows that
#: run slantwise.
_SLANTS = (-0.4, -0.2, 0.2, 0.4)
#: Clearness (as :data:`CLEAR`) from which a match contradicts another direction,
#: and from which one or two count alone: the only overlap with tissue of 38 x 192 px has 0.39, two
#: tiles of different tissue up to 0.3.
_SURE, ALONE = 0.4, 0.35
#: Pairs, and share of matches among them, at the nominal overlap from which no other direction is
#: tried.
_MANY, _MOST = 4, 0.8
#: How many times the score in any other direction matches have in theirs: two tiles of different
#: tissue match somewhere with an NCC of up to 0.6, and no better than elsewhere.
RIVAL_FACTOR = 2.0
#: Part of the usual structure from which a tile has some.
TEXTURED = 0.5


@dataclass(frozen=True)
class StageMap:
    """How the image moves with the stage.

    Attributes
    ----------
    matrix : float64 (2, 2)
        Displacement (y, x) in the image for a nominal one.
    step_px : float64 (axes, 2)
        Nominal displacement of neighbours along each axis of the stage.
    matched, compared : int
        Overlaps that agree on it, and that were compared, of tiles with structure.
    contradicting : tuple[tuple[int, int], ...]
        Neighbours that clearly overlap in another direction than the map says.
    silent_axes : int
        Axes of the stage along which there are neighbours, and none match.
    error_px : float
        Standard error of the displacement along an axis, by the scatter of its matches; of fewer
        than three matches the part of a side by which stages miss their places.
    """

    matrix: Floats
    step_px: Floats
    matched: int
    compared: int
    contradicting: tuple[tuple[int, int], ...]
    silent_axes: int = 0
    error_px: float = 0.0

    @property
    def moved_px(self) -> Floats:
        """What ``step_px`` is in the image."""
        return np.asarray(self.step_px @ self.matrix.T)

    @property
    def sure(self) -> bool:
        """Whether it tells how both axes lie: one alone does not tell a mirror from a rotation.

        Of one axis alone the map must turn by less than 45 degrees.
        """
        upright = np.diag(self.matrix) > np.abs(np.diag(self.matrix[::-1]))
        return not self.silent_axes or bool(upright.all())

    @property
    def largest_error_px(self) -> float:
        """By how much neighbours are off their nominal displacement, per axis."""
        return float(np.abs(self.moved_px - self.step_px).max())


@dataclass(frozen=True)
class _Matches:
    """Displacements of pairs along one stage axis, in one direction of the image (axis, sign).

    ``elsewhere``: displacements of pairs that overlap more clearly in another direction, NaN of
    the others.
    """

    direction: tuple[int, int]
    pairs: Ints
    step: Floats
    displacement: Floats
    score: Floats
    agree: Bools
    elsewhere: Floats

    @property
    def strength(self) -> float:
        return float(self.score[self.agree].sum())

    def median(self) -> _Matches:
        """Return the median of those that agree as one match."""
        step, moved = (
            np.median(values[self.agree], axis=0)[None] for values in (self.step, self.displacement)
        )
        one = np.ones(1, np.bool_)
        return replace(self, step=step, displacement=moved, agree=one)

    def within(self, matrix: Floats, near_px: float) -> _Matches:
        """Return them with those that agree on a map; all that did where none would."""
        off = np.abs(self.displacement - self.step @ matrix.T).max(axis=1)
        agree = self.agree & (off <= near_px)
        return replace(self, agree=agree) if agree.any() else self


def edge_strength(tiles: Image) -> Floats:
    """Return the spread (n,) of differences of pixels two apart on the diagonal: of structure.

    >>> edge_strength(np.zeros((2, 8, 8), np.float32)).tolist()
    [0.0, 0.0]
    """
    difference = tiles[:, 2:, 2:] - tiles[:, :-2, :-2]
    return np.asarray(np.round(difference.std(axis=(1, 2)), 2), np.float64)


def measure_pairs(
    tiles: Image,
    pairs: Ints,
    direction: tuple[int, int],
    places: Iterable[tuple[float, float]] | None = None,
) -> tuple[Floats, Floats]:
    """Return the displacement (m, 2) and score (m,) of pairs as if b lay in a direction of a.

    Parameters
    ----------
    tiles : ndarray of float32, shape (n, y, x)
        One plane of each tile, reduced in size at will.
    pairs : ndarray of int64, shape (m, 2)
        Numbers of tiles a and b.
    direction : (int, int)
        Axis of the image, and sign.
    places : iterable of (float, float), optional
        Overlaps, each with how far across b lies, as fractions of a side; by default those of
        :data:`OVERLAPS`, and not across.
    """
    axis, sign = direction
    shape = (int(tiles.shape[1]), int(tiles.shape[2]))
    reach = _REACH * min(shape)
    best = np.zeros(len(pairs))
    displacement = np.zeros((len(pairs), 2))
    for overlap, slant in places or ((overlap, 0.0) for overlap in OVERLAPS):
        advance = np.full(2, slant * shape[1 - axis])
        advance[axis] = shape[axis] * (1.0 - overlap)
        for plan in plan_strips(np.stack([np.zeros(2), advance]), shape, reach):
            window_a, window_b = plan.windows
            for k, (a, b) in enumerate(pairs[:, ::sign].tolist()):
                found = correlate_strips(
                    tiles[a][window_a], tiles[b][window_b], plan.expected_px[0], reach, SIGMAS_PX[0]
                )
                doubt = -math.log10(found.false_match_probability)
                certainty = min(doubt / _BEYOND_DOUBT, 1.0)
                score = (found.score - found.second) * certainty
                if score > best[k]:
                    best[k] = score
                    displacement[k] = sign * plan.displacement(found.shift_px)
    return displacement, best


def fit_stage_map(tiles: Image, nominal_px: Floats) -> StageMap | None:
    """Return the map from nominal to measured displacements; None where overlaps show none.

    Neighbours along each axis of the stage are compared where they should overlap and, unless
    most of them do, in all four directions of the image with overlaps of up to 0.55: axes may be
    swapped or mirrored, the camera be turned by up to 5 degrees, and the scale be another.

    Parameters
    ----------
    tiles : ndarray of float32, shape (n, y, x)
        One plane of each tile, reduced in size at will.
    nominal_px : ndarray, shape (n, 2)
        Stage positions (y, x) in pixels of ``tiles``.

    Examples
    --------
    >>> from scipy import ndimage
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(224, 224)), 2)
    >>> corners = np.array([(0, 0), (0, 96), (96, 0), (96, 96)])
    >>> tiles = np.stack([scene[y : y + 128, x : x + 128] for y, x in corners])
    >>> abs(fit_stage_map(tiles, corners[:, ::-1] * 1.0).matrix).round(2).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    nominal = np.asarray(nominal_px, np.float64)
    strength = edge_strength(tiles)
    found: list[_Matches] = []
    compared = axes = 0
    for axis in (0, 1):
        pairs = neighbours_along(nominal, axis, NEAREST * min(tiles.shape[1:]))
        weakest = strength[pairs].min(axis=1) if len(pairs) else np.zeros(0)
        pairs = pairs[np.argsort(-weakest, kind="stable")[:PAIRS]]
        axes += bool(len(pairs))
        textured = (strength[pairs] >= TEXTURED * np.median(strength)).all(axis=1)
        matches = _best_direction(tiles, nominal, pairs, axis) if len(pairs) else None
        found += [matches] if matches else []
        compared += int((textured | (matches.agree if matches else False)).sum())
    if not found:
        return None
    near = SEARCHED * min(tiles.shape[1:])
    # Of steps that differ the map itself shows which do not agree.
    rough = _solve([m.median() for m in found])
    found = [m.within(rough, near) for m in found]
    matrix, steps = _solve(found), np.array([np.median(m.step, axis=0) for m in found])
    contradicting = [_contradicting(matches, steps @ matrix.T, near) for matches in found]
    matched = sum(int(matches.agree.sum()) for matches in found)
    contradicted = tuple(itertools.chain(*contradicting))
    error_px = max(_standard_error(one, near) for one in found)
    silent = axes - len(found)
    return StageMap(matrix, steps, matched, compared, contradicted, silent, error_px)


def _standard_error(matches: _Matches, few_px: float) -> float:
    """Return that of the median departure of matches from their places; ``few_px`` of few."""
    away = (matches.displacement - matches.step)[matches.agree]
    if len(away) < 3:
        return few_px
    spread = mad_sigma(away - np.median(away, axis=0), axis=0)
    return float(spread.max()) / math.sqrt(len(away))


def displaced_tiles(tiles: Image, nominal_px: Floats, found: StageMap) -> dict[int, Floats]:
    """Return tiles that lie elsewhere than others of the map, each with how far off (y, x) it is.

    At least two overlaps must show the same. They are searched for up to half a side away.

    Parameters
    ----------
    tiles, nominal_px
        As of :func:`fit_stage_map`.
    found : StageMap
        The map of these tiles.

    Examples
    --------
    >>> from scipy import ndimage
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(320, 320)), 2)
    >>> corners = np.array([(y, x) for y in (0, 96, 192) for x in (0, 96, 192)])
    >>> tiles = np.stack([scene[y : y + 128, x : x + 128] for y, x in corners])
    >>> nominal = corners + 20.0 * (np.arange(9) == 4)[:, None]
    >>> found = fit_stage_map(tiles, nominal)
    >>> off = displaced_tiles(tiles, nominal, found)
    >>> {tile: off_px.round().tolist() for tile, off_px in off.items()}
    {4: [-20.0, -20.0]}
    """
    shape = np.array(tiles.shape[1:])
    near = SEARCHED * float(shape.min())
    offsets: dict[int, list[Floats]] = defaultdict(list)
    for nominal_step, moved in zip(found.step_px, found.moved_px, strict=True):
        pairs = neighbours_along(
            nominal_px, int(np.argmax(np.abs(nominal_step))), NEAREST * float(shape.min())
        )
        axis = int(np.argmax(np.abs(moved) / shape))
        direction = axis, int(np.sign(moved[axis]))
        expected = (nominal_px[pairs[:, 1]] - nominal_px[pairs[:, 0]]) @ found.matrix.T
        slant = direction[1] * moved[1 - axis] / shape[1 - axis]
        here = [(1.0 - abs(moved[axis]) / shape[axis], slant)]
        matches = _matches(tiles, pairs, expected, direction, here)
        off = np.abs(matches.displacement - expected).max(axis=1)
        rest = np.flatnonzero((matches.score <= CLEAR) | (off > near))[: 2 * PAIRS]
        if not len(rest):
            continue
        places = [(overlap, slant) for overlap in OVERLAPS for slant in (0.0, *_SLANTS)]
        matches = _matches(tiles, pairs[rest], expected[rest], direction, places)
        away = matches.displacement - expected[rest]
        for k in np.flatnonzero((matches.score > CLEAR) & (np.abs(away).max(axis=1) > near)):
            a, b = pairs[rest[k]].tolist()
            offsets[a].append(-away[k])
            offsets[b].append(away[k])
    return _agreed(offsets, near)


def _agreed(offsets: dict[int, list[Floats]], near_px: float) -> dict[int, Floats]:
    """Return the offsets of tiles on which two overlaps agree."""
    found = {}
    for tile, of_tile in offsets.items():
        all_of = np.array(of_tile)
        alike = np.abs(all_of[:, None] - all_of[None, :]).max(axis=2) <= near_px
        most = alike[int(np.argmax(alike.sum(axis=1)))]
        if most.sum() >= 2:
            found[tile] = np.asarray(np.median(all_of[most], axis=0))
    return found


def _best_direction(tiles: Image, nominal: Floats, pairs: Ints, axis: int) -> _Matches | None:
    """Return the matches in the direction in which most agree; None where too few do."""
    shape = (int(tiles.shape[1]), int(tiles.shape[2]))
    step = nominal[pairs[:, 1]] - nominal[pairs[:, 0]]
    overlap = 1.0 - float(np.median(np.abs(step[:, axis]))) / shape[axis]
    tried: list[_Matches] = []
    if 0.0 < overlap < 0.9:
        tried.append(_matches(tiles, pairs, step, (axis, 1), [(overlap, 0.0)]))
        if len(pairs) >= _MANY and tried[0].agree.mean() >= _MOST:
            return tried[0]
    # Where more is searched, a few matches alone are no evidence.
    for slants in ((0.0,), _SLANTS) if len(pairs) > _MANY else ((0.0,),):
        places = [(overlap, slant) for overlap in OVERLAPS for slant in slants]
        for direction in ((axis, 1), (axis, -1), (1 - axis, 1), (1 - axis, -1)):
            tried.append(_matches(tiles, pairs, step, direction, places))
        best = _clear_best(tried, len(pairs))
        if best and (len(slants) == 1 or int(best.agree.sum()) > _MANY):
            return best
    return None


def _clear_best(tried: list[_Matches], count: int) -> _Matches | None:
    """Return the matches of the direction in which most agree, if that is clear."""
    best = max(tried, key=lambda matches: round(matches.strength, 3))
    scores = np.array([matches.score for matches in tried])
    clearest, at = scores.max(axis=0), scores.argmax(axis=0)
    elsewhere = np.array([tried[k].displacement[pair] for pair, k in enumerate(at)])
    elsewhere[(clearest <= _SURE) | (clearest <= 2 * best.score)] = np.nan
    if not _enough(best, count) or not _beats_chance(best, tried):
        return None
    return replace(best, elsewhere=elsewhere)


def _contradicting(matches: _Matches, moved_px: Floats, near_px: float) -> list[tuple[int, int]]:
    """Return pairs that lie elsewhere, by a step of the grid: chance matches lie anywhere."""
    steps = np.concatenate([moved_px, -moved_px])
    away = np.abs(matches.elsewhere[:, None, :] - steps[None, :, :]).max(axis=2).min(axis=1)
    return [(int(a), int(b)) for a, b in matches.pairs[(away <= near_px) & ~matches.agree]]


def _beats_chance(best: _Matches, tried: Iterable[_Matches]) -> bool:
    """Return whether matches are clearly better than the same pairs in other directions."""
    others = [matches.score for matches in tried if matches.direction != best.direction]
    rival = np.max(others, axis=0)[best.agree].sum()
    return best.strength >= RIVAL_FACTOR * float(rival)


def _enough(matches: _Matches, count: int) -> bool:
    """Return whether a third of the pairs agree: three, or fewer that match beyond doubt."""
    agreeing = matches.score[matches.agree]
    return len(agreeing) >= max(1, count / 3) and (len(agreeing) >= 3 or agreeing.min() > ALONE)


def _matches(
    tiles: Image,
    pairs: Ints,
    step: Floats,
    direction: tuple[int, int],
    places: Iterable[tuple[float, float]],
) -> _Matches:
    """Measure pairs in one direction, and find those that agree."""
    displacement, score = measure_pairs(tiles, pairs, direction, places)
    agree = _agreement(step, displacement, score, min(int(n) for n in tiles.shape[1:]))
    none = np.full((len(pairs), 2), np.nan)
    return _Matches(direction, pairs, step, displacement, score, agree, none)


def _agreement(step: Floats, displacement: Floats, score: Floats, side: int) -> Bools:
    """Return the largest set of clear matches that one map explains."""
    length = np.hypot(*step.T)
    ratio = displacement / length[:, None]
    distance = np.abs(ratio[:, None, :] - ratio[None, :, :]).max(axis=2) * length[:, None]
    clear = score > CLEAR
    alike = (distance <= SEARCHED * side) & clear[None, :] & clear[:, None]
    most = int(np.argmax(np.round(alike @ score, 4)))
    return np.asarray(alike[most])


def _solve(found: list[_Matches]) -> Floats:
    """Return the matrix of least squares; of one axis alone without shear or another scale."""
    step = np.concatenate([matches.step[matches.agree] for matches in found])
    moved = np.concatenate([matches.displacement[matches.agree] for matches in found])
    if len(found) == 1:
        turned = [(v @ np.array([[0.0, 1.0], [-1.0, 0.0]])) for v in (step, moved)]
        step, moved = np.concatenate([step, turned[0]]), np.concatenate([moved, turned[1]])
    solution, *_ = np.linalg.lstsq(step, moved, rcond=None)
    return np.asarray(solution.T, np.float64)
