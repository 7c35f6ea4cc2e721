"""Light of bright debris in a z-stack, subtracted before the filters.

Debris and the brightest cells are so much brighter than their surroundings that their light out of
focus, in planes far from them, outshines the tissue within tens of px. As with saturated stars in
astronomy each is taken for a source in one plane, spread by the PSF; its brightness is fitted where
its light is most of what planes show, and its light subtracted.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Region, cells, fast_len
from tilewright.kernels.edf.channel_model import FINE
from tilewright.kernels.edf.focus import BORDER_PX, HALO_PX
from tilewright.kernels.noise import NoiseModel

#: Debris is so many times as bright as the brightest thousandth of the usual square of this side,
#: and stands so far above noise. The brightest tissue of 22 sets is 1.9 times as bright; debris
#: lies in few squares, while of rare cells there are some in most.
_TIMES, _BRIGHTEST, _SQUARE_PX, _DARK_SIGMAS = 3.0, 99.9, 128, 20.0
#: Debris is what has this share of the peak in its sharpest plane.
_CORE_SHARE = 0.25
#: Error of the PSF as a share of the light of debris: what is left counts less where that is more
#: than the tissue.
_PSF_ERROR = 0.1


def debris_counts(
    samples: Sequence[NDArray[Any]], noise: NoiseModel, pedestal_counts: float
) -> float:
    """Return the counts from which on something is debris, of samples (usable z, y, x) of a mosaic.

    >>> debris_counts([np.full((3, 256, 256), 150)], NoiseModel(1.0, 2.0), 100.0)
    250.0
    """
    brightest: list[float] = []
    for sample in samples:
        top = sample.max(axis=0)
        squares = cells(top, min(_SQUARE_PX, *top.shape)).swapaxes(1, 2)
        squares = squares.reshape(*squares.shape[:2], -1)
        brightest += np.percentile(squares, _BRIGHTEST, axis=-1).ravel().tolist()
    light = float(np.median(brightest)) - pedestal_counts
    dark = _DARK_SIGMAS * float(noise.variance(max(light, 0.0)) ** 0.5)
    return float(pedestal_counts + max(_TIMES * light, dark))


class DebrisModel(NamedTuple):
    """What debris of a channel is.

    Attributes
    ----------
    psf : float32 (z, y, x)
        At half the step of the stack; its middle plane is in focus.
    planes : list[int]
        Planes that count.
    pedestal_counts : float
        Counts without light.
    bright_counts : float
        Counts from which on something is debris, see :func:`debris_counts`.
    ceiling_counts : float
        Counts from which on a pixel may be saturated.
    """

    psf: NDArray[np.float32]
    planes: list[int]
    pedestal_counts: float
    bright_counts: float
    ceiling_counts: float


def subtract_debris(
    stack: NDArray[Any], model: DebrisModel, coverage: NDArray[np.bool_]
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return a stack (z, y, x) of raw counts without the light of debris, and where debris is.

    Parameters
    ----------
    stack : ndarray, shape (z, y, x)
        Not changed; returned where there is no debris.
    model : DebrisModel
    coverage : ndarray of bool, shape (y, x)
        Debris is looked for there.

    Returns
    -------
    stack : ndarray, shape (z, y, x)
    debris : ndarray of bool, shape (y, x)
        What shows debris, or is too large to be any and saturated.

    Examples
    --------
    >>> model = DebrisModel(np.ones((9, 9, 9), np.float32), [0, 1, 2], 100.0, 500.0, 65535.0)
    >>> stack = np.full((3, 64, 64), 120)
    >>> stack[:, 30:34, 30:34] = 9000
    >>> int(subtract_debris(stack, model, np.ones((64, 64), bool))[1].sum())
    16
    """
    top = np.max([stack[z] for z in model.planes], axis=0)
    debris = np.zeros(top.shape, np.bool_)
    boxes = _boxes((top >= min(model.bright_counts, model.ceiling_counts)) & coverage)
    if not boxes:
        return stack, debris
    light = np.stack([stack[z] for z in model.planes], dtype=np.float32)
    saturated = light >= model.ceiling_counts
    light -= np.float32(model.pedestal_counts)
    # The brightest first: its light hides that of weaker debris.
    for y, x in sorted(boxes, key=lambda box: -float(light[:, *box].sum(dtype=np.float64))):
        plane, core = _core(light[:, y, x], coverage[y, x])
        # Larger objects are tissue.
        if not core.any() or max(np.ptp(i) for i in np.nonzero(core)) >= HALO_PX:
            debris[y, x] |= saturated[:, y, x].any(axis=0)
            continue
        debris[y, x] |= core
        source = np.zeros(top.shape, np.float32)
        source[y, x] = core * light[plane, y, x]
        wide = _around((y, x), top.shape)
        light[:, *wide] = _rest(light[:, *wide], saturated[:, *wide], source[wide], plane, model)
    return _counts(stack, light, model), debris


