"""Where a registered cycle has lost, or did not image, tissue that the reference shows.

For each place the slope of the moving texture on the reference's is fitted, each pixel weighted by
the reference's bright texture: 1 where the same nuclei are present, 0 where they are gone, whatever
noise or haze took their place, since noise does not follow the reference. It is a share of light
in windows of one nucleus, so that a hole's border is where it is. Where the cycle has a texture of
its own that the reference's does not explain, tissue is misregistered or folded, not lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Array, Backend, Region
from tilewright.stages.register.block_passes import TISSUE_ENERGY, Overlay
from tilewright.stages.register.plane_views import OVERVIEW_PX

#: Binning of the images: nuclei of 10 um are still 13 px wide at 0.377 um.
FACTOR = 2
#: Standard deviation of the windows, in binned px. In nine cycles of phantoms that lost 1 to 7 %
#: this finds 0.68 to 0.89 of it. Of lost places 2.5 px found 0.80 to 0.91, 4 px 0.61 to 0.86.
_WINDOW_PX = 2.5
#: The texture's two Gaussians and the windows; ``_GAP_PX`` and the rim around it.
HALO_PX = 40
#: The image's border cuts cells whose centre is no further from it: half a nucleus of 9 um.
_CUT_PX = 12
#: Dark over a square of this side is no glass, which has noise: no tile covers it. The splines that
#: warp a tile's end are above half a count for two px beyond it.
_GAP_PX, _DARK, _SPLINE_PX = 17, 0.5, 2
#: What :func:`aligned` takes from a cycle's end, and the rim there that is not compared.
_MASKED_PX, _RIM_PX = 4, 8
#: Tissue is lost where the cycle has less than this share of the usual slope, and no other tissue.
_LOST = 0.3
#: Other tissue has that share of the energy that the reference's would have, over windows of a few
#: nuclei, of this standard deviation in binned px. Of a cycle shifted by 6 px, 5 px report 2 %
#: lost, 8 px 0.4 %.
_OTHER_PX = 8.0
#: Percentile of the tissue's places whose texture beside the reference's is noise: more than half
#: may be misregistered.
_NOISE_PERCENTILE = 25


@dataclass(frozen=True)
class LostTissue:
    """Tissue that a cycle has lost.

    Attributes
    ----------
    share : float | None
        Of the reference's tissue inside the cycle's mosaic; None where there is none.
    outside : float | None
        Share of the reference's tissue outside the cycle's mosaic, but for cells that the image's
        border cuts; None likewise.
    lost_px : tuple[float, float] | None
        Where most is lost, (y, x) in the reference's frame; None where nothing is.
    outside_px : tuple[float, float] | None
        Where most lies outside, likewise.
    """

    share: float | None
    outside: float | None
    lost_px: tuple[float, float] | None = None
    outside_px: tuple[float, float] | None = None


class LostTissueSearch:
    """Compares a registered cycle with the reference, from the parts of a pass, on the host.

    Memory holds four maps of at most 2048 places a side. ``shape`` is that of the reference, at a
    binning of :data:`FACTOR`; the pass has a halo of :data:`HALO_PX`.
    """

    def __init__(self, backend: Backend, shape: tuple[int, int]) -> None:
        self._backend = backend
        self._stride = max(2, -(-max(shape) // OVERVIEW_PX))
        places = tuple(-(-n // self._stride) for n in shape)
        self._maps = [np.zeros(places, np.float32) for _ in range(4)]

    def observe(self, region: Region, overlay: Overlay) -> None:
        """Add the places of a part."""
        here, sampling = [], []
        for part, whole in zip(region, overlay.region, strict=True):
            first, last = (-(-n // self._stride) for n in (part.start, part.stop))
            here.append(slice(first, last))
            start = first * self._stride - whole.start
            sampling.append(slice(start, part.stop - whole.start, self._stride))
        for places, values in zip(self._maps, self._slopes(overlay, sampling), strict=True):
            places[here[0], here[1]] = values

    def _slopes(self, overlay: Overlay, sampling: Sequence[slice]) -> list[Array]:
        """Return the reference's energy, what the moving texture shares and has, and it outside."""
        # At the ``sampling`` rows and columns of the part: windows are only summed there.
        first, second, counts, inside = map(
            self._backend.to_numpy, (*overlay.textures, overlay.counts[1], overlay.inside)
        )
        dark = (abs(counts) < _DARK) * inside
        no_tile = ndimage.minimum_filter(dark, _GAP_PX, mode="nearest")
        no_tile = ndimage.maximum_filter(no_tile, _GAP_PX + 2 * _SPLINE_PX, mode="nearest")
        ended = ndimage.minimum_filter(1 - inside, 1 + 2 * _MASKED_PX, mode="nearest")
        outside = no_tile.clip(ended, None)
        coverage = inside * (1 - ndimage.maximum_filter(outside, 1 + 2 * _RIM_PX, mode="nearest"))
        one = first * coverage
        weight = one.clip(0, None)

        def summed(sums: Array, where: Array) -> Array:
            spans: list[tuple[slice, ...]] = [(sampling[0],), (slice(None), sampling[1])]
            for axis, lines in enumerate(spans):
                sums = ndimage.gaussian_filter1d(
                    sums, _WINDOW_PX, axis=axis, mode="nearest", truncate=3.0
                )[lines]
            return sums * (where[sampling[0], sampling[1]] > 0)

        beyond = first * first.clip(0, None) if bool(outside.any()) else outside
        return [
            summed(weight * one, coverage), summed(weight * second, coverage),
            summed(second.clip(0, None) ** 2 * coverage, coverage), summed(beyond, outside),
        ]  # fmt: skip

    def result(self) -> LostTissue:
        """Return the tissue that is lost in all parts."""
        energy, common, own, outside = self._maps
        places = lost_places(energy, common, own, _OTHER_PX / self._stride)
        if places is None:
            return LostTissue(None, None)
        tissue, lost = places
        beyond = outside > _least_of_tissue(energy)
        inside, pixel_px = int(tissue.sum()), self._stride * FACTOR
        cut = -(-_CUT_PX // pixel_px)
        whole = float(beyond[cut:-cut, cut:-cut].sum())
        shares = float(lost.sum() / inside), whole / (whole + inside)
        return LostTissue(*shares, _densest(lost, pixel_px), _densest(beyond, pixel_px))


def _densest(places: NDArray[np.bool_], pixel_px: int) -> tuple[float, float] | None:
    """Return the middle (y, x), in px, of where most of some places lie; None without any."""
    if not places.any():
        return None
    # Wide enough for the middle of a large hole to outweigh a small one's.
    spread = 3 * _OTHER_PX / pixel_px
    density = ndimage.gaussian_filter(places.astype(np.float32), spread, mode="constant")
    y, x = np.unravel_index(int(density.argmax()), density.shape)
    return float(y * pixel_px), float(x * pixel_px)


def lost_places(
    energy: NDArray[np.float32],
    common: NDArray[np.float32],
    own: NDArray[np.float32],
    spread: float = _OTHER_PX,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
    """Return which places show tissue, and which of them the moving image has lost.

    Parameters
    ----------
    energy : (y, x) float32
        Of the reference's bright texture; 0 where the cycle has no pixels.
    common : (y, x) float32
        What the moving image has of it.
    own : (y, x) float32
        Of the moving image's bright texture.
    spread : float
        Standard deviation of the windows in which other tissue is looked for, in places.

    Returns
    -------
    tissue, lost : (y, x) bool, or None
        None where the cycle shows no tissue of the reference.
    """
    if not (energy > 0).any():
        return None
    tissue = energy > _least_of_tissue(energy)
    slope = common / np.maximum(energy, 1e-12)
    # Places that are lost must not count for what is usual, were they nine tenths.
    top = np.percentile(slope[tissue], 95.0)
    if top <= 0:
        return None
    usual = np.median(slope[tissue & (slope > top / 3)])
    missing = tissue & (slope < _LOST * usual)
    # Misregistered and folded tissue has texture, which the reference's does not explain.
    other = own - slope.clip(0, None) ** 2 * energy
    other -= np.percentile(other[tissue], _NOISE_PERCENTILE)
    found, expected = (
        ndimage.gaussian_filter(np.where(tissue, v, 0), spread) for v in (other, usual**2 * energy)
    )
    return tissue, missing & (found < _LOST * expected)


def _least_of_tissue(energy: NDArray[np.float32]) -> float:
    """Return the least energy of tissue, of a map that is 0 where the cycle has no pixels."""
    return TISSUE_ENERGY * float(np.percentile(energy[energy > 0], 95.0))
