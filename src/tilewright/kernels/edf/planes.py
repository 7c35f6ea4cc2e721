"""Which planes of a raw z-stack are damaged, and whether its tissue reaches beyond its ends.

Light that goes out of focus changes little by little through a stack, so a plane lies close to what
the planes next to it interpolate. One that was lost, displaced, exchanged with another or exposed
otherwise lies farther from it than these planes from one another.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Bools, Floats, cells

#: Side of the blocks whose means stand for a plane, which averages noise down to an eighth, and of
#: the squares of the chessboard in them by which :func:`_products` removes noise.
BLOCK_PX, _SQUARE_PX = 8, 2
#: Less than this share of the stack's light counts as nothing: a plane with less is black, planes
#: that differ by less have the same light and are in place, and a stack with less over its noise
#: shows no light to compare. Good planes of 22 sets with steps of 1.5 µm differ from what their
#: neighbours interpolate by up to 0.1, planes displaced by 3 px by 0.13 and more, and where a lamp
#: is 10 % dimmer by 0.1: of that none shall go.
_LEAST_SHARE = 0.1
#: A plane is out of place that differs from what its neighbours interpolate by more than that, and
#: than this share of the neighbours' difference from one another: good ones up to 0.43, exchanged
#: ones from 0.48.
_LEAST_DETOUR = 0.48
#: An end plane has one neighbour: it must differ so many times as much from it as that one from the
#: next. Good ones: up to 1.8.
_END_FACTOR = 3.0
#: Planes on either side of flat tissue's focus are alike, and interpolate nothing of those between:
#: a plane is in place that holds this share of what varies in its neighbours, or they of it. Of 48
#: stacks of flat tissue (cells of 2 to 12 µm, 20x/0.75 and 40x/0.95) the plane in focus was left
#: out of 25 without this rule, and of none with 0.95 to 1; with 0.95 a displaced plane is missed.
_HELD = 0.99
#: What is so many times as bright as all but 2 % of a sample is debris. It reaches so many blocks,
#: which count only if fewer than this share would be left. Clipped debris changes fast from plane
#: to plane: five good planes around a single piece would seem misplaced.
_DEBRIS_TIMES, _DEBRIS_PERCENTILE, _DEBRIS_BLOCKS, _LEAST_CLEAR = 10.0, 98.0, 3, 0.25
#: Side of the blocks in which the sharpest plane is looked for, and by how much its detail must
#: exceed that of the least sharp one, which noise alone does by 1.3 among nine planes.
_FOCUS_BLOCK_PX, _SHARPER = 32, 1.5


class PlaneSample(NamedTuple):
    """What one place of a stack of n planes tells of them.

    Attributes
    ----------
    products : float64 (n, n)
        Mean products of the light of two planes in blocks, free of noise.
    light : float64 (n,)
        Mean light of a plane in the same blocks.
    power : float64 (n,)
        Mean square of the light of a plane's pixels, noise included.
    finite : bool (n,)
        Planes all of whose pixels are finite.
    varied : bool (n,)
        Planes that hold more than one value.
    copied : bool (n,)
        Planes equal to the one before.
    sharpest : int64 (n,)
        Number of blocks of 32 px that are clearly sharpest in each plane.
    """

    products: Floats
    light: Floats
    power: Floats
    finite: Bools
    varied: Bools
    copied: Bools
    sharpest: NDArray[np.int64]


class DamagedPlane(NamedTuple):
    """A damaged plane, and why in words."""

    z: int
    reason: str


def sample_planes(stack: NDArray[Any], pedestal_counts: float) -> PlaneSample:
    """Return what one place tells of the planes of a raw stack (z, y, x).

    >>> plane = np.random.default_rng(0).normal(150, 5, (64, 64))
    >>> sample_planes(np.stack([plane, plane]), 100.0).copied
    array([False,  True])
    """
    missing = [(0, 0), *((0, max(_FOCUS_BLOCK_PX - n, 0)) for n in stack.shape[1:])]
    light = np.pad(stack, missing, mode="symmetric").astype(np.float32)
    light -= np.float32(pedestal_counts)
    finite = np.asarray(np.isfinite(light).all(axis=(1, 2)))
    light[~finite] = 0
    varied: Bools = light.max(axis=(1, 2)) > light.min(axis=(1, 2))
    copied = np.zeros_like(varied)
    copied[1:] = (light[1:] == light[:-1]).all(axis=(1, 2))
    blocks = cells(light, BLOCK_PX)
    clear = _far_from_debris(light, blocks.max(axis=(2, 4)))
    power = np.square(blocks).mean(axis=(2, 4), dtype=np.float64)[:, clear].mean(axis=1)
    squares = cells(light, _SQUARE_PX).mean(axis=(-3, -1), dtype=np.float64)
    parts = cells(squares, BLOCK_PX // _SQUARE_PX)
    products, mean = _products(parts, clear), parts.mean(axis=(2, 4))[:, clear].mean(axis=1)
    return PlaneSample(products, mean, power, finite, varied, copied, _sharpest(squares))


def _far_from_debris(light: NDArray[np.float32], brightest: NDArray[np.float32]) -> Bools:
    """Return which blocks (rows, columns) lie far from debris, by brightest pixels (z, …)."""
    # Debris shows in several planes, glare in one.
    several = np.partition(brightest, -2, axis=0)[-2] if len(brightest) > 1 else brightest[0]
    usual = np.percentile(light[:, ::3, ::3], _DEBRIS_PERCENTILE, axis=(1, 2))
    # Of the darker quarter of the planes: a saturated one shows no tissue.
    bright = several > _DEBRIS_TIMES * np.percentile(usual, 25)
    clear: Bools = ~ndimage.binary_dilation(bright, iterations=_DEBRIS_BLOCKS)
    return clear if clear.mean() >= _LEAST_CLEAR else np.ones_like(clear)


def _products(blocks: Floats, clear: Bools) -> Floats:
    """Return the products of planes (n, n) in ``clear`` ones of (n, rows, side, columns, side)."""
    # The squares of one colour of a chessboard have other noise than those of the other colour.
    colour = np.where(np.indices(blocks.shape[2::2]).sum(axis=0) % 2, -1.0, 1.0)[:, None]
    mean, difference = (np.mean(blocks * sign, axis=(2, 4))[:, clear] for sign in (1.0, colour))
    count = max(mean.shape[1], 1)
    return np.asarray((mean @ mean.T - difference @ difference.T) / count)


def _sharpest(squares: Floats) -> NDArray[np.int64]:
    """Return the number of blocks that are clearly sharpest in each plane, by squares (n, y, x)."""
    blocks = cells(squares, _FOCUS_BLOCK_PX // _SQUARE_PX)
    parts = cells(squares - squares.mean(), BLOCK_PX // _SQUARE_PX)
    detail = parts.var(axis=(2, 4))
    side = _FOCUS_BLOCK_PX // BLOCK_PX
    detail = cells(detail, side).mean(axis=(2, 4)).reshape(len(blocks), -1)
    clear = detail.max(axis=0) > _SHARPER * detail.min(axis=0)
    return np.bincount(detail.argmax(axis=0)[clear], minlength=len(blocks))


def focus_ends(samples: Sequence[PlaneSample]) -> tuple[float, float]:
    """Return the share of what is in focus anywhere that is sharpest in the first and last plane.

    >>> plane = np.random.default_rng(0).uniform(150, 250, (64, 64))
    >>> focus_ends([sample_planes(np.stack([plane, plane / 2, plane / 2]), 100.0)])
    (1.0, 0.0)
    """
    counts = np.sum([sample.sharpest for sample in samples], axis=0)
    total = max(int(np.sum(counts)), 1)
    return round(int(counts[0]) / total, 3), round(int(counts[-1]) / total, 3)


def damaged_planes(samples: Sequence[PlaneSample]) -> list[DamagedPlane]:
    """Return the damaged planes of a mosaic, from samples of its places.

    A plane is compared with the rest of its own stack, so that an empty channel or a wholly
    saturated one loses none: that is for the quality report.

    >>> rng = np.random.default_rng(0)
    >>> tissue = np.kron(rng.uniform(150, 250, (8, 8)), np.ones((8, 8)))
    >>> stack = tissue + rng.normal(0, 3, (5, 64, 64))
    >>> stack[2] = 100
    >>> [plane.z for plane in damaged_planes([sample_planes(stack, 100.0)])]
    [2]
    """
    finite = np.all([s.finite for s in samples], axis=0)
    copied = np.all([s.copied for s in samples], axis=0)
    varied = np.any([s.varied for s in samples], axis=0)
    samples = [_scaled(sample) for sample in samples]
    products = np.sum([s.products for s in samples], axis=0)
    power = np.sum([s.power for s in samples], axis=0)
    light = np.sqrt(np.maximum(np.diag(products), 0))
    shown = finite & (varied | ~varied.any())
    rms = float(np.sqrt(np.median(power[shown]))) if shown.any() else 0.0
    usual = float(np.median(light[shown])) if shown.any() else 0.0
    # In noise alone no plane is called black.
    darkest = _LEAST_SHARE * usual if usual > _LEAST_SHARE * rms else 0.0
    damaged: dict[int, str] = {}
    for z in range(len(power)):
        if not finite[z]:
            damaged[z] = "has pixels that are not finite"
        elif not shown[z]:
            damaged[z] = "blank: holds a single value"
        elif light[z] < darkest:
            damaged[z] = f"black: {100 * light[z] / usual:.1f} % of the stack's usual light"
        elif copied[z] and varied[z]:
            damaged[z] = f"a copy of plane {z}"  # the one before; users count from 1
    good = [z for z in range(len(power)) if z not in damaged]
    rms = float(np.sqrt(np.median(power[good]))) if good else 0.0
    in_place = _in_place(samples, good)
    while found := _misplaced(products, in_place, good, rms):
        # Beside a misplaced plane others seem so too: the one without which the rest agree best.
        rest = {z: [n for n in good if n != z] for z in found}
        excess = {z: _misplaced(products, in_place, rest[z], rms).values() for z in found}
        left = {z: max(excess[z], default=0.0) for z in found}
        z = min(found, key=lambda n: (round(left[n], 6), -round(found[n], 6)))
        damaged[z] = f"{found[z]:.1f} times as far from the planes next to it as good ones may be"
        good = rest[z]
    return [DamagedPlane(z, damaged[z]) for z in sorted(damaged)]


def _scaled(sample: PlaneSample) -> PlaneSample:
    """Return a sample that counts by its contrast with noise, not by its brightness."""
    scale = max(float(sample.power.mean()), 1e-9)
    return sample._replace(
        products=sample.products / scale,
        light=sample.light / scale**0.5,
        power=sample.power / scale,
    )


def _in_place(samples: Sequence[PlaneSample], good: list[int]) -> Bools:
    """Return which planes (n, n) show the same tissue in other focus, as bool.

    They have the same light, and one holds what varies in the other. No pair counts as in place
    where the detail of good planes does not rise to one of them and fall after it: planes are
    exchanged then.
    """
    varies = np.sum([s.products - np.outer(s.light, s.light) for s in samples], axis=0)
    light = np.sum([s.light for s in samples], axis=0)
    detail = np.diag(varies)
    top = max(range(len(good)), key=lambda k: detail[good[k]], default=0)
    ordered = (np.diff(detail[good[: top + 1]]) >= 0).all() and (
        np.diff(detail[good[top:]]) <= 0
    ).all()
    same = np.abs(light[:, None] - light) < _LEAST_SHARE * np.maximum(light[:, None], light)
    return np.asarray(ordered & same & (varies >= _HELD * np.minimum(detail[:, None], detail)))


def _misplaced(products: Floats, in_place: Bools, good: list[int], rms: float) -> dict[int, float]:
    """Return which of the good planes depart from their neighbours, by how many times the limit.

    ``rms`` is the usual root mean square of the light. Light changes the more, the farther planes
    lie apart: limits grow with the steps that damaged planes between them leave.
    """
    if len(good) < 3:
        return {}
    found = {}
    for i, z in enumerate(good):
        if in_place[z, [*good[max(i - 1, 0) : i], *good[i + 1 : i + 2]]].all():
            continue
        if 0 < i < len(good) - 1:
            a, b = good[i - 1], good[i + 1]
            near, steps = (b - z) / (b - a), float((z - a) * (b - z))
            limit = _LEAST_DETOUR * _distance(products, {a: 1, b: -1})
            off = _distance(products, {z: 1, a: -near, b: near - 1})
        else:
            # Half of the difference, as an inner plane differs from the mean of two.
            a, b = good[1:3] if i == 0 else good[-2:-4:-1]
            steps = abs((z - a) / (a - b))
            limit = steps * _END_FACTOR / 2 * _distance(products, {a: 1, b: -1})
            off = _distance(products, {z: 1, a: -1}) / 2
        excess = off / max(limit, steps * _LEAST_SHARE * rms, 1e-12)
        if excess > 1:
            found[z] = excess
    return found


def _distance(products: Floats, shares: dict[int, float]) -> float:
    """Return the root mean square of a sum of planes, each times its share."""
    at, share = list(shares), np.array(list(shares.values()))
    return float(np.sqrt(max(share @ products[np.ix_(at, at)] @ share, 0.0)))
