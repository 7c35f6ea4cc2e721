"""Filters that turn a z-stack into its in-focus plane; made on the host, once per channel.

Plane k of a stack is ``g_k = Σ_z h_(k-z) * f_z + noise``; wanted is ``h_0 * Σ_z f_z``, all light as
the in-focus plane would show it. Were the light at every depth independent, of power S(q) and a
known share p(z) of it at each depth, the best linear estimate would be Wiener's over all planes at
once: at each frequency ``w = (A p A' + N/S)⁻¹ A p H_0`` with ``A[k, z] = H_(k-z)``. Depth,
spread in depth and S/N differ from place to place, so there is one set of filters for each bin of
the three, and :mod:`tilewright.kernels.edf.wiener_plane` mixes them. Filters of neighbouring bins
are nearly dependent: few of them make up all, and only those are applied.

Optics are taken as real and round: a measured PSF is averaged around its axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import j0

from tilewright.kernels.backend import Backend, Floats, fast_len
from tilewright.kernels.edf.focus import BAND_SIGMA_PX
from tilewright.kernels.noise import NoiseModel

#: Planes of the PSF per step of the stack: what lies between two planes is blurred otherwise than
#: what lies in one.
FINE = 2
#: Reach of the filters, and where they begin to fade. Tiles need a halo of it.
REACH_PX = 64
_FADE_FROM_PX = 44
_LOST_SIGMA_PX = 20.0
#: Radii of frequency up to the corner of the spectrum; a PSF of 129 px needs 91.
_RADII = np.linspace(0, np.sqrt(0.5), 129)
#: Of the light of specks, which is followed out to 128 px: between 129 radii what lies 48 px from
#: the axis loses 21 %, between these 0.4 %.
WIDE_RADII = 1025
#: Grid on which filters become kernels: a kernel of 64 px does not wrap around.
_GRID = 192
#: Depth spreads of the bins, in units of what a thin sheet looks like (``sheet_spread``): with the
#: narrow one alone thick tissue loses 1 dB, with the wide one alone a thin sheet.
NARROW, WIDE = 1.17, 3.3
_LEAST_SPREAD = 0.5
#: Share of the light that may lie at any depth, over that at the likeliest.
_ANYWHERE = 1e-4
#: Light this far beyond the ends of a stack counts as the tissue's, as in the deconvolution: where
#: tissue leaves the stack 5 µm gain 0.8 dB over none, and lose 0.2 dB on steep tissue within.
BEYOND_UM = 3.0
#: Fall, over that distance, of the share of light that lies beyond what an end plane shows.
_FALL = 0.5
#: N/S of the bins over the channel's.
NOISE_LEVELS = 0.25 * 4.0 ** np.arange(5)
#: Error of the model (optics, shape of the prior) as noise in shares of the light's power. 0 loses
#: 0.8 dB on a bright thin sheet, 3 dB there with an aperture 10 % wrong; 0.01 loses 0.8 dB on thick
#: tissue. It also keeps filters short: at low frequencies all planes show nearly the same.
_MODEL_ERROR = 2e-3
#: Power that the low rank may lose, of that of all filtered images, and the most kernels: with 20
#: instead of 12 bright sets gain 0.03 dB and dim ones 0.1, in 1.3 times the time.
_LOST = 5e-4
_MOST_RANK = 14
#: Weight of a bin that no sample used, over the mean's.
_UNUSED = 0.02
#: A ring counts as measured up to the first one below so many standard errors; beyond, power falls
#: with this many times the exponent that it had before.
_ERRORS = 4.0
_STEEPER = 2.0
_FEW_MODES = 64
#: Nor is one measured where neighbours share so little of what they show of the light: there the
#: cross-spectrum changes sign, and what it leaves divided by next to nothing is far too much power.
#: Two channels of the phantom gain 4.9 and 1.3 dB over no such limit; with 0.25 half a dB more, but
#: wavy and thick sets lose 0.3 and 0.2.
_LEAST_TOLD = 0.15


def transfer_profiles(psf: NDArray[Any], radii: int = _RADII.size) -> Floats:
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
    """Return :func:`transfer_profiles` at :data:`WIDE_RADII` of a PSF (z, even radii in px).

    It may be as wide as memory allows no image to be.
    """
    rings, frequency = intensity * radius_px, _frequencies(WIDE_RADII)
    shown = rings @ j0(2 * np.pi * radius_px[:, None] * frequency)
    # As means over pixels see it.
    return np.asarray(shown * np.sinc(frequency) / rings[len(rings) // 2].sum())


def _frequencies(count: int) -> Floats:
    return np.linspace(0, _RADII[-1], count)


@dataclass(frozen=True)
class Channel:
    """What the filters of a channel depend on.

    Attributes
    ----------
    profiles : ndarray of float64, shape (≥ 2 · FINE · (planes - 1) + 1, 129)
        From :func:`transfer_profiles`.
    kept : ndarray of bool, shape (planes,)
        Planes that were measured.
    power : ndarray of float64, shape (129,)
        S(q): power of all light of a pixel's column, in counts²; white noise of variance v has
        the power v.
    noise_variance : float
        N, counts².
    """

    profiles: Floats
    kept: NDArray[np.bool_]
    power: Floats
    noise_variance: float

    @property
    def _band_power(self) -> Floats:
        """Focus energy of the light in each ring."""
        narrow = np.exp(-2 * np.square(np.pi * BAND_SIGMA_PX * _RADII))
        band: Floats = np.square(narrow - narrow**4) * self.power
        band *= 2 * np.pi * _RADII * _RADII[1]
        return band

    @property
    def mean_energy(self) -> float:
        """Focus energy (counts²) of the light, summed over the planes kept."""
        shown = _between(self.profiles, len(self.kept))[self.kept]
        return float(np.square(shown).sum(axis=0).mean(axis=0) @ self._band_power)

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
        sheet = self.sheet_spread
        return max(NARROW * sheet, _LEAST_SPREAD), max(WIDE * sheet, 2.5 * _LEAST_SPREAD)


def object_power(
    backend: Backend,
    samples: Sequence[Any],
    profiles: Floats,
    kept: NDArray[np.bool_],
) -> Floats:
    """Return the power S(q) of the light, from the planes' cross-spectra.

    The noise of two planes is independent, so the cross-spectrum of neighbours is that of the
    light, times the mean product of their transfer functions. It is averaged over rings; from the
    first ring that noise could have made, or where neighbours share next to nothing, the power
    falls with twice its exponent.

    Parameters
    ----------
    samples : sequence of array, shape (z, y, x)
        Raw counts of different places; at least 64 px on a side.
    profiles, kept
        See :class:`Channel`.

    Returns
    -------
    ndarray of float64, shape (129,)
        Positive.

    Raises
    ------
    ValueError
        Fewer than two planes are kept, or a sample is too small.
    """
    planes = np.flatnonzero(kept)
    if planes.size < 2:
        raise ValueError("the power of the light needs two planes")
    # As if the light were spread evenly over the stack.
    last = FINE * (len(kept) - 1)
    both = _between(profiles, len(kept))
    beyond = (both.shape[1] - 1 - last) // 2
    both = both[:, beyond : beyond + last + 1]
    shared = np.mean(np.square(both[planes]), axis=(0, 1))
    product = np.zeros_like(_RADII)
    for a, b in itertools.pairwise(planes):
        product += (both[a] * both[b]).mean(axis=0)
    told = product > _LEAST_TOLD * shared * (planes.size - 1)
    product = np.maximum(product, 1e-3 * shared * (planes.size - 1))
    total, squares, count = (np.zeros_like(_RADII) for _ in range(3))
    for sample in samples:
        for part, whole in zip(
            (total, squares, count), _cross_power(backend, sample, planes), strict=True
        ):
            part += whole
    modes = np.maximum(count, 1)
    power, error = total / modes / product, np.sqrt(squares) / modes / product
    return _with_tail(power, error, count, told)


def _cross_power(
    backend: Backend, sample: Any, planes: NDArray[np.intp]
) -> tuple[Floats, Floats, Floats]:
    """Return sums over rings of neighbouring planes' cross-power, its squares, and modes."""
    shape = sample.shape[1:]
    if min(shape) < REACH_PX:
        raise ValueError(f"a sample of {shape} px is too small for a spectrum; take 512 px")
    window = np.outer(*(np.hanning(n + 2)[1:-1] for n in shape))
    taper = backend.asarray(window)
    spectra = []
    with backend.fft_threads():
        for z in planes:
            plane = backend.asarray(sample[int(z)])
            spectra.append(backend.fft.rfft2((plane - plane.mean()) * taper))
    cross = sum((a * b.conj()).real for a, b in itertools.pairwise(spectra))
    values = backend.to_numpy(cross).astype(np.float64).ravel() / float(np.square(window).sum())
    radius = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1]))
    ring = np.rint(radius / _RADII[1]).astype(np.intp).ravel()
    n = _RADII.size
    sums, squares, modes = (
        np.bincount(ring, weight, minlength=n)[:n].astype(np.float64)
        for weight in (values, np.square(values), np.ones_like(values))
    )
    return sums, squares, modes


