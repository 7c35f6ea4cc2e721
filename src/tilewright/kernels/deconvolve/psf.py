"""Point spread functions: widefield Gibson-Lanni, and measured ones made ready for use.

Computed once per channel on the host (a few milliseconds of Bessel functions), so that both
devices deconvolve with the same numbers. Every plane of a widefield PSF carries the same light.
Planes are therefore not scaled one by one: the array is scaled to sum 1 as a whole, and the
in-focus plane's sum is its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.special import j0

from tilewright.errors import ProcessingError
from tilewright.kernels.backend import Floats

#: Points per pixel side that are averaged: within 0.3 % of twice as many at NA 0.75, 0.38 µm.
_OVERSAMPLING = 7
#: Of the planes' light, a PSF keeps at least this share, if the cap on its width allows it.
_ENERGY = 0.98


@dataclass(frozen=True)
class Optics:
    """What a widefield PSF is computed from.

    Raises
    ------
    ProcessingError
        A value is missing, not finite or not positive.

    Attributes
    ----------
    numerical_aperture : float
        Of the objective; smaller than the immersion's refractive index.
    emission_nm : float
        Wavelength of the emitted light in vacuum.
    immersion_refractive_index, sample_refractive_index : float
        Of the medium in front of the lens and of the mounted tissue.
    """

    numerical_aperture: float
    emission_nm: float
    immersion_refractive_index: float
    sample_refractive_index: float

    @classmethod
    def from_mapping(cls, values: Mapping[str, float | None]) -> Optics:
        """Return the optics in a mapping of the four names; None stands for missing."""
        return cls(**{name: values.get(name) or math.nan for name in cls.__annotations__})

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not math.isfinite(value) or value <= 0:
                raise ProcessingError(f"optics: {name} is {value}; give a positive number")


def gibson_lanni(
    optics: Optics,
    voxel_um: tuple[float, float, float],
    planes: int,
    *,
    depth_um: float = 0.0,
    max_lateral_px: int = 129,
) -> NDArray[np.float32]:
    """Return the widefield PSF of a point under ``depth_um`` of sample, pixel-integrated.

    Scalar model of Gibson & Lanni (JOSA A 9:154, 1992) for a lens used as designed (its own
    coverslip and immersion): the phase is the stage's defocus in the immersion plus the
    sample's share at the depth. The width is the smallest odd one that holds 98 % of the light
    which ``max_lateral_px`` holds.

    Parameters
    ----------
    voxel_um : tuple of float
        (z, y, x) pitch of the image; z is the stage's step; y and x must be equal.
    planes : int
        Number of planes, odd; 2n - 1 joins all planes of a stack of n.
    depth_um : float
        Depth of the point below the coverslip; 0 is the symmetric PSF. Otherwise the plane of
        the highest peak is put in the middle.
    max_lateral_px : int
        Cap on the width and height, odd.

    Returns
    -------
    ndarray of float32, shape (planes, size, size)
        Centre in the middle of odd axes, sum 1.

    Raises
    ------
    ProcessingError
        The pixels are not square.

    Examples
    --------
    >>> lens = Optics(0.75, 520.0, immersion_refractive_index=1.0, sample_refractive_index=1.44)
    >>> psf = gibson_lanni(lens, (1.5, 0.377, 0.377), 3, max_lateral_px=33)
    >>> psf.shape, round(float(psf[1].sum()), 3)
    ((3, 15, 15), 0.336)
    """
    if voxel_um[1] != voxel_um[2]:
        raise ProcessingError(f"voxel_um is {voxel_um}; give (z, y, x) with y equal to x")
    z_um = (np.arange(planes) - planes // 2) * np.float64(voxel_um[0])
    if depth_um > 0:
        z_um += _best_focus_um(optics, depth_um)
    return _crop_to_light(_pixel_means(optics, voxel_um[1], z_um, depth_um, max_lateral_px // 2))


def _pixel_means(
    optics: Optics, pixel_um: float, z_um: Floats, depth_um: float, half: int
) -> Floats:
    """Return the intensity averaged over pixels, (z, 2 half + 1, 2 half + 1)."""
    # On a radial grid 14 times finer than the pixels, of which each averages 7 x 7 points. Only one
    # octant is computed: rows y >= 0, columns 0 <= x <= y.
    sub = (np.arange(_OVERSAMPLING) + 0.5) / _OVERSAMPLING - 0.5
    rows, cols = np.tril_indices(half + 1)
    radius = np.hypot(
        (rows[:, None, None] + sub[:, None]), (cols[:, None, None] + sub[None, :])
    ).reshape(rows.size, -1)
    grid = np.arange(0, _OVERSAMPLING * 2 * (radius.max() + 1)) / (_OVERSAMPLING * 2)
    profile = _intensity(optics, grid * pixel_um, z_um, depth_um)
    quadrant = np.empty((len(z_um), half + 1, half + 1))
    for plane, values in zip(quadrant, profile, strict=True):
        plane[rows, cols] = plane[cols, rows] = np.interp(radius, grid, values).mean(axis=1)
    return np.pad(quadrant, ((0, 0), (half, 0), (half, 0)), mode="reflect")


def _intensity(optics: Optics, r_um: Floats, z_um: Floats, depth_um: float) -> Floats:
    """Return |pupil integral|² at stage defoci and radii, shape (z, r)."""
    k = 2 * np.pi / (optics.emission_nm * 1e-3)
    aperture, n_i = optics.numerical_aperture, optics.immersion_refractive_index
    n_s = optics.sample_refractive_index
    # Kirchhoff's integral by Gauss-Legendre quadrature, with more than two nodes per cycle of its
    # phase at the pupil's rim, in radians.
    rim = n_i - math.sqrt(n_i**2 - aperture**2)
    swing = k * (aperture * r_um[-1] + (np.abs(z_um).max() + 2 * depth_um) * rim)
    rho, weight = np.polynomial.legendre.leggauss(64 + math.ceil(swing / 2))
    rho, weight = (rho + 1) / 2, weight / 2
    immersion = np.sqrt(n_i**2 - (aperture * rho) ** 2)
    # Rays steeper than the sample's index are evanescent there: a complex root damps them.
    sample = np.sqrt(n_s**2 - (aperture * rho) ** 2 + 0j)
    path = np.outer(z_um - depth_um * n_i / n_s, immersion) + depth_um * sample
    pupil = np.exp(1j * k * path) * (rho * weight)
    bessel = j0(k * aperture * np.outer(rho, r_um))
    return np.asarray(np.abs(pupil @ bessel) ** 2)


def _best_focus_um(optics: Optics, depth_um: float) -> float:
    """Return the stage position of the highest on-axis intensity at a depth."""
    # Spherical aberration moves the focus by less than the depth itself.
    z_um = np.linspace(-depth_um, depth_um, 401)
    on_axis = _intensity(optics, np.zeros(1), z_um, depth_um)[:, 0]
    return float(z_um[int(np.argmax(on_axis))])


def _crop_to_light(psf: Floats) -> NDArray[np.float32]:
    """Cut a square PSF to the least odd width that holds the wanted share of its light; sum 1."""
    middle = psf.shape[1] // 2
    image = psf.sum(axis=0)
    total = float(image.sum())
    for half in range(middle):
        inner = slice(middle - half, middle + half + 1)
        if float(image[inner, inner].sum()) >= _ENERGY * total:
            psf = psf[:, inner, inner]
            break
    return np.asarray((psf / psf.sum()).astype(np.float32))


def measured_psf(
    image: NDArray[Any],
    image_voxel_um: tuple[float, float, float],
    voxel_um: tuple[float, float, float],
    planes: int,
    *,
    max_lateral_px: int = 129,
) -> NDArray[np.float32]:
    """Make a measured PSF (an averaged bead) ready: background, centre, pitch, size, sum.

    The background is the median of the outermost voxels of the middle planes; what is below
    it counts as zero. The centre is the centroid of what exceeds half the maximum. The
    image is resampled around it (linear; the mean over the new voxel where that is the
    larger one) and cut to 98 % of its light as in :func:`gibson_lanni`.

    Parameters
    ----------
    image : ndarray, shape (z, y, x)
        Any sizes, even or odd; one bead.
    image_voxel_um, voxel_um : tuple of float
        (z, y, x) pitch of the PSF image and of the data.
    planes : int
        Number of planes wanted, odd; fewer are returned where the image has no more.
    max_lateral_px : int
        Cap on the width and height, odd.

    Returns
    -------
    ndarray of float32, shape (z, y, x)
        Odd sizes, centre in the middle, sum 1.

    Raises
    ------
    ProcessingError
        The image is not three-dimensional, not finite, or empty.

    Examples
    --------
    >>> z, y, x = np.indices((9, 17, 17)) - np.reshape([4, 8, 8], (3, 1, 1, 1))
    >>> bead = 100 + 1000 * np.exp(-(z**2 + y**2 + x**2) / 8)
    >>> measured_psf(bead, (0.5, 0.2, 0.2), (1.0, 0.4, 0.4), 5).shape
    (5, 7, 7)
    """
    bead, centre = _centred_bead(image)
    zoom = _zoom(image_voxel_um, voxel_um)
    reach = np.minimum(centre, np.array(bead.shape) - 1 - centre) / zoom
    halves = _half_sizes(reach, (planes, max_lateral_px, max_lateral_px))
    return _crop_to_light(_sampled_around(bead, centre, zoom, halves))


def _zoom(
    image_voxel_um: tuple[float, float, float], voxel_um: tuple[float, float, float]
) -> Floats:
    zoom: Floats = np.array(voxel_um) / np.array(image_voxel_um)
    if not (np.isfinite(zoom).all() and (zoom > 0).all()):
        raise ProcessingError(
            f"PSF voxel {image_voxel_um} and data voxel {voxel_um} must be positive"
        )
    return zoom


def _half_sizes(reach: Floats, caps: tuple[int, int, int]) -> list[int]:
    """Return half the sides (z, y, x) within the reach of an image, y and x alike."""
    z, *lateral = (min(math.floor(r + 1e-6), c // 2) for r, c in zip(reach, caps, strict=True))
    return [z, min(lateral), min(lateral)]


def _centred_bead(image: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the image of a bead over its background, and its centre (z, y, x)."""
    if image.ndim != 3 or image.size == 0:
        raise ProcessingError(
            f"the PSF image has shape {image.shape}; it must be a stack (z, y, x)"
        )
    bead = image.astype(np.float64)
    if not np.isfinite(bead).all():
        raise ProcessingError("the PSF image holds NaN or infinite values")
    middle = bead[bead.shape[0] // 4 : bead.shape[0] - bead.shape[0] // 4]
    rim = np.concatenate([middle[:, 0], middle[:, -1], middle[:, :, 0], middle[:, :, -1]], axis=1)
    bead = np.maximum(bead - np.median(rim), 0)
    if bead.max() <= 0:
        raise ProcessingError("the PSF image is empty: nothing in it exceeds its background")
    centre = np.array(ndimage.center_of_mass(np.maximum(bead - bead.max() / 2, 0)))
    return bead, centre


def _sampled_around(image: Floats, centre: Floats, zoom: Floats, halves: list[int]) -> Floats:
    """Sample 2 h + 1 voxels of ``zoom`` per axis, each the mean of points one voxel apart."""
    points = [max(1, round(z)) for z in zoom]
    axes = [
        c + f * (np.arange(-h, h + 1)[:, None] + (np.arange(k) + 0.5) / k - 0.5).ravel()
        for c, f, h, k in zip(centre, zoom, halves, points, strict=True)
    ]
    values = ndimage.map_coordinates(
        image, np.meshgrid(*axes, indexing="ij"), order=1, mode="nearest"
    )
    split = [n for h, k in zip(halves, points, strict=True) for n in (2 * h + 1, k)]
    return np.asarray(values.reshape(split).mean(axis=(1, 3, 5)))
