"""Deconvolution of a stitched z-stack, tile by tile.

The tile grid comes from the options alone, so every device gives the same pixels. Only where
a GPU's memory runs out the mosaic is restarted with tiles of half the side and the same halo:
that changes pixels along seams by the tolerance of the halo (``halo_px``: 32 px leave 0.3 % in a
band along them, 64 px 0.05 %), and by some percent within half a PSF of the mosaic's border, where
light from outside is guessed. All windows have one size, so one transfer function and one set of
buffers serve the whole mosaic. The next window is read and the last tile written while one is
computed.

Accelerated Richardson-Lucy with the widefield PSF of the optics at the mosaic's own
voxel pitch. It stops after a fixed number of iterations, the same for all tiles.
Patches at exactly the pedestal in all planes were not imaged: they do not count as dark,
and are 0 in the output. Damaged planes are detected first and have no part in the likelihood;
the output there follows from the planes around them.

The output's attributes are ``pedestal_counts`` 0, ``iterations``,
``gain_counts_per_photon``, ``background_counts`` (of the model), ``psf_shape``,
``tile_px`` (as used), ``halo_px``,
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
from tilewright.kernels.backend import Backend
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.richardson_lucy import (
    RichardsonLucy,
    model_background,
    scene_margin,
)
from tilewright.kernels.device_memory import OomHint, retry_smaller_on_oom, track_device_memory
from tilewright.stages import HALO_PX, TILE_PX
from tilewright.stages.deconvolve.mosaic_psf import mosaic_psf
from tilewright.stages.edf.stack_survey import StackSurvey, survey_stack
from tilewright.stages.tile_windows import Window, gap_mask, smaller_tile, tile_windows

_OOM_HINT = OomHint("deconvolve", "its smallest tile with halo and margin")


@track_device_memory(_OOM_HINT)
def deconvolve(
    source: str | Path,
    output: str | Path,
    *,
    backend: Backend,
    optics: Mapping[str, float | None],
    psf_file: str | Path | None,
    iterations: int,
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
        The GPU's memory does not hold the smallest tile.
    """
    mosaic = open_mosaic(source)
    psf = mosaic_psf(mosaic, optics, psf_file)
    stack = _Stack(backend, mosaic, psf, survey_stack(backend, mosaic), iterations)

    def write(side_px: int) -> None:
        """Deconvolve in tiles of a side, and write the mosaic."""
        with create_mosaic(
            output,
            mosaic.shape,
            np.float32,
            mosaic.chunk_px,
            mosaic.voxel_um,
            ome_zarr_version=ome_zarr_version,
            attributes=stack.record | {"tile_px": side_px, "halo_px": halo_px},
        ) as writer:
            stack.stream(tile_windows(mosaic.shape[1:], side_px, halo_px), writer)

    retry_smaller_on_oom(
        backend,
        write,
        tile_px,
        lambda side_px: smaller_tile(mosaic.shape[1:], side_px, halo_px),
        _OOM_HINT,
    )


@dataclass(frozen=True)
class _Stack:
    """A mosaic stack, and how it is deconvolved."""

    backend: Backend
    mosaic: Mosaic
    psf: NDArray[np.float32]
    survey: StackSurvey
    iterations: int

    @property
    def pedestal(self) -> float:
        return float(self.mosaic.attributes["pedestal_counts"])

    @property
    def background(self) -> float:
        return model_background(self.survey.noise)

    @property
    def record(self) -> dict[str, Any]:
        """Attributes of the output."""
        clipped = ("clipped_low", "clipped_high")
        return {
            "pedestal_counts": 0,
            "iterations": self.iterations,
            "gain_counts_per_photon": round(self.survey.noise.gain, 6),
            "background_counts": round(self.background, 6),
            "psf_shape": list(self.psf.shape),
            **self.survey.record,
            **{
                key: self.mosaic.attributes[key] for key in clipped if key in self.mosaic.attributes
            },
        }

    def stream(self, windows: list[Window], writer: StoreWriter) -> None:
        """Deconvolve the tiles in order; reading and writing go on meanwhile."""
        planes = self.mosaic.shape[0]
        margin = scene_margin(planes, self.mosaic.voxel_um[0])
        blur = Blur(self.backend, self.psf, (planes, *windows[0].shape), margin)
        solver = RichardsonLucy(blur)
        with ThreadPoolExecutor(2) as pool:
            reading = pool.submit(self._read, windows[0])
            writing: Future[None] = pool.submit(lambda: None)
            progress = tqdm(windows, desc="deconvolve", unit="tile", mininterval=5)
            for number, window in enumerate(progress, 1):
                counts = reading.result()
                if number < len(windows):
                    reading = pool.submit(self._read, windows[number])
                light = self._solve(solver, window, counts)
                writing.result()
                writing = pool.submit(writer.write, 0, window.y.start, window.x.start, light)
            writing.result()

    def _read(self, window: Window) -> NDArray[np.float32]:
        counts = self.mosaic.read(slice(None), window.window_y, window.window_x)
        return counts.astype(np.float32)

    def _solve(
        self, solver: RichardsonLucy, window: Window, counts: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the light (z, y, x) of a tile."""
        inner = (slice(None), *window.inner)
        plane_mask = self.survey.plane_mask
        coverage = ~gap_mask(counts[plane_mask], self.pedestal)
        if not coverage.any():
            # All weights would be 0, and so would the estimate.
            return np.zeros_like(counts[inner])
        counts -= np.float32(self.pedestal - self.background)
        np.maximum(counts, 0, out=counts)
        measured = plane_mask[:, None, None] & coverage
        mask = None if measured.all() else self.backend.asarray(measured, dtype=None)
        solver.load(self.backend.asarray(counts), self.background, mask)
        for _ in range(self.iterations):
            solver.iterate()
        light: NDArray[np.float32] = self.backend.to_numpy(solver.estimate[inner]).copy()
        light *= coverage[window.inner]
        return light
