"""Extended depth of field: one in-focus plane from a z-stack, and the height it came from.

Two operators (measured against the z-integrated truth, see docs): after a real deconvolution
picking planes is wrong, and the mean over z blurred with the in-focus PSF is linear and free
of seams; on a raw stack each pixel is a soft mixture of the planes with the most detail
(after Forster et al., Microsc. Res. Tech. 65, 2004, without the wavelets).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend, Bools, fast_len
from tilewright.kernels.noise import NoiseModel

#: Band-pass of the focus energy: difference of Gaussians of this sigma and twice it, in px.
BAND_SIGMA_PX = 1.2
#: Smoothing of the energy, in px: 4 or more costs 0.1 dB on tissue with steep folds.
ENERGY_SIGMA_PX = 3.0
#: Softness in noise energies: 0.25 costs 1.5 dB on dim stacks, 8 gains nothing anywhere.
SOFT_NOISE = 2.0
#: A plane is the sharpest where its energy is this many times what nothing in focus would give;
#: noise alone reaches 1.5 among nine planes.
CLEAR = 3.0
#: Exponent of the weights; 2 costs 0.4 dB on bright stacks.
POWER = 4
#: Heights and sharpest planes have one pixel of this many.
POOL_PX = 4
#: Pixels around a tile that reach into it: 4 sigma of the wide Gaussian and of the smoothing.
FOCUS_HALO_PX = 24


class Projection(NamedTuple):
    """One plane out of a stack, on the backend.

    ``image`` (y, x) float32 counts. The others have the first pixel of 4 × 4: ``height`` float32,
    soft argmax of the focus energy in planes; ``sharpest`` int32, the plane of the greatest focus
    energy, -1 where none stands out. Of :class:`.wiener_plane.WienerPlane` alone ``variance``
    float32, of the image by noise, counts², and ``below_noise`` float32, the share of pixels that
    are more than three standard deviations of it, and half a count, below 0.
    """

    image: Array
    height: Array
    sharpest: Array
    variance: Array | None = None
    below_noise: Array | None = None


def focus_weighted(
    backend: Backend, stack: Any, noise: NoiseModel, pedestal_counts: float, plane_mask: Bools
) -> Projection:
    """Mix the planes of a raw stack (z, y, x) by how much detail each shows at a pixel.

    The energy of a band-pass, smoothed, less what the camera's noise alone would give, to the
    fourth power, is a plane's weight. Where nothing is in focus the planes have equal weights:
    their mean, the least noisy answer.

    Parameters
    ----------
    stack : array, shape (z, y, x)
        Raw counts.
    noise : NoiseModel
        The camera's noise; the same for all tiles of a mosaic.
    pedestal_counts : float
        Counts without light; subtracted from ``image``.
    plane_mask : ndarray of bool, shape (z,)
        Planes to use.

    Raises
    ------
    ValueError
        No plane is usable.

    Examples
    --------
    >>> stack = np.full((3, 40, 40), 100.0)
    >>> stack[1] += np.random.default_rng(0).poisson(50, (40, 40))
    >>> plane = focus_weighted(cpu, stack, NoiseModel(0.0, 1.0), 100.0, np.ones(3, bool))
    >>> int(plane.sharpest[5, 5])
    1
    """
    planes = [int(z) for z in np.flatnonzero(plane_mask)]
    if not planes:
        raise ValueError("no plane of the stack is usable: there is nothing to project")
    gain = noise_share(BAND_SIGMA_PX, 2 * BAND_SIGMA_PX)

    def floor(wide: Array) -> Array:
        signal = backend.xp.maximum(wide - pedestal_counts, 0)
        return gain * backend.xp.maximum(noise.variance(signal), 1e-3)

    weights, height, sharpest = _weights(backend, stack, planes, floor, SOFT_NOISE)
    image = sum(
        weight * (backend.asarray(stack[z]) - pedestal_counts)
        for z, weight in zip(planes, weights, strict=True)
    )
    return Projection(image, height, sharpest)


def sum_projection(
    backend: Backend, stack: Any, kernel: NDArray[Any], scale: float, floor_energy: float
) -> Projection:
    """Sum a deconvolved stack (z, y, x) over z and blur it with the in-focus PSF.

    ``image = scale · kernel * Σ_z stack[z]``. With ``scale`` the share of the PSF's
    light that falls into its central plane (of the PSF the stack was deconvolved with), that
    is the raw plane that the microscope would have taken, were everything in focus: raw counts
    over the pedestal, one number for the whole experiment, nothing taken from the image.

    Parameters
    ----------
    stack : array, shape (z, y, x)
        Deconvolved light, pedestal 0.
    kernel : ndarray, shape (y, x)
        In-focus PSF with odd sides; scaled to sum 1.
    scale : float
        Share of light in the PSF's central plane.
    floor_energy : float
        Focus energy of no structure, for ``height`` and ``sharpest``.

    Raises
    ------
    ValueError
        The kernel has an even side or no light.

    Examples
    --------
    >>> plane = sum_projection(cpu, np.ones((3, 20, 20)), np.ones((3, 3)), 0.5, 1.0)
    >>> round(float(plane.image[10, 10]), 4)
    1.5
    """
    floor = partial(backend.xp.full_like, fill_value=floor_energy)
    _, height, sharpest = _weights(backend, stack, list(range(len(stack))), floor, 1.0)
    total = sum(backend.asarray(stack[z]) for z in range(len(stack)))
    return Projection(scale * blur(backend, total, kernel), height, sharpest)


def focus_energy(backend: Backend, plane: Any) -> tuple[Array, Array]:
    """Return the smoothed band-pass energy of a (y, x) plane and its wide Gaussian blur.

    >>> energy, _ = focus_energy(cpu, np.random.default_rng(0).normal(0, 10, (64, 64)))
    >>> round(float(energy.mean()), 1), round(100 * noise_share(1.2, 2.4), 1)
    (2.5, 2.5)
    """
    gaussian = backend.ndimage.gaussian_filter
    plane = backend.asarray(plane)
    wide = gaussian(plane, 2 * BAND_SIGMA_PX, mode="reflect", truncate=4.0)
    band = gaussian(plane, BAND_SIGMA_PX, mode="reflect", truncate=4.0) - wide
    return gaussian(band * band, ENERGY_SIGMA_PX, mode="reflect", truncate=4.0), wide


def blur(backend: Backend, image: Any, kernel: NDArray[Any]) -> Array:
    """Convolve a (y, x) image with a 2-D PSF of odd sides scaled to sum 1; borders mirrored.

    Raises
    ------
    ValueError
        The kernel has an even side or no light.
    """
    total = float(np.sum(kernel, dtype=np.float64))
    if any(n % 2 == 0 for n in kernel.shape) or not total > 0:
        raise ValueError(f"the in-focus PSF of {kernel.shape} px needs odd sides and a sum over 0")
    plane = backend.asarray(image)
    half = [n // 2 for n in kernel.shape]
    padded = backend.xp.pad(plane, [(n, n) for n in half], mode="symmetric")
    shape = tuple(fast_len(n) for n in padded.shape)
    wrapped: NDArray[np.float32] = np.zeros(shape, np.float32)
    wrapped[: kernel.shape[0], : kernel.shape[1]] = kernel / total
    wrapped = np.roll(wrapped, [-n for n in half], (0, 1))
    with backend.fft_threads():
        spectrum = backend.fft.rfft2(padded, s=shape)
        spectrum *= backend.fft.rfft2(backend.asarray(wrapped))
        out = backend.fft.irfft2(spectrum, s=shape)
    return out[half[0] : half[0] + plane.shape[0], half[1] : half[1] + plane.shape[1]]


def _weights(
    backend: Backend,
    stack: Any,
    planes: list[int],
    floor: Callable[[Array], Array],
    softness: float,
) -> tuple[Array, Array, Array]:
    """Return weights (usable z, y, x) of sum 1, height, sharpest; ``floor``: energy of noise."""
    xp = backend.xp
    weights = xp.empty((len(planes), *stack.shape[1:]), dtype=xp.float32)
    mean = xp.zeros(stack.shape[1:], dtype=xp.float32)
    for i, z in enumerate(planes):
        energy, wide = focus_energy(backend, stack[z])
        weights[i] = xp.maximum(energy - floor(wide), 0)
        mean += wide / len(planes)
    index = xp.asarray(planes, dtype=xp.int32)
    # One softness for all planes of a pixel: with each plane's own, light out of focus would
    # get too much weight (0.16 dB on the wavy set).
    soft = softness * floor(mean)
    weights += soft
    # Divided by the greatest first: the fourth power of a saturated plane would overflow.
    peak = weights.max(axis=0)
    weights /= peak
    best = weights.argmax(axis=0)
    weights **= POWER
    weights /= weights.sum(axis=0)
    height = (weights * index.astype(xp.float32)[:, None, None]).sum(axis=0)
    clear = peak > CLEAR * soft
    few = (slice(None, None, POOL_PX),) * 2
    return weights, height[few], xp.where(clear, index[best], -1)[few]


def noise_share(narrow_px: float, wide_px: float) -> float:
    """Return what a difference of two Gaussians leaves of white noise of variance 1."""
    at = np.arange(-40, 41)
    narrow, wide = (np.exp(-0.5 * (at / max(sigma, 1e-3)) ** 2) for sigma in (narrow_px, wide_px))
    narrow, wide = narrow / narrow.sum(), wide / wide.sum()
    return float(np.sum((np.outer(narrow, narrow) - np.outer(wide, wide)) ** 2))
