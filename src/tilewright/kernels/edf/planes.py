"""Which planes of a raw z-stack are damaged: blank, saturated, copied, foreign, too bright."""

from typing import Any, NamedTuple

import numpy as np
from scipy import ndimage

from tilewright.kernels.backend import Array, Backend, Bools, Floats, cells
from tilewright.kernels.edf.plane_order import PlanePairs, displaced_planes, exchanged_planes

#: Side of the blocks whose means stand for a plane: 8 px average noise down to an eighth.
BLOCK_PX = 8
#: A plane with less than this share of the stack's median contrast is blank.
BLANK_CONTRAST = 0.05
#: A plane saturates where this share of its pixels does and the stack's median has a quarter.
SATURATED_SHARE = 0.2
#: A widefield stack has the same light in every plane: this factor is a lamp or exposure fault.
#: Lamps waver by some percent; bleaching changes a plane against its neighbours by less.
LEVEL_FACTOR = 1.2
#: Of clipped debris the planes near its focus lack light, and are no dimmer for it: blocks so near
#: to saturated pixels do not count, unless so few others are left.
_CLIPPED_BLOCKS, _LEAST_CLEAR = 8, 0.25
#: A plane whose best NCC with a neighbour is under this share of the median is another field.
FOREIGN_NCC = 0.4


class PlaneSample(NamedTuple):
    """Statistics of the planes of one chunk, z first in each array but ``clear``."""

    coarse: Floats
    saturated: Floats
    finite: Bools
    varied: Bools
    copied: Bools
    clear: Bools


class DamagedPlane(NamedTuple):
    """A damaged plane, and why in words."""

    z: int
    reason: str


def sample_planes(backend: Backend, stack: Any, ceiling_counts: float) -> PlaneSample:
    """Return statistics of the planes of one chunk (z, y, x); chunks are evaluated together.

    ``coarse`` (z, n) are means of blocks of 8 px, 0 in planes with pixels that are not finite;
    ``clear`` (n,) says which lie far from saturated pixels.
    ``ceiling_counts`` is the greatest count of the pixel type (``inf`` for floats).

    >>> plane = np.random.default_rng(0).normal(100, 5, (64, 64))
    >>> sample_planes(cpu, np.stack([plane, plane]), 65535.0).copied
    array([False,  True])
    """
    xp = backend.xp
    side = min(BLOCK_PX, *stack.shape[1:])
    coarse, saturated, finite, varied, copied = [], [], [], [], []
    before = None
    clipped: Array = False
    for z in range(stack.shape[0]):
        plane = backend.asarray(stack[z])
        good = bool(xp.isfinite(plane).all())
        blocks = cells(plane, side).mean(axis=(1, 3), dtype=np.float64)
        means = backend.to_numpy(blocks).ravel()
        coarse.append(means if good else np.zeros_like(means))
        full = plane >= ceiling_counts
        clipped = clipped | cells(full, side).any(axis=(1, 3))
        saturated.append(float(full.mean(dtype=np.float64)))
        finite.append(good)
        varied.append(good and bool(plane.max() > plane.min()))
        copied.append(varied[-1] and before is not None and bool((plane == before).all()))
        before = plane
    near = ndimage.binary_dilation(backend.to_numpy(clipped), iterations=_CLIPPED_BLOCKS)
    lists = (coarse, saturated, finite, varied, copied, ~near.ravel())
    return PlaneSample(*(np.array(values) for values in lists))


def damaged_planes(
    samples: list[PlaneSample], pedestal_counts: float, pairs: PlanePairs | None = None
) -> list[DamagedPlane]:
    """Return the damaged planes of a mosaic, from samples of its chunks.

    Each rule compares a plane with the rest of its own stack, so that an empty channel or a
    wholly saturated one loses nothing here: that is for the quality report. The order
    of rules is fixed: not finite, blank, saturated, copied, other brightness, with ``pairs`` out
    of order, then foreign, and with ``pairs`` displaced.

    >>> rng = np.random.default_rng(0)
    >>> tissue = np.kron(rng.uniform(150, 250, (8, 8)), np.ones((8, 8)))
    >>> stack = tissue + rng.normal(0, 3, (5, 64, 64))
    >>> stack[2] = 200
    >>> [plane.z for plane in damaged_planes([sample_planes(cpu, stack, 65535.0)], 100.0)]
    [2]
    """
    coarse = np.concatenate([s.coarse for s in samples], axis=1)
    damaged: dict[int, str] = {}
    for rule in (_broken, _saturated, _copied):
        for z, reason in rule(samples, coarse).items():
            damaged.setdefault(z, reason)
    clear = np.concatenate([s.clear for s in samples])
    if clear.mean() >= _LEAST_CLEAR:
        coarse = coarse[:, clear]
    damaged |= _other_level(coarse.mean(axis=1) - pedestal_counts, set(damaged))
    foreign = _foreign(coarse, set(damaged))
    if pairs is None:
        damaged |= foreign
    else:
        # Of two distant planes that changed places one alone may seem foreign; next to a foreign
        # plane others seem to have changed places.
        exchanged = exchanged_planes(pairs, set(damaged))
        if not set(foreign) <= set(exchanged):
            damaged |= foreign
            exchanged = exchanged_planes(pairs, set(damaged))
        damaged |= exchanged
        damaged |= displaced_planes(pairs, set(damaged))
    return [DamagedPlane(z, damaged[z]) for z in sorted(damaged)]


