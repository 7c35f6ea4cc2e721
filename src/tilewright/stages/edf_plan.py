"""What is decided once per mosaic before its stack is projected: method, planes, noise, scale.

Decided from the middles of a fixed sample of chunks, so that every chunk is projected alike and
both devices look at the same pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.mosaic import Mosaic
from tilewright.kernels.backend import Backend
from tilewright.kernels.blur import crop_psf
from tilewright.kernels.focus import (
    HALO_PX,
    Projection,
    focus_energy,
    plane_weights,
    psf_mean,
    soft_focus,
)
from tilewright.kernels.noise import photon_transfer
from tilewright.kernels.planes import PlaneVerdict, judge_planes, sample_planes
from tilewright.stages.mosaic_psf import mosaic_psf

Method = Literal["auto", "psf_mean", "soft_focus"]

#: The first pass looks at the middle of this many chunks, at most, spread evenly.
_SAMPLES, _SAMPLE_PX = 32, 512


class EdfError(ValueError):
    """A stack cannot be projected as asked; the message names the file and the mend."""


class Cell(NamedTuple):
    """One chunk: where it is written, and what is read for it."""

    y: slice
    x: slice
    read_y: slice
    read_x: slice


@dataclass(frozen=True)
class Job:
    """How the stacks of all chunks are projected, and what the output records of it."""

    project: Callable[[Backend, NDArray[Any]], Projection]
    halo_px: int
    record: dict[str, Any]


def plan_projection(
    backend: Backend,
    mosaic: Mosaic,
    method: Method,
    optics: Mapping[str, float | None] | None,
    psf_file: str | Path | None,
) -> Job:
    """Decide once per mosaic how every chunk is projected; parameters as ``edf.project``.

    Raises
    ------
    EdfError
        See ``edf.project``.
    """
    if method not in ("auto", "psf_mean", "soft_focus"):
        raise EdfError(f"edf: method is {method!r}; give auto, psf_mean or soft_focus")
    deconvolved = "iterations" in mosaic.attributes
    if method == "auto":
        method = "psf_mean" if deconvolved else "soft_focus"
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    if mosaic.shape[0] == 1:
        return Job(_single(pedestal), 0, {**_verdict_record([]), "method": "none", "scale": 1.0})
    if method == "psf_mean" and not deconvolved:
        raise EdfError(
            f"edf: method psf_mean needs a deconvolved stack, but {mosaic.path} has not been "
            "deconvolved; give auto or soft_focus"
        )
    verdicts = _judge(backend, mosaic, pedestal, deconvolved)
    kept = np.ones(mosaic.shape[0], bool)
    kept[[v.z for v in verdicts if v.excluded]] = False
    if not kept.any():
        raise EdfError(f"no plane of {mosaic.path} is usable: {verdicts[0].reason}")
    make = _psf_mean_job if method == "psf_mean" else _soft_focus_job
    job = make(backend, mosaic, kept, pedestal, optics, psf_file)
    return replace(job, record={**job.record, **_verdict_record(verdicts), "method": method})


def _verdict_record(verdicts: list[PlaneVerdict]) -> dict[str, Any]:
    lists: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for verdict in verdicts:
        lists[verdict.excluded].append({"z": verdict.z, "reason": verdict.reason})
    return {"excluded_planes": lists[True], "flagged_planes": lists[False]}


def _single(pedestal: float) -> Callable[[Backend, NDArray[Any]], Projection]:
    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        xp = backend.xp
        image = backend.asarray(stack[0]) - pedestal
        zero = xp.zeros(image.shape, xp.float32)
        return Projection(image, zero, xp.zeros(image.shape, xp.int32))

    return run


def _psf_mean_job(
    backend: Backend,
    mosaic: Mosaic,
    kept: NDArray[np.bool_],
    pedestal: float,
    optics: Mapping[str, float | None] | None,
    psf_file: str | Path | None,
) -> Job:
    psf = mosaic_psf(mosaic, optics or {}, psf_file)
    # As the deconvolution crops it: the central plane's share depends on the planes counted.
    psf = crop_psf(psf, mosaic.shape)
    kernel = psf[psf.shape[0] // 2]
    scale, weights = float(kernel.sum(dtype=np.float64)), plane_weights(kept)
    floor = _floor_energy(backend, mosaic, kept)

    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        return psf_mean(backend, stack - np.float32(pedestal), kernel, weights, scale, floor)

    return Job(run, max(HALO_PX, max(kernel.shape) // 2), {"scale": scale})


def _soft_focus_job(
    backend: Backend,
    mosaic: Mosaic,
    kept: NDArray[np.bool_],
    pedestal: float,
    optics: Mapping[str, float | None] | None,
    psf_file: str | Path | None,
) -> Job:
    good = np.flatnonzero(kept)
    planes = [
        mosaic.read(int(good[i % good.size]), cell.y, cell.x)
        for i, cell in enumerate(_sample_cells(mosaic))
    ]
    width = min(plane.shape[1] for plane in planes)
    noise = photon_transfer(backend, np.concatenate([p[:, :width] for p in planes]), pedestal)

    def run(backend: Backend, stack: NDArray[Any]) -> Projection:
        return soft_focus(backend, stack, noise, pedestal, kept)

    return Job(
        run,
        HALO_PX,
        {"scale": 1.0, "noise_gain": noise.gain, "read_noise_counts": noise.read_noise_counts},
    )


def _judge(
    backend: Backend, mosaic: Mosaic, pedestal: float, deconvolved: bool
) -> list[PlaneVerdict]:
    """Judge the planes of the whole mosaic from the sampled chunks."""
    integer = np.issubdtype(mosaic.dtype, np.integer)
    ceiling = float(np.iinfo(mosaic.dtype).max) if integer else np.inf
    samples = [
        sample_planes(backend, mosaic.read(slice(None), cell.y, cell.x), ceiling)
        for cell in tqdm(_sample_cells(mosaic), desc="edf: planes", unit="chunk", mininterval=5)
    ]
    return judge_planes(samples, pedestal, deconvolved=deconvolved)


def _floor_energy(backend: Backend, mosaic: Mosaic, kept: NDArray[np.bool_]) -> float:
    """Return 1 % of the energy of the best-focused percent: less is not worth a vote."""
    good = np.flatnonzero(kept)
    energies = []
    for i, cell in enumerate(_sample_cells(mosaic)):
        plane = mosaic.read(int(good[i % good.size]), cell.y, cell.x)
        energies.append(backend.to_numpy(focus_energy(backend, plane)[0][::4, ::4]).ravel())
    return max(0.01 * float(np.percentile(np.concatenate(energies), 99)), 1e-6)


def _sample_cells(mosaic: Mosaic) -> list[Cell]:
    """Return the middles of chunks, spread evenly over the mosaic; the same for every device."""
    cells = chunk_cells(mosaic, 0)
    count = min(len(cells), _SAMPLES)
    picked = [cells[i * len(cells) // count] for i in range(count)]
    return [cell._replace(y=_middle(cell.y), x=_middle(cell.x)) for cell in picked]


def _middle(span: slice) -> slice:
    size = span.stop - span.start
    start = span.start + max(size - _SAMPLE_PX, 0) // 2
    return slice(start, start + min(size, _SAMPLE_PX))


def chunk_cells(mosaic: Mosaic, halo_px: int) -> list[Cell]:
    """Return the mosaic's chunks row by row, each with a halo cut at the mosaic's borders."""
    side = mosaic.chunk_px
    spans = [
        [
            (
                slice(start, min(start + side, size)),
                slice(max(start - halo_px, 0), min(start + side + halo_px, size)),
            )
            for start in range(0, size, side)
        ]
        for size in mosaic.shape[1:]
    ]
    return [Cell(y, x, read_y, read_x) for y, read_y in spans[0] for x, read_x in spans[1]]
