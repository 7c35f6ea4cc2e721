"""Offsets of a camera's rows and columns, which are no evidence of a match."""

import math

import numpy as np
from scipy import ndimage

from tilewright.kernels.tile_positions.displacements import Strips

#: Correlation of the lines of two empty strips, times the root of their length, that shows a
#: camera's offsets: 25 with columns of 3 counts (read noise 3) in 640 px; without any at most 6.7
#: in strips of tissue, 10.2 once where each tile has a few different cells.
_ALIKE = 10.0
#: Width, px, over which a line is smoother than the offsets of a camera.
_SMOOTH_PX = 15.0


def remove_lines(strips: Strips) -> bool:
    """Subtract in place the offsets of columns, or rows, that cross strips (n, y, x) of one area.

    They stay with the camera and draw a match to where its pixels lie on each other. The two
    emptiest strips, of different tiles, tell them, if they are alike.

    >>> strips = np.random.default_rng(0).normal(100, 2, (4, 20, 300)).astype(np.float32)
    >>> remove_lines(strips)
    False
    >>> strips += np.random.default_rng(1).normal(0, 3, 300).astype(np.float32)
    >>> remove_lines(strips)
    True
    """
    across = int(strips.shape[1] >= strips.shape[2])
    if strips.shape[0] < 2:
        return False
    lines = np.array([strips[i].mean(axis=across) for i in range(strips.shape[0])], np.float64)
    lines -= ndimage.gaussian_filter1d(lines, _SMOOTH_PX, mode="nearest")
    a, b = lines[np.argsort(np.round(lines.std(axis=1), 3), kind="stable")[:2]]
    if not (a @ b) * math.sqrt(len(a)) > _ALIKE * math.sqrt((a @ a) * (b @ b)):
        return False
    offset = np.expand_dims(0.5 * (a + b), across).astype(np.float32)
    for i in range(strips.shape[0]):
        strips[i] = strips[i] - offset
    return True
