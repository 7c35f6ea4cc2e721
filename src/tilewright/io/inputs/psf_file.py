"""Measured point spread functions on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray


class PsfFileError(ValueError):
    """A PSF file cannot be read; the message names it."""


def read_psf(path: str | Path) -> tuple[NDArray[Any], tuple[float, float, float] | None]:
    """Read a TIFF stack of one bead.

    Parameters
    ----------
    path : Path
        TIFF or OME-TIFF with axes z, y, x.

    Returns
    -------
    image : ndarray, shape (z, y, x)
        As stored.
    voxel_um : tuple of float, optional
        Pitch (z, y, x) that OME metadata state in µm; None if there is none.

    Raises
    ------
    PsfFileError
        The file is missing, no TIFF, or no stack.
    """
    try:
        with tifffile.TiffFile(path) as file:
            image = np.squeeze(file.asarray())
            voxel_um = _ome_voxel_um(file.ome_metadata)
    except (OSError, tifffile.TiffFileError) as error:
        raise PsfFileError(f"deconvolve.psf_file {path} cannot be read: {error}") from error
    if image.ndim != 3:
        raise PsfFileError(
            f"deconvolve.psf_file {path} has shape {image.shape}; give a stack (z, y, x) of a bead"
        )
    return image, voxel_um


def _ome_voxel_um(metadata: str | None) -> tuple[float, float, float] | None:
    if metadata is None:
        return None
    images = tifffile.xml2dict(metadata)["OME"]["Image"]
    pixels = (images[0] if isinstance(images, list) else images)["Pixels"]
    sizes = [pixels.get(f"PhysicalSize{axis}") for axis in "ZYX"]
    # µm is the unit that OME-XML means when it names none.
    units = {pixels.get(f"PhysicalSize{axis}Unit", "µm") for axis in "ZYX"}
    if None in sizes or units != {"µm"}:
        return None
    z_um, y_um, x_um = (float(size) for size in sizes)
    return z_um, y_um, x_um
