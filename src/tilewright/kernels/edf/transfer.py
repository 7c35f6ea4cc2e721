"""Optical transfer functions of a PSF's planes, and of the planes of a stack.

Optics are taken as real and round: a measured PSF is averaged around its axis.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import j0

from tilewright.kernels.backend import Floats

#: Planes of the PSF per step of the stack: what lies between two planes is blurred otherwise than
#: what lies in one.
FINE = 2
#: Radii of frequency up to the corner of the spectrum; a PSF of 129 px needs 91.
RADII = np.linspace(0, np.sqrt(0.5), 129)
#: Of the light of bright debris, which is followed out to 128 px: between 129 radii what lies 48 px
#: from the axis loses 21 %, between these 0.4 %.
WIDE_RADII = 1025
#: Light this far beyond the ends of a stack counts as the tissue's, as in the deconvolution: where
#: tissue leaves the stack 5 µm gain 0.8 dB over none, and lose 0.2 dB on steep tissue within.
BEYOND_UM = 3.0


def transfer_profiles(psf: NDArray[Any], radii: int = RADII.size) -> Floats:
    """Return the optical transfer functions of a PSF's planes over the radius of frequency.

    Parameters
    ----------
    psf : ndarray, shape (z, y, x)
        Odd sizes, centre in the middle, :data:`FINE` planes per step of the stack.
    radii : int
        Number of radii, evenly spaced from 0 to the corner of the spectrum.

    Returns
    -------
    ndarray of float64, shape (z, radii)
        Averaged around the axis; 1 at frequency 0 of the middle plane.

    Raises
    ------
    ValueError
        An axis is even, or the middle plane has no light.

    Examples
    --------
    >>> transfer_profiles(np.ones((3, 1, 1)))[1, :2]
    array([1., 1.])
    """
    if psf.ndim != 3 or any(n % 2 == 0 for n in psf.shape):
        raise ValueError(f"the PSF has shape {psf.shape}; every axis must be odd (centre = peak)")
    light = float(psf[len(psf) // 2].sum(dtype=np.float64))
    if not (np.isfinite(light) and light > 0):
        raise ValueError("the PSF's middle plane has no positive finite sum")
    y, x = (np.square(np.arange(n) - n // 2) for n in psf.shape[1:])
    radius, ring = np.unique((y[:, None] + x).ravel(), return_inverse=True)
    sums = np.stack([np.bincount(ring.ravel(), plane.ravel()) for plane in psf])
    frequency = _frequencies(radii)
    return np.asarray(sums @ j0(2 * np.pi * np.sqrt(radius)[:, None] * frequency) / light)


def profile_at(profiles: Floats, steps: int, radius: Floats) -> Floats:
    """Return the transfer function so many planes of the PSF from focus, at radii in cycles/px."""
    known = _frequencies(profiles.shape[1])
    return np.asarray(np.interp(radius, known, profiles[len(profiles) // 2 + steps]))


def ring_profiles(radius_px: Floats, intensity: Floats) -> Floats:
    """Return :func:`transfer_profiles` at :data:`WIDE_RADII` of a PSF (z, evenly spaced radii).

    Works for widths at which an image of the PSF would not fit in memory.

    >>> radius = np.arange(0, 8, 0.5)
    >>> round(float(ring_profiles(radius, np.exp(-(radius**2))[None])[0, 0]), 6)
    1.0
    """
    rings, frequency = intensity * radius_px, _frequencies(WIDE_RADII)
    profiles = rings @ j0(2 * np.pi * radius_px[:, None] * frequency)
    # As means over pixels see it.
    return np.asarray(profiles * np.sinc(frequency) / rings[len(rings) // 2].sum())


def _frequencies(count: int) -> Floats:
    return np.linspace(0, RADII[-1], count)


def plane_transfer(profiles: Floats, planes: int) -> Floats:
    """Return A (planes, depths, radii): what each plane shows of light at each fine depth.

    Depths reach as far beyond either end of the stack as the PSF has planes for.
    """
    middle = len(profiles) // 2
    beyond = middle - FINE * (planes - 1)
    if beyond < 0:
        raise ValueError(
            f"a PSF of {len(profiles)} planes reaches too few planes: a stack of {planes} needs "
            f"{2 * FINE * (planes - 1) + 1} or more"
        )
    depth = np.arange(-beyond, FINE * (planes - 1) + beyond + 1)
    transfer: Floats = profiles[middle + FINE * np.arange(planes)[:, None] - depth]
    return transfer


def transfer_between(
    profiles: Floats,
    planes: NDArray[np.int64],
    depths: NDArray[np.int64],
    shape: Sequence[int],
    pixel_px: int,
    taper: Floats | float = 1.0,
) -> NDArray[np.float32]:
    """Return what planes show of light at depths, on pixels of ``pixel_px``.

    Parameters
    ----------
    profiles : ndarray of float64, shape (z, radii)
        From :func:`transfer_profiles`.
    planes, depths : ndarray of int64
        Consecutive depths in planes of the stack.
    shape : sequence of int
        (y, x) of the image in such pixels.
    taper : ndarray of float64, shape (y, x // 2 + 1), or float
        By what the transfer is multiplied.

    Returns
    -------
    ndarray of float32, shape (planes, depths, y, x // 2 + 1)

    Examples
    --------
    >>> transfer_between(np.ones((9, 129)), np.arange(3), np.arange(3), (8, 8), 4).shape
    (3, 3, 8, 5)
    """
    radius = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])) / pixel_px
    steps = np.arange(planes[0] - depths[-1], planes[-1] - depths[0] + 1)
    transfer = np.stack([profile_at(profiles, FINE * int(n), radius) for n in steps])
    transfer *= taper
    joint: NDArray[np.float32] = transfer.astype(np.float32)[planes[:, None] - depths - steps[0]]
    return joint


def psf_planes(planes: int, z_step_um: float) -> int:
    """Return how many planes a PSF needs, at half the step, for a stack of ``planes``.

    >>> psf_planes(17, 1.5)
    73
    """
    return 2 * FINE * (planes - 1 + round(BEYOND_UM / z_step_um)) + 1