def _counts(stack: NDArray[Any], light: NDArray[np.float32], model: DebrisModel) -> NDArray[Any]:
    """Return a stack whose usable planes show a light (usable z, y, x)."""
    out = stack.copy()
    for z, plane in zip(model.planes, light, strict=True):  # all at once would be three copies more
        counts = np.maximum(plane + np.float32(model.pedestal_counts), 0)
        out[z] = np.rint(counts) if out.dtype.kind in "ui" else counts
    return out


def _around(box: Region, shape: tuple[int, ...]) -> Region:
    """Return the part of an image of ``shape`` in which the light of debris is subtracted."""
    y, x = (
        slice(max(part.start - HALO_PX, 0), min(part.stop + HALO_PX, n))
        for part, n in zip(box, shape, strict=True)
    )
    return y, x


def _rest(
    light: NDArray[np.float32],
    saturated: NDArray[np.bool_],
    source: NDArray[np.float32],
    plane: int,
    model: DebrisModel,
) -> NDArray[np.float32]:
    """Return the light (usable z, y, x) around a source (y, x) in one of the planes without it."""
    steps = [FINE * (z - model.planes[plane]) for z in model.planes]
    shown = np.stack([*_planes_of(source, model.psf, steps)])
    tissue = np.float32(max(float(np.median(light)), 1.0))
    # Where its light is more than the tissue's, it is most of what a plane shows.
    dominant = (shown > tissue) & ~saturated
    if dominant.any():
        times = float(np.median((light[dominant] - tissue) / shown[dominant]))
        shown *= np.float32(max(times, 0.0))
    weight = tissue**2 / (tissue**2 + np.square(np.float32(_PSF_ERROR) * shown))
    weight[saturated] = 0
    rest: NDArray[np.float32] = tissue + weight * (light - shown - tissue)
    # Elsewhere noise may be below 0.
    return np.where(shown > tissue, np.maximum(rest, 0), rest)


def _core(part: NDArray[np.float32], coverage: NDArray[np.bool_]) -> tuple[int, NDArray[np.bool_]]:
    """Return in which plane (z, y, x) an object has the steepest flanks, and its core (y, x)."""
    # Its peak may be clipped in several, and be higher where spherical light meets on its axis.
    steep = [np.square(np.diff(part, axis=axis)).sum(axis=(1, 2)) for axis in (1, 2)]
    plane = int((steep[0] + steep[1]).argmax())
    return plane, (part[plane] >= _CORE_SHARE * part[plane].max()) & coverage


def _boxes(bright: NDArray[np.bool_]) -> list[tuple[slice, slice]]:
    """Return the boxes of what is bright; pieces whose light mixes are one."""
    if not bright.any():
        return []
    labels, _ = ndimage.label(ndimage.binary_dilation(bright, iterations=BORDER_PX))
    return [(box[0], box[1]) for box in ndimage.find_objects(labels)]


def _planes_of(
    source: NDArray[np.float32], psf: NDArray[np.float32], steps: Sequence[int]
) -> Iterator[NDArray[np.float32]]:
    """Yield what planes so many planes of the PSF from a source (y, x) show of it."""
    middle, half = len(psf) // 2, psf.shape[1] // 2
    # What the border cuts goes on beyond it.
    rim = source[[0, -1]].any() or source[:, [0, -1]].any()
    wide = np.pad(source, half, mode="symmetric" if rim else "constant")
    shape = [fast_len(n + half) for n in wide.shape]
    spectrum = scipy.fft.rfft2(wide, shape)
    total = np.float32(psf[middle].sum())
    for step in steps:
        kernel = scipy.fft.rfft2(psf[middle + step] / total, shape)
        image = scipy.fft.irfft2(spectrum * kernel, shape)
        yield image[2 * half : 2 * half + source.shape[0], 2 * half : 2 * half + source.shape[1]]
