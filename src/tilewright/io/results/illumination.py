"""Flat-field and dark-field files of one cycle, a page for each channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.results.result_file import (
    read_json,
    result_file_errors,
    result_path,
    write_json,
)
from tilewright.io.tiff.headers import headers_of

#: ``offset_method`` of an offset that the tiles only bound, ``saturation_method`` of a camera that
#: clips below the largest value of its files: both are in the report.
OFFSET_BOUND = "5th percentile over images of their 1st percentile: an upper bound"
CLIPPED_BELOW = "the histogram piles up there"


@dataclass(frozen=True)
class Illumination:
    """Illumination of one cycle and channel.

    Attributes
    ----------
    flat : float32 (y, x)
        Relative sensitivity, mean 1, > 0.
    dark : float32 (y, x)
        Counts without light: the camera offset, or a dark-field.
    pedestal : float
        Counts at which corrected images keep zero light: the median of ``dark`` as an integer.
    """

    flat: NDArray[np.float32]
    dark: NDArray[np.float32]
    pedestal: float

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


def read_plane(path: str | Path, page: int | None = None) -> NDArray[np.float32]:
    """Return one page of a TIFF, None the only one, as float32 (y, x).

    Raises
    ------
    RawDataError
        It is anything but one finite plane.
    """
    headers_of(path)
    plane = np.squeeze(np.asarray(tifffile.imread(path, key=page)))
    if plane.ndim != 2 or not np.isfinite(plane).all():
        raise RawDataError(
            f"{path} must hold one plane (y, x) of finite values; it has shape {plane.shape}"
        )
    return plane.astype(np.float32)


def read_numbers(json_path: str | Path) -> list[dict[str, Any]]:
    """Return the numbers of each channel that :func:`write_illumination` wrote.

    Raises
    ------
    ResultFileError
        The file is damaged.
    """
    with result_file_errors(json_path, "record of flat-fields"):
        return list(read_json(json_path)["channels"])


def read_illumination(
    flat_path: str | Path, dark_path: str | Path, json_path: str | Path, channel: str
) -> tuple[Illumination, dict[str, Any]]:
    """Read a channel of what :func:`write_illumination` wrote: its fields and numbers.

    Raises
    ------
    ResultFileError
        A file is damaged, or they do not fit each other.
    """
    channels = read_numbers(json_path)
    with result_file_errors(json_path, "record of flat-fields"):
        page = [numbers["channel"] for numbers in channels].index(channel)
    with result_file_errors(flat_path, "flat-field"):
        flat = read_plane(flat_path, page)
    with result_file_errors(dark_path, "dark-field of that flat-field"):
        return Illumination.from_fields(flat, read_plane(dark_path, page)), channels[page]


def write_illumination(
    stem: str | Path, channels: Mapping[str, tuple[Illumination, Mapping[str, Any]]]
) -> tuple[Path, Path, Path]:
    """Write ``{stem}-ffp.tif``, ``{stem}-dfp.tif`` and ``{stem}.json`` of a cycle.

    Each file is written atomically.

    Parameters
    ----------
    stem : str or Path
        Path without the endings; parent folders are made.
    channels : mapping
        Of each channel its fields, written as float32 pages (channel, y, x) without timestamps,
        and what the JSON holds of it besides ``channel`` and ``pedestal_counts``; no NaN or
        infinity.

    Returns
    -------
    tuple of Path
        Paths of the flat-fields, the dark-fields and the JSON.
    """
    flat_path, dark_path, json_path = (
        Path(f"{stem}{e}") for e in ("-ffp.tif", "-dfp.tif", ".json")
    )
    fields = [illumination for illumination, _ in channels.values()]
    for path, planes in (
        (flat_path, [each.flat for each in fields]),
        (dark_path, [each.dark for each in fields]),
    ):
        with result_path(path) as partial:
            # A fixed description and software tag keep the same bytes for the same input.
            tifffile.imwrite(
                partial,
                np.stack(planes).astype(np.float32, copy=False),
                photometric="minisblack",
                compression="zlib",
                predictor=True,
                metadata=None,
                software="tilewright",
            )
    content = [
        {**numbers, "channel": name, "pedestal_counts": illumination.pedestal}
        for name, (illumination, numbers) in channels.items()
    ]
    write_json(json_path, {"channels": content}, indent=2, sort_keys=True)
    return flat_path, dark_path, json_path
