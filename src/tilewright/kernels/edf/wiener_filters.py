"""Filters that turn a z-stack into its in-focus plane; made on the host, once per channel.

Plane k of a stack is ``g_k = Σ_d h_(k-d) * f_d + noise``; wanted is ``h_0 * Σ_d f_d``, the whole
stack with every depth in focus. Were the light at every depth independent, of power S(q) and a
known share p_d of it at each depth, the best linear estimate would be Wiener's over all planes at
once: at each frequency ``w = (A p A' + N/S)⁻¹ A p H_0`` with ``A[k, d] = H_(k-d)``. Depth and
spread in depth differ from place to place, so there is one set of filters for each bin of the two,
and :mod:`tilewright.kernels.edf.wiener_plane` mixes them. N/S is the channel's: bins of it, too,
cost a third more time and are within 0.2 dB either way. Filters of neighbouring bins are nearly
dependent: few of them make up all, and only those are applied.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import j0

from tilewright.kernels.backend import Floats
from tilewright.kernels.edf.channel_model import FINE, RADII, ChannelModel

#: Reach of the filters, which fade from half of it on. Tiles need a halo of it.
REACH_PX = 64
#: Error of the model (optics, shape of the prior) as noise in shares of the light's power. 0 loses
#: 0.8 dB on a bright thin sheet, 3 dB there with an aperture 10 % wrong; 0.01 loses 0.8 dB on thick
#: tissue. It also keeps filters short: at low frequencies all planes show nearly the same.
_MODEL_ERROR = 2e-3
#: Most kernels that make up all filters: 14 lose 0.06 dB on dim and 0.1 dB on wavy sets, and save a
#: tenth of the time.
_MOST_RANK = 18
#: Radii at which the transfer functions of filters are known; they change faster than what they are
#: made of.
FINE_RADII = np.linspace(0, RADII[-1], 16 * (RADII.size - 1) + 1)


@dataclass(frozen=True)
class Filters:
    """All filters of a channel, as few round ones and how to mix them.

    Attributes
    ----------
    transfer : float32 (2049, rank, usable planes)
        Transfer functions at :data:`FINE_RADII`, of what becomes of each plane.
    mixing : float32 (2 spreads, planes, rank)
        The filter of a bin is the sum of these with these weights.
    noise : float32 (2 spreads, planes)
        Variance that a bin's filter leaves of white noise of variance 1.
    """

    transfer: NDArray[np.float32]
    mixing: NDArray[np.float32]
    noise: NDArray[np.float32]


def make_filters(channel: ChannelModel) -> Filters:
    """Return the filters of a channel.

    Parameters
    ----------
    channel : ChannelModel
        What they depend on.

    Raises
    ------
    ValueError
        No plane is usable, or the PSF does not reach from one end plane to the other.

    Examples
    --------
    >>> channel = ChannelModel(np.ones((9, 129)), np.ones(3, bool), np.ones(129), 1.0)
    >>> make_filters(channel).transfer.shape
    (2049, 6, 3)
    """
    if not channel.plane_mask.any():
        raise ValueError("no plane of the stack is usable: there is nothing to project")
    bins = np.concatenate([_bins(channel, spread) for spread in channel.spreads])
    shape = (len(channel.spreads), len(channel.plane_mask))
    mixing, basis = _low_rank(bins, _error_root(channel))
    transfer = _faded(np.moveaxis(basis, 1, 0).reshape(RADII.size, -1))
    gain = np.square(bins).sum(axis=2) @ (2 * np.pi * RADII * RADII[1])
    return Filters(
        transfer.reshape(-1, mixing.shape[1], basis.shape[2]).astype(np.float32),
        mixing.reshape(*shape, -1).astype(np.float32),
        gain.reshape(shape).astype(np.float32),
    )


def _low_rank(bins: Floats, root: Floats) -> tuple[Floats, Floats]:
    """Return the mixing (bins, rank) and basis (rank, radii, planes) that lose little of bins."""
    errors = np.matmul(np.moveaxis(bins, 1, 0), np.moveaxis(root, 1, 2)).transpose(1, 0, 2)
    rows = errors.reshape(len(bins), -1)
    # Of the bins' small Gram matrix: an SVD of the long rows themselves takes five times as long.
    _, vector = np.linalg.eigh(rows @ rows.T)
    mixing = vector[:, ::-1][:, :_MOST_RANK]
    basis = mixing.T @ bins.reshape(len(bins), -1)
    return mixing, basis.reshape(-1, *bins.shape[1:])


def _bins(channel: ChannelModel, spread: float) -> Floats:
    """Return the filters (planes, radii, usable planes) of one spread in depth."""
    planes = len(channel.plane_mask)
    transfer = np.moveaxis(channel.transfer, 2, 0)
    last = FINE * (planes - 1)
    beyond = len(channel.profiles) // 2 - last
    depth = np.arange(-beyond, last + beyond + 1) / FINE
    in_focus = channel.profiles[len(channel.profiles) // 2]
    ridge = _noise_weight(channel)
    out = np.empty((planes, RADII.size, transfer.shape[1]))
    for z in range(planes):
        # What is sharpest in an end plane may lie anywhere beyond it.
        prior = np.exp(-0.5 * np.square((np.clip(depth, 0, planes - 1) - z) / spread))
        prior /= prior.sum()
        weighted = transfer * prior
        light = weighted @ np.moveaxis(transfer, 1, 2)
        target = (weighted.sum(axis=2) * in_focus[:, None])[..., None]
        out[z] = np.linalg.solve(light + ridge, target)[..., 0]
    return out


def _noise_weight(channel: ChannelModel) -> Floats:
    """Return ε I (radii, z, z): the power of noise and of the model's error over the light's."""
    over_light = channel.noise_variance / channel.power + _MODEL_ERROR
    return np.asarray(over_light[:, None, None] * np.eye(int(channel.plane_mask.sum())))


def _error_root(channel: ChannelModel) -> Floats:
    """Return L' (radii, z, z), L L' the usable planes' covariance: a filter's error is L'w."""
    transfer = np.moveaxis(channel.transfer, 2, 0)
    light = transfer @ np.moveaxis(transfer, 1, 2) / transfer.shape[2]
    light += _noise_weight(channel)
    light *= (channel.power * np.maximum(RADII, RADII[1] / 4))[:, None, None]
    return np.moveaxis(np.linalg.cholesky(light), 1, 2)


