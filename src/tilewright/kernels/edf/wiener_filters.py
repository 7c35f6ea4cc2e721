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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Backend, Floats
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


@dataclass(frozen=True)
class Filters:
    """All filters of a channel, as few kernels and how to mix them.

    Attributes
    ----------
    kernels : float32 (usable planes, rank, 65, 65)
        One quadrant, centre at 0, of kernels that are even in y and x.
    mixing : float32 (2 spreads, planes, rank)
        The filter of a bin is the sum of the kernels with these weights.
    noise : float32 (2 spreads, planes)
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

        (usable planes, rank, y // 2 + 1, x // 2 + 1) float32: they are even in y as well.
        """
        xp = backend.xp
        rows, columns = (_cosines(n, REACH_PX + 1) for n in shape)
        rows, columns = backend.asarray(np.ascontiguousarray(rows.T)), backend.asarray(columns)
        out = xp.empty((*self.kernels.shape[:2], len(rows), columns.shape[1]), dtype=xp.float32)
        for index in np.ndindex(self.kernels.shape[:2]):
            xp.matmul(rows, backend.asarray(self.kernels[index]) @ columns, out=out[index])
        return out


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
    >>> make_filters(channel).kernels.shape[2:]
    (65, 65)
    """
    if not channel.plane_mask.any():
        raise ValueError("no plane of the stack is usable: there is nothing to project")
    bins = np.concatenate([_bins(channel, spread) for spread in channel.spreads])
    shape = (len(channel.spreads), len(channel.plane_mask))
    mixing, basis = _low_rank(bins, _error_root(channel))
    kernels = _kernels(np.moveaxis(basis, 2, 0))
    gain = np.square(bins).sum(axis=2) @ (2 * np.pi * RADII * RADII[1])
    return Filters(
        kernels.astype(np.float32),
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


def _kernels(profiles: Floats) -> Floats:
    """Return quadrants (…, 65, 65) of the kernels of radial transfer functions (…, radii)."""
    # Three times the reach: a kernel does not wrap around.
    grid = 3 * REACH_PX
    half = np.arange(grid // 2 + 1) / grid
    radius = np.hypot(half[:, None], half)
    cosine = _cosines(grid, REACH_PX + 1) / grid
    # Frequencies other than 0 and the last stand for two; the kernel's pixels do not.
    cosine[1:] /= 2
    cosine[:, 1:-1] *= 2
    at = np.hypot(np.arange(REACH_PX + 1)[:, None], np.arange(REACH_PX + 1))
    fade = 0.5 + 0.5 * np.cos(np.pi * np.clip(2 * at / REACH_PX - 1, 0, 1))
    out = np.empty((*profiles.shape[:2], *at.shape))
    lower = np.minimum((radius / RADII[1]).astype(np.intp), RADII.size - 2)
    share = radius / RADII[1] - lower
    # What the fade takes from the sum goes back where it is smooth: light is neither made nor lost.
    smooth = fade * np.exp(-0.5 * np.square(3 * at / REACH_PX))
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
