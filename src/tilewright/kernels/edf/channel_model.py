"""What is known of a channel before its filters are made: optics, power of the light, and noise.

Optics are taken as real and round: a measured PSF is averaged around its axis.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import j0

from tilewright.kernels.backend import Backend, Floats
from tilewright.kernels.edf.focus import BAND_SIGMA_PX
from tilewright.kernels.noise import NoiseModel

#: Planes of the PSF per step of the stack: what lies between two planes is blurred otherwise than
#: what lies in one.
FINE = 2
#: Radii of frequency up to the corner of the spectrum; a PSF of 129 px needs 91.
RADII = np.linspace(0, np.sqrt(0.5), 129)
#: Light this far beyond the ends of a stack counts as the tissue's. Measured with 5 µm: where
#: tissue leaves the stack 0.8 dB over none, on steep tissue within 0.2 dB less.
BEYOND_UM = 3.0
#: Depth spreads of the bins, in units of that of a thin sheet (``sheet_spread``): with the
#: narrow one alone thick tissue loses 1 dB, with the wide one alone a thin sheet.
NARROW, WIDE = 1.17, 3.3
#: From so many standard errors on something is no noise. A ring counts as measured up to the first
#: one below: with 4 a dim set loses 0.1 dB, with 8 bright ones 3 dB.
CLEAR_SIGMAS = 3.0
#: The error of a ring of fewer modes is their own scatter, and no test of its power: no figure.
_FEW_MODES = 64
#: Exponent with which power falls beyond: -4 loses 0.06 dB on thick tissue, -8 0.07 dB on very dim
#: one.
_TAIL = -6.0
#: Nor is one measured where neighbours share so little of what they show of the light: there the
#: cross-spectrum changes sign, and what it leaves divided by next to nothing is far too much power.
#: Two channels of the phantom gain 4.9 and 1.3 dB over no such limit; with 0.25 half a dB more, but
#: wavy and thick sets lose 0.3 and 0.2.
_LEAST_SHARED = 0.15


def transfer_profiles(psf: NDArray[Any]) -> Floats:
    """Return the optical transfer functions of a PSF's planes over the radius of frequency.

    Parameters
    ----------
    psf : ndarray, shape (z, y, x)
        Odd sizes, centre in the middle, :data:`FINE` planes per step of the stack.

    Returns
    -------
    ndarray of float64, shape (z, 129)
        At :data:`RADII`, averaged around the axis; 1 at frequency 0 of the middle plane.

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
    return np.asarray(sums @ j0(2 * np.pi * np.sqrt(radius)[:, None] * RADII) / light)


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


def psf_planes(planes: int, z_step_um: float) -> int:
    """Return how many planes a PSF needs, at half the step, for a stack of ``planes``.

    >>> psf_planes(17, 1.5)
    73
    """
    return 2 * FINE * (planes - 1 + round(BEYOND_UM / z_step_um)) + 1


@dataclass(frozen=True)
class ChannelModel:
    """What the filters of a channel depend on.

    Attributes
    ----------
    profiles : Floats
        float64 (≥ 2 · FINE · (planes - 1) + 1, 129): from :func:`transfer_profiles`.
    plane_mask : bool (planes,)
        Planes to use.
    power : float64 (129,)
        S(q): power of all light of a pixel's column, in counts²; white noise of variance v has the
        power v.
    noise_variance : float
        N, counts².
    """

    profiles: Floats
    plane_mask: NDArray[np.bool_]
    power: Floats
    noise_variance: float

    @property
    def transfer(self) -> Floats:
        """What each usable plane shows of light at each fine depth: (planes, depths, radii)."""
        return plane_transfer(self.profiles, len(self.plane_mask))[self.plane_mask]

    @property
    def _band_power(self) -> Floats:
        """Focus energy of the light in each ring."""
        narrow = np.exp(-2 * np.square(np.pi * BAND_SIGMA_PX * RADII))
        band: Floats = np.square(narrow - narrow**4) * self.power
        band *= 2 * np.pi * RADII * RADII[1]
        return band

    @property
    def sheet_spread(self) -> float:
        """Spread in depth, in planes, that focus weights give a thin sheet of this channel."""
        middle = len(self.profiles) // 2
        at = np.arange(-middle, middle + 1) / FINE
        energy = np.square(self.profiles) @ self._band_power
        spreads = []
        for first in range(FINE):
            # As the planes of a stack see a sheet in, and between, them.
            planes = slice((middle + first) % FINE, None, FINE)
            weight = np.square(energy[planes])
            weight /= weight.sum()
            mean = float(at[planes] @ weight)
            spreads.append(float(np.square(at[planes] - mean) @ weight) ** 0.5)
        return float(np.mean(spreads))

    @property
    def spreads(self) -> tuple[float, float]:
        """Spreads in depth of the bins, in planes."""
        return NARROW * self.sheet_spread, WIDE * self.sheet_spread