def _broken(samples: list[PlaneSample], coarse: Floats) -> dict[int, str]:
    """Return planes that are not finite, or without contrast where the stack has some."""
    finite = np.all([s.finite for s in samples], axis=0)
    damaged = {int(z): "has pixels that are not finite" for z in np.flatnonzero(~finite)}
    contrast = coarse.std(axis=1)
    usual = float(np.median(contrast[finite])) if finite.any() else 0.0
    for z in np.flatnonzero(finite & (contrast < BLANK_CONTRAST * usual)):
        damaged[int(z)] = f"blank: {contrast[z] / usual:.1%} of the stack's median contrast"
    return damaged


def _saturated(samples: list[PlaneSample], coarse: Floats) -> dict[int, str]:
    sizes = [s.coarse.shape[1] for s in samples]
    share = np.average([s.saturated for s in samples], axis=0, weights=sizes)
    bad = (share > SATURATED_SHARE) & (np.median(share) < SATURATED_SHARE / 4)
    return {int(z): f"saturated: {share[z]:.0%} of its pixels" for z in np.flatnonzero(bad)}


def _copied(samples: list[PlaneSample], coarse: Floats) -> dict[int, str]:
    """Return planes equal to the one before in every chunk that holds anything."""
    varied = np.array([s.varied for s in samples])
    copied = np.array([s.copied for s in samples])
    bad = varied.any(axis=0) & (copied | ~varied).all(axis=0)
    return {int(z): f"a copy of plane {z}" for z in np.flatnonzero(bad)}


def _other_level(level: Floats, damaged: set[int]) -> dict[int, str]:
    """Return planes brighter or dimmer than the median of the four nearest planes."""
    good = [z for z in range(level.size) if z not in damaged]
    bad = {}
    for z in good:
        nearest = sorted((n for n in good if n != z), key=lambda n, z=z: (abs(n - z), n))  # type: ignore[misc]
        levels = [level[n] for n in nearest[:4]]
        usual = float(np.median(levels)) if len(levels) > 1 else 0.0
        # Below 5 counts of light a ratio is noise.
        if usual > 5 and not 1 / LEVEL_FACTOR <= level[z] / usual <= LEVEL_FACTOR:
            bad[z] = f"{level[z] / usual:.2f} times as bright as its neighbours"
    return bad


def _foreign(coarse: Floats, damaged: set[int]) -> dict[int, str]:
    """Return planes unlike the two on either side; after the least alike all are compared again."""
    bad: dict[int, str] = {}
    centred = coarse - coarse.mean(axis=1, keepdims=True)
    norm = np.maximum(np.sqrt((centred**2).sum(axis=1)), 1e-12)
    while True:
        good = [z for z in range(len(coarse)) if z not in damaged and z not in bad]
        if len(good) < 4:
            return bad
        unit = centred[good] / norm[good][:, None]
        best = np.full(len(good), -1.0)
        # Also the second neighbour: an end plane next to a bad one must not go with it.
        for step in (1, 2):
            alike = (unit[:-step] * unit[step:]).sum(axis=1)
            best[:-step] = np.maximum(best[:-step], alike)
            best[step:] = np.maximum(best[step:], alike)
        usual, worst = float(np.median(best)), int(np.argmin(np.round(best, 6)))
        if usual < 0.5 or best[worst] >= FOREIGN_NCC * usual:
            return bad
        bad[good[worst]] = f"unlike the planes around it: NCC {best[worst]:.2f}, usual {usual:.2f}"
