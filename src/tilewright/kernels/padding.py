"""Pixels that a microscope's software set to exactly 0 where it shifted or turned a tile."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Bools

#: Share of zeros among the other pixels from which 0 is a count: a camera's offset of 100 counts
#: leaves none, darkness without an offset 14 % (2 counts on average), subtracted images more.
_MOST_ZEROS = 0.01
#: Least size of padding, in shorter sides of a tile: a shift of a pixel makes one side. Chance
#: zeros (below 1 %) never join to a patch of 30 px.
_LEAST_SIDES = 0.5


def padding(plane: NDArray[Any]) -> Bools | None:
    """Return which pixels of a tile (y, x) are padding, None where none are.

    They are patches of 0 that reach the border. The pixels next to them, which an interpolation
    mixed with 0, are of them.

    >>> plane = np.full((6, 6), 100, np.uint16)
    >>> plane[:, :2] = 0
    >>> padding(plane)[0].tolist(), padding(plane + 1)
    ([True, True, True, False, False, False], None)
    """
    least = _LEAST_SIDES * min(plane.shape)
    sides = (plane[0], plane[-1], plane[:, 0], plane[:, -1])
    if plane.all() or sum(side.size - np.count_nonzero(side) for side in sides) < least / 2:
        return None
    patches, _ = ndimage.label(plane == 0)
    ends = (patches[0], patches[-1], patches[:, 0], patches[:, -1])
    large = np.bincount(patches.ravel()) >= least
    at_border = np.unique(np.concatenate(ends))
    found = np.isin(patches, [n for n in at_border if n and large[n]])
    others = plane[~found]
    if not found.any() or np.count_nonzero(others == 0) >= _MOST_ZEROS * others.size:
        return None
    return np.asarray(ndimage.binary_dilation(found, np.ones((3, 3), np.bool_)), np.bool_)


def blank_padding(plane: NDArray[Any]) -> NDArray[Any]:
    """Return a tile with NaN in its padding, as float32; one without padding as it is.

    >>> plane = np.full((6, 6), 100, np.uint16)
    >>> plane[:, :2] = 0
    >>> blank_padding(plane)[0].tolist()
    [nan, nan, nan, 100.0, 100.0, 100.0]
    """
    found = padding(plane)
    return plane if found is None else np.where(found, np.float32(np.nan), plane)


def fill_padding(plane: NDArray[Any]) -> NDArray[Any]:
    """Return a tile with its median in its padding; one without padding as it is.

    To find the padding of 2048 px takes 81 ms: where it is known, :func:`fill` does the rest.

    >>> plane = np.full((6, 6), 100, np.uint16)
    >>> plane[:, :2] = 0
    >>> fill_padding(plane)[0].tolist()
    [100, 100, 100, 100, 100, 100]
    """
    return fill(plane, padding(plane))


def fill(plane: NDArray[Any], found: Bools | None) -> NDArray[Any]:
    """Return a tile (y, x) with its median in the padding that was found.

    >>> fill(np.array([[0, 4], [6, 5]]), np.array([[True, False], [False, False]])).tolist()
    [[5, 4], [6, 5]]
    """
    if found is None or found.all():
        return plane
    return np.where(found, np.median(plane[~found]).astype(plane.dtype), plane)
