"""Tissue and background of tiles in which tissue has a preferred place.

Cores of a tissue microarray lie in the middle of each tile, or each at the same corner of its
tiles: the mean of such tiles is the shape of a core, and so are differences across its edge. Of 40
cores of one tile the flat-field was 50 % off, of 2 x 2 tiles 13 %. Within tissue, and within
background, no place is preferred: each is then a tile of its own, and what lies about the edge
between them is left out (1 and 0.2 %).
"""

import numpy as np
from scipy import ndimage
from skimage.filters import threshold_otsu

from tilewright.kernels.backend import Floats
from tilewright.kernels.illumination.flat_basis import degrees, design_grid

#: Side of the square whose mean light says whether its middle is in tissue, over the tile's: gaps
#: between nuclei are narrower. A place within it of the edge is biased by it and left out.
_SQUARE = 1 / 13
#: Background is darker than tissue by at least this factor; two parts of one tissue, by Otsu, were
#: 2.4 to 3 times apart, tissue and background of 13 designs 9 to 20.
_CONTRAST = 4.0
#: Ratio of the share of tissue's variance over places to chance. Of 45 mosaics, by chance, 0.1 to
#: 9.5; of cores 600 to 1300.
_PREFERENCE = 30.0
#: Of fewer tiles chance passes for a preference: of two in 9 %, of four in 0.5 % of scans.
_FEWEST = 6
#: Smallest part of a tile that is taken, and of the field that regions must show together.
_LEAST, _LEAST_TOGETHER = 1 / 20, 1 / 2


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
    if side < 3 or len(images) < _FEWEST:
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
    regions = regions[np.isfinite(regions).mean(axis=(1, 2)) >= _LEAST]
    shown = np.isfinite(regions).any(axis=0).mean()
    return regions if shown >= _LEAST_TOGETHER else None


def _preference(tissue: Floats) -> float:
    """Return by how much more than by chance tissue varies over places, of degree 1 or 2."""
    n = len(tissue)
    design = design_grid((tissue.shape[1], tissue.shape[2]), 2)
    share = tissue.reshape(n, -1) @ (design - design.mean(axis=0)) / design.shape[0]
    power, chance = share.mean(axis=0) ** 2, share.var(axis=0, ddof=1) / n
    degree = degrees(2).sum(axis=1)
    return max(
        float(power[degree == k].sum() / max(chance[degree == k].sum(), 1e-12)) for k in (1, 2)
    )
