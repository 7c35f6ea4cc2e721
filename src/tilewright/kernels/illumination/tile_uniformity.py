"""Evidence of the flat-field from tiles of a specimen that has no preferred place in them.

Their mean is even but for chance, and so is the typical difference of two places: one is as
often brighter as the other (Weiss, "Deriving intrinsic images from image sequences", ICCV 2001).
Robust differences leave out the edges of tissue, which rule the mean: of 36 tiles of which tissue
fills two thirds the mean strays by 2 to 4 % in each degree, differences by 0.3 to 0.5 %. They owe
it to dim places, where an uneven dark-field looks like a flat-field. So they are taken as evidence
three times, as if the dark-field were even, a little and very uneven, weighted by what overlaps and
the mean predict. The scatter among tiles is the size of chance. All on the host.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from tilewright.kernels.backend import Floats, Ints
from tilewright.kernels.illumination.flat_basis import degrees, design_grid, flat_field
from tilewright.kernels.illumination.overlap_photometry import InformationForm

#: Places compared are this part of the tile's side distance: nearer ones differ by grain, and half
#: the wavelength of the highest degree may not be exceeded.
_APART = 20
_SIGNAL_BINS = 16
#: Pairs from which scatters are estimated, at least.
_SAMPLE = 20_000
#: Variances are raised by this: neighbouring tiles and degrees err together. True errors of 12
#: designs were 1.0 to 1.7 times the scatter among tiles.
_CAUTION = 2.0
#: How uneven the dark-field may be, over the light of dim places (a quantile of all), and by what
#: factor that falls with its degree. Of empty brain tiles it is a third.
_DARK_SIZES = (0.0, 0.05, 0.5)
_DARK_FALL = 0.7
_DIM = 0.1
#: Largest change of the offset in one step, over the light of dim places: the flat-field
#: that belongs to it changes in proportion.
_OFFSET_STEP = 0.5
#: Share of even tiles of which one degree strays beyond chance.
_FALSE_ALARM = 1e-3
#: Degrees beyond those fitted that are examined.
_BEYOND = 6
#: Places that err together, and by how many errors structure finer than that must stand out.
_TOGETHER = 32
_SIGNIFICANT = 3.0


@dataclass(frozen=True)
class TileEvidence:
    """Evidence of tiles if the dark-field is as uneven as assumed."""

    information: InformationForm
    """Flat-field and offset, as if one did not depend on the other."""
    log_evidence: float
    """Logarithm of the evidence, less what regression on ``information`` adds and less a constant.
    """
    by_offset: Floats
    """float64 (k,): change of ``information.vector`` if the offset were one count higher."""


def tile_evidence(images: Floats, mean: Floats, order: int) -> list[TileEvidence]:
    """Return the evidence of tiles, the dark-field even, a little and very uneven.

    Parameters
    ----------
    images : ndarray of float64, shape (n, y, x)
        Counts of each tile in blocks, planes averaged, none saturated; NaN is not compared.
    mean : ndarray of float64, shape (k + 1,)
        Log flat-field about which differences are linearised, then the counts without light.
    order : int
        Largest total degree.

    Returns
    -------
    list of TileEvidence
        Three; one without information of fewer than two tiles, or tiles without light.
    """
    columns = len(mean) - 1
    average = _from_mean(images, mean, order)
    compared = None if average is None else _compare(images, mean)
    if average is None or compared is None:
        none = InformationForm(np.zeros((columns + 1, columns + 1)), np.zeros(columns + 1))
        return [TileEvidence(none, 0.0, np.zeros(columns))]
    pairs = compared.regress(design_grid(compared.shape, order), degrees(order).sum(axis=1))
    degree = degrees(order).sum(axis=1)
    # As a share of the flat-field: where pairs are weighted, dim light is this part of the light.
    dark = compared.dim * compared.per_count * _DARK_FALL ** (degree - 1.0)
    # What the mean adds to differences; it is that of bright places.
    by_pairs = np.diag(_uneven_dark(pairs.information, _DARK_SIZES[-1] * dark))
    added = np.sqrt(np.maximum(1.0 - by_pairs / np.diag(average.information), 0.0))
    rest = added[:, None] * average.information * added
    step = _OFFSET_STEP * compared.dim
    pairs = replace(pairs, offset_counts=float(np.clip(pairs.offset_counts, -step, step)))
    return [
        _evidence(mean, average, pairs, rest, size * dark, (size * compared.dim) ** 2)
        for size in _DARK_SIZES
    ]


def residual_structure(images: Floats, mean: Floats, order: int) -> float:
    """Return the relative rms of structure that a flat-field cannot hold; 0 if it is chance.

    In the six degrees beyond ``order``, or finer: what differences of places show alike in odd
    and in even tiles. Arguments as those of :func:`tile_evidence`.
    """
    compared = _compare(images, mean)
    if compared is None:
        return 0.0
    degree = degrees(order + _BEYOND).sum(axis=1)
    fine = degree > order
    design = design_grid(compared.shape, order + _BEYOND)[:, fine]
    pairs, degree = compared.regress(design, degree[fine]), degree[fine] - order - 1
    members = np.bincount(degree)
    chance = special.fdtri(members, members * (len(images) - 1), 1 - _FALSE_ALARM)
    chance *= np.bincount(degree, 1.0 / np.diag(pairs.information))
    power = np.bincount(degree, pairs.uneven**2)
    excess = float(np.maximum(power - chance, 0.0).sum())
    return float(np.sqrt(max(excess, compared.shared_power())))


@dataclass(frozen=True)
class _NonUniformity:
    """Departure of tiles from even: coefficients, their information, what an offset would do."""

    uneven: Floats
    information: Floats
    by_offset: Floats
    offset_counts: float = 0.0
    offset_variance: float = np.inf


def _evidence(
    mean: Floats,
    average: _NonUniformity,
    pairs: _NonUniformity,
    rest: Floats,  # (k, k)
    dark: Floats,
    dark_offset: float,
) -> TileEvidence:
    """Join differences of places, their variance raised by an uneven dark-field, with the mean."""
    precision = _uneven_dark(pairs.information, dark)
    coefficients = mean[:-1] + pairs.uneven
    sure = 1.0 / (pairs.offset_variance + dark_offset + 0.01)
    offset = mean[-1] + pairs.offset_counts
    matrix = np.diag(np.append(np.zeros(len(dark)), sure))
    matrix[:-1, :-1] = precision + rest
    vector = precision @ coefficients + rest @ (mean[:-1] + average.uneven)
    log = float(np.linalg.slogdet(precision)[1] - coefficients @ precision @ coefficients)
    log += float(np.log(max(sure, 1e-12)) - sure * offset**2)
    return TileEvidence(
        InformationForm(matrix, np.append(vector, sure * offset)),
        0.5 * log,
        precision @ pairs.by_offset + rest @ average.by_offset,
    )


def _from_mean(images: Floats, mean: Floats, order: int) -> _NonUniformity | None:
    """Compare the mean of all tiles, each as bright as the others, with an even one."""
    n = len(images)
    if n < 2:
        return None
    # Tiles of pure noise may lead anywhere, but not to a division by zero.
    shape = (images.shape[1], images.shape[2])
    flat = np.maximum(flat_field(mean[:-1], shape).astype(np.float64), 1e-6).ravel()
    seen = np.isfinite(images).reshape(n, -1).astype(np.float64)
    even = np.where(seen > 0, (images - float(mean[-1])).reshape(n, -1) / flat, 0.0)
    count = seen.sum(axis=1)
    level = even.sum(axis=1) / count
    typical = float(even.sum() / count.sum())
    if typical <= 0:
        return None
    # A tile ten times as bright as the mean counts twice as much as one of the mean, not ten
    # times; one that is nearly empty, whose shape depends on the offset, hardly at all.
    weight = 1.0 / (np.maximum(level, 0.0) + typical)
    light = weight * np.maximum(level, 0.0)
    design = design_grid(shape, order)
    centre = seen @ design / count[:, None]
    matrix = design.T @ ((light @ seen)[:, None] * design)
    matrix -= (centre.T * (light * count)) @ centre
    push = weight[:, None] * (even @ design - (count * level)[:, None] * centre)
    inverse = np.linalg.inv(matrix + 1e-9 * np.trace(matrix) / len(matrix) * np.eye(len(matrix)))
    uneven = inverse @ push.sum(axis=0)
    follow = (seen * (design @ uneven)) @ design - (count * (centre @ uneven))[:, None] * centre
    information = _information(matrix, push - light[:, None] * follow, degrees(order).sum(axis=1))
    by_offset = (weight @ seen / flat) @ design - (weight * (seen @ (1.0 / flat))) @ centre
    return _NonUniformity(uneven, information, inverse @ by_offset)


@dataclass(frozen=True)
class _PixelPairs:
    """Pairs of places in each tile under a flat-field and offset, arrays (n, pairs)."""

    # ``weight`` is one over the squared scatter, less where a pair is an outlier; ``response`` by
    # how much a robust mean follows a change of the flat-field, ``offset_slope`` (pairs,) the
    # change of ``value`` if the true offset were one count higher. ``by_region``: tissue and
    # background are images of their own; chosen by light, they tell the offset 45 counts wrong.
    shape: tuple[int, int]
    distance: int
    signal: Floats
    value: Floats
    weight: Floats
    offset_slope: Floats
    response: float
    by_region: bool

    @property
    def dim(self) -> float:
        """Light of dim places, counts."""
        some = self.signal[:, ::7][self.weight[:, ::7] > 0]
        return max(float(np.quantile(some, _DIM)), 0.0) if some.size else 0.0

    @property
    def per_count(self) -> float:
        """Relative change of the flat-field found, for each count that all places share."""
        weighted = self.weight * self.signal
        return float(weighted.sum() / (weighted * self.signal).sum())

    def regress(self, grid: Floats, degree: Ints) -> _NonUniformity:
        """Regress on columns (blocks, k) of these total degrees, and on the offset."""
        one, other = _pairs(grid.T.reshape(-1, *self.shape), self.distance)
        design, weighted = (one - other).T, self.weight * self.signal
        power = (weighted * self.signal).sum(axis=0)
        matrix = design.T @ (power[:, None] * design)
        matrix += 1e-9 * np.trace(matrix) / len(matrix) * np.eye(len(matrix))
        inverse = np.linalg.inv(matrix)
        push = (weighted * self.value) @ design / self.response
        uneven = inverse @ push.sum(axis=0)
        cross = (weighted.sum(axis=0) * self.offset_slope) @ design
        by_offset = cross @ inverse
        # Dim and bright places agree on the flat-field if the offset is right.
        residual = float(self.weight.sum(axis=0) @ self.offset_slope**2 - by_offset @ cross)
        offsets = (self.weight * self.value) @ self.offset_slope / self.response - push @ by_offset
        is_known = residual > 1e-9 and not self.by_region
        offsets = offsets / residual if is_known else np.zeros_like(offsets)
        n = len(offsets)
        scatter = float(((offsets - offsets.mean()) ** 2).sum()) * n / (n - 1)
        return _NonUniformity(
            uneven,
            _information(matrix, push - push.mean(axis=0), degree),
            by_offset,
            float(offsets.sum()),
            _CAUTION * scatter if is_known else np.inf,
        )

    def shared_power(self) -> float:
        """Return the mean square of relative structure that odd and even tiles share."""
        push, power = self.weight * self.signal * self.value, self.weight * self.signal**2
        halves = [
            push[k::2].sum(axis=0) / np.maximum(power[k::2].sum(axis=0), 1e-12) / self.response
            for k in (0, 1)
        ]
        weight = power.sum(axis=0) / power.sum()
        shared = float(weight @ (halves[0] * halves[1]))
        chance = np.prod([weight @ half**2 for half in halves]) * _TOGETHER / len(weight)
        # A difference holds the structure of two places.
        return shared / 2.0 if shared > _SIGNIFICANT * np.sqrt(chance) else 0.0


def _compare(images: Floats, mean: Floats) -> _PixelPairs | None:
    """Compare places of each tile; None of fewer than two tiles, or without light."""
    shape = (images.shape[1], images.shape[2])
    distance = max(round(min(shape) / _APART), 1)
    if len(images) < 2 or min(shape) <= distance:
        return None
    flat = np.maximum(flat_field(mean[:-1], shape).astype(np.float64), 1e-6)
    first, second = _pairs((images - float(mean[-1])) / flat, distance)
    signal, value = (first + second) / 2.0, first - second
    seen = np.isfinite(value)
    if float(signal[seen].sum()) <= 0:
        return None
    scatter = np.ones_like(value)
    scatter[seen] = _scatter(signal[seen], np.abs(value[seen]))
    signal, value = np.where(seen, signal, 0.0), np.where(seen, value, 0.0)
    # Geman-McClure, as for overlaps; its derivative is what a change of the flat-field moves.
    off = (0.5 * value / scatter) ** 2
    weight = seen / ((1.0 + off) * scatter) ** 2
    power = weight * signal**2
    total = float(power.sum())
    if total <= 0:
        return None
    response = max(float((power * (1.0 - 3.0 * off) / (1.0 + off)).sum()) / total, 0.2)
    one, other = _pairs(1.0 / flat[None], distance)
    return _PixelPairs(
        shape, distance, signal, value, weight, (one - other)[0], response, not seen.all()
    )


def _pairs(images: Floats, distance: int) -> tuple[Floats, Floats]:
    """Return all places and those ``distance`` below, then to the right, as (n, pairs) each."""
    n = len(images)
    below = images[:, :-distance].reshape(n, -1), images[:, distance:].reshape(n, -1)
    right = images[:, :, :-distance].reshape(n, -1), images[:, :, distance:].reshape(n, -1)
    first, second = (np.concatenate(p, axis=1) for p in zip(below, right, strict=True))
    return first, second


def _scatter(signal: Floats, size: Floats) -> Floats:
    """Return the robust standard deviation of differences among pairs of like signal."""
    step = max(signal.size // _SAMPLE, 1)
    signals, sizes = signal.ravel()[::step], size.ravel()[::step]
    limit = np.quantile(signals, np.arange(1, _SIGNAL_BINS) / _SIGNAL_BINS)
    group = np.searchsorted(limit, signals)
    spread = np.zeros(_SIGNAL_BINS)
    for k in np.unique(group):
        spread[k] = float(np.median(sizes[group == k])) / 0.6745
    scatter = spread[np.searchsorted(limit, signal)]
    return np.asarray(np.maximum(np.maximum(scatter, 1e-3 * np.abs(signal)), 1e-3))


def _information(matrix: Floats, push: Floats, degree: Ints) -> Floats:
    """Return the information (k, k) of a regression on ``matrix`` by the tiles' scatter (n, k).

    The scatter is pooled over coefficients of one total degree, which tissue without a preferred
    direction fills alike.
    """
    n, power = len(push), np.diag(matrix)
    variance = _CAUTION * ((push / power) ** 2).sum(axis=0) * n / (n - 1)
    members = np.maximum(np.bincount(degree), 1)
    pooled = np.maximum((np.bincount(degree, variance) / members)[degree], 1e-10)
    scale = 1.0 / np.sqrt(pooled * power)
    return np.asarray(scale[:, None] * matrix * scale)


def _uneven_dark(information: Floats, dark: Floats) -> Floats:
    """Return information less what an error of these standard deviations takes from it."""
    if not dark.any():
        return information
    covariance = np.linalg.inv(information) + np.diag(dark**2)
    return np.asarray(np.linalg.inv(covariance))
