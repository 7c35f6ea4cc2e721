"""The point spread function of a mosaic: computed from the optics, or measured."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.io.inputs.psf_file import read_psf
from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.deconvolve.psf import (
    Optics,
    gibson_lanni,
    measured_psf,
)


def mosaic_psf(
    mosaic: Mosaic,
    optics: Mapping[str, float | None],
    psf_file: str | Path | None,
    *,
    oversampling: int = 1,
    planes: int | None = None,
) -> NDArray[np.float32]:
    """Return the PSF that joins all planes of a mosaic, at its voxel pitch.

    Parameters
    ----------
    mosaic : Mosaic
        Says the number of planes and the voxel.
    optics : mapping
        Fields of ``kernels.deconvolve.psf.Optics`` and ``depth_um`` (absent: 0). At
        depth 0 light meets no sample, and ``sample_refractive_index`` may be None.
    psf_file : Path or None
        TIFF stack (z, y, x) of one bead instead, at the voxel size of its OME metadata if it
        has any, else at the mosaic's.
    oversampling : int
        Planes of the PSF per plane of the mosaic.
    planes : int, optional
        Odd; else what joins all planes. A file may have fewer.

    Returns
    -------
    ndarray of float32, shape (planes, y, x)
        Sum 1.

    Raises
    ------
    ProcessingError, RawDataError
        The optics or the file are unusable.
    """
    planes = planes or 2 * oversampling * (mosaic.shape[0] - 1) + 1
    z_um, y_um, x_um = mosaic.voxel_um
    pitch_um = (z_um / oversampling, y_um, x_um)
    if psf_file is not None:
        image, voxel_um = read_psf(psf_file)
        return measured_psf(image, voxel_um or mosaic.voxel_um, pitch_um, planes)
    lens, depth_um = _lens(optics)
    return gibson_lanni(lens, pitch_um, planes, depth_um=depth_um)


def _lens(optics: Mapping[str, float | None]) -> tuple[Optics, float]:
    """Return the optics, and the depth in µm."""
    depth_um = optics.get("depth_um") or 0.0
    if depth_um == 0:
        index = optics.get("sample_refractive_index") or optics.get("immersion_refractive_index")
        optics = {**optics, "sample_refractive_index": index}
    return Optics.from_mapping(optics), depth_um
