"""Flat-field and dark-field files of one cycle and channel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.results.reading import result_file_errors
from tilewright.runtime.files import atomic_path, write_text_atomic

#: ``offset_method`` of an offset that the tiles only bound, ``saturation_method`` of a camera that
#: clips below the largest value of its files: both are in the report.
OFFSET_BOUND = "5th percentile over images of their 1st percentile: an upper bound"
CLIPPED_BELOW = "the histogram piles up there"


@dataclass(frozen=True)
class Illumination:
    """Illumination of one cycle and channel."""

    flat: NDArray[np.float32]
    """float32 (y, x): relative sensitivity, mean 1, > 0."""
    dark: NDArray[np.float32]
    """float32 (y, x): counts without light: the camera offset, or a dark-field."""
    pedestal: float
    """Counts at which corrected images keep zero light: the median of ``dark`` as an integer."""

    @classmethod
    def from_fields(cls, flat: NDArray[Any], dark: NDArray[Any] | float) -> Illumination:
        """Normalise ``flat`` to mean 1 and derive the pedestal.

        Parameters
        ----------
        flat : ndarray, shape (y, x)
            Sensitivity in any unit, finite and > 0.
        dark : ndarray of shape (y, x), or float
            Counts without light.

        Raises
        ------
        ValueError
            ``flat`` is not a finite positive plane, or ``dark`` has another shape or is not finite.
        """
        gain = np.asarray(flat, dtype=np.float64)
        if gain.ndim != 2 or gain.size == 0 or not np.isfinite(gain).all() or gain.min() <= 0:
            raise ValueError("a flat-field must be one plane (y, x) of finite values above 0")
        zero = np.asarray(dark, dtype=np.float32)
        if zero.shape not in ((), gain.shape) or not np.isfinite(zero).all():
            raise ValueError(
                f"the dark-field has shape {zero.shape} and the flat-field {gain.shape}; "
                "both must be finite and equal in shape"
            )
        zero = np.array(np.broadcast_to(zero, gain.shape))
        normal = (gain / gain.mean()).astype(np.float32)
        return cls(normal, zero, float(np.rint(np.median(zero))))


def read_plane(path: str | Path) -> NDArray[np.float32]:
    """Return a single-plane TIFF as float32 (y, x).

    Raises
    ------
    RawDataError
        It holds anything but one finite plane.
    """
    plane = np.squeeze(np.asarray(tifffile.imread(path)))
    if plane.ndim != 2 or not np.isfinite(plane).all():
        raise RawDataError(
            f"{path} must hold one plane (y, x) of finite values; it has shape {plane.shape}"
        )
    return plane.astype(np.float32)


def read_illumination(flat_path: str | Path, dark_path: str | Path) -> Illumination:
    """Read what :func:`write_illumination` wrote.

    Raises
    ------
    ResultFileError
        A file is damaged, or the two do not fit each other.
    """
    with result_file_errors(flat_path, "flat-field"):
        flat = read_plane(flat_path)
    with result_file_errors(dark_path, "dark-field of that flat-field"):
        return Illumination.from_fields(flat, read_plane(dark_path))


def write_illumination(
    stem: str | Path, illumination: Illumination, numbers: Mapping[str, Any]
) -> tuple[Path, Path, Path]:
    """Write ``{stem}-ffp.tif``, ``{stem}-dfp.tif`` and ``{stem}.json``.

    Each file is written atomically.

    Parameters
    ----------
    stem : str or Path
        Path without the endings; parent folders are made.
    illumination : Illumination
        The fields, written as float32 TIFFs without timestamps.
    numbers : mapping
        What the JSON holds besides ``pedestal_counts``; no NaN or infinity.

    Returns
    -------
    tuple of Path
        Paths of the flat-field, the dark-field and the JSON.
    """
    flat_path, dark_path, json_path = (
        Path(f"{stem}{e}") for e in ("-ffp.tif", "-dfp.tif", ".json")
    )
    for path, plane in ((flat_path, illumination.flat), (dark_path, illumination.dark)):
        with atomic_path(path) as partial:
            # A fixed description and software tag keep the same bytes for the same input.
            tifffile.imwrite(
                partial,
                np.ascontiguousarray(plane, dtype=np.float32),
                compression="zlib",
                predictor=True,
                metadata=None,
                software="tilewright",
            )
    content = {"pedestal_counts": illumination.pedestal, **numbers}
    text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"
    write_text_atomic(json_path, text)
    return flat_path, dark_path, json_path
