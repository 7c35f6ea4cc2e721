"""From the shifts of blocks to an affine map and a smooth displacement field, without outliers.

The map is fitted by least squares; the field by normalised convolution (Knutsson & Westin 1993,
https://doi.org/10.1109/CVPR.1993.341081) of what is left, from wide windows to narrow ones. The
weights of blocks fall with the residual as Geman and McClure's, the scale shrinking from step to
step (graduated non-convexity, Yang et al. 2020, https://doi.org/10.1109/LRA.2020.2965893), so that
a wrong block first counts little and then nothing. All of it is float64 on the host.
"""

import numpy as np
from scipy import ndimage

from tilewright.kernels.backend import Floats

#: Scales of the Geman-McClure weight in robust standard deviations, from step to step.
_SCALES = (30.0, 12.0, 6.0, 4.0, 4.0)
#: Side of the square of blocks whose median starts the field.
_AROUND = 5
#: Weight above which a block counts as accepted: residual below 0.64 scales.
ACCEPTED = 0.5
#: Standard deviations of the windows, in blocks; the last three are tried as the narrowest.
_WINDOWS = (32.0, 16.0, 8.0, 4.0, 2.0, 1.0)
#: How often the narrowest is applied: what it smooths away of a bend comes back. Twice leaves 0.02
#: px more of a field that bends within 300 px, four times as little as six.
_REPEATS = 4


def fit_field(
    points_px: Floats, shift_px: Floats, precision: Floats
) -> tuple[Floats, Floats, Floats]:
    """Fit an affine map and a smooth field to the shifts of a grid of blocks.

    Parameters
    ----------
    points_px : (gy, gx, 2) float64
        Centres (y, x) of the blocks.
    shift_px : (gy, gx, 2) float64
        Measured displacement (y, x).
    precision : (gy, gx) float64
        Inverse variances of a component up to a common factor; 0 where nothing was measured.

    Returns
    -------
    affine : (2, 3) float64
        ``affine @ (y, x, 1)`` is displaced; a shift only where blocks are few or on one line.
    field : (2, gy, gx) float64
        What is left, (y, x) in px.
    weight : (gy, gx) float64
        Final weight of each block, 0 to 1.

    Examples
    --------
    >>> points = 100 * np.stack(np.meshgrid(np.arange(8.0), np.arange(9.0), indexing="ij"), -1)
    >>> affine, field, weight = fit_field(points, np.full((8, 9, 2), 1.5), np.ones((8, 9)))
    >>> affine[:, 2].round(3).tolist(), float(abs(field).max().round(3)), float(weight.min())
    ([1.5, 1.5], 0.0, 1.0)
    """
    known = precision > 0
    shift = np.where(known, np.moveaxis(shift_px, -1, 0), 0.0)
    if not known.any():
        return np.zeros((2, 3)), np.zeros_like(shift), np.zeros_like(precision)
    centre, spread = points_px[known].mean(axis=0), np.ptp(points_px) + 1.0
    design = np.append((points_px - centre) / spread, np.ones((*known.shape, 1)), axis=-1)
    expected = _neighbours_medians(shift, precision)
    precision = precision / _variance_factor(((shift - expected) ** 2).sum(axis=0), precision)
    for step, scale in enumerate(_SCALES, 1):
        residual2 = ((shift - expected) ** 2).sum(axis=0) * precision / 2.0
        weight = known * (scale**2 / (scale**2 + residual2)) ** 2
        plane = _plane(design, shift, weight * precision)
        expected = (design @ plane).transpose(2, 0, 1)
        rest, last = shift - expected, step == len(_SCALES)
        narrowest = _best_predicting(rest, weight * precision) if last else _WINDOWS[-1]
        field = _smooth(rest, weight * precision, narrowest)
        expected = expected + field
    linear = plane[:2].T / spread
    return np.column_stack([linear, plane[2] - linear @ centre]), field, weight


