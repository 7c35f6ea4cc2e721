"""Whether two tiles agree where they overlap, in place and in brightness.

Measured on the tiles themselves, at the positions at which they are fused, and without anything
that placed or flattened them: textures are compared by normalised cross-correlation, brightness
by the ratio of cells. On the host.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Floats, fast_len
from tilewright.kernels.noise import NOISE_KERNEL

Image = NDArray[np.float32]
#: Band of the textures, in px: noise of single pixels and shading are left out.
_FINE_PX, _COARSE_PX = 1.2, 6.0
#: Largest shift looked for, along either axis.
REACH_PX = 8
#: Side of the cells whose brightness is compared.
CELL_PX = 16
#: A strip of fewer pixels on its shorter side is not compared.
LEAST_PX = 12
#: Brightness below this share of the other's counts as so much: of no light at all a ratio would
#: be of any size, or of none where the camera offset is a count too high.
DARKEST = 0.05


@dataclass(frozen=True)
class StripAgreement:
    """How two strips (y, x) of one place agree."""

    ncc: float
    ncc_here: float
    """Correlation of the textures at the best shift within ``REACH_PX``, and at none."""
    expected: float
    """What noise would leave of it if both showed the same; 0 where there is only noise."""
    power: float
    """Variance of the weaker texture, in root counts squared."""
    shift_px: tuple[float, float]
    """(y, x) by which the second strip is displaced against the first."""
    log_ratio: Floats
    light: Floats
    """float64 (n,): log of the brightness of the first over the second, at most ``-log(DARKEST)``
    either way, and the mean of both in counts, of each cell with light in either.
    """


def compare_strips(
    first: Image, second: Image, apart_px: tuple[float, float] = (0.0, 0.0)
) -> StripAgreement:
    """Compare two strips of the same shape (y, x), in counts of light above zero.

    Pixel p of the second lies at p + ``apart_px`` of the first, half a pixel at most: brightness is
    compared there. Of sharp nuclei, cells half a pixel off differed by 7 %.

    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(80, 80)), 2)
    >>> light = 100 + 100 * scene.astype(np.float32)
    >>> strips = [light[y : y + 64, x : x + 64] for y, x in ((4, 4), (2, 3))]
    >>> [round(shift) for shift in compare_strips(*strips).shift_px]
    [2, 1]
    """
    textures, signals = zip(*(texture(image) for image in (first, second)), strict=True)
    expected = float(np.sqrt(max(signals[0], 0.0) * max(signals[1], 0.0)))
    power = min(float((texture * texture).mean(dtype=np.float64)) for texture in textures)
    ncc, here, shift = _best_shift(textures[0], textures[1])
    return StripAgreement(ncc, here, expected, power, shift, *_log_ratio(first, second, apart_px))


def cell_means(image: Image, after_px: tuple[float, float] = (0.0, 0.0)) -> Floats:
    """Return the mean of each cell of ``CELL_PX``, (rows, columns) float64, of an image (y, x).

    The image is read ``after_px`` (y, x) after its pixels, 0 to 1, linearly: a cell is wide, so
    that a finer way changes its mean by less than 1 %.

    >>> ramp = np.tile(np.arange(40, dtype=np.float32), (20, 1))
    >>> cell_means(ramp), cell_means(ramp, (0.5, 0.25))
    (array([[ 7.5, 23.5]]), array([[ 7.75, 23.75]]))
    """
    sizes = [n - (after > 0) for n, after in zip(image.shape, after_px, strict=True)]
    side = [min(CELL_PX, n) for n in sizes]
    rows, columns = (n // s for n, s in zip(sizes, side, strict=True))
    shares = [((0, 1 - after), (1, after)) if after > 0 else ((0, 1.0),) for after in after_px]
    total = np.zeros((rows, columns))
    for (y, share_y), (x, share_x) in itertools.product(*shares):
        part = image[y : y + rows * side[0], x : x + columns * side[1]]
        cells = part.reshape(rows, side[0], columns, side[1])
        total += share_y * share_x * cells.mean(axis=(1, 3), dtype=np.float64)
    return total


def matching_planes(first: Sequence[Image], second: Sequence[Image]) -> tuple[int, int]:
    """Return the planes in which two stacks of one place show the same height.

    Stacks that autofocus starts at other heights show the same some planes apart: by the
    correlation of all textures (y, x) that many planes apart. Of those planes the ones with most
    texture.

    >>> rng = np.random.default_rng(0)
    >>> heights = [(1 + z % 4) * rng.normal(size=(20, 20)).astype(np.float32) for z in range(7)]
    >>> matching_planes(heights[2:], heights[:5])
    (1, 3)
    """
    a, b = (np.stack([plane.ravel() for plane in stack]) for stack in (first, second))
    cross = a @ b.T
    powers = [np.einsum("zp,zp->z", stack, stack) for stack in (a, b)]
    product = np.sqrt(np.outer(*powers))
    scores = {}
    for apart in sorted(range(1 - len(a), len(b)), key=abs):
        total = np.sqrt(np.prod([part.sum() for part in _apart(powers, apart)]))
        scores[apart] = round(float(cross.trace(apart) / max(total, 1e-12)), 4)
    apart = max(scores, key=scores.__getitem__)
    plane = int(np.argmax(np.diagonal(product, apart)))
    return plane + max(-apart, 0), plane + max(apart, 0)


def _apart(powers: Sequence[Floats], apart: int) -> tuple[Floats, Floats]:
    """Return the powers of those planes that have one ``apart`` in the other stack."""
    first, second = powers[0][max(-apart, 0) :], powers[1][max(apart, 0) :]
    common = min(len(first), len(second))
    return first[:common], second[:common]


def texture(image: Image) -> tuple[Image, float]:
    """Return the band-passed root of an image (y, x), and the share of its variance above noise.

    >>> nuclei = ndimage.gaussian_filter(np.random.default_rng(0).random((64, 64)), 3)
    >>> band, share = texture(1e6 * nuclei)
    >>> band.shape, share > 0.9
    ((64, 64), True)
    """
    root = np.sqrt(np.maximum(np.asarray(image, np.float32), 0.0))
    noise = np.abs(ndimage.convolve(root, NOISE_KERNEL, mode="nearest"))
    # Immerkaer's kernel of unit norm; the lower half belongs to places without structure.
    sigma = 1.4826 * float(np.median(noise))
    fine = ndimage.gaussian_filter(root, _FINE_PX, mode="nearest")
    band = fine - ndimage.gaussian_filter(fine, _COARSE_PX, mode="nearest")
    band = band - band.mean()
    variance = float((band * band).mean(dtype=np.float64))
    passed = 1 / (4 * np.pi * _FINE_PX**2)  # share of white noise that the band holds
    return band, 1 - passed * sigma**2 / max(variance, 1e-12)


def _best_shift(first: Image, second: Image) -> tuple[float, float, tuple[float, float]]:
    """Return the largest NCC within the reach, that at no shift, and the shift to a tenth."""
    sizes = tuple(int(n) for n in first.shape)
    shape = tuple(fast_len(n + REACH_PX) for n in sizes)
    spectra = [scipy.fft.rfft2(v, s=shape) for v in (first, second)]
    cross = scipy.fft.irfft2(np.conj(spectra[0]) * spectra[1], s=shape)
    reach = [min(REACH_PX, (n - 1) // 2) for n in sizes]
    near = cross[np.ix_(*(np.arange(-r, r + 1) % n for r, n in zip(reach, shape, strict=True)))]
    power = float((first * first).sum(dtype=np.float64) * (second * second).sum(dtype=np.float64))
    # The shifted strips overlap in part only.
    common = [1 - np.abs(np.arange(-r, r + 1)) / n for r, n in zip(reach, sizes, strict=True)]
    scores = np.round(near / np.outer(*common) / max(np.sqrt(power), 1e-12), 5)
    y, x = np.unravel_index(int(scores.argmax()), scores.shape)
    shift = []
    for axis, at in enumerate((int(y), int(x))):
        line = scores[:, x] if axis == 0 else scores[y, :]
        step = 0.0
        if 0 < at < len(line) - 1:
            bend = line[at - 1] + line[at + 1] - 2 * line[at]
            step = float(0.5 * (line[at - 1] - line[at + 1]) / bend) if bend < 0 else 0.0
        shift.append(at - reach[axis] + step)
    # Within a pixel: positions are rounded.
    here = float(scores[reach[0] - 1 : reach[0] + 2, reach[1] - 1 : reach[1] + 2].max())
    return float(scores[y, x]), here, (shift[0], shift[1])


def _log_ratio(first: Image, second: Image, apart_px: tuple[float, float]) -> tuple[Floats, Floats]:
    means = []
    for strip, sign in ((first, 1), (second, -1)):
        after = tuple(max(sign * apart, 0.0) for apart in apart_px)
        # Both have the cells that are in both.
        y, x = (
            slice(0, n - (own == 0.0 != apart))
            for n, own, apart in zip(strip.shape, after, apart_px, strict=True)
        )
        means.append(cell_means(strip[y, x], (after[0], after[1])).ravel())
    dim, bright = np.sort(means, axis=0)
    known = bright > 0
    size = np.log(bright[known] / np.maximum(dim, DARKEST * bright)[known])
    return np.where(means[0] < means[1], -1.0, 1.0)[known] * size, (dim + bright)[known] / 2