def object_power(
    backend: Backend, samples: Sequence[Any], profiles: Floats, plane_mask: NDArray[np.bool_]
) -> Floats:
    """Return the power S(q) of the light, from the planes' cross-spectra.

    The noise of two planes is independent, so the cross-spectrum of neighbours is that of the
    light, times the mean product of their transfer functions. It is averaged over rings; from the
    first ring that noise could have made, or where neighbours share next to nothing, the power
    falls steeply.

    Parameters
    ----------
    samples : sequence of array, shape (z, y, x)
        Raw counts of different places.
    profiles, plane_mask
        See :class:`ChannelModel`.

    Returns
    -------
    ndarray of float64, shape (129,)
        Positive.

    Raises
    ------
    ValueError
        Fewer than two planes are usable.

    Examples
    --------
    >>> plane = np.random.default_rng(0).normal(100, 3, (256, 256))
    >>> power = object_power(cpu, [np.stack([plane] * 3)], np.ones((9, 129)), np.ones(3, bool))
    >>> round(float(np.median(power)))
    9
    """
    planes = np.flatnonzero(plane_mask)
    if planes.size < 2:
        raise ValueError("the power of the light needs two planes")
    measurable, product = _mean_products(profiles, len(plane_mask), planes)
    total, squares, count = (np.zeros_like(RADII) for _ in range(3))
    for sample in samples:
        for part, whole in zip(
            (total, squares, count), _cross_power(backend, sample, planes), strict=True
        ):
            part += whole
    modes = np.maximum(count, 1)
    power, error = total / modes / product, np.sqrt(squares) / modes / product
    return _with_tail(power, error, count, measurable)


def _mean_products(
    profiles: Floats, count: int, planes: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], Floats]:
    """Return in which rings neighbouring planes share light, and their transfers' products."""
    # As if the light were spread evenly over the stack.
    last = FINE * (count - 1)
    transfer = plane_transfer(profiles, count)
    beyond = (transfer.shape[1] - 1 - last) // 2
    transfer = transfer[:, beyond : beyond + last + 1]
    shared = np.mean(np.square(transfer[planes]), axis=(0, 1))
    product = np.zeros_like(RADII)
    for a, b in itertools.pairwise(planes):
        product += (transfer[a] * transfer[b]).mean(axis=0)
    measurable = product > _LEAST_SHARED * shared * (planes.size - 1)
    return measurable, np.maximum(product, 1e-3 * shared * (planes.size - 1))


def _cross_power(
    backend: Backend, sample: Any, planes: NDArray[np.intp]
) -> tuple[Floats, Floats, Floats]:
    """Return sums over rings of neighbouring planes' cross-power, its squares, and modes."""
    shape = sample.shape[1:]
    window = np.outer(*(np.hanning(n + 2)[1:-1] for n in shape))
    taper = backend.asarray(window)
    spectra = []
    for z in planes:
        plane = backend.asarray(sample[int(z)])
        spectra.append(backend.fft.rfft2((plane - plane.mean()) * taper))
    cross = sum((a * b.conj()).real for a, b in itertools.pairwise(spectra))
    values = backend.to_numpy(cross).astype(np.float64).ravel() / float(np.square(window).sum())
    radius = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1]))
    ring = np.rint(radius / RADII[1]).astype(np.intp).ravel()
    n = RADII.size
    sums, squares, modes = (
        np.bincount(ring, weight, minlength=n)[:n].astype(np.float64)
        for weight in (values, np.square(values), np.ones_like(values))
    )
    return sums, squares, modes


def _with_tail(
    power: Floats, error: Floats, modes: Floats, measurable: NDArray[np.bool_]
) -> Floats:
    """Return the power with a power law from the first ring that is not measurable on."""
    # The first ring lacks the mean, and has the power of the next.
    power = power.copy()
    power[0] = power[1] = max(power[1], power[2])
    doubtful = (power <= CLEAR_SIGMAS * error) & (modes >= _FEW_MODES)
    missing = np.flatnonzero(doubtful | ~measurable | (modes == 0) | (power <= 0))
    missing = missing[missing > 1]
    if not missing.size:
        return power
    last = int(missing[0]) - 1
    power[last:] = power[last] * (RADII[last:] / RADII[last]) ** _TAIL
    return np.maximum(power, max(float(power.max()) * 1e-12, 1e-9))


def mean_variance(noise: NoiseModel, samples: Sequence[Any], pedestal_counts: float) -> float:
    """Return N, the noise variance (counts²) of a pixel of the samples' mean brightness.

    >>> mean_variance(NoiseModel(2.0, 3.0), [np.full((3, 8, 8), 150.0)], 100.0)
    109.0
    """
    mean = float(np.mean([float(s.mean(dtype=np.float64)) for s in samples])) - pedestal_counts
    return max(float(noise.variance(max(mean, 0.0))), 1e-6)
