"""Measured point spread functions on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.conventions.common import readable
from tilewright.io.conventions.ome_xml import describe_image


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
    RawDataError
        The file is missing, no TIFF, or no stack, or its OME metadata are broken.
    """
    with readable(str(path)), tifffile.TiffFile(path) as file:
        image = np.squeeze(file.asarray())
        xml = file.ome_metadata
    if image.ndim != 3:
        raise RawDataError(f"{path} has shape {image.shape}; give a stack (z, y, x) of a bead")
    told = describe_image(xml, str(path), 0) if xml else None
    if not told or not (told.z_step_um and told.pixel_y_um and told.pixel_um):
        return image, None
    return image, (told.z_step_um, told.pixel_y_um, told.pixel_um)