def _faded(profiles: Floats) -> Floats:
    """Return the transfer functions (2049, n) of profiles (129, n) whose kernels fade."""
    radius = np.arange(4 * REACH_PX + 1) / 4
    fade = 0.5 + 0.5 * np.cos(np.pi * np.clip(2 * radius / REACH_PX - 1, 0, 1))
    fine = np.stack([np.interp(FINE_RADII, RADII, profile) for profile in profiles.T], axis=1)
    to_transfer = _hankel(FINE_RADII, radius)
    transfer = to_transfer @ (fade[:, None] * (_hankel(radius, FINE_RADII) @ fine))
    # What the fade takes from the sum goes back where it is smooth: light is neither made nor lost.
    smooth = to_transfer @ (fade * np.exp(-0.5 * np.square(3 * radius / REACH_PX)))
    return np.asarray(transfer + np.outer(smooth / smooth[0], profiles[0] - transfer[0]))


def _hankel(at: Floats, radii: Floats) -> Floats:
    """Return what transforms a round function of ``radii``, 0 and even steps, to those ``at``."""
    step = float(radii[1])
    weight = 2 * np.pi * step * radii
    weight[0] = np.pi * step**2 / 6  # the end of a sum by trapezoids
    return np.asarray(j0(2 * np.pi * at[:, None] * radii) * weight)
