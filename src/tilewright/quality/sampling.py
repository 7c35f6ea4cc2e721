"""Blocks with tissue, in which quality is measured, and their focus.

A number that the image cannot give (focus of an empty field) is ``nan``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import cpu_backend, fast_len
from tilewright.kernels.noise import NOISE_KERNEL
from tilewright.kernels.register.warp import Transform, displacement
from tilewright.quality.figures import CROP_PX, thumbnail
from tilewright.quality.results import ImageLocation, QcContext, QcResult
from tilewright.stages.register.assessment import POOR_NCC

#: Quality is measured on one CPU, never on a GPU.
CPU = cpu_backend()
#: Contrast, and power of the low band, over that of noise, below which a field holds nothing but
#: noise (an empty one reaches a contrast of about 2).
NO_SIGNAL = 3.0
NO_SIGNAL_DETAIL = "nothing stands out from the noise"
#: Blur is looked for in at most so many blocks of this side with tissue, half a side or more from
#: one to the next; as many as the last number must touch.
_BLUR_BLOCKS, _BLUR_PX, _BLUR_LEAST = 512, 128, 3
#: Blurred is less than this share of the usual focus: by 3 px it is 0.05, by 2 px 0.25. Of 6,400
#: sound blocks of real nuclei and drawn markers 0.2 % have less than 0.1, and no three that touch.
_BLURRED = 0.1
#: Tissue from there on between two percentiles: a bubble may leave 30 % of the light. Below this
#: contrast noise decides: with 3 a sound channel with 4 % of its light would be blurred.
_LIT, _BLUR_CONTRAST = 0.04, 6.0

#: Spatial frequencies in cycles/px: tissue shapes, and the detail that defocus removes first.
LOW_BAND = (0.01, 0.04)
DETAIL_BAND = (0.08, 0.20)


def focus_score(image: NDArray[Any]) -> float:
    """Return the ratio of fine to coarse power, less noise, of a (y, x) image of 64×64 px or more.

    Power at 0.08–0.2 cycles/px over power at 0.01–0.04, each less the white floor in the
    corners of the spectrum: independent of gain and offset, falling with defocus. A Hann
    window keeps the borders of the field out of the detail band.

    Raises
    ------
    ValueError
        The image is smaller than 64 px on a side.

    Examples
    --------
    >>> from scipy import ndimage
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(128, 128)), 2)
    >>> blurred = ndimage.gaussian_filter(scene, 2)
    >>> focus_score(scene) > 2 * focus_score(blurred)
    True
    """
    plane = np.asarray(image, np.float32)
    if plane.ndim != 2 or min(plane.shape) < 64:
        raise ValueError(f"focus_score needs a (y, x) image of 64 px or more, not {plane.shape}")
    window = np.outer(*(np.hanning(n + 2)[1:-1] for n in plane.shape)).astype(np.float32)
    shape = tuple(fast_len(n) for n in plane.shape)
    power = np.square(np.abs(scipy.fft.rfft2((plane - plane.mean()) * window, s=shape)))
    radius = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])[None])

    def band(limits: tuple[float, float]) -> float:
        inside = ((radius >= limits[0]) & (radius < limits[1])).astype(np.float32)
        return float((power * inside).sum(dtype=np.float64) / inside.sum(dtype=np.float64))

    # Only the corners of the spectrum lie beyond half a cycle per pixel; the optics pass little.
    floor = max(band((0.5, np.inf)), float(np.finfo(np.float32).tiny))
    low = band(LOW_BAND)
    if low < NO_SIGNAL * floor:
        return float("nan")
    return max(band(DETAIL_BAND) - floor, 0.0) / (low - floor)


def ncc(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return the normalised cross-correlation of two (y, x) images.

    ``nan`` where an image is constant.

    >>> image = np.random.default_rng(0).random((32, 32))
    >>> round(ncc(image, 3 - 2 * image), 3)
    -1.0
    """
    a, b = np.asarray(first, np.float32), np.asarray(second, np.float32)
    a, b = a - a.mean(dtype=np.float64), b - b.mean(dtype=np.float64)
    product = float((a * b).sum(dtype=np.float64))
    power = float((a * a).sum(dtype=np.float64)) * float((b * b).sum(dtype=np.float64))
    return product / float(np.sqrt(power)) if power > 0 else float("nan")


def contrast_to_noise(image: NDArray[Any]) -> float:
    """Return how far the brightest structures stand out, in noise standard deviations.

    99.9th percentile less median, after a 3×3 median (hot pixels) and a small blur, over the
    noise of the dimmer half (Immerkær 1996). An empty field reaches about 2.
    """
    plane = np.asarray(image, np.float32)
    smooth = ndimage.gaussian_filter(ndimage.median_filter(plane, size=3), 1.0)
    rough = np.abs(ndimage.convolve(plane, NOISE_KERNEL))
    low, high = (float(v) for v in np.percentile(smooth, (50.0, 99.9)))
    noise = 1.4826 * float(np.median(rough[smooth <= low]))
    return (high - low) / max(noise, 1e-6)