def _plane(design: Floats, shift: Floats, precision: Floats) -> Floats:
    """Return the (3, 2) plane of least squares through shifts (2, gy, gx)."""
    root = np.sqrt(precision)[..., None]
    left, right = root * design, root * shift.transpose(1, 2, 0)
    # What few blocks, or blocks on one line, do not tell of the map is 0.
    plane = np.linalg.lstsq(left.reshape(-1, 3), right.reshape(-1, 2), 0.1)[0]
    return np.asarray(plane, np.float64)


def _variance_factor(residual2: Floats, precision: Floats) -> float:
    """Return true over assumed variances."""
    # Weighted by precision, so that a crowd of empty blocks does not set it. The lower quartile, of
    # which half a chi-square with two degrees of freedom has 0.288, is right as long as a fourth
    # of the blocks is; the median would follow the outliers when half of them are.
    known = precision > 0
    half_squares, weights = (residual2 * precision / 2.0)[known], precision[known]
    order = np.argsort(half_squares, kind="stable")
    cumulated = np.cumsum(weights[order])
    quartile = half_squares[order][np.searchsorted(cumulated, 0.25 * cumulated[-1])]
    return max(float(quartile) / 0.288, 1e-9)


def _best_predicting(values: Floats, weight: Floats) -> float:
    """Return the widest narrowest window that predicts held-out blocks about as well as any."""
    # The black fields of a chessboard from the white ones, and the reverse; its fields are 2 x 2
    # blocks, because neighbouring blocks share pixels and hence noise.
    rows, columns = (np.arange(n) // 2 for n in weight.shape)
    white = np.add.outer(rows, columns) % 2
    errors = []
    for narrowest in _WINDOWS[3:]:
        predicted = [_smooth(values, weight * part, narrowest) for part in (white, 1 - white)]
        wrong = ((np.where(white, predicted[1], predicted[0]) - values) ** 2).sum(axis=0)
        errors.append(round(float((weight * wrong).sum()), 6))
    return next(n for n, e in zip(_WINDOWS[3:], errors, strict=True) if e <= 1.15 * min(errors))


def _smooth(values: Floats, weight: Floats, narrowest: float) -> Floats:
    """Return a smooth field through the values (2, gy, gx), weighted by inverse variances."""
    field = np.zeros_like(values)
    wider = [window for window in _WINDOWS if window > narrowest]
    for window in (*wider, *[narrowest] * _REPEATS):
        # The variance of a window's mean is 1 / (4 pi window^2 mass); where it is above 1 px^2,
        # wider windows decide. Between 0.25 and 4 px^2 fields are alike.
        mass = _blurred(weight, window) + 1 / (4 * np.pi * window**2)
        field += np.stack([_blurred(weight * rest, window) for rest in values - field]) / mass
    return field


def _blurred(values: Floats, window: float) -> Floats:
    return np.asarray(ndimage.gaussian_filter(values, window, mode="constant", truncate=3.0))


def _neighbours_medians(shift_px: Floats, precision: Floats) -> Floats:
    """Return the median of the blocks around each, (2, gy, gx), weighted by precision."""
    # The field is sought from there: from one constant, islands of tissue that are displaced
    # otherwise than most counted as outliers, 3 to 15 % of the nuclei of a slide 0.5 to 20 px off,
    # and half of them in a microarray whose cores moved by 12 px.
    weights = _windows(precision)
    # Blocks that had no neighbours, of which each would be its own median, left no noise.
    weights[..., _AROUND**2 // 2] = 0.0
    medians = []
    for values in shift_px:
        around = _windows(values)
        order = np.argsort(around, axis=-1, kind="stable")
        cumulated = np.cumsum(np.take_along_axis(weights, order, -1), axis=-1)
        middle = (cumulated < 0.5 * cumulated[..., -1:]).sum(axis=-1, keepdims=True)
        at = np.take_along_axis(order, middle, -1)
        medians.append(np.take_along_axis(around, at, -1)[..., 0])
    return np.stack(medians)


def _windows(values: Floats) -> Floats:
    padded = np.pad(values, _AROUND // 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (_AROUND, _AROUND))
    return windows.reshape(*windows.shape[:2], -1)
