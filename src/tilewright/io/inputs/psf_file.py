"""Measured point spread functions on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats.common import raw_file_errors
from tilewright.io.tiff.headers import headers_of
from tilewright.io.tiff.ome_xml import describe_image


def read_psf(path: str | Path) -> tuple[NDArray[Any], tuple[float, float, float] | None]:
    """Read a TIFF or OME-TIFF stack (z, y, x) of one bead.

    Returns
    -------
    image : ndarray, shape (z, y, x)
        As stored.
    voxel_um : tuple of float, optional
        Pitch (z, y, x) in OME metadata, in µm; None without them.

    Raises
    ------
    RawDataError
        The file is missing, no TIFF, or no stack, or its OME metadata are broken.
    """
    with raw_file_errors(str(path)):
        headers_of(path)
    with raw_file_errors(str(path)), tifffile.TiffFile(path) as file:
        image = np.squeeze(file.asarray())
        xml = file.ome_metadata
    if image.ndim != 3:
        raise RawDataError(f"{path} has shape {image.shape}; give a stack (z, y, x) of a bead")
    ome = describe_image(xml, str(path), 0) if xml else None
    if not ome or not (ome.z_step_um and ome.pixel_y_um and ome.pixel_um):
        return image, None
    return image, (ome.z_step_um, ome.pixel_y_um, ome.pixel_um)
