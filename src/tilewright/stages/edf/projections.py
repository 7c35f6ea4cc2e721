"""What each method of the in-focus plane decides once per mosaic, and which kernel it calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.errors import ProcessingError
from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import Backend
from tilewright.kernels.deconvolve.blur import crop_psf
from tilewright.kernels.edf.channel_model import (
    FINE,
    ChannelModel,
    mean_variance,
    object_power,
    psf_planes,
    transfer_profiles,
)
from tilewright.kernels.edf.debris import DebrisModel, debris_counts, subtract_debris
from tilewright.kernels.edf.focus import (
    BORDER_PX,
    HALO_PX,
    POOL_PX,
    FocusMeasure,
    Projection,
    focus_weighted,
    sum_projection,
)
from tilewright.kernels.edf.wiener_filters import make_filters
from tilewright.kernels.edf.wiener_plane import (
    WienerPlane,
    confidence_weight,
    remove_grain,
)
from tilewright.kernels.noise import NoiseModel
from tilewright.stages.deconvolve.mosaic_psf import mosaic_psf
from tilewright.stages.edf import METHODS, Method
from tilewright.stages.edf.stack_survey import (
    ceiling_of,
    measure_noise,
    plane_variance,
    sample_cells,
    survey_stack,
)
from tilewright.stages.tile_windows import fill, read_window

#: Windows from which the filters are made, those of most contrast in the survey's sample, and their
#: side.
_SAMPLES, _SAMPLE_PX = 6, 512


class Window(NamedTuple):
    """What a tile is projected from.

    ``stack`` (z, y, x), raw counts; ``coverage`` (y, x) bool, where it was imaged;
    ``from_border_px`` (y, x) float32, distance to the mosaic's border, negative outside.
    """

    stack: NDArray[Any]
    coverage: NDArray[np.bool_]
    from_border_px: NDArray[np.float32]


Projector = Callable[[Window], Projection]


@dataclass(frozen=True)
class ProjectionPlan:
    """How the windows of a mosaic are projected, and what the output records of it.

    Attributes
    ----------
    record : dict[str, Any]
        Attributes of the output.
    plane_mask : bool (z,)
        Planes to use.
    noise : NoiseModel
        The camera's, in the stack.
    pedestal : float
        Counts without light.
    projector : Callable[[FocusMeasure], Projector]
        Returns what projects windows of the size whose focus is measured.
    halo_px : int
        Pixels around a tile that reach into it.
    """

    record: dict[str, Any]
    plane_mask: NDArray[np.bool_]
    noise: NoiseModel
    pedestal: float
    projector: Callable[[FocusMeasure], Projector]
    halo_px: int = HALO_PX


class _Source(NamedTuple):
    """A stack of several planes, what is known of it, and its optics."""

    backend: Backend
    mosaic: Mosaic
    plane_mask: NDArray[np.bool_]
    noise: NoiseModel
    pedestal: float
    optics: Mapping[str, float | None]
    psf_file: str | Path | None


def plan_projection(
    backend: Backend,
    mosaic: Mosaic,
    method: Method,
    optics: Mapping[str, float | None] | None,
    psf_file: str | Path | None,
) -> ProjectionPlan:
    """Decide once per mosaic how every window is projected; parameters as ``plane.edf_plane``.

    Raises
    ------
    ProcessingError
        See ``plane.edf_plane``.
    """
    deconvolved = "iterations" in mosaic.attributes
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    record = {key: mosaic.attributes.get(key, []) for key in ("excluded_planes", "focus_ends")}
    plane_mask = np.ones(mosaic.shape[0], bool)
    if mosaic.shape[0] == 1:
        record |= {"method": "none", "scale": 1.0}
        noise = NoiseModel(0.0, 0.0)
        return ProjectionPlan(record, plane_mask, noise, pedestal, _pass_through, 0)
    if not METHODS[method].takes(deconvolved=deconvolved):
        others = [name for name, needs in METHODS.items() if needs.takes(deconvolved=deconvolved)]
        needed, state = ("stitched", "has") if deconvolved else ("deconvolved", "has not")
        raise ProcessingError(
            f"edf: method {method} needs the {needed} stack, but {mosaic.path} {state} been "
            f"deconvolved; give the {needed} one, or {' or '.join(others)}"
        )
    if deconvolved:
        noise = measure_noise(backend, mosaic, plane_mask, pedestal)
    else:
        survey = survey_stack(backend, mosaic)
        plane_mask, noise, record = survey.plane_mask, survey.noise, survey.record
    if plane_mask.sum() == 1 and method == "multiplane_wiener":
        method = "focus_weighted"
    source = _Source(backend, mosaic, plane_mask, noise, pedestal, optics or {}, psf_file)
    scale, projector = _PLANNERS[method](source)
    record |= {
        "method": method,
        "scale": scale,
        "noise_gain": noise.gain,
        "read_noise_counts": noise.read_noise_counts,
    }
    return ProjectionPlan(record, plane_mask, noise, pedestal, projector)


def _pass_through(measure: FocusMeasure) -> Projector:
    def project(window: Window) -> Projection:
        image = measure.light(window.stack, 0)
        zero = measure.backend.xp.zeros_like(image[::POOL_PX, ::POOL_PX])
        return Projection(image, zero, zero.astype(np.int32))

    return project


#: Share of the light that a plane keeps, and what projects windows.
_Plan = tuple[float, Callable[[FocusMeasure], Projector]]


def _plan_sum_projection(source: _Source) -> _Plan:
    psf = mosaic_psf(source.mosaic, source.optics, source.psf_file)
    # As the deconvolution crops it: the central plane's share depends on the planes counted.
    psf = crop_psf(psf, source.mosaic.shape)
    kernel = psf[psf.shape[0] // 2]
    scale = float(kernel.sum(dtype=np.float64))
    return scale, lambda measure: lambda window: sum_projection(measure, window.stack, kernel)


def _plan_focus_weighted(source: _Source) -> _Plan:
    return 1.0, lambda measure: lambda window: focus_weighted(measure, window.stack)


def _plan_multiplane_wiener(source: _Source) -> _Plan:
    mosaic, plane_mask, noise, pedestal = (
        source.mosaic, source.plane_mask, source.noise, source.pedestal
    )  # fmt: skip
    planes = np.flatnonzero(plane_mask).tolist()
    count = psf_planes(mosaic.shape[0], mosaic.voxel_um[0])
    psf = mosaic_psf(mosaic, source.optics, source.psf_file, oversampling=FINE, planes=count)
    # Every plane of a widefield PSF has the same light, however far from focus: none would be more
    # wrong than the blur of the last of a measured one.
    missing = max(count - len(psf), 0) // 2
    psf = np.pad(psf, ((missing, missing), (0, 0), (0, 0)), mode="edge")
    profiles = transfer_profiles(psf)
    samples = _samples(source, planes)
    bright_counts = debris_counts([stack[planes] for stack, _ in samples], noise, pedestal)
    debris = DebrisModel(psf, planes, pedestal, bright_counts, ceiling_of(mosaic))
    tissue = [subtract_debris(stack, debris, coverage)[0] for stack, coverage in samples]
    power = object_power(source.backend, tissue, profiles, plane_mask)
    variance = mean_variance(noise, [stack[planes] for stack in tissue], pedestal)
    channel = ChannelModel(profiles, plane_mask, power, variance)
    filters = make_filters(channel)

    def projector(measure: FocusMeasure) -> Projector:
        estimate = WienerPlane(measure, channel, filters)

        def project(window: Window) -> Projection:
            stack, at_debris = _without_debris(window, debris)
            confidence = confidence_weight(window.from_border_px, window.coverage, at_debris)
            shown = window.stack if stack is not window.stack else None
            found = estimate.project(stack, confidence, shown)
            image = remove_grain(measure.backend, found.image, found.variance)
            return found._replace(image=image)

        return project

    return 1.0, projector


def _without_debris(window: Window, model: DebrisModel) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return a window's stack (z, y, x) with tissue in the place of debris, and where it is (y, x).

    Light of debris is subtracted within the mosaic; its gaps and what lies beyond its borders
    mirror the rest.
    """
    within = window.from_border_px >= 0
    lines = [np.flatnonzero(within.any(axis=axis)) for axis in (1, 0)]
    y, x = (slice(int(at[0]), int(at[-1]) + 1) for at in lines)
    coverage = window.coverage[y, x]
    stack, debris = subtract_debris(window.stack[:, y, x], model, coverage)
    if not debris.any():
        return window.stack, np.zeros_like(within)
    near = ndimage.distance_transform_edt(~debris) <= BORDER_PX
    stack = fill(stack, coverage & ~near)
    edges = [(p.start, n - p.stop) for p, n in zip((y, x), within.shape, strict=True)]
    return np.pad(stack, [(0, 0), *edges], mode="symmetric"), np.pad(debris, edges)


def _samples(source: _Source, planes: list[int]) -> list[tuple[NDArray[Any], NDArray[np.bool_]]]:
    """Return stacks (z, y, x) of the sample windows of most contrast, and their coverage (y, x)."""
    mosaic, pedestal = source.mosaic, source.pedestal
    found = sample_cells(mosaic)
    middle = planes[len(planes) // 2]
    contrast = [plane_variance(mosaic.read(middle, *cell), pedestal) for cell in found]
    best = np.sort(np.argsort(-np.array(contrast), kind="stable")[:_SAMPLES])
    size = [min(_SAMPLE_PX, n) for n in mosaic.shape[1:]]
    starts = [
        [
            min(max((part.start + part.stop - n) // 2, 0), length - n)
            for part, n, length in zip(found[i], size, mosaic.shape[1:], strict=True)
        ]
        for i in best
    ]
    return [read_window(mosaic, planes, pedestal, start, size, HALO_PX) for start in starts]


_PLANNERS: dict[Method, Callable[[_Source], _Plan]] = {
    "multiplane_wiener": _plan_multiplane_wiener,
    "sum_projection": _plan_sum_projection,
    "focus_weighted": _plan_focus_weighted,
}