def _with_tail(power: Floats, error: Floats, modes: Floats, told: NDArray[np.bool_]) -> Floats:
    """Replace what is not told by a power law; the mean was taken out of the first ring."""
    power = power.copy()
    power[0] = power[1] = max(power[1], power[2])
    # The error of few modes is their own scatter: it tells nothing of noise.
    doubtful = (power <= _ERRORS * error) & (modes >= _FEW_MODES)
    lost = np.flatnonzero(doubtful | ~told | (modes == 0) | (power <= 0))
    lost = lost[lost > 1]
    if not lost.size:
        return power
    first = int(lost[0])
    fitted = np.arange(max(first // 2, 1), first)
    level, slope = power[first - 1], -4.0
    if fitted.size >= 3:
        line = np.polyfit(np.log(_RADII[fitted]), np.log(power[fitted]), 1)
        level = float(np.exp(np.polyval(line, np.log(_RADII[first]))))
        slope = min(_STEEPER * float(line[0]), -1.0)
    power[first:] = level * (_RADII[first:] / _RADII[first]) ** slope
    return np.maximum(power, max(float(power.max()) * 1e-12, 1e-9))


@dataclass(frozen=True)
class Filters:
    """All filters of a channel, as few kernels and how to mix them.

    Attributes
    ----------
    kernels : ndarray of float32, shape (kept planes, rank, 65, 65)
        One quadrant, centre at 0, of kernels that are even in y and x.
    mixing : ndarray of float32, shape (2 spreads, planes, noise levels, rank)
        The filter of a bin is the sum of the kernels with these weights.
    noise : ndarray of float32, shape (2 spreads, planes, noise levels)
        Variance that a bin's filter leaves of white noise of variance 1.
    """

    kernels: NDArray[np.float32]
    mixing: NDArray[np.float32]
    noise: NDArray[np.float32]

    @property
    def rank(self) -> int:
        """Number of filtered images."""
        return int(self.kernels.shape[1])

    def on_grid(self, backend: Backend, shape: tuple[int, int]) -> Any:
        """Return the transfer functions of a window of ``shape`` (y, x), on the device.

        (kept planes, rank, y // 2 + 1, x // 2 + 1) float32: they are even in y as well.
        """
        xp = backend.xp
        rows, columns = (_cosines(n, REACH_PX + 1) for n in shape)
        rows, columns = backend.asarray(np.ascontiguousarray(rows.T)), backend.asarray(columns)
        out = xp.empty((*self.kernels.shape[:2], len(rows), columns.shape[1]), dtype=xp.float32)
        for index in np.ndindex(self.kernels.shape[:2]):
            xp.matmul(rows, backend.asarray(self.kernels[index]) @ columns, out=out[index])
        return out


def make_filters(channel: Channel, used: Floats | None = None) -> Filters:
    """Return the filters of a channel.

    Parameters
    ----------
    channel : Channel
        What they depend on.
    used : ndarray of float64, shape (2, planes, noise levels), optional
        How often each bin is used, see ``wiener_plane.FocusMaps.bins_used``:
        where that is often the low rank is more exact. On bright thin tissue 12 kernels then do
        what takes 20 without.

    Raises
    ------
    ValueError
        No plane is kept, or the PSF does not join all planes.
    """
    planes = len(channel.kept)
    if not channel.kept.any():
        raise ValueError("no plane of the stack is kept: there is nothing to project")
    bins = np.concatenate([_bins(channel, spread) for spread in channel.spreads])
    kept = int(channel.kept.sum())
    weight = _loss_weight(channel)
    # Where N/S is four times the channel's, the light has a quarter of its power, and so has the
    # error that a bin may have.
    often = np.full((2, planes, len(NOISE_LEVELS)), 1.0) if used is None else used
    often = often / often.sum() + _UNUSED / often.size
    often = np.sqrt(often / NOISE_LEVELS).reshape(-1, 1)
    seen = often * np.matmul(np.moveaxis(bins, 1, 0), np.moveaxis(weight, 1, 2)).transpose(
        1, 0, 2
    ).reshape(len(bins), -1)
    # Of the bins' small Gram matrix: an SVD of the long rows themselves takes five times as long.
    value, vector = np.linalg.eigh(seen @ seen.T)
    lost = np.cumsum(np.maximum(value, 0)) / max(float(value.sum()), 1e-300)
    rank = int(np.clip((lost > _LOST).sum(), 1, _MOST_RANK))
    vector = vector[:, ::-1][:, :rank]
    mixing, pick = vector / often, (vector * often).T
    basis = (pick @ bins.reshape(len(bins), -1)).reshape(rank, _RADII.size, kept)
    # Columns of one scale, for float32.
    size = np.maximum(np.abs(basis).max(axis=(1, 2)), 1e-30)
    basis, mixing = basis / size[:, None, None], mixing * size
    kernels = _kernels(np.moveaxis(basis, 2, 0))
    shape = (len(channel.spreads), planes, len(NOISE_LEVELS), rank)
    gain = np.square(bins).sum(axis=2) @ (2 * np.pi * _RADII * _RADII[1])
    return Filters(
        kernels.astype(np.float32),
        mixing.reshape(shape).astype(np.float32),
        gain.reshape(shape[:3]).astype(np.float32),
    )


def _between(profiles: Floats, planes: int) -> Floats:
    """Return A (planes, depths, radii): what each plane shows of light at each fine depth.

    Depths reach as far beyond either end of the stack as the PSF has planes for.
    """
    middle = len(profiles) // 2
    beyond = middle - FINE * (planes - 1)
    if beyond < 0:
        raise ValueError(
            f"a PSF of {len(profiles)} planes does not join {planes} planes; give "
            f"{2 * FINE * (planes - 1) + 1} or more"
        )
    depth = np.arange(-beyond, FINE * (planes - 1) + beyond + 1)
    shown: Floats = profiles[middle + FINE * np.arange(planes)[:, None] - depth]
    return shown


def _bins(channel: Channel, spread: float) -> Floats:
    """Return the filters (planes × noise levels, radii, kept planes) of one spread in depth."""
    planes = len(channel.kept)
    shown = np.moveaxis(_between(channel.profiles, planes)[channel.kept], 2, 0)
    last = FINE * (planes - 1)
    beyond = len(channel.profiles) // 2 - last
    depth = np.arange(-beyond, last + beyond + 1) / FINE
    in_focus = channel.profiles[len(channel.profiles) // 2]
    unit = np.eye(shown.shape[1])
    noise = channel.noise_variance / channel.power
    out = np.empty((planes, len(NOISE_LEVELS), _RADII.size, shown.shape[1]))
    outside = np.maximum(np.maximum(-depth, depth - (planes - 1)), 0)
    for z in range(planes):
        # What is sharpest in an end plane may lie anywhere beyond it.
        near = np.exp(-0.5 * np.square((np.clip(depth, 0, planes - 1) - z) / spread))
        prior = near * np.exp(-outside / max(_FALL * beyond / FINE, 1.0)) + _ANYWHERE
        prior /= prior.sum()
        weighted = shown * prior
        light = weighted @ np.moveaxis(shown, 1, 2)
        wanted = (weighted.sum(axis=2) * in_focus[:, None])[..., None]
        for i, level in enumerate(NOISE_LEVELS):
            ridge = (level * noise + _MODEL_ERROR)[:, None, None] * unit
            out[z, i] = np.linalg.solve(light + ridge, wanted)[..., 0]
    return out.reshape(-1, _RADII.size, shown.shape[1])


def _loss_weight(channel: Channel) -> Floats:
    """Return L' (radii, kept, kept), L L' the covariance of the planes: a filter's error is L'w."""
    shown = np.moveaxis(_between(channel.profiles, len(channel.kept))[channel.kept], 2, 0)
    light = shown @ np.moveaxis(shown, 1, 2) / shown.shape[2]
    noise = channel.noise_variance / channel.power
    light += (noise + _MODEL_ERROR)[:, None, None] * np.eye(light.shape[1])
    light *= (channel.power * np.maximum(_RADII, _RADII[1] / 4))[:, None, None]
    return np.moveaxis(np.linalg.cholesky(light), 1, 2)


def _kernels(profiles: Floats) -> Floats:
    """Return quadrants (…, 65, 65) of the kernels of radial transfer functions (…, radii)."""
    half = np.arange(_GRID // 2 + 1) / _GRID
    radius = np.hypot(half[:, None], half)
    cosine = _cosines(_GRID, REACH_PX + 1) / _GRID
    # Frequencies other than 0 and the last stand for two; the kernel's pixels do not.
    cosine[1:] /= 2
    cosine[:, 1:-1] *= 2
    at = np.hypot(np.arange(REACH_PX + 1)[:, None], np.arange(REACH_PX + 1))
    fade = 0.5 + 0.5 * np.cos(
        np.pi * np.clip((at - _FADE_FROM_PX) / (REACH_PX - _FADE_FROM_PX), 0, 1)
    )
    out = np.empty((*profiles.shape[:2], *at.shape))
    lower = np.minimum((radius / _RADII[1]).astype(np.intp), _RADII.size - 2)
    share = radius / _RADII[1] - lower
    # What the fade takes from the sum goes back where it is smooth: light is neither made nor lost.
    smooth = fade * np.exp(-0.5 * np.square(at / _LOST_SIGMA_PX))
    counted = np.minimum(np.arange(REACH_PX + 1), 1) + 1
    smooth /= counted @ smooth @ counted
    for index in np.ndindex(profiles.shape[:2]):
        values = profiles[index]
        plane = values[lower] * (1 - share) + values[lower + 1] * share
        kernel = fade * (cosine @ plane @ cosine.T)
        out[index] = kernel + (values[0] - counted @ kernel @ counted) * smooth
    return out


def _cosines(length: int, pixels: int) -> Floats:
    """Return the transform of even kernels: (pixels, length // 2 + 1)."""
    frequency = np.arange(length // 2 + 1) / length
    cosine = 2 * np.cos(2 * np.pi * np.arange(pixels)[:, None] * frequency)
    cosine[0] = 1
    return cosine


def psf_planes(planes: int, z_step_um: float) -> int:
    """Return how many planes a PSF needs, at half the step, for a stack of ``planes``.

    >>> psf_planes(17, 1.5)
    73
    """
    return 2 * FINE * (planes - 1 + round(BEYOND_UM / z_step_um)) + 1


def window_len(pixels: int) -> int:
    """Return the smallest FFT-friendly multiple of 8 that is at least ``pixels``.

    >>> window_len(1216), window_len(704)
    (1280, 720)
    """
    return 8 * fast_len(-(-pixels // 8))


def mean_variance(noise: NoiseModel, samples: Sequence[Any], pedestal_counts: float) -> float:
    """Return N, the noise variance (counts²) of a pixel of the samples' mean brightness."""
    mean = float(np.mean([float(s.mean(dtype=np.float64)) for s in samples])) - pedestal_counts
    return max(float(noise.variance(max(mean, 0.0))), 1e-6)
