"""Shifts of blocks: searched by correlation, refined to hundredths of a pixel by Gauss-Newton.

The search uses half-whitened correlation, ``R / sqrt|R|``; the refinement works on normalised
blocks (Lucas & Kanade 1981) with the mean gradient of both images (Baker & Matthews 2004,
https://doi.org/10.1023/B:VISI.0000011205.11775.fd). Blocks are blocks of textures
(:func:`tilewright.kernels.register.alignment.bandpass_sqrt`).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.kernels.backend import Array, Backend, Floats

#: Pixels this near the best peak belong to it and are no chance maxima.
PEAK_RADIUS = 4
#: Blocks worked on at a time: their arrays stay in the cache. Of 64 px a side 324 take 8 ms so,
#: 11 ms at once.
_BATCH = 32


def overlapping_blocks(backend: Backend, image: Array, step_px: int) -> Array:
    """Cut an image into blocks of ``2 step_px`` that overlap by half.

    Returns
    -------
    (ny nx, 2 step_px, 2 step_px)

    Examples
    --------
    >>> overlapping_blocks(cpu, np.zeros((64, 96)), 16).shape
    (15, 32, 32)
    """
    xp = backend.xp
    rows, columns = image.shape[0] // step_px, image.shape[1] // step_px
    tiles = image.reshape(rows, step_px, columns, step_px).transpose(0, 2, 1, 3)
    blocks = xp.empty((rows - 1, columns - 1, 2, step_px, 2, step_px), image.dtype)
    for i, j in itertools.product(range(2), repeat=2):
        blocks[:, :, i, :, j] = tiles[i : rows - 1 + i, j : columns - 1 + j]
    return blocks.reshape((rows - 1) * (columns - 1), 2 * step_px, 2 * step_px)


def hann(backend: Backend, size: int) -> Array:
    """Return a (size, size) float32 Hann window without zeros at its ends.

    >>> hann(cpu, 2).tolist()
    [[0.25, 0.25], [0.25, 0.25]]
    """
    ramp = 0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(size) + 0.5) / size)
    return backend.asarray(np.outer(ramp, ramp))


@dataclass(frozen=True)
class BlockShifts:
    """Measured shifts of n blocks, on the host.

    ``shift_px`` (n, 2) is to be added to the moving position. ``score`` (n,) is the share of the
    correlation that the peak holds, or the correlation coefficient before the step; ``chance``
    (n,) the second-best peak. ``variance_px2`` (n,) is the mean variance of a component up to a
    common factor, infinite where nothing was measured. ``energy`` (n, 2) is the mean squared
    texture of reference and moving block.
    """

    shift_px: Floats
    score: Floats
    chance: Floats
    variance_px2: Floats
    energy: Floats


def search_shifts(
    backend: Backend, reference: Array, moving: Array, max_shift_px: tuple[int, int]
) -> BlockShifts:
    """Find the shift of each block by half-whitened correlation.

    Parameters
    ----------
    reference, moving : (n, height, width) float32
        Blocks of textures that end in zeros: windowed, or padded.
    max_shift_px : (int, int)
        Largest shift along (y, x), below half the block.

    Returns
    -------
    BlockShifts
        To a tenth of a pixel or so.

    Examples
    --------
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(40, 40)), 2)
    >>> blocks = [scene[None, y : y + 32, x : x + 32] * hann(cpu, 32) for y, x in ((4, 4), (2, 1))]
    >>> search_shifts(cpu, *map(cpu.asarray, blocks), (6, 6)).shift_px.round().tolist()
    [[2.0, 3.0]]
    """
    return _in_batches(
        lambda part: _search(backend, reference[part], moving[part], max_shift_px), len(reference)
    )


def _in_batches(measure: Callable[[slice], BlockShifts], count: int) -> BlockShifts:
    # Parts of one size: in a rest of three blocks those of other places would be neighbours.
    edges = np.linspace(0, count, -(-count // _BATCH) + 1).astype(int)
    parts = [measure(slice(*pair)) for pair in itertools.pairwise(edges)]
    fields = zip(*(vars(part).values() for part in parts), strict=True)
    return BlockShifts(*(np.concatenate(field) for field in fields))


def _search(
    backend: Backend, reference: Array, moving: Array, max_shift_px: tuple[int, int]
) -> BlockShifts:
    xp = backend.xp
    _, height, width = reference.shape
    cross = xp.conj(backend.fft.rfft2(reference)) * backend.fft.rfft2(moving)
    root = xp.sqrt(xp.abs(cross))
    whole = backend.fft.irfft2(cross / (root + 1e-6), s=(height, width))
    # What the correlation would be at no shift if all waves agreed; but for the first and, of an
    # even width, the last column, each wave stands for two.
    columns = root.sum(axis=1)
    once = columns[:, 0] + (columns[:, -1] if width % 2 == 0 else 0)
    most = (2 * columns.sum(axis=1) - once) / (height * width)
    for axis, reach in enumerate(max_shift_px, 1):
        index = np.arange(-reach, reach + 1) % whole.shape[axis]
        whole = xp.take(whole, backend.asarray(index, np.int64), axis=axis)
    scores = whole / (most[:, None, None] + 1e-9)
    peak, chance, top = _block_peaks(np.asarray(backend.to_numpy(scores), np.float64))
    energy = xp.stack([xp.mean(image * image, axis=(1, 2)) for image in (reference, moving)], 1)
    bounded = np.clip(top, 1e-3, 0.999) ** 2
    return BlockShifts(
        peak - max_shift_px,
        top,
        chance,
        np.where(top > 0, (1 - bounded) / bounded, np.inf),
        np.asarray(backend.to_numpy(energy), np.float64),
    )


def _block_peaks(scores: Floats) -> tuple[Floats, Floats, Floats]:
    """Return subpixel peaks (n, 2), second-best scores (n,) and best scores (n,) of maps."""
    n, height, width = scores.shape
    y, x = np.divmod(np.round(scores, 4).reshape(n, -1).argmax(axis=1), width)
    at = np.arange(n)
    top = scores[at, y, x]
    inner_y, inner_x = np.clip(y, 1, height - 2), np.clip(x, 1, width - 2)
    peak = np.stack([y, x], 1).astype(np.float64)
    for axis, (dy, dx) in enumerate(((1, 0), (0, 1))):
        low, high = scores[at, inner_y - dy, inner_x - dx], scores[at, inner_y + dy, inner_x + dx]
        bend = low + high - 2 * scores[at, inner_y, inner_x]
        step = 0.5 * (low - high) / np.where(bend < 0, bend, -np.inf)
        peak[:, axis] += np.where((inner_y == y) & (inner_x == x), np.clip(step, -0.5, 0.5), 0.0)
    near = (np.abs(np.arange(height) - y[:, None]) <= PEAK_RADIUS)[:, :, None]
    near = near & (np.abs(np.arange(width) - x[:, None]) <= PEAK_RADIUS)[:, None, :]
    return peak, np.where(near, -1.0, scores).max(axis=(1, 2)), top


def refine_shifts(backend: Backend, reference: Array, moving: Array, mask: Array) -> BlockShifts:
    """Take one Gauss-Newton step on each block.

    Parameters
    ----------
    reference, moving : (n, size, size) float32
        Blocks of textures, at most a pixel or two apart.
    mask : (n, size, size) bool
        Where both images have pixels.

    Returns
    -------
    BlockShifts
        ``score`` is the correlation coefficient before the step; ``chance`` that with the
        moving block of another place.

    Examples
    --------
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(40, 40)), 2)
    >>> blocks = [cpu.asarray(i[None, 4:36, 4:36]) for i in (scene, ndimage.shift(scene, 0.3))]
    >>> refine_shifts(cpu, *blocks, np.ones((1, 32, 32), bool)).shift_px.round(1).tolist()
    [[0.3, 0.3]]
    """
    window = hann(backend, int(reference.shape[-1]))
    return _in_batches(
        lambda part: _refine(backend, reference[part], moving[part], window * mask[part]),
        len(reference),
    )


def _refine(backend: Backend, reference: Array, moving: Array, weight: Array) -> BlockShifts:
    xp = backend.xp
    total = weight.sum(axis=(1, 2)) + 1e-9
    first, power_r = _normalised(xp, reference, weight, total)
    second, power_m = _normalised(xp, moving, weight, total)
    inner = weight[:, 1:-1, 1:-1]
    mean = 0.25 * (first + second)
    gy = mean[:, 2:, 1:-1] - mean[:, :-2, 1:-1]
    gx = mean[:, 1:-1, 2:] - mean[:, 1:-1, :-2]
    difference = (first - second)[:, 1:-1, 1:-1]
    ncc = xp.einsum("nij,nij,nij->n", weight, first, second) / total
    elsewhere = xp.roll(second, len(second) // 2, axis=0)
    chance = xp.einsum("nij,nij,nij->n", weight, first, elsewhere) / total
    wy, wx = inner * gy, inner * gx
    pairs = ((wy, gy), (wx, gx), (wy, gx), (wy, difference), (wx, difference))
    sums = [xp.einsum("nij,nij->n", a, b) / total for a, b in pairs]
    columns = xp.stack([*sums, ncc, chance, power_r, power_m, total], 1)
    yy, xx, yx, by, bx, ncc, chance, power_r, power_m, total = np.asarray(
        backend.to_numpy(columns), np.float64
    ).T
    determinant = yy * xx - yx * yx
    good = (determinant > 1e-9) & (ncc > 0.02) & (power_r > 1e-9) & (power_m > 1e-9)
    safe = np.where(good, determinant, 1.0)
    step = np.stack([(xx * by - yx * bx) / safe, (yy * bx - yx * by) / safe], 1)
    # Steps beyond a pixel and a half are outside the range of the linearisation.
    step *= np.minimum(1.0, 1.5 / np.maximum(np.hypot(step[:, 0], step[:, 1]), 1e-9))[:, None]
    # Above 0.97 what remains is not noise but the model: such blocks are equally good.
    bounded = np.clip(ncc, 1e-3, 0.97)
    # Noise of r - m, correlated over the texture's 8 px, through the inverse normal matrix;
    # ncc**2 more, because what does not correlate at all is no measurement.
    variance = 8.0 * (1 - bounded) / (bounded**2 * np.maximum(total, 1.0)) * (yy + xx) / safe
    return BlockShifts(
        np.where(good[:, None], step, 0.0),
        np.where(good, ncc, 0.0),
        np.where(good, chance, 0.0),
        np.where(good, variance, np.inf),
        np.stack([power_r, power_m], 1),
    )


def _normalised(xp: Array, blocks: Array, weight: Array, total: Array) -> tuple[Array, Array]:
    """Return the blocks with weighted mean 0 and mean square 1, and the mean squares before."""
    mean = xp.einsum("nij,nij->n", weight, blocks) / total
    centred = blocks - mean[:, None, None]
    power = xp.einsum("nij,nij,nij->n", weight, centred, centred) / total
    return centred / xp.sqrt(power + 1e-12)[:, None, None], power
