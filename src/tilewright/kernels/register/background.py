"""Subtraction of a background channel from a marker, and how much of it to subtract.

Both are planes of counts without pedestal, on one grid. A marker of mean ``m`` in an area whose
background channel has the mean ``b`` is taken to be ``m = factor * b + signal``, ``signal`` ≥ 0.
"""

from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from tilewright.kernels.backend import Array, Backend, Bools, Floats

#: Share of the cells below the line. From 0.15 to 0.3 factors were 0.99 to 1.04 of the truth on two
#: phantoms with 6 to 70 % of the cells positive; at 0.1 lost tissue pulls the line down to 0.57,
#: at 0.5 frequent markers lift it to 1.25.
QUANTILE = 0.25


def subtract(backend: Backend, marker: Any, background: Any, factor: float) -> Array:
    """Return ``marker - factor * background``, rounded and clipped to 0 to 65535.

    Parameters
    ----------
    marker, background : array, shape (y, x)
        Counts without pedestal; host or device.
    factor : float
        Exposure of the marker over that of the background, or :func:`fit_factor`.

    Returns
    -------
    array of uint16, shape (y, x)
        On the device of ``backend``; the same pixels on all devices, because each operation
        rounds by itself.

    Examples
    --------
    >>> subtract(cpu, np.array([[50, 5]]), np.array([[20, 20]]), 1.5).tolist()
    [[20, 0]]
    """
    xp = backend.xp
    subtrahend = backend.asarray(background) * np.float32(factor)
    difference = backend.asarray(marker) - subtrahend
    return xp.clip(xp.rint(difference), 0, 65535).astype(np.uint16)


def above_mean(background: Floats) -> Bools:
    """Return where the background channel is above its mean over all cells with light.

    ``background`` (y, x) holds means of cells, exactly 0 where the cycle shows nothing.
    """
    positive = background > 0
    return positive & (background > (background[positive].mean() if positive.any() else 0))


def fit_factor(marker: Floats, background: Floats) -> float:
    """Return the factor of a background: the slope of a line under the marker.

    Quantile regression (Koenker & Bassett, Econometrica 46, 1978): the line
    ``offset + factor * b`` that minimises ``sum(rho(m - offset - factor * b))``, where ``rho``
    weights what is above the line by :data:`QUANTILE` and what is below it by the rest. Cells with
    signal of their own lie above, and how far above changes nothing. The offset is light that does
    not go with the background (diffuse stain): it is not subtracted, but a line through the origin
    would be too steep for it.

    Parameters
    ----------
    marker, background : float64, shape (y, x)
        Means of cells of some pixels, whose noise is small; exactly 0 where a cycle shows nothing.

    Returns
    -------
    float
        At least 0, with four digits: more is not known, and the last bits depend on the CPU. 0
        where the channels have no light in common.

    Examples
    --------
    >>> background = np.random.default_rng(0).uniform(10, 100, (40, 40))
    >>> fit_factor(5 + 0.7 * background, background)
    0.7
    """
    cells = above_mean(background) & (marker > 0)
    m, b = marker[cells], background[cells]
    if m.size == 0:
        return 0.0

    def loss(factor: float) -> float:
        rest = m - factor * b
        rest -= np.quantile(rest, QUANTILE)
        return float(np.where(rest > 0, QUANTILE * rest, (QUANTILE - 1) * rest).sum())

    # The loss is convex.
    highest = float(np.quantile(m / b, 0.9))
    found = minimize_scalar(
        loss, bounds=(0, highest), method="bounded", options={"xatol": 1e-8 * highest}
    )
    return float(f"{found.x:.4g}")


def oversubtracted_share(marker: Floats, background: Floats, factor: float) -> float:
    """Return the share of the subtracted light that the marker did not hold.

    The sum of what lies below zero before the clip, over all that was subtracted, in the cells
    where the background is above its mean. Means of cells, because noise pushes single pixels below
    zero. Tissue that the marker's cycle has lost does not count: cells below a tenth of the median.

    Parameters
    ----------
    marker, background : float64, shape (y, x)
        As for :func:`fit_factor`.

    Returns
    -------
    float
        0 to 1; ``nan`` where nothing was subtracted.

    Examples
    --------
    >>> oversubtracted_share(np.full((1, 2), 30.0), np.array([[1.0, 20.0]]), 2.0)
    0.25
    """
    cells = above_mean(background) & (marker > 0)
    if cells.any():
        cells &= marker > 0.1 * np.median(marker[cells])
    subtrahend = factor * background[cells]
    if not subtrahend.sum() > 0:
        return float("nan")
    return float(np.maximum(subtrahend - marker[cells], 0).sum() / subtrahend.sum())
