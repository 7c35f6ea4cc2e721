"""The rotation and shift between two overviews of one specimen.

Images are compared by their *texture*: a band of spatial frequencies of the square root of the
counts, which evens out shot noise, staining brightness and saturated spots. Rotation and shift
are those whose overlay has the highest peak, over all shifts, of the correlation that finds the
shifts of blocks.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend, Floats, fast_len
from tilewright.kernels.register.block_shifts import PEAK_RADIUS, search_shifts
from tilewright.kernels.register.warp import Transform, displacement, sample

#: Pixels around an image that the band-pass reaches: 3 sigma and twice 5 sigma, at sigma 1.
BANDPASS_HALO_PX = 13


@dataclass(frozen=True)
class Levels:
    """Grey levels of an image, in counts: background, and the bright end of the tissue."""

    background: float
    bright: float


def grey_levels(image: NDArray[np.float32]) -> Levels:
    """Return the grey levels of an overview, (y, x) counts, on the host.

    >>> grey_levels(np.arange(101, dtype=np.float32))
    Levels(background=5.0, bright=99.0)
    """
    background, bright = np.percentile(image, (5.0, 99.0))
    return Levels(float(background), float(max(bright, background + 1.0)))


def bandpass_sqrt(backend: Backend, image: Array, levels: Levels) -> Array:
    """Return the band-passed square root of an image.

    Parameters
    ----------
    image : (y, x) float32
        Counts.
    levels : Levels
        Of the whole image.

    Returns
    -------
    (y, x) float32
        Zero-mean; the bright end of the tissue would be 1 without the band-pass.

    Examples
    --------
    >>> image = cpu.asarray(np.random.default_rng(0).poisson(50, (64, 64)))
    >>> abs(float(bandpass_sqrt(cpu, image, Levels(20.0, 80.0)).mean())) < 0.01
    True
    """
    xp, ndimage = backend.xp, backend.ndimage
    span = levels.bright - levels.background
    # A tenth of the span bends the root near zero, where it would magnify the camera's noise;
    # two spans clip saturated spots.
    offset = 0.1 * span
    root = xp.sqrt(xp.clip(image - levels.background, 0.0, 2.0 * span) + offset)
    root = (root - float(np.sqrt(offset))) / float(np.sqrt(span))
    fine = ndimage.gaussian_filter(root, 1.0, mode="nearest", truncate=3.0)
    return fine - ndimage.gaussian_filter(fine, 5.0, mode="nearest", truncate=2.0)


@dataclass(frozen=True)
class CoarseAlignment:
    """The rotation and shift that best overlay two overviews.

    ``score`` is the share of the correlation that the peak holds; ``chance`` is the best score at a
    shift that contradicts it.
    """

    angle_deg: float
    shift_px: tuple[int, int]
    score: float
    chance: float


def rotation_about_centre(shape: tuple[int, int], angle_deg: float) -> Floats:
    """Return the (2, 3) affine that rotates positions about the centre of ``shape``.

    >>> rotation_about_centre((5, 5), 90.0).round(3).tolist()
    [[0.0, -1.0, 4.0], [1.0, 0.0, 0.0]]
    """
    a = np.deg2rad(angle_deg)
    linear = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    centre = (np.asarray(shape, np.float64) - 1) / 2
    return np.column_stack([linear, centre - linear @ centre])


def coarse_alignment(
    backend: Backend, reference: Array, moving: Array, angles_deg: Floats, max_shift_px: float
) -> CoarseAlignment:
    """Find rotation and shift between two textures by correlation over all shifts.

    Parameters
    ----------
    reference, moving : (y, x) float32
        Textures of overviews with the same pixel size.
    angles_deg : (n,) float64
        Rotations to try.
    max_shift_px : float
        Largest shift along either axis.

    Returns
    -------
    CoarseAlignment
        Reference positions rotated by the angle about the centre of the reference, then shifted,
        are moving positions.

    Examples
    --------
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(80, 80)), 2)
    >>> images = [cpu.asarray(scene[y : y + 64, x : x + 64]) for y, x in ((0, 0), (5, 3))]
    >>> coarse_alignment(cpu, *images, np.zeros(1), 20.0).shift_px
    (-5, -3)
    """
    rows, columns = (
        fast_len(sum(sizes)) for sizes in zip(reference.shape, moving.shape, strict=True)
    )

    def padded(image: Array) -> Array:
        ends = ((0, rows - image.shape[0]), (0, columns - image.shape[1]))
        return backend.xp.pad(image, ends)[None]

    reach = int(min(max_shift_px, rows // 2 - 1)), int(min(max_shift_px, columns // 2 - 1))
    other = padded(moving)
    found = [
        search_shifts(backend, padded(_rotated(backend, reference, float(angle))), other, reach)
        for angle in angles_deg
    ]
    scores = np.array([one.score[0] for one in found])
    best = int(np.lexsort((np.abs(angles_deg), -np.round(scores, 4)))[0])
    shift = found[best].shift_px[0]
    rivals = [
        one.chance[0] if np.hypot(*(one.shift_px[0] - shift)) <= 2 * PEAK_RADIUS else one.score[0]
        for one in found
    ]
    y, x = np.rint(shift).astype(int).tolist()
    return CoarseAlignment(float(angles_deg[best]), (y, x), float(scores[best]), float(max(rivals)))


def _rotated(backend: Backend, image: Array, angle_deg: float) -> Array:
    """Return ``image`` rotated by ``angle_deg`` about its centre, in its own frame."""
    if angle_deg == 0:
        return image
    shape = (int(image.shape[0]), int(image.shape[1]))
    back = replace(Transform.identity(), affine=rotation_about_centre(shape, -angle_deg))
    y_px, x_px = (np.arange(size, dtype=np.float64) for size in shape)
    shift = displacement(backend, back, y_px, x_px)
    return sample(backend, image, (0, 0), shape, shift, (0, 0))[0]