def moved_thumbnail(
    source: NDArray[np.float32],
    source_factor: int,
    transform: Transform,
    shape: tuple[int, ...],
    factor: int,
    outside: float = 0.0,
) -> NDArray[np.float32]:
    """Return a cycle's thumbnail in the reference frame, for pictures and overviews only.

    ``source`` is ``source_factor`` times smaller than the cycle, the result of ``shape`` (y, x)
    ``factor`` times smaller than the reference.
    """
    y_px, x_px = (factor * np.arange(n, dtype=np.float64) + (factor - 1) / 2 for n in shape)
    at = np.stack(np.meshgrid(y_px, x_px, indexing="ij"))
    at += displacement(CPU, transform, y_px, x_px)
    at = (at - (source_factor - 1) / 2) / source_factor
    values = ndimage.map_coordinates(source, at, order=1, mode="constant", cval=outside)
    return np.asarray(values, np.float32)


def imaged_pixels(small: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the pixels (n,) of an overview that tiles cover; all of them where none is."""
    return small[small > 0] if (small > 0).any() else small.ravel()


def textured_blocks(
    small: NDArray[np.float32], factor: int, shape: tuple[int, int], side: int, count: int
) -> list[tuple[int, int]]:
    """Return (y, x) of up to ``count`` blocks of ``side`` px, the most textured first.

    Blocks lie on a grid over the (y, x) ``shape`` that ``small`` shows ``factor`` times
    smaller. Texture is the spread about the image's background, each pixel capped, so that
    bright debris does not outdo tissue. Places that no tile covers are 0 and have none.

    >>> small = np.zeros((128, 128), np.float32)
    >>> small[:8, :8] = small[-8:, -8:] = np.eye(8) + 1  # two pieces far apart
    >>> textured_blocks(small, 1, (128, 128), 8, 2)
    [(0, 0), (120, 120)]
    """
    side = min(side, *shape)
    above = np.where(small > 0, np.abs(small - np.percentile(imaged_pixels(small), 5)), 0)
    capped = np.minimum(above, np.percentile(imaged_pixels(above), 98))
    ranked = []
    for y in _starts(shape[0], side):
        for x in _starts(shape[1], side):
            rows = slice(y // factor, max((y + side) // factor, y // factor + 1))
            cols = slice(x // factor, max((x + side) // factor, x // factor + 1))
            part = capped[rows, cols]
            ranked.append((-round(float(part.mean()), 3) if part.size else 0.0, y, x))
    return [(y, x) for _, y, x in sorted(ranked)[:count]]


def _starts(length: int, side: int) -> list[int]:
    """Return starts that leave no gap: two of 256 px in 697 missed the tissue in the middle.

    >>> _starts(512, 256), _starts(697, 256)
    ([0, 256], [0, 220, 441])
    """
    count = -(-length // side)
    return [int(v) for v in np.linspace(0, length - side, count)]


@dataclass(frozen=True)
class FocusScan:
    """Sharpness through the stack at sampled blocks.

    Attributes
    ----------
    blocks : list[tuple[int, int]]
        Full-resolution origins.
    side : int
        Their size in px.
    scores : float64 (blocks, z)
        Band-ratio focus; NaN where a block has no signal.
    best_plane : int
        Plane that is sharpest over all blocks, each by shares of its best score; the middle one
        where nothing has signal.
    small : float32 (y, x)
        That plane, ``factor`` times smaller.
    """

    blocks: list[tuple[int, int]]
    side: int
    scores: NDArray[np.float64]
    best_plane: int
    small: NDArray[np.float32]
    factor: int

    @property
    def focus(self) -> float:
        """Median over blocks of the sharpest plane's score; NaN without signal."""
        good = self.scores[np.isfinite(self.scores).any(axis=1)]
        return float(np.median(np.nanmax(good, axis=1))) if len(good) else float("nan")


def scan_focus(mosaic: Mosaic, *, count: int = 16) -> FocusScan:
    """Measure focus through a stack.

    Reads one plane for the thumbnail twice at most, and ``count`` columns of blocks, of
    ``CROP_PX`` or as large as the mosaic.
    """
    middle = mosaic.shape[0] // 2
    small, factor = thumbnail(mosaic, middle)
    blocks = textured_blocks(small, factor, mosaic.shape[1:], CROP_PX, count)
    side = min(CROP_PX, *mosaic.shape[1:])
    scores = np.full((len(blocks), mosaic.shape[0]), np.nan)
    for k, (y, x) in enumerate(blocks):
        column = mosaic.read(slice(None), slice(y, y + side), slice(x, x + side))
        if side < 64 or not _same_light(column):
            continue
        block = np.array([focus_score(plane) for plane in column])
        if np.isfinite(block).any():
            sharpest = column[np.nanargmax(block)]
            scores[k] = block if contrast_to_noise(sharpest) >= NO_SIGNAL else np.nan
    positive = scores[np.nan_to_num(scores).max(axis=1, initial=0) > 0]
    best = middle
    if len(positive):  # each block counts once: debris scores many times higher than tissue
        shares = positive / np.nanmax(positive, axis=1, keepdims=True)
        best = int(np.argmax(np.round(np.nansum(shares, axis=0), 12)))
    if best != middle:
        small, factor = thumbnail(mosaic, best)
    return FocusScan(blocks, side, scores, best, small, factor)


def evaluate_focus(
    context: QcContext, plane: Mosaic, scan: FocusScan
) -> tuple[QcResult, list[ImageLocation]]:
    """Evaluate the focus of an in-focus plane: that of blurred tissue, or the usual one."""
    blur = find_blur(plane, scan.small, scan.factor)
    if blur is None:
        none = "" if np.isfinite(scan.focus) else "no signal to focus on"
        return context.evaluate("focus", scan.focus, none), []
    where = f"blurred around y {blur.y_px:.0f} px, x {blur.x_px:.0f} px"
    return context.evaluate("focus", blur.value, where), [blur]


def evaluate_detail(context: QcContext, made: Mosaic, stack: Mosaic) -> QcResult:
    """Evaluate the fine detail of what was made of a stack by that of its sharpest plane.

    Median of blocks; of a stack that was ``made`` its own sharpest plane counts.
    """
    scan = scan_focus(stack)
    ratios = []
    for (y, x), scores in zip(scan.blocks, scan.scores, strict=True):
        if np.isfinite(scores).any():
            column = made.read(slice(None), slice(y, y + scan.side), slice(x, x + scan.side))
            best = max(float(np.nan_to_num(focus_score(plane))) for plane in column)
            ratios.append(best / float(np.nanmax(scores)))
    none = "" if ratios else "nothing in the stack is in focus"
    return context.evaluate("image_detail", float(np.median(ratios)) if ratios else None, none)


def find_blur(plane: Mosaic, small: NDArray[np.float32], factor: int) -> ImageLocation | None:
    """Return the middle and the median focus of the largest blurred region of an in-focus plane.

    As below a bubble: tissue that lacks the detail of the rest. None where there is none. ``small``
    is the plane, ``factor`` times smaller.
    """
    side, (height, width) = _BLUR_PX, plane.shape[1:]
    step = max(side // 2, int(np.sqrt(height * width / _BLUR_BLOCKS)))
    low, high = np.percentile(imaged_pixels(small), (5, 98))
    scores = np.full([max(n - side, 0) // step + 1 for n in (height, width)], np.nan)
    for at in np.ndindex(scores.shape):
        rows, columns = (slice(k * step, k * step + side) for k in at)
        part = small[tuple(slice(s.start // factor, -(-s.stop // factor)) for s in (rows, columns))]
        # The end of the tiles is an edge.
        if part.min(initial=np.inf) > 0 and part.mean() > low + _LIT * (high - low):
            block = plane.read(0, rows, columns)
            if min(block.shape) == side and contrast_to_noise(block) > _BLUR_CONTRAST:
                scores[at] = focus_score(block)
    known = scores[np.isfinite(scores)]
    usual = float(np.median(known)) if known.size else 0.0
    labels, _ = ndimage.label(scores < _BLURRED * usual, np.ones((3, 3)))
    sizes = np.bincount(labels.ravel())[1:]
    if sizes.max(initial=0) < _BLUR_LEAST:
        return None
    largest = labels == 1 + int(sizes.argmax())
    y, x = np.argwhere(largest).mean(axis=0) * step + side / 2
    return ImageLocation("focus", float(y), float(x), float(np.median(scores[largest])))


def scan_contrast(mosaic: Mosaic, scan: FocusScan) -> float:
    """Return the contrast to noise of the most textured block in the sharpest plane."""
    y, x = scan.blocks[0]
    rows, columns = slice(y, y + scan.side), slice(x, x + scan.side)
    return contrast_to_noise(mosaic.read(scan.best_plane, rows, columns))


def _same_light(column: NDArray[Any]) -> bool:
    """Return whether the planes of a block (z, y, x) show the same light; so does a single one.

    Interpolation takes noise from the corners of the spectrum, where the focus score measures it:
    an empty block may pass for a sharp one. Noise is each plane's own.
    """
    if len(column) < 2:
        return True
    fine, coarse = (1 / (2 * np.pi * limit) for limit in reversed(LOW_BAND))
    halves = [column[start::2].mean(axis=0, dtype=np.float32) for start in (0, 1)]
    low = [
        ndimage.gaussian_filter(half, fine) - ndimage.gaussian_filter(half, coarse)
        for half in halves
    ]
    # Noise reaches 0.3; what the focus score takes for a signal is 0.7.
    return ncc(*low) > POOR_NCC
