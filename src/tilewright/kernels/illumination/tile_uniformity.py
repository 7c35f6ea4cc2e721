"""Evidence of the flat-field from tiles of a specimen that has no preferred place in them.

The typical difference of two places is even but for chance: one is as often brighter as the other
(Weiss, "Deriving intrinsic images from image sequences", ICCV 2001). Robust differences leave out
the edges of tissue, which rule the mean: of 36 tiles of which tissue fills two thirds the mean
strays by 2 to 4 % in each degree, differences by 0.3 to 0.5 %. The scatter among tiles is the size
of chance. All on the host.
"""

import numpy as np

from tilewright.kernels.backend import Floats, Ints
from tilewright.kernels.illumination.flat_basis import degrees, design_grid, flat_field
from tilewright.kernels.illumination.overlap_photometry import InformationForm, scatter_by_signal

#: Places compared are this part of the tile's side distance: nearer ones differ by grain, and half
#: the wavelength of the highest degree may not be exceeded.
_APART = 20
#: Variances are raised by this: neighbouring tiles and degrees err together. True errors of 12
#: designs were 1.0 to 1.7 times the scatter among tiles.
_CAUTION = 2.0
#: Keeps matrices regular.
_RIDGE = 1e-9


def tile_information(images: Floats, mean: Floats, *, tells_offset: bool) -> InformationForm:
    """Return what the tiles say of the flat-field and the offset.

    Parameters
    ----------
    images : ndarray of float64, shape (n, y, x)
        Counts of each tile in blocks, planes averaged, none saturated; NaN is not compared.
    mean : ndarray of float64, shape (k + 1,)
        Log flat-field about which differences are linearised, then the counts without light.
    tells_offset : bool
        Whether dim places, compared with bright ones, are evidence of the offset too. Beside
        overlaps they are not: of tiles 90 % empty the flat-field was 1.3 % off with it, and 0.3 %
        without. Nor are regions, which are chosen by their light: 45 counts wrong.

    Returns
    -------
    InformationForm
        Without information of fewer than two tiles, or tiles without light.
    """
    compared = _compare(images, mean)
    if compared is None:
        return InformationForm.none(len(mean))
    matrix, push = compared
    if not tells_offset or np.isnan(images).any():
        # The flat-field follows the offset, but all of the offset's own information is taken away.
        follow = np.linalg.solve(matrix[:-1, :-1], matrix[:-1, -1])
        matrix[-1, -1] = matrix[-1, :-1] @ follow * (1.0 + _RIDGE) + 1e-12
        push[:, -1] = push[:, :-1] @ follow
    information = _information(matrix, push - push.mean(axis=0))
    change = np.linalg.solve(matrix, push.sum(axis=0))
    return InformationForm(information, information @ (mean + change))


def _compare(images: Floats, mean: Floats) -> tuple[Floats, Floats] | None:
    """Return the normal equations of pairs of places: matrix (k + 1, k + 1), each tile's vector.

    The value of a pair is its signal times the difference of the log flat-field at its places, and
    ``by_offset`` times the error of the offset.
    """
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
    scatter[seen] = scatter_by_signal(signal[seen], value[seen])
    signal, value = np.where(seen, signal, 0.0), np.where(seen, value, 0.0)
    # Geman-McClure, as for overlaps; its derivative is what a change of the flat-field moves.
    off = (0.5 * value / scatter) ** 2
    weight = seen / ((1.0 + off) * scatter) ** 2
    power = weight * signal**2
    response = float((power * (1.0 - 3.0 * off) / (1.0 + off)).sum() / power.sum())
    design = np.subtract(*_pairs(design_grid(shape).T.reshape(-1, *shape), distance)).T
    by_offset = np.subtract(*_pairs(1.0 / flat[None], distance))[0]
    matrix = np.empty((len(mean), len(mean)))
    matrix[:-1, :-1] = design.T @ (power.sum(axis=0)[:, None] * design)
    matrix[-1, :-1] = matrix[:-1, -1] = ((weight * signal).sum(axis=0) * by_offset) @ design
    matrix[-1, -1] = weight.sum(axis=0) @ by_offset**2 + 1e-12
    matrix += _RIDGE * np.diag(np.diag(matrix))
    push = np.column_stack([(weight * signal * value) @ design, (weight * value) @ by_offset])
    return matrix, push / max(response, 0.2)


def _pairs(images: Floats, distance: int) -> tuple[Floats, Floats]:
    """Return all places and those ``distance`` below, then to the right, as (n, pairs) each."""
    n = len(images)
    below = images[:, :-distance].reshape(n, -1), images[:, distance:].reshape(n, -1)
    right = images[:, :, :-distance].reshape(n, -1), images[:, :, distance:].reshape(n, -1)
    first, second = (np.concatenate(p, axis=1) for p in zip(below, right, strict=True))
    return first, second


def _information(matrix: Floats, push: Floats) -> Floats:
    """Return the information (k + 1, k + 1) of a regression on ``matrix`` by the tiles' scatter.

    ``push`` (n, k + 1) is what each tile adds. Its scatter is pooled over coefficients of one total
    degree, which tissue without a preferred direction fills alike.
    """
    n, power = len(push), np.diag(matrix)
    degree: Ints = np.append(degrees().sum(axis=1), 0)
    variance = _CAUTION * ((push / power) ** 2).sum(axis=0) * n / (n - 1)
    pooled = np.maximum((np.bincount(degree, variance) / np.bincount(degree))[degree], 1e-10)
    scale = 1.0 / np.sqrt(pooled * power)
    return np.asarray(scale[:, None] * matrix * scale)
