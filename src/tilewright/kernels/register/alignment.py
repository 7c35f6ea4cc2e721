"""The rotation and shift between two overviews of one specimen.

Images are compared by their *texture*: a band of spatial frequencies of the square root of the
counts, which evens out shot noise, staining brightness and saturated spots. Rotation and shift
come from the normalised cross-correlation over all shifts, normalised on each overlap
(Padfield 2012, https://doi.org/10.1109/TIP.2011.2181402).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend, Floats, fast_len
from tilewright.kernels.register.warp import Transform, displacement, sample

#: Pixels around an image that the band-pass reaches: 3 sigma and twice 5 sigma, at sigma 1.
BANDPASS_HALO_PX = 13
#: Peaks this near the best one belong to it and are no chance maxima.
_PEAK_RADIUS = 4
#: An overlay of less than this share of the texture's energy is not trusted.
_MIN_OVERLAP = 0.08


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

    ``score`` is the correlation coefficient on the overlap times the root of the overlap's share
    of the texture; ``chance`` is the best score at a shift that contradicts it.
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
    fft = backend.fft
    sizes = tuple(zip(reference.shape, moving.shape, strict=True))
    shape = (fast_len(sum(sizes[0])), fast_len(sum(sizes[1])))
    with backend.fft_threads():
        scale = _score_scale(backend, reference, moving, shape, max_shift_px)
        spectrum = fft.rfft2(moving, s=shape)
        peaks = []
        for angle in angles_deg:
            rotated = _rotated(backend, reference, float(angle))
            cross = backend.xp.conj(fft.rfft2(rotated, s=shape)) * spectrum
            peaks.append(_two_peaks(backend, fft.irfft2(cross, s=shape) * scale))
    best = max(range(len(peaks)), key=lambda i: (peaks[i][0], -abs(float(angles_deg[i]))))
    score, shift, _ = peaks[best]
    rivals = [
        second if np.hypot(*np.subtract(place, shift)) <= 2 * _PEAK_RADIUS else top
        for top, place, second in peaks
    ]
    return CoarseAlignment(float(angles_deg[best]), shift, score, max(rivals))


def _score_scale(
    backend: Backend, reference: Array, moving: Array, shape: tuple[int, int], max_shift_px: float
) -> Array:
    """Return by what a correlation is multiplied for the score of each shift; 0: not allowed."""
    xp, fft = backend.xp, backend.fft
    # Energy of either image inside the other's frame, for every shift at once.
    frames = [fft.rfft2(xp.ones(image.shape, xp.float32), s=shape) for image in (reference, moving)]
    powers = [fft.rfft2(image * image, s=shape) for image in (reference, moving)]
    inside_m = xp.maximum(fft.irfft2(powers[1] * xp.conj(frames[0]), s=shape), 0.0)
    inside_r = xp.maximum(fft.irfft2(frames[1] * xp.conj(powers[0]), s=shape), 0.0)
    share = xp.minimum(inside_m / (inside_m.max() + 1e-12), inside_r / (inside_r.max() + 1e-12))
    allowed = share > _MIN_OVERLAP
    for axis in range(2):
        shifts = xp.abs(fft.fftfreq(shape[axis], 1.0 / shape[axis]))
        allowed &= xp.expand_dims(shifts <= max_shift_px, 1 - axis)
    # NCC x sqrt(share): chance maxima grow as the overlap shrinks.
    return allowed * xp.sqrt(share / (inside_m * inside_r + 1e-12))


def _rotated(backend: Backend, image: Array, angle_deg: float) -> Array:
    """Return ``image`` rotated by ``angle_deg`` about its centre, in its own frame."""
    if angle_deg == 0:
        return image
    shape = (int(image.shape[0]), int(image.shape[1]))
    back = replace(Transform.identity(), affine=rotation_about_centre(shape, -angle_deg))
    y_px, x_px = (np.arange(size, dtype=np.float64) for size in shape)
    shift = displacement(backend, back, y_px, x_px)
    return sample(backend, image, (0, 0), shape, shift, (0, 0))[0]


def _two_peaks(backend: Backend, scores: Array) -> tuple[float, tuple[int, int], float]:
    """Return the best score of a periodic map, its signed shift, and the best score elsewhere."""
    xp = backend.xp
    rounded = xp.round(scores, 4)
    rows, columns = scores.shape
    index = int(rounded.argmax())
    y, x = divmod(index, columns)
    top = float(rounded[y, x])
    around = np.arange(-_PEAK_RADIUS, _PEAK_RADIUS + 1)
    near_y, near_x = np.meshgrid((y + around) % rows, (x + around) % columns, indexing="ij")
    rounded[backend.asarray(near_y, np.int64), backend.asarray(near_x, np.int64)] = 0.0
    shift = (y - rows if y > rows // 2 else y, x - columns if x > columns // 2 else x)
    return top, shift, float(rounded.max())
