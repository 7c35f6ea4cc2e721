"""What is decided once per mosaic before its stack is projected: method, planes, noise, scale.

Decided from the middles of a fixed sample of chunks, so that every chunk is projected alike and
both devices look at the same pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.io.mosaic import Mosaic
from tilewright.kernels.backend import Backend
from tilewright.kernels.blur import crop_psf
from tilewright.kernels.focus import (
    HALO_PX,
    Projection,
    focus_energy,
    in_focus,
    psf_mean,
    soft_focus,
    trust_in,
)
from tilewright.stages.mosaic_psf import mosaic_psf
from tilewright.stages.stack_survey import chunk_cells, measure_noise, sample_cells, survey_stack

__all__ = ["EdfError", "Method", "ProjectionPlan", "chunk_cells", "plan_projection"]

Method = Literal["auto", "psf_mean", "soft_focus"]


class EdfError(ValueError):
    """A stack cannot be projected as asked; the message names the file and the fix."""


@dataclass(frozen=True)
class ProjectionPlan:
    """How the stacks of all chunks are projected, and what the output records of it.

    ``planes`` of what ``read`` returns for a place (y, x) are the stack; :meth:`project` takes
    it all.
    """

    project: Callable[[Backend, NDArray[Any]], Projection]
    halo_px: int
    record: dict[str, Any]
    planes: int
    read: Callable[[slice, slice], NDArray[Any]]


def plan_projection(
    backend: Backend,
    mosaic: Mosaic,
    method: Method,
    optics: Mapping[str, float | None] | None,
    psf_file: str | Path | None,
    focus: Mosaic | None = None,
) -> ProjectionPlan:
    """Decide once per mosaic how every chunk is projected; parameters as ``edf.edf_plane``.

    Raises
    ------
    EdfError
        See ``edf.edf_plane``.
    """
    if method not in ("auto", "psf_mean", "soft_focus"):
        raise EdfError(f"edf: method is {method!r}; give auto, psf_mean or soft_focus")
    deconvolved = "iterations" in mosaic.attributes
    told = {
        key: mosaic.attributes.get(key, [])
        for key in ("excluded_planes", "flagged_planes", "focus_ends")
    }
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    job = ProjectionPlan(
        _single(pedestal),
        0,
        {"method": "none", "scale": 1.0, **told},
        mosaic.shape[0],
        lambda y, x: mosaic.read(slice(None), y, x),
    )
    if mosaic.shape[0] == 1:
        return job
    if method == "psf_mean" and not deconvolved:
        raise EdfError(
            f"edf: method psf_mean needs a deconvolved stack, but {mosaic.path} has not been "
            "deconvolved; give auto or soft_focus"
        )
    kept = np.ones(mosaic.shape[0], bool)
    if not deconvolved:
        survey = survey_stack(backend, mosaic)
        told, kept = survey.record, survey.kept
        if not kept.any():
            raise EdfError(f"no plane of {mosaic.path} is usable: {survey.verdicts[0].reason}")
    if method == "soft_focus" or not deconvolved:
        job = _soft_focus_job(job, backend, mosaic, kept, pedestal)
    elif method == "auto" and focus is not None:
        job = _in_focus_job(job, backend, mosaic, focus)
    else:
        job = _psf_mean_job(job, backend, mosaic, pedestal, optics, psf_file)
    return replace(job, record={**job.record, **told})


def _single(pedestal: float) -> Callable[[Backend, NDArray[Any]], Projection]:
    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        xp = backend.xp
        image = backend.asarray(stack[0]) - pedestal
        zero = xp.zeros(image.shape, xp.float32)
        return Projection(image, zero, xp.zeros(image.shape, xp.int32))

    return run


def _in_focus_job(
    job: ProjectionPlan, backend: Backend, mosaic: Mosaic, focus: Mosaic
) -> ProjectionPlan:
    cells = sample_cells(mosaic)
    planes = [focus.read(slice(1, 3), cell.y, cell.x).reshape(2, -1) for cell in cells]
    trust = trust_in(*np.concatenate(planes, axis=1))
    # As much tissue again as is sharpest in an end plane lies beyond it, where nothing shows.
    outside = 2 * sum(mosaic.attributes.get("focus_ends", []))
    trust = round(trust * max(1 - outside, 0.0), 2)
    floor = _floor_energy(backend, mosaic)
    count = mosaic.shape[0]

    def read(y: slice, x: slice) -> NDArray[Any]:
        parts = (mosaic.read(slice(None), y, x), focus.read(slice(None), y, x))
        return np.concatenate(parts)

    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        raw, _, told = stack[count:]
        return in_focus(backend, stack[:count], raw, told, trust, floor)

    record = {"method": "corrected_focus", "scale": 1.0, "trust": trust}
    return replace(job, project=run, halo_px=HALO_PX, record=record, read=read)


def _psf_mean_job(
    job: ProjectionPlan,
    backend: Backend,
    mosaic: Mosaic,
    pedestal: float,
    optics: Mapping[str, float | None] | None,
    psf_file: str | Path | None,
) -> ProjectionPlan:
    psf = mosaic_psf(mosaic, optics or {}, psf_file)
    # As the deconvolution crops it: the central plane's share depends on the planes counted.
    psf = crop_psf(psf, mosaic.shape)
    kernel = psf[psf.shape[0] // 2]
    scale, weights = float(kernel.sum(dtype=np.float64)), np.ones(mosaic.shape[0])
    floor = _floor_energy(backend, mosaic)

    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        return psf_mean(backend, stack - np.float32(pedestal), kernel, weights, scale, floor)

    return replace(
        job,
        project=run,
        halo_px=max(HALO_PX, max(kernel.shape) // 2),
        record={"method": "psf_mean", "scale": scale},
    )


def _soft_focus_job(
    job: ProjectionPlan, backend: Backend, mosaic: Mosaic, kept: NDArray[np.bool_], pedestal: float
) -> ProjectionPlan:
    noise = measure_noise(backend, mosaic, kept, pedestal)

    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        return soft_focus(backend, stack, noise, pedestal, kept)

    record = {
        "method": "soft_focus",
        "scale": 1.0,
        "noise_gain": noise.gain,
        "read_noise_counts": noise.read_noise_counts,
    }
    return replace(job, project=run, halo_px=HALO_PX, record=record)


def _floor_energy(backend: Backend, mosaic: Mosaic) -> float:
    """Return 1 % of the energy of the best-focused percent: less is not worth a vote."""
    energies = []
    for i, cell in enumerate(sample_cells(mosaic)):
        plane = mosaic.read(i % mosaic.shape[0], cell.y, cell.x)
        energies.append(backend.to_numpy(focus_energy(backend, plane)[0][::4, ::4]).ravel())
    return max(0.01 * float(np.percentile(np.concatenate(energies), 99)), 1e-6)
