"""Deconvolution of a stitched z-stack, tile by tile.

The tile grid comes from the options alone, so every device gives the same pixels. Only where
a GPU's memory runs out the mosaic is restarted with tiles of half the side and the same halo:
that changes pixels along seams by the tolerance of the halo (``halo_px``: 32 px leave 0.3 % in a
band along them, 64 px 0.05 %), and by some percent within half a PSF of the mosaic's border, where
light from outside is guessed. All windows have one size, so one transfer function and one set of
buffers serve the whole mosaic. The next window is read and the last tile written while one is
computed.

Accelerated Richardson-Lucy with the widefield PSF of the optics at the mosaic's own
voxel pitch. It stops after a fixed number of iterations, the same for all tiles: the
number given, or else the fewest that predict held-out photons as well as any number does
(Poisson thinning) on the calibration tile, the 512² px whose middle plane varies most.
Patches at exactly the pedestal in all planes were not imaged: they do not count as dark,
and are 0 in the output. Damaged planes are detected first and have no part in the likelihood;
the output there follows from the planes around them.

The output's attributes are ``pedestal_counts`` 0, ``iterations``,
``criterion``, ``held_out_divergence`` (per iteration tried, photons per voxel),
``gain_counts_per_photon``, ``background_counts`` (of the model), ``psf_shape``,
``calibration_tile`` (y, x of its first pixel), ``tile_px`` (as used), ``halo_px``,
``excluded_planes`` (a list of ``z`` and ``reason``), ``focus_ends`` (share of what is in focus
that is sharpest in the first and last plane), and the source's clipping counts.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.results.mosaic import Mosaic, create_mosaic, open_mosaic
from tilewright.io.results.zarr_store import OmeZarrVersion, StoreWriter
from tilewright.kernels.backend import Array, Backend
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.richardson_lucy import RichardsonLucy, scene_margin
from tilewright.kernels.deconvolve.thinning import (
    CountModel,
    Stopping,
    choose_iterations,
    measure_camera,
)
from tilewright.kernels.device_memory import OomHint, retry_smaller_on_oom, track_device_memory
from tilewright.stages.deconvolve.mosaic_psf import mosaic_psf
from tilewright.stages.edf.stack_survey import StackSurvey, plane_variance, survey_stack
from tilewright.stages.tile_sizes import HALO_PX, TILE_PX
from tilewright.stages.tile_windows import Window, gap_mask, smaller_tile, tile_windows

#: Side of the calibration tile; its count of iterations holds for all.
_CALIBRATION_PX = 512
#: Half a PSF of 17 planes at NA 0.75: what lies beyond one border of a window then does not
#: reach the other, and tiles agree with the untiled mosaic within 0.01 % (2.9 % with 12 px).
_MARGIN_PX = 32

_OOM_HINT = OomHint("deconvolve", "its smallest tile with halo and margin")
_CALIBRATION = OomHint(
    "deconvolve", f"the calibration tile of {_CALIBRATION_PX} px", "set deconvolve.iterations"
)


@track_device_memory(_OOM_HINT)
def deconvolve(
    source: str | Path,
    output: str | Path,
    *,
    backend: Backend,
    optics: Mapping[str, float | None],
    psf_file: str | Path | None,
    iterations: int | None,
    tile_px: int = TILE_PX,
    halo_px: int = HALO_PX,
    ome_zarr_version: OmeZarrVersion = "0.4",
) -> None:
    """Deconvolve a stitched mosaic into a mosaic of float32 counts above its pedestal.

    Method and attributes of the output: see the module. Parameters without a line here are keys of
    the configuration, see :mod:`tilewright.config.settings`; None is ``auto``.

    Parameters
    ----------
    source, output : Path
        Mosaics; the source's attribute ``pedestal_counts`` says what zero light is.
    backend : Backend
        Array namespace; its CPU threads share the planes.
    optics : mapping
        ``numerical_aperture``, ``emission_nm``, ``immersion_refractive_index``,
        ``sample_refractive_index`` and ``depth_um``; see
        :func:`tilewright.stages.deconvolve.mosaic_psf.mosaic_psf`.
    tile_px, halo_px : int
        Side of the tiles that are deconvolved at once, and the margin that each takes from its
        neighbours; tiles are smaller where a device's memory is.

    Raises
    ------
    ProcessingError, RawDataError
        The optics or the PSF file are unusable, or no plane is usable.
    DeviceMemoryError
        The GPU's memory does not hold the calibration tile, or the smallest tile.
    """
    mosaic = open_mosaic(source)
    psf = mosaic_psf(mosaic, optics, psf_file)
    survey = survey_stack(backend, mosaic)
    tile = _calibration_tile(mosaic, survey.plane_mask)
    camera, stopping = _calibrate(mosaic, psf, tile, iterations, survey, backend=backend)

    def write(side_px: int) -> None:
        """Deconvolve in tiles of a side, and write the mosaic."""
        windows = tile_windows(mosaic.shape[1:], side_px, halo_px)
        margin = scene_margin(mosaic.shape[0], mosaic.voxel_um[0], _MARGIN_PX)
        blur = Blur(backend, psf, (mosaic.shape[0], *windows[0].shape), margin)
        run = _Run(mosaic, RichardsonLucy(blur), camera, stopping.iterations, survey)
        with create_mosaic(
            output,
            mosaic.shape,
            np.float32,
            mosaic.chunk_px,
            mosaic.voxel_um,
            Path(output).stem,
            ome_zarr_version=ome_zarr_version,
            attributes={"pedestal_counts": 0},
        ) as writer:
            run.stream(windows, writer)
            writer.attributes.update(
                **_report(mosaic, camera, stopping),
                **survey.record,
                psf_shape=list(psf.shape),
                calibration_tile=[tile.y.start, tile.x.start],
                tile_px=side_px,
                halo_px=halo_px,
            )

    retry_smaller_on_oom(
        backend,
        write,
        tile_px,
        lambda side_px: smaller_tile(mosaic.shape[1:], side_px, halo_px),
        _OOM_HINT,
    )


def _calibration_tile(mosaic: Mosaic, plane_mask: NDArray[np.bool_]) -> Window:
    """Return the tile whose middle usable plane varies most; the first of equals."""
    good = np.flatnonzero(plane_mask)
    middle = int(good[good.size // 2])
    tiles = tile_windows(mosaic.shape[1:], _CALIBRATION_PX, 0)
    pedestal = mosaic.attributes["pedestal_counts"]
    variances = [plane_variance(mosaic.read(middle, tile.y, tile.x), pedestal) for tile in tiles]
    return tiles[int(np.argmax(variances))]


@track_device_memory(_CALIBRATION)
def _calibrate(
    mosaic: Mosaic,
    psf: NDArray[np.float32],
    tile: Window,
    iterations: int | None,
    survey: StackSurvey,
    *,
    backend: Backend,
) -> tuple[CountModel, Stopping]:
    """Measure the camera, and choose the number of iterations unless it is given."""
    stack = mosaic.read(slice(None), tile.y, tile.x).astype(np.float32)
    pedestal = float(mosaic.attributes["pedestal_counts"])
    camera = measure_camera(backend, stack[survey.plane_mask], pedestal)
    if iterations is not None:
        return camera, Stopping(iterations, "fixed: deconvolve.iterations")
    margin = scene_margin(mosaic.shape[0], mosaic.voxel_um[0])
    mask = _mask(backend, survey, np.ones(stack.shape[1:], np.bool_))
    return camera, choose_iterations(backend, stack, psf, camera, margin=margin, mask=mask)


def _mask(backend: Backend, survey: StackSurvey, coverage: NDArray[np.bool_]) -> Array | None:
    """Return the voxels (z, y, x) that were measured, on the device; None if all were."""
    mask = survey.plane_mask[:, None, None] & coverage
    return None if mask.all() else backend.asarray(mask, dtype=None)


def _report(mosaic: Mosaic, camera: CountModel, stopping: Stopping) -> dict[str, Any]:
    clipped = ("clipped_low", "clipped_high")
    return {
        "iterations": stopping.iterations,
        "criterion": stopping.criterion,
        "held_out_divergence": list(stopping.held_out),
        "gain_counts_per_photon": round(camera.gain_counts_per_photon, 6),
        "background_counts": round(camera.background_counts, 6),
        **{key: mosaic.attributes[key] for key in clipped if key in mosaic.attributes},
    }


@dataclass
class _Run:
    """One pass over the tiles."""

    mosaic: Mosaic
    solver: RichardsonLucy
    camera: CountModel
    iterations: int
    survey: StackSurvey

    def stream(self, windows: list[Window], writer: StoreWriter) -> None:
        """Deconvolve the tiles in order; reading and writing go on meanwhile."""
        with ThreadPoolExecutor(2) as pool:
            reading = pool.submit(self._read, windows[0])
            writing: Future[None] = pool.submit(lambda: None)
            progress = tqdm(windows, desc="deconvolve", unit="tile", mininterval=5)
            for number, window in enumerate(progress, 1):
                counts = reading.result()
                if number < len(windows):
                    reading = pool.submit(self._read, windows[number])
                light = self._solve(window, counts)
                writing.result()
                writing = pool.submit(writer.write, 0, window.y.start, window.x.start, light)
            writing.result()

    def _read(self, window: Window) -> NDArray[np.float32]:
        counts = self.mosaic.read(slice(None), window.window_y, window.window_x)
        return counts.astype(np.float32)

    def _solve(self, window: Window, counts: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the light (z, y, x) of a tile."""
        inner = (slice(None), *window.inner)
        pedestal = float(self.mosaic.attributes["pedestal_counts"])
        coverage = ~gap_mask(counts[self.survey.plane_mask], pedestal)
        if not coverage.any():
            # All weights would be 0, and so would the estimate.
            return np.zeros_like(counts[inner])
        backend = self.solver.blur.backend
        counts -= np.float32(self.camera.zero_counts)
        np.maximum(counts, 0, out=counts)
        mask = _mask(backend, self.survey, coverage)
        self.solver.load(backend.asarray(counts), self.camera.background_counts, mask)
        for _ in range(self.iterations):
            self.solver.iterate()
        light: NDArray[np.float32] = backend.to_numpy(self.solver.estimate[inner]).copy()
        light *= coverage[window.inner]
        return light
