"""Evidence of the flat-field from tiles of a specimen that has no preferred place in them.

The typical difference of two places is even but for chance: one is as often brighter as the other
(Weiss, "Deriving intrinsic images from image sequences", ICCV 2001). Robust differences leave out
the edges of tissue, which rule the mean: of 36 tiles of which tissue fills two thirds the mean
strays by 2 to 4 % in each degree, differences by 0.3 to 0.5 %. The scatter among tiles is the size
of chance. All on the host.

Cores of a tissue microarray lie in the middle of each tile, or each at the same corner of its
tiles: the mean of such tiles is the shape of a core, and so are differences across its edge. Of 40
cores of one tile the flat-field was 50 % off, of 2 x 2 tiles 13 %. Within tissue, and within
background, no place is preferred: each is then a tile of its own, and what lies about the edge
between them is left out (1 and 0.2 %).
"""

import numpy as np
from scipy import ndimage
from skimage.filters import threshold_otsu

from tilewright.kernels.backend import Bools, Floats, Ints
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
#: Side of the square whose mean light says whether its middle is in tissue, over the tile's: gaps
#: between nuclei are narrower. A place within it of the edge is biased by it and left out.
_SQUARE = 1 / 13
#: Background is darker than tissue by at least this factor; two parts of one tissue, by Otsu, were
#: 2.4 to 3 times as bright, tissue and background of 13 designs 9 to 20.
_CONTRAST = 4.0
#: Ratio of the share of tissue's variance over places to chance. Of 45 mosaics, by chance, 0.1 to
#: 9.5; of cores 600 to 1300.
_PREFERENCE = 30.0
#: Fewer tiles are no estimate: of 8 of three designs the median error was 3 to 13 %, of 64 1 to
#: 5 %, where BaSiC's was 14 and 7 % and vignetting 15 to 34. Nor do they show a preference: by
#: chance two do in 9 %, four in 0.5 % of scans.
MIN_TILES = 8


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
    finite = np.isfinite(value)
    if float(signal[finite].sum()) <= 0:
        return None
    scatter = np.ones_like(value)
    scatter[finite] = scatter_by_signal(signal[finite], value[finite])
    signal, value = np.where(finite, signal, 0.0), np.where(finite, value, 0.0)
    # Geman-McClure, as for overlaps; its derivative is what a change of the flat-field moves.
    off = (0.5 * value / scatter) ** 2
    weight = finite / ((1.0 + off) * scatter) ** 2
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


def tissue_and_background(images: Floats) -> Floats | None:
    """Return the tiles' regions as images of their own, or None if tissue has no preferred place.

    Parameters
    ----------
    images : ndarray of float64, shape (n, y, x)
        Counts of each tile in blocks.

    Returns
    -------
    ndarray of float64, shape (m, y, x), or None
        Tissue of each tile, then background; NaN elsewhere and near the edge between them.

    Examples
    --------
    >>> y, x = np.mgrid[-1:1:64j, -1:1:64j]
    >>> core = np.where(np.hypot(y, x) < 0.8, 900.0, 110.0)
    >>> regions = tissue_and_background(np.random.default_rng(0).normal(core, 5, (9, 64, 64)))
    >>> [round(float(np.nanmean(region))) for region in regions[[0, 9]]]
    [900, 110]
    >>> tissue_and_background(np.random.default_rng(0).normal(900, 5, (9, 64, 64))) is None
    True
    """
    side = 2 * round(min(images.shape[1:]) * _SQUARE / 2) + 1
    if side < 3 or len(images) < MIN_TILES:
        return None
    # Counts without light are at most those of the darkest places.
    dark = 0.98 * float(np.percentile(images, 0.5))
    light = ndimage.uniform_filter(np.maximum(images - dark, 1e-3), (0, side, side), mode="nearest")
    level = np.log(light)
    if np.ptp(level) < np.log(_CONTRAST):
        return None
    bright = level > threshold_otsu(level)
    # The edge is where half of a square is in tissue.
    tissue = level > np.median(level[bright]) - np.log(2.0)
    contrast = level[tissue].mean() - level[~tissue].mean()
    if contrast < np.log(_CONTRAST) or _preference(tissue) < _PREFERENCE:
        return None
    square = np.ones((1, side + 2, side + 2), dtype=np.bool_)
    regions = np.concatenate(
        [
            np.where(ndimage.binary_erosion(region, square, border_value=1), images, np.nan)
            for region in (tissue, ~tissue)
        ]
    )
    return np.asarray(regions[np.isfinite(regions).any(axis=(1, 2))])


def _preference(tissue: Bools) -> float:
    """Return by how much more than by chance tissue varies over places, of degree 1 or 2."""
    n = len(tissue)
    design = design_grid((tissue.shape[1], tissue.shape[2]), 2)
    share = tissue.reshape(n, -1) @ (design - design.mean(axis=0)) / design.shape[0]
    power, chance = share.mean(axis=0) ** 2, share.var(axis=0, ddof=1) / n
    degree = degrees(2).sum(axis=1)
    return max(
        float(power[degree == k].sum() / max(chance[degree == k].sum(), 1e-12)) for k in (1, 2)
    )
